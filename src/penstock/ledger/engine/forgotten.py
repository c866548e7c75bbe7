"""Forgotten sources: documents that were deleted and must stay away when their folder is ingested again."""

from collections.abc import Sequence

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import DocumentId, Owner

_FORGET = Statement(
    "INSERT INTO forgotten (owner, collection, source, forgotten_at) SELECT d.owner, d.collection, d.source, {now} "
    "FROM {rows} JOIN documents d ON d.id = r.document AND {d.owner} WHERE true ON CONFLICT DO NOTHING",
    rows="document text",
)
_SOURCES = Statement("SELECT source FROM forgotten WHERE owner = :owner AND collection = :collection")
_REMEMBER = Statement("DELETE FROM forgotten WHERE owner = :owner AND collection = :collection AND source = :source")
_DELETED = Statement(
    "SELECT DISTINCT d.source FROM {rows} JOIN documents d ON d.source = r.source AND {d.owner} "
    "AND d.collection = :collection AND d.deleted_at IS NOT NULL",
    rows="source text",
)


def forget(owner: Owner, connection: Connection, documents: Sequence[DocumentId]) -> None:
    """Keep the sources of these documents away. A delete calls this in its transaction."""
    connection.run(_FORGET, [(document,) for document in documents], owner=owner)


def sources(owner: Owner, connection: Connection, collection: str) -> frozenset[str]:
    """The sources that stay away from a collection."""
    return frozenset(row[0] for row in connection.run(_SOURCES, owner=owner, collection=collection))


def deleted(owner: Owner, connection: Connection, collection: str, wanted: Sequence[str]) -> set[str]:
    """The sources among these of which a document was deleted. History that was pruned does not count."""
    rows = connection.run(_DELETED, [(source,) for source in wanted], owner=owner, collection=collection)
    return {row[0] for row in rows}


def _remember(connection: Connection, places: Sequence[tuple[Owner, str, str]]) -> list[None]:
    for owner, collection, source in places:
        connection.run(_REMEMBER, owner=owner, collection=collection, source=source)
    return [None for _ in places]


REMEMBER = Verb("remember", _remember)
"""Let a source come back."""
