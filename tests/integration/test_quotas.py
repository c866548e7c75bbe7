"""Quotas: what an owner may have, counted by the ledger, checked before the body and again by the transaction."""

import asyncio
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.kit.service import client_of

from penstock.app import App
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import admission
from penstock.model.nouns import Owner


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


async def counted(app: App, owner: str = "default") -> tuple[int, int]:
    """What the ledger says an owner has, which must be what it has."""

    def look(connection: Connection) -> tuple[int, int]:
        exact = Statement(
            "SELECT count(*), coalesce(sum(size), 0) FROM documents WHERE owner = :owner AND deleted_at IS NULL"
        )
        found = admission.holdings(Owner(owner), connection)
        [(documents, size)] = connection.run(exact, owner=owner)
        assert (found.documents, found.bytes) == (documents, size)
        return found.documents, found.bytes

    return await app.ledger.read(look)


async def test_the_ledger_counts_what_each_owner_has(app: App, tmp_path: Path) -> None:
    anna = app.for_owner("anna")
    await app.ingest(data=b"words", name="a.txt")
    await app.ingest(data=b"more words", name="b.txt", wait=False)
    await anna.ingest(data=b"12345678", name="a.txt")
    assert (await counted(app), await counted(app, "anna")) == ((2, 15), (1, 8))
    await app.ingest(data=b"words that changed", name="a.txt")
    assert await counted(app) == (2, 28)
    await app.ingest(data=b"words that changed", name="a.txt")
    assert await counted(app) == (2, 28)
    await app.delete(["b.txt"])
    assert await counted(app) == (1, 18)
    await app.ingest(data=b"back again", name="b.txt")
    await app.drop_collection("default")
    assert (await counted(app), await counted(app, "anna")) == ((0, 0), (1, 8))
    await app.prune(older_than_s=0)
    await app.ledger.write(admission.SETTLE_HOLDINGS, Owner("anna"))
    assert (await counted(app), await counted(app, "anna")) == ((0, 0), (1, 8))


async def test_a_folder_is_accepted_up_to_the_quota(app: App, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"words {i}")
    await app.set_quota(documents=7)
    summary = await app.ingest([folder], wait=False)
    assert (summary.submitted, summary.refused) == (7, 33)
    assert await counted(app) == (7, sum(one.size for one in await app.list_documents()))
    assert "quota of 7 documents" in " ".join(summary.problems)
    # What is there may change, and be tried again.
    there = (await app.list_documents())[0]
    (folder / there.name).write_text("other words")
    again = await app.ingest([folder / there.name])
    assert (again.submitted, again.refused) == (1, 0)
    await app.delete([there.id])
    assert (await app.ingest(data=b"x", name="new.txt", wait=False)).submitted == 1


async def test_bytes_are_counted_and_a_lower_quota_refuses_only_more(app: App) -> None:
    await app.ingest(data=b"x" * 600_000, name="a.txt", wait=False)
    view = await app.set_quota(megabytes=1)
    assert (view.megabytes, view.used_bytes, view.used_documents, view.own) == (1, 600_000, 1, True)
    refused = await app.ingest(data=b"y" * 600_000, name="b.txt", wait=False)
    assert (refused.submitted, refused.refused) == (0, 1)
    assert (await app.ingest(data=b"z" * 900_000, name="a.txt", wait=False)).submitted == 1
    await app.set_quota(megabytes=0)
    assert (await app.ingest(data=b"z" * 800_000, name="a.txt", wait=False)).submitted == 1, "it has become smaller"
    assert not (await app.set_quota()).own
    assert (await app.ingest(data=b"y" * 600_000, name="b.txt", wait=False)).submitted == 1


async def test_settings_limit_every_owner_and_an_override_lifts_that(start_app: StartApp) -> None:
    app = await start_app(quota={"documents": 1})
    anna, bert = app.for_owner("anna"), app.for_owner("bert")
    await bert.set_quota(documents=-1)
    for owner, most in ((anna, 1), (bert, 3)):
        for i in range(3):
            await owner.ingest(data=f"words {i}".encode(), name=f"{i}.txt", wait=False)
        assert len(await owner.list_documents()) == most
    assert ((await anna.quota()).documents, (await bert.quota()).documents) == (1, None)


async def test_an_upload_beyond_the_quota_is_a_problem_that_says_what_to_do(app: App) -> None:
    async with client_of(app) as client:
        assert (await client.put("documents?source=a.txt", content=b"words")).status_code == 201
        made = await client.put("quota", json={"documents": 1, "megabytes": 1, "requests_per_s": 50})
        assert made.json() == (await client.get("quota")).json()
        assert made.json()["used_documents"] == 1
        refused = await client.put("documents?source=b.txt", content=b"words")
        assert refused.status_code == 403
        assert refused.json()["type"] == "/problems#quota_exceeded"
        assert "quota of 1 documents: delete documents" in refused.json()["detail"]
        assert refused.headers["RateLimit-Policy"] == '"requests";q=500;w=10, "documents";q=1, "bytes";q=1048576'
        assert '"documents";r=0, "bytes";r=1048571' in refused.headers["RateLimit"]
        assert (await client.put("documents?source=a.txt", content=b"other words")).status_code == 200
        tus = {"Tus-Resumable": "1.0.0", "Upload-Length": "5", "Upload-Metadata": "source Yi50eHQ="}
        assert (await client.post("uploads", headers=tus)).status_code == 403
        [one] = (await client.post("documents", json={"text": "x", "name": "c.txt"})).json()["receipts"]
        assert one["outcome"] == "refused"
        assert "quota" in one["problem"]
        form = await client.post("documents", files=[("file", ("d.txt", b"x")), ("file", ("e.txt", b"y"))])
        assert [one["outcome"] for one in form.json()["receipts"]] == ["refused", "refused"]
        usage = (await client.get("usage")).json()["quota"]
        assert (usage["documents"], usage["used_documents"]) == (1, 1)
        assert (await client.delete("quota")).json()["documents"] is None
        assert (await client.put("documents?source=b.txt", content=b"words")).status_code == 201
    assert await counted(app) == (2, 16)


async def test_parallel_uploads_do_not_exceed_a_quota_by_much(app: App) -> None:
    await app.set_quota(documents=10)
    async with client_of(app) as client:
        answers = await asyncio.gather(
            *(client.put(f"documents?source={i}.txt", content=f"words {i}".encode()) for i in range(60))
        )
    assert {answer.status_code for answer in answers} == {201, 403}
    assert sum(answer.status_code == 201 for answer in answers) == (await counted(app))[0]
    assert 8 <= (await counted(app))[0] <= 12


async def test_requests_are_limited_by_the_owner_s_own_rate(app: App) -> None:
    await app.set_quota(requests_per_s=0.5)
    async with client_of(app) as client:
        statuses = [(await client.get("quota")).status_code for _ in range(8)]
    assert statuses.count(200) in (5, 6)
    assert statuses[-1] == 429
