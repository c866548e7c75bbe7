"""Blobs in a container of a real Azurite, which stops and refuses. The contract tests of blob stores run against
it too. These tests are skipped, with the reason, where Azurite is not installed."""

import base64
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit import azurite
from tests.kit.apps import found, named, text, until
from tests.kit.azurite import CONTAINER, Azurite
from tests.kit.damage import clean
from tests.kit.pdfs import numbered, pdf

from penstock.app import App
from penstock.blobs.object_submits import SUBMITS
from penstock.errors import Away, Unauthorized

_PURGE_NOW = "UPDATE purges SET not_before = 0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite.serving(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture
def place(server: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"az://{CONTAINER}/t{uuid.uuid4().hex}"


async def start(start_app: StartApp, place: str, **more: Any) -> App:
    return await start_app(blobs=place, http={"patience_s": 0.3, "timeout_s": 5}, **more)


async def test_the_whole_way_of_a_document(start_app: StartApp, place: str) -> None:
    app = await start(start_app, place)
    await app.ingest(data=pdf(*numbered(12, "heron")), name="a.pdf")
    await app.ingest(data=text(300, "otter").encode(), name="b.txt")
    assert await found(app, "heron3") == {"a.pdf"}
    assert clean(await app.check())
    segments = [info.key async for info in app.blobs.list("default") if "/segments/" in info.key]
    await app.blobs.delete(segments[:1])
    assert {one.kind for one in (await app.check()).problems} == {"segment_broken"}
    assert (await app.check(repair=True)).problems == []
    assert await found(app, "otter5") == {"b.txt"}
    await app.delete([(await named(app, name)).id for name in ("a.pdf", "b.txt")])
    await app.ledger.read(lambda connection: connection.script(_PURGE_NOW))
    await app.prune(older_than_s=0)
    assert [info.key async for info in app.blobs.list("") if not info.key.startswith(SUBMITS)] == []


async def test_i9_steps_wait_while_the_server_is_away_and_none_fails(
    start_app: StartApp, place: str, server: Azurite
) -> None:
    app = await start(start_app, place)
    await app.ingest(data=text(200, "otter").encode(), name="a.txt", wait=False)
    server.stop()
    try:
        with pytest.raises(Away, match="cannot be reached"):
            await app.blobs.get("default/raw/x")
    finally:
        server.start()

    async def completed() -> bool:
        return (await app.run()).pending == 0

    await until(completed)
    assert await found(app, "otter5") == {"a.txt"}
    assert clean(await app.check())


async def test_a_wrong_key_names_the_setting(start_app: StartApp, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = base64.b64encode(b"a-wrong-key-0123").decode()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    app = await start(start_app, place)
    with pytest.raises(Unauthorized, match="AZURE_STORAGE_ACCOUNT_KEY") as raised:
        await app.blobs.get("default/raw/x")
    assert wrong not in str(raised.value)


async def test_a_container_that_does_not_exist_is_not_a_blob_that_is_missing(start_app: StartApp, place: str) -> None:
    app = await start_app(blobs="az://nowhere/x", http={"patience_s": 0.3})
    with pytest.raises(Away, match="there is no such bucket: create it"):
        await app.blobs.get("default/raw/x")
