"""The stages that ship, by kind. `index` is not among them: its steps run in groups (worker/indexing.py)."""

from collections.abc import Mapping

from penstock.stages.base import Stage
from penstock.stages.chunk import CHUNK
from penstock.stages.clean import CLEAN
from penstock.stages.embed import EMBED
from penstock.stages.extract import EXTRACT
from penstock.stages.validate import VALIDATE

STAGES: Mapping[str, Stage] = {stage.kind: stage for stage in (VALIDATE, EXTRACT, CLEAN, CHUNK, EMBED)}
KINDS = (*STAGES, "index")
