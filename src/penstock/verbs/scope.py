"""An owner and the open app: the first argument of every function in `penstock.verbs`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.config import check_name
from penstock.ledger.engine import audit_log
from penstock.model.callers import LOCAL
from penstock.model.nouns import Owner
from penstock.verbs.resources import Resources

if TYPE_CHECKING:
    from penstock.stages.base import Ports
    from penstock.workflows.catalog import Catalog


class Scope:
    def __init__(self, resources: Resources, owner: str, actor: str = LOCAL) -> None:
        self.owner = Owner(check_name("owner", owner))
        self.actor = actor
        """Who the audit log names."""
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
        """The workflows and parameter sets that are defined."""
        return self.resources.catalog


async def record(
    scope: Scope,
    action: str,
    subject: str,
    given: Mapping[str, Any] | None = None,
    former: Mapping[str, Any] | None = None,
) -> None:
    """Write a change that has just been made into the audit log."""
    change = audit_log.Change(scope.owner, scope.actor, action, subject, given or {}, former or {})
    await scope.ledger.write(audit_log.RECORD, change)


def chosen_collection(scope: Scope, name: str | None) -> str:
    """Return the validated name, or the configured collection if none is given."""
    # Only None means the configured collection. An empty name is an error.
    return check_name("collection", scope.config.collection if name is None else name)
