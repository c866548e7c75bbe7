"""What a client of the MCP server may do."""

from typing import NamedTuple

from penstock.verbs.owner import OwnerScope


class Access(NamedTuple):
    scope: OwnerScope
    """The methods for the owner of the client."""
    can_ingest: bool = False
    """Whether the client may submit documents and retry failed ones."""
    collections: tuple[str, ...] | None = None
    """The collections that the client may use; None: all."""

    def chosen(self, collection: str | None) -> tuple[str, ...] | None:
        """The collections of a search: the one that was asked for, or all that the client may use. None: the configured
        one."""
        if collection is None:
            return self.collections
        return (collection,) if self.sees(collection) else ()

    def sees(self, collection: str) -> bool:
        return self.collections is None or collection in self.collections
