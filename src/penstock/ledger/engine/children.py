"""Children: documents that were found inside another one. A submit of children is gated on the lease of the step that
found them (I3), so a stale worker adds none, and none is added to a document that was deleted or replaced."""

from collections.abc import Sequence

import msgspec

from penstock.errors import Permanent
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine.steps import SETTINGS
from penstock.model.nouns import DocumentId, GenerationId, Lease, Owner, RunId


class Parent(msgspec.Struct, frozen=True):
    """The document in which others were found, and the lease of the step that found them."""

    document_id: DocumentId
    generation_id: GenerationId
    lease: Lease
    root_id: DocumentId
    """The outermost document."""
    depth: int
    """The number of documents around the parent."""
    group_id: str | None
    most_members: int
    """The limits for everything inside the outermost document."""
    most_bytes: int


class Origin(msgspec.Struct, frozen=True):
    """What children get from the run of their parent."""

    settings: str
    priority: int
    group_id: str | None
    batch: str | None
    root_id: DocumentId
    depth: int
    members: int
    """The number of documents found so far inside the outermost one."""
    bytes: int
    """Their total size."""


_ORIGIN = Statement(
    f"SELECT {SETTINGS}, x.priority, x.group_id, d.batch, coalesce(d.root_id, d.id), d.depth, t.unpacked_members, "
    "t.unpacked_bytes FROM runs x JOIN documents d ON d.id = x.document_id "
    "JOIN documents t ON t.id = coalesce(d.root_id, d.id) WHERE x.id = :run AND x.owner = :owner"
)


def origin(owner: Owner, connection: Connection, run: RunId) -> Origin | None:
    """What the children of a run get; None if the run no longer exists."""
    rows = connection.run(_ORIGIN, owner=owner, run=run)
    return Origin(*rows[0]) if rows else None


MEGABYTE = 1_000_000

# Documents before steps, as delete does: two transactions that wait for each other would both be too late.
_HOLD = Statement(
    "SELECT id, unpacked_members, unpacked_bytes FROM documents WHERE {owner} "
    "AND id IN (SELECT r.document FROM {rows}) ORDER BY id {hold}",
    rows="document text",
)
_LEASED = Statement("SELECT id FROM steps WHERE id = :step AND lease_token = :token {hold}")


def hold_lease(owner: Owner, connection: Connection, parent: Parent, more: int = 0) -> bool:
    """Whether the parent is the owner's, and the step that found the children still has its lease. Until this
    transaction ends it keeps it, and nobody deletes or replaces the parent. Raises Permanent if `more` children are too
    many for the outermost document."""
    rows = [(document,) for document in sorted({parent.root_id, parent.document_id})]
    held = {row[0]: (row[1], row[2]) for row in connection.run(_HOLD, rows, owner=owner)}
    if parent.document_id not in held:
        return False
    if not connection.run(_LEASED, step=parent.lease.step_id, token=parent.lease.token):
        return False
    if more and parent.root_id in held:
        check_limits(parent, *held[parent.root_id], more)
    return True


def check_limits(parent: Parent, members: int, size: int, more: int) -> None:
    """Raise Permanent if the outermost document contains too much for `more` children."""
    if members + more > parent.most_members:
        raise _beyond("documents", parent.most_members, "members", reason="too_many_members")
    if size > parent.most_bytes:
        most = parent.most_bytes // MEGABYTE
        raise _beyond("megabytes", most, "members_megabytes", reason="unpacked_too_large")


def _beyond(what: str, limit: int, setting: str, *, reason: str) -> Permanent:
    return Permanent(
        f"the outermost document contains more than {limit:,} {what} (limits.{setting}): it may be made to fill a "
        "disk. What was found before is kept. If it is genuine, raise the limit and retry it",
        reason=reason,
    )


