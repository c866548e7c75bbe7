"""One owner's view of an open app: what every verb is given first."""

from typing import TYPE_CHECKING

from penstock.config import check_name
from penstock.model.nouns import Owner
from penstock.verbs.resources import Resources

if TYPE_CHECKING:
    from penstock.stages.base import Ports
    from penstock.workflows.catalog import Catalog


class Scope:
    def __init__(self, resources: Resources, owner: str) -> None:
        self.owner = Owner(check_name("owner", owner))
        self.resources = resources
        self.config = resources.config
        self.runtime = resources.runtime
        self.ledger = resources.ledger
        self.blobs = resources.blobs

    @property
    def ports(self) -> "Ports":
        return self.resources.ports

    @property
    def catalog(self) -> "Catalog":
        """The workflows and parameter sets that can be named."""
        return self.resources.catalog


def chosen_collection(scope: Scope, name: str | None) -> str:
    """A checked name; where none is given, the configured one."""
    # Only None means the configured collection: an empty name is a mistake of the caller.
    return check_name("collection", scope.config.collection if name is None else name)
