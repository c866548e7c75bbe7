"""Documents are found by id, by parts of it, by path and by name, and never those of another owner."""

import os
from pathlib import Path

import pytest
from tests.conftest import StartApp

from penstock import App
from penstock.errors import NotFound


async def submit(app: App, path: Path, owner: str = "default") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"the words of {path}")
    [receipt] = [one async for one in app.for_owner(owner).submit([path])]
    assert receipt.id is not None
    return receipt.id


async def test_a_document_is_found_by_id_prefix_suffix_path_and_name(
    start_app: StartApp, database_url: str, tmp_path: Path
) -> None:
    app = await start_app(database=database_url)
    path = tmp_path / "notes" / "heron.txt"
    document = await submit(app, path)
    for name in (document, document.lower(), document[:-2], document[-6:], str(path), os.path.relpath(path)):
        assert (await app.status(name)).id == document, name
    assert (await app.status("heron.txt")).id == document
    assert await app.cancel(["heron.txt"]) == {document}
    assert await app.delete([str(path)]) == {document}
    with pytest.raises(NotFound):
        await app.status("heron.txt")


async def test_an_ambiguous_name_lists_its_candidates(start_app: StartApp, database_url: str, tmp_path: Path) -> None:
    app = await start_app(database=database_url)
    paths = [tmp_path / folder / "heron.txt" for folder in ("a", "b")]
    ids = [await submit(app, path) for path in paths]
    with pytest.raises(NotFound) as caught:
        await app.delete(["heron.txt"])
    assert all(f"{i}  PENDING  {path}" in str(caught.value) for i, path in zip(ids, paths, strict=True))
    assert len(await app.list_documents()) == 2


async def test_a_document_is_found_by_the_end_of_its_path_as_lists_show_it(
    start_app: StartApp, database_url: str, tmp_path: Path
) -> None:
    app = await start_app(database=database_url)
    ids = [await submit(app, tmp_path / folder / "heron.txt") for folder in ("a/x", "b/x")]
    assert [(await app.status(name)).id for name in ("a/x/heron.txt", "b/x/heron.txt")] == ids
    with pytest.raises(NotFound, match="may mean any"):
        await app.status("x/heron.txt")
    # Only whole names of folders count, and no character is a wildcard.
    for name in ("eron.txt", "/eron.txt", "%/heron.txt", "_/x/heron.txt", "c/x/heron.txt"):
        with pytest.raises(NotFound, match="no document"):
            await app.status(name)


async def test_i10_no_name_finds_a_document_of_another_owner(
    start_app: StartApp, database_url: str, tmp_path: Path
) -> None:
    app = await start_app(database=database_url)
    path = tmp_path / "heron.txt"
    document = await submit(app, path, "anna")
    for name in (document, document[:-2], document[-6:], str(path), "heron.txt", f"{tmp_path.name}/heron.txt"):
        with pytest.raises(NotFound, match="no document"):
            await app.for_owner("bert").status(name)
    assert (await app.for_owner("anna").status("heron.txt")).id == document


async def test_a_list_continues_after_a_document(start_app: StartApp, database_url: str, tmp_path: Path) -> None:
    app = await start_app(database=database_url)
    ids = [await submit(app, tmp_path / f"{i}.txt") for i in range(5)]
    first = await app.list_documents(limit=2)
    rest = await app.list_documents(after=first[-1].id.lower())
    assert [d.id for d in (*first, *rest)] == ids[::-1]
