"""Calls of the library that look right and are not: each is a clear error before anything is written, or just works."""

import io
from pathlib import Path
from typing import Any

import pytest

from penstock import App, UsageError


async def test_one_path_needs_no_list(app: App, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("One.")
    (folder / "b.md").write_text("Two.")
    assert (await app.ingest(str(folder), include="*.txt")).completed == 1
    assert (await app.ingest(folder, exclude="*.md")).skipped == 1
    assert [receipt.outcome async for receipt in app.submit(folder / "b.md")] == ["submitted"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"paths": "no-such-folder"}, "no-such-folder: no such file or folder"),
        ({"paths": 3}, "paths 3: expected a list"),
        ({"data": "abc", "name": "a.txt"}, "expected bytes, not text: use data=text.encode"),
        ({"data": io.StringIO("abc"), "name": "a.txt"}, 'open the file with mode "rb"'),
        ({"data": 7, "name": "a.txt"}, "data 7: expected bytes"),
        ({"data": b"abc"}, 'data needs a name, as in name="notes.txt"'),
        ({"data": b"abc", "name": "a.txt", "metadata": {"at": {1, 2}}}, "metadata cannot be stored as JSON"),
        ({"data": b"abc", "name": "a.txt", "metadata": {"at": float("nan")}}, "metadata cannot be stored as JSON"),
        ({"data": b"abc", "name": "a.txt", "metadata": {1: "x"}}, "expected names that are text"),
        ({"data": b"abc", "name": "a.txt", "metadata": "tag"}, "expected a mapping"),
        ({"data": b"abc", "name": "a.txt", "include": 4}, "pattern 4: expected a list"),
        ({"data": b"abc", "name": "a.txt", "budget_s": float("nan")}, "budget_s nan: expected seconds"),
    ],
)
async def test_a_wrong_call_is_refused_before_anything_is_written(
    app: App, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        await app.ingest(**arguments)
    assert told in str(caught.value)
    arguments.pop("budget_s", None)
    if arguments.get("name") and "nan: expected seconds" not in told:
        with pytest.raises(UsageError):
            [receipt async for receipt in app.submit(**arguments)]
    assert await app.list_documents() == []


async def test_bytes_of_any_kind_are_taken(app: App) -> None:
    assert (await app.ingest(data=bytearray(b"One."), name="a.txt")).completed == 1
    assert (await app.ingest(data=memoryview(b"Two."), name="b.txt")).completed == 1
    assert (await app.ingest(data=io.BytesIO(b"Three."), name="c.txt")).completed == 1


@pytest.mark.parametrize("mode", ["fuzzy", "", None, 3])
async def test_a_wrong_mode_is_refused(app: App, mode: Any) -> None:
    with pytest.raises(UsageError, match="use one of hybrid, vector, text"):
        await app.search("x", mode=mode)
