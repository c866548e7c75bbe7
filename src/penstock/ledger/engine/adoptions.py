"""Adoption: a ledger takes over complete artifacts of another ledger, whose blobs it can read. A step that asks for one
of them finds it complete and does no work."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import Owner


class Adoption(msgspec.Struct, frozen=True):
    owner: Owner
    artifacts: tuple[tuple[str, str, str, int, int, str], ...]
    """Fingerprint, kind, cursor, number of items, number of segments, meta."""
    segments: tuple[tuple[str, int, str, str, int, int, int, str], ...]
    """The fingerprint of the artifact, ordinal, key, hash, size, number of items, first item, cursor."""


_ADOPT = Statement(
    "INSERT INTO artifacts (owner, fingerprint, kind, state, cursor, items, segments, meta, created_at, updated_at) "
    "SELECT :owner, r.fp, r.kind, 'COMPLETE', r.pos, r.total, r.parts, r.info, {now}, {now} FROM {rows} WHERE true "
    "ON CONFLICT (owner, fingerprint) DO NOTHING RETURNING fingerprint",
    rows="fp text, kind text, pos text, total bigint, parts int, info text",
)
_SEGMENT = Statement(
    "INSERT INTO segments (artifact_id, ordinal, key, sha256, size, items, first, cursor) "
    "SELECT a.id, r.ordinal, r.key, r.sha256, r.size, r.items, r.first, r.cursor FROM {rows} "
    "JOIN artifacts a ON a.owner = :owner AND a.fingerprint = r.fp WHERE true ON CONFLICT DO NOTHING",
    rows="fp text, ordinal int, key text, sha256 text, size bigint, items int, first bigint, cursor text",
)


def _adopt(connection: Connection, adoptions: Sequence[Adoption]) -> list[int]:
    """Insert the artifacts that are not known, with their segments. Return how many."""
    counts = []
    for adoption in adoptions:
        rows = connection.run(_ADOPT, list(adoption.artifacts), owner=adoption.owner) if adoption.artifacts else []
        new = {row[0] for row in rows}
        segments = [segment for segment in adoption.segments if segment[0] in new]
        if segments:
            connection.run(_SEGMENT, segments, owner=adoption.owner)
        counts.append(len(new))
    return counts


ADOPT = Verb("adopt", _adopt)
