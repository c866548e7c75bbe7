"""Deleted files come back with an ingest of their folder, unless they are forgotten. And what an ingest would do."""

from pathlib import Path

from tests.conftest import StartApp
from tests.kit.apps import named


def write(folder: Path, **contents: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.txt").write_text(content)
    return folder


async def test_a_forgotten_file_stays_away_until_it_is_wanted_again(
    start_app: StartApp, database_url: str, tmp_path: Path
) -> None:
    app = await start_app(database=database_url)
    folder = write(tmp_path / "files", a="heron", b="owl", c="crane")
    await app.ingest(folder, wait=False)
    await app.ingest(folder, collection="other", wait=False)
    ids = {d.name: d.id for d in await app.list_documents(collection="default")}
    await app.delete([ids["a.txt"]])
    await app.delete([ids["b.txt"]], forget=True)
    summary = await app.ingest(folder, wait=False)
    assert (summary.brought_back, summary.forgotten, summary.submitted, summary.skipped) == (1, 1, 2, 0)
    assert {d.name for d in await app.list_documents(collection="default")} == {"a.txt", "c.txt"}
    # The other collection and other owners are not affected.
    assert (await app.ingest(folder, collection="other", wait=False)).forgotten == 0
    assert (await app.for_owner("anna").ingest(folder, wait=False)).submitted == 3
    # Neither a name nor prune brings it back.
    await app.prune()
    assert (await app.ingest(folder / "b.txt", wait=False)).forgotten == 1
    summary = await app.ingest(folder / "b.txt", again=True, wait=False)
    assert (summary.forgotten, summary.submitted, summary.brought_back) == (0, 1, 1)
    summary = await app.ingest(folder, wait=False)
    assert (summary.brought_back, summary.forgotten, summary.submitted) == (0, 0, 3)


async def test_many_are_forgotten_by_pattern(start_app: StartApp, database_url: str, tmp_path: Path) -> None:
    app = await start_app(database=database_url)
    folder = write(tmp_path / "files", a="heron", b="owl")
    await app.ingest(folder, wait=False)
    assert (await app.delete_matching(path=f"{folder}/*", forget=True)).count == 2
    receipts = [receipt async for receipt in app.submit(folder)]
    assert receipts == []
    assert len([receipt async for receipt in app.submit(folder, again=True)]) == 2


async def test_a_plan_tells_what_an_ingest_would_do(start_app: StartApp, database_url: str, tmp_path: Path) -> None:
    app = await start_app(database=database_url)
    folder = write(tmp_path / "files", same="heron", other="owl", away="crane")
    await app.ingest(folder, wait=False)
    await app.delete([(await named(app, "away.txt")).id], forget=True)
    write(folder, other="another owl", new="a stork")
    (folder / "noise.bin").write_bytes(bytes(range(256)) * 10)
    (folder / "empty.txt").write_bytes(b"")
    before = await app.list_documents()
    plan = await app.plan_ingest(folder)
    assert (plan.new, plan.changed, plan.unchanged, plan.unsupported, plan.forgotten) == (3, 1, 1, 1, 1)
    assert plan.bytes == 2560 + len("another owl") + len("a stork")
    text = plan.types["text/plain"]
    assert (text.new, text.changed, text.unchanged, text.supported) == (1, 1, 1, True)
    [noise] = [one for one in plan.types.values() if not one.supported]
    assert (noise.new, noise.bytes) == (1, 2560)
    assert await app.list_documents() == before
    assert (await app.plan_ingest(folder, again=True)).new == 4
    assert (await app.plan_ingest(folder, include="*.bin")).new == 1
    assert (await app.plan_ingest(folder, collection="other")).new == 6