_ADOPT = Statement(
    "UPDATE documents SET parent_id = :parent, root_id = :root, depth = :depth, parent_generation = :generation "
    "WHERE {owner} AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)
_COUNT = Statement(
    "UPDATE documents SET unpacked_members = unpacked_members + :members, unpacked_bytes = unpacked_bytes + :bytes "
    "WHERE {owner} AND id = :root"
)
_RESET = Statement(
    "UPDATE documents SET unpacked_members = 0, unpacked_bytes = 0 WHERE {owner} AND parent_id IS NULL "
    "AND unpacked_members > 0 AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)


def adopt(owner: Owner, connection: Connection, parent: Parent, children: Sequence[DocumentId], size: int) -> None:
    """Record whose children these are, and that the parent's generation contains them."""
    connection.run(
        _ADOPT,
        [(child,) for child in children],
        owner=owner,
        parent=parent.document_id,
        root=parent.root_id,
        depth=parent.depth + 1,
        generation=parent.generation_id,
    )
    connection.run(_COUNT, owner=owner, root=parent.root_id, members=len(children), bytes=size)


def reset_counts(owner: Owner, connection: Connection, documents: Sequence[DocumentId]) -> None:
    """Count from zero what new runs of these documents find inside them."""
    connection.run(_RESET, [(document,) for document in documents], owner=owner)


_CHILDREN = Statement(
    "SELECT id FROM documents WHERE {owner} AND deleted_at IS NULL "
    "AND parent_id IN (SELECT r.document FROM {rows}) ORDER BY id {hold}",
    rows="document text",
    plan_anew=True,
)
_GONE = Statement(
    "SELECT id FROM documents WHERE {owner} AND deleted_at IS NULL AND parent_id = :parent "
    "AND parent_generation < :generation ORDER BY id LIMIT :count"
)
_WORKED_ON = Statement(
    "SELECT c.id, c.size FROM {rows} JOIN documents c ON c.parent_id = r.document AND c.deleted_at IS NULL "
    "AND {c.owner} WHERE c.updated_at >= (SELECT max(x.created_at) FROM runs x "
    "WHERE x.document_id = r.document)",
    rows="document text",
    plan_anew=True,
)
_UNFINISHED = Statement(
    "SELECT c.id, c.size FROM {rows} JOIN documents c ON c.parent_id = r.document AND c.deleted_at IS NULL "
    "AND {c.owner} WHERE c.status IN ('PENDING', 'EXTRACTING', 'CHUNKING', 'EMBEDDING', 'INDEXING')",
    rows="document text",
    plan_anew=True,
)
_COUNTS = Statement(
    "SELECT status, count(*) FROM documents WHERE {owner} AND parent_id = :parent AND deleted_at IS NULL "
    "GROUP BY status ORDER BY status"
)
_LEVEL = Statement(
    "SELECT id FROM documents WHERE {owner} AND deleted_at IS NULL AND parent_id IN (SELECT r.document FROM {rows}) "
    "ORDER BY id",
    rows="document text",
    plan_anew=True,
)


def held(owner: Owner, connection: Connection, parents: Sequence[DocumentId]) -> list[DocumentId]:
    """The children of documents whose leases are gone, so that no others are added. On PostgreSQL nobody else changes
    them until this transaction ends."""
    return [DocumentId(row[0]) for row in connection.run(_CHILDREN, [(one,) for one in parents], owner=owner)]


def of(owner: Owner, connection: Connection, parents: Sequence[DocumentId]) -> list[DocumentId]:
    return [DocumentId(row[0]) for row in connection.run(_LEVEL, [(one,) for one in parents], owner=owner)]


def gone(owner: Owner, connection: Connection, parent: Parent, count: int) -> list[DocumentId]:
    """Children that only older generations of the parent contain."""
    rows = connection.run(_GONE, owner=owner, parent=parent.document_id, generation=parent.generation_id, count=count)
    return [DocumentId(row[0]) for row in rows]


def worked_on(owner: Owner, connection: Connection, parents: Sequence[DocumentId]) -> list[tuple[DocumentId, int]]:
    """The children that the newest runs of these documents added or changed, with their sizes."""
    rows = connection.run(_WORKED_ON, [(one,) for one in parents], owner=owner)
    return [(DocumentId(row[0]), row[1]) for row in rows]


def unfinished(owner: Owner, connection: Connection, parents: Sequence[DocumentId]) -> list[tuple[DocumentId, int]]:
    """The children that have not ended, with their sizes."""
    rows = connection.run(_UNFINISHED, [(one,) for one in parents], owner=owner)
    return [(DocumentId(row[0]), row[1]) for row in rows]


def counts(owner: Owner, connection: Connection, parent: DocumentId) -> dict[str, int]:
    """The number of children by status."""
    return {row[0]: row[1] for row in connection.run(_COUNTS, owner=owner, parent=parent)}
