"""Submitted metadata of documents: set and remove keys without a new run.

A searchable generation shows the metadata of its document. If a newer version is submitted with other metadata, the
searchable one keeps its own in `generations.submitted` until it is replaced (I5)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import DocumentId, Owner


class MetadataChange(msgspec.Struct, frozen=True):
    """Keys to set, and keys to remove."""

    owner: Owner
    document: DocumentId
    set: Mapping[str, Any]
    remove: tuple[str, ...] = ()

    def applied(self, text: str) -> str:
        kept = {key: value for key, value in json.loads(text).items() if key not in self.remove}
        return json.dumps(kept | dict(self.set))


_PRESENT = Statement(
    "SELECT d.id, d.metadata, g.id, g.submitted FROM {rows} JOIN documents d ON d.id = r.document AND {d.owner} "
    "AND d.deleted_at IS NULL LEFT JOIN generations g ON g.document_id = d.id AND g.state = 'ACTIVE'",
    rows="document text",
)
_HOLD = Statement(
    "SELECT id FROM documents WHERE {owner} AND id IN (SELECT r.document FROM {rows}) ORDER BY id {hold}",
    rows="document text",
)
_SET = Statement(
    "UPDATE documents SET metadata = r.info, updated_at = {now} FROM {rows} WHERE {documents.id = r.document}",
    rows="document text, info text",
)
_KEEP = Statement(
    "UPDATE generations SET submitted = r.info FROM {rows} WHERE {generations.id = r.generation}",
    rows="generation bigint, info text",
)


def change(owner: Owner, connection: Connection, changes: Sequence[MetadataChange]) -> set[DocumentId]:
    """Apply changes to the documents and to what search shows of them. Returns those that were different before."""
    rows = [(one.document,) for one in changes]
    connection.run(_HOLD, rows, owner=owner)
    present = {row[0]: row[1:] for row in connection.run(_PRESENT, rows, owner=owner)}
    documents: list[tuple[DocumentId, str]] = []
    generations: list[tuple[int, str]] = []
    changed: set[DocumentId] = set()
    for one in changes:
        if one.document not in present:
            continue
        text, generation, shown = present[one.document]
        if _differs(text, new := one.applied(text)):
            documents.append((one.document, new))
            changed.add(one.document)
        if shown is not None and _differs(shown, new := one.applied(shown)):
            generations.append((generation, new))
            changed.add(one.document)
    if documents:
        connection.run(_SET, documents)
    if generations:
        connection.run(_KEEP, generations)
    return changed


def renew(
    owner: Owner, connection: Connection, versions: Sequence[tuple[DocumentId, Mapping[str, Any]]]
) -> dict[DocumentId, str]:
    """The metadata of new versions: that of the documents with the given keys. What is searchable keeps its own."""
    present = {row[0]: row[1:] for row in connection.run(_PRESENT, [(d,) for d, _ in versions], owner=owner)}
    result: dict[DocumentId, str] = {}
    kept: list[tuple[int, str]] = []
    for document, given in versions:
        text, generation, shown = present[document]
        result[document] = new = json.dumps(json.loads(text) | dict(given))
        if generation is not None and shown is None and _differs(text, new):
            kept.append((generation, text))
    if kept:
        connection.run(_KEEP, kept)
    return result


def _differs(old: str, new: str) -> bool:
    # As text, because 1, 1.0 and true are equal in Python.
    return json.dumps(json.loads(old), sort_keys=True) != json.dumps(json.loads(new), sort_keys=True)


def _change(connection: Connection, changes: Sequence[MetadataChange]) -> list[bool]:
    return [bool(change(one.owner, connection, [one])) for one in changes]


CHANGE = Verb("change_metadata", _change, counts=True)
