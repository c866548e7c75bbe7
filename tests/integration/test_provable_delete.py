"""A delete is provable: after purge, prune and vacuum, no byte of a home, a bucket or a database has a word of the
documents, their children, names or metadata."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration.test_object_blobs import own_server as own_server
from tests.integration.test_object_blobs import shelf as shelf
from tests.kit import s3
from tests.kit.apps import found
from tests.kit.archives import make_zip
from tests.kit.damage import clean
from tests.kit.pdfs import numbered, pdf
from tests.kit.s3 import S3Server

from penstock.app import App

NAME, TITLE, BODY, SMALL, CHILD, PAGE = WORDS = ("zwqname", "zwqtitle", "zwqbody", "zwqsmall", "zwqchild", "zwqpage")


def contents(path: Path) -> bytes:
    """The bytes of a file. Lance compresses texts: its files are decoded too, with the rows that were removed."""
    data = path.read_bytes()
    if path.suffix != ".lance":
        return data
    from lance.file import LanceFileReader

    return data + str(LanceFileReader(str(path)).read_all().to_table().to_pydict()).encode()


def in_files(home: Path) -> Iterator[tuple[str, bytes]]:
    yield from ((str(path.relative_to(home)), contents(path)) for path in home.rglob("*") if path.is_file())


def in_bucket(shelf: s3.Prefix) -> Iterator[tuple[str, bytes]]:
    store = shelf.server.store(s3.BUCKET)
    for page in store.list(shelf.name):
        yield from ((one["path"], bytes(store.get(one["path"]).bytes())) for one in page)


def in_database(url: str) -> Iterator[tuple[str, bytes]]:
    """All rows of all tables. Binary columns are shown as hexadecimal digits."""
    import psycopg

    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        for (table,) in tables:
            for (row,) in connection.execute(f"SELECT t::text FROM {table} t".encode()):
                yield table, row.encode()


def holders(places: list[Callable[[], Iterator[tuple[str, bytes]]]]) -> dict[str, set[str]]:
    """Where each word is."""
    seen: dict[str, set[str]] = {word: set() for word in WORDS}
    for place in places:
        for name, data in place():
            for word in WORDS:
                if word.encode() in data or word.encode().hex().encode() in data or word in name:
                    seen[word].add(name)
    return seen


def indexed_words(home: Path) -> list[int]:
    """How many words and grams the text indexes know. Their dictionaries are finite-state transducers, whose number of
    keys is before the last 12 bytes."""
    from lance.file import LanceFileReader

    counts = []
    for path in sorted(home.rglob("*_tokens.lance")):
        [data] = LanceFileReader(str(path)).read_all().to_table()["_token_fst_bytes"].to_pylist()
        counts.append(struct.unpack("<QQI", data[-20:])[0])
    return sorted(counts)


async def keep_others(app: App) -> None:
    for number in range(40):
        data = "\n\n".join(f"An ordinary text {number} of the river {line}." for line in range(30)).encode()
        await app.ingest(data=data, name=f"ordinary{number}.txt")


async def add_secrets(app: App) -> None:
    """Texts below and above the size that is stored in the ledger, an archive whose members are children, a PDF."""
    body = "\n\n".join(f"The {BODY} is written in paragraph {line}." for line in range(300)).encode()
    await app.ingest(data=body, name=f"{NAME}.txt", metadata={"title": TITLE})
    await app.ingest(data=f"One {SMALL} note.".encode(), name="small.txt")
    await app.ingest(data=make_zip({"member.txt": f"A {CHILD} is in the archive."}, method=0), name="archive.zip")
    await app.ingest(data=pdf(*numbered(3, PAGE)), name="a.pdf")


async def remove_secrets(app: App) -> None:
    for word in (BODY, SMALL, CHILD, f"{PAGE}1"):
        assert await found(app, word), word
    listed = await app.list_documents(limit=1000)
    # The children of the archive go with it.
    wanted = (f"{NAME}.txt", "small.txt", "archive.zip", "a.pdf")
    await app.delete([one.id for one in listed if one.name in wanted])
    for word in WORDS:
        assert await found(app, word) == set()
    await app.ledger.read(lambda connection: connection.script("UPDATE purges SET not_before = 0"))
    await app.prune(older_than_s=0)
    await app.vacuum()
    await app.prune(older_than_s=0)


async def test_nothing_is_left_in_a_home(start_app: StartApp, tmp_path: Path) -> None:
    app, home = await start_app(chunk={"size": 300, "overlap": 0}), tmp_path / "home"
    await keep_others(app)
    await app.vacuum()
    words = indexed_words(home)
    await add_secrets(app)
    await app.vacuum()
    before = holders([lambda: in_files(home)])
    assert all(before.values()), before
    assert all(any("index/" in place for place in before[word]) for word in (BODY, SMALL, CHILD, PAGE)), before
    assert any("blobs/" in place for place in before[BODY])
    assert indexed_words(home) > words
    await remove_secrets(app)
    assert holders([lambda: in_files(home)]) == {word: set() for word in WORDS}
    assert indexed_words(home) == words
    assert await found(app, "ordinary") != set()
    assert clean(await app.check())


async def test_nothing_is_left_in_a_bucket_and_a_database(
    start_app: StartApp, shelf: s3.Prefix, own_server: S3Server, make_postgres: Callable[[], str], tmp_path: Path
) -> None:
    database, home = make_postgres(), tmp_path / "home"
    settings: dict[str, Any] = {"database": database, "index": "pgvector", "blobs": shelf.url}
    app = await start_app(**settings)
    await app.ingest(data=b"An ordinary text.", name="ordinary.txt")
    await add_secrets(app)
    places = [lambda: in_files(home), lambda: in_bucket(shelf), lambda: in_database(database)]
    before = holders(places)
    assert all(before.values()), before
    assert all(any("penstock_index" in place for place in before[word]) for word in (BODY, SMALL, CHILD, PAGE)), before
    assert any("segments" in place for place in before[BODY])
    await remove_secrets(app)
    assert holders(places) == {word: set() for word in WORDS}
    assert clean(await app.check())


@pytest.mark.parametrize("share", [1, 100], ids=["most", "few"])
async def test_a_vacuum_rewrites_what_contains_removed_rows_and_only_that(
    start_app: StartApp, tmp_path: Path, share: int
) -> None:
    app = await start_app(chunk={"size": 300, "overlap": 0})
    await app.ingest(data="\n\n".join(f"A line {n} of the river." for n in range(30 * share)).encode(), name="kept.txt")
    await app.ingest(data=f"A {BODY}.".encode(), name="gone.txt")
    await app.vacuum()
    [gone] = [one for one in await app.list_documents() if one.name == "gone.txt"]
    await app.delete([gone.id])
    await app.ledger.read(lambda connection: connection.script("UPDATE purges SET not_before = 0"))
    await app.vacuum()
    assert holders([lambda: in_files(tmp_path / "home" / "index")])[BODY] == set()
    [first] = (await app.vacuum()).collections
    [second] = (await app.vacuum()).collections
    assert first.checksum == second.checksum, "there was nothing more to do"
