"""The hosts of grouped kinds that need more than `GroupHost`, by kind."""

from collections.abc import Mapping

from penstock.stages.index import INDEX
from penstock.worker.hosting import GroupHost
from penstock.worker.indexing import Indexer

HOSTS: Mapping[str, type[GroupHost]] = {INDEX.kind: Indexer}
