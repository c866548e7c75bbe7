"""The intake can be paused, for an owner or for all, while the queue is processed."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.conftest import StartApp
from tests.kit.service import client_of

from penstock.app import App, open_app
from penstock.errors import IntakePaused
from penstock.verbs import admissions


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


async def test_a_paused_owner_brings_nothing_in_and_others_do(app: App) -> None:
    anna, bert = app.for_owner("anna"), app.for_owner("bert")
    await anna.ingest(data=b"words", name="a.txt", wait=False)
    state = await anna.pause_intake(reason="moving")
    assert (state.paused, state.everyone, state.reason, state.by) == (True, False, "moving", "local")
    with pytest.raises(IntakePaused, match="moving"):
        await anna.ingest(data=b"more", name="b.txt")
    with pytest.raises(IntakePaused):
        _ = [receipt async for receipt in anna.submit(data=b"more", name="b.txt")]
    assert (await anna.status()).intake == state
    assert (await bert.ingest(data=b"words", name="a.txt")).completed == 1
    await app.run()
    assert [document.status for document in await anna.list_documents()] == ["COMPLETED"], "the queue was processed"
    assert not (await anna.resume_intake()).paused
    assert (await anna.ingest(data=b"more", name="b.txt")).completed == 1
    assert [entry.action for entry in await anna.list_audit()][:2] == ["intake.resume", "intake.pause"]


async def test_a_pause_of_everybody_and_one_of_an_owner_are_two(app: App) -> None:
    anna, bert = app.for_owner("anna"), app.for_owner("bert")
    await app.pause_intake(everyone=True)
    await anna.pause_intake()
    for owner in (anna, bert):
        with pytest.raises(IntakePaused, match="all owners"):
            await owner.ingest(data=b"words", name="a.txt")
    await app.resume_intake(everyone=True)
    assert (await anna.intake()).paused
    assert not (await bert.intake()).paused
    await bert.ingest(data=b"words", name="a.txt")


async def test_another_process_notices(app: App) -> None:
    other = open_app(app.config)
    async with other as second:
        await second.ingest(data=b"words", name="a.txt", wait=False)
        await app.pause_intake()
        await asyncio.sleep(admissions.FRESH_S + 0.1)
        with pytest.raises(IntakePaused):
            await second.ingest(data=b"more", name="b.txt", wait=False)


async def test_uploads_are_answered_with_503_before_their_body_is_read(app: App) -> None:
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        read.append(b"words")
        yield read[-1]

    key = await app.create_key(scopes=["ingest", "read", "ops"])
    headers = {"Authorization": f"Bearer {key.secret}"}
    async with client_of(app) as client:
        made = await client.post("uploads", headers={**headers, "Tus-Resumable": "1.0.0", "Upload-Length": "5"})
        assert made.status_code == 201
        paused = await client.post("intake/pause", json={"reason": "moving"}, headers=headers)
        assert paused.json()["paused"]
        assert (await client.get("intake", headers=headers)).json() == paused.json()
        upload = made.headers["location"].removeprefix("/api/v1/")
        tus = {**headers, "Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
        answers = [
            await client.put("documents?source=a.txt", content=body(), headers=headers),
            await client.post("documents", json={"text": "words", "name": "a.txt"}, headers=headers),
            await client.post("documents", files={"file": ("a.txt", b"words")}, headers=headers),
            await client.post("uploads", headers={**headers, "Tus-Resumable": "1.0.0", "Upload-Length": "5"}),
            await client.patch(
                upload,
                content=b"words",
                headers={**tus, "Upload-Offset": "0"},
            ),
        ]
        for answer in answers:
            assert answer.status_code == 503, answer.text
            assert answer.headers["retry-after"] == "60"
            assert "moving" in answer.json()["detail"]
        assert read == []
        for asked in ({"everyone": True}, {"everyone": True, "reason": "x"}):
            assert (await client.post("intake/pause", json=asked, headers=headers)).status_code == 403
        assert (await client.post("intake/resume", headers=headers)).json()["paused"] is False
        assert (await client.put("documents?source=a.txt", content=b"words", headers=headers)).status_code == 201
    assert await app.count_documents() == await app.count_documents(name="a.txt")
