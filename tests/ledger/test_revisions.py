"""Revisions of sources: they belong to the bytes of a document, and to one owner."""

from tests.kit.ledger import ANNA, Desk

from penstock.ledger.engine import revisions
from penstock.ledger.engine.revisions import NewRevision, Revised
from penstock.model.nouns import Owner

BERT = Owner("bert")


async def known(desk: Desk, owner: Owner = ANNA) -> dict[str, str]:
    found = await desk.ledger.read(lambda c: revisions.of(owner, c, "default", ["/a", "/b", "/none"]))
    return {source: one.revision for source, one in found.items()}


async def revise(desk: Desk, document: str, sha256: str, revision: str, owner: Owner = ANNA) -> None:
    new = NewRevision(document, sha256, revision)  # type: ignore[arg-type]
    await desk.ledger.write(revisions.REVISE, Revised(owner, (new,)))


async def test_a_revision_is_kept_only_for_the_bytes_that_it_belongs_to(desk: Desk) -> None:
    await desk.submit("/a", "/b")
    [document, sha256] = (await desk.rows("SELECT id, sha256 FROM documents WHERE source = '/a'"))[0]
    assert await known(desk) == {"/a": "", "/b": ""}
    await revise(desk, document, "other bytes", "1")
    assert await known(desk) == {"/a": "", "/b": ""}
    await revise(desk, document, sha256, "1")
    assert await known(desk) == {"/a": "1", "/b": ""}
    await desk.submit("/a", content="changed")
    assert await known(desk) == {"/a": "", "/b": ""}, "the new bytes have no revision yet"


async def test_i10_no_revision_crosses_owners(desk: Desk) -> None:
    await desk.submit("/a")
    [document, sha256] = (await desk.rows("SELECT id, sha256 FROM documents"))[0]
    await revise(desk, document, sha256, "1", owner=BERT)
    assert await known(desk) == {"/a": ""}
    await revise(desk, document, sha256, "1")
    assert await known(desk, BERT) == {}
