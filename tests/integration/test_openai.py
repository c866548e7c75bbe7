"""Files and vector stores with OpenAI's own client: in this process on both databases, and against a server that is
killed between calls."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from tests.acceptance import pages
from tests.conftest import StartApp
from tests.kit.service import Served, client_of, serving

from penstock.api.app import make_api
from penstock.app import App

TURBINE = b"The turbine runs at 375 revolutions a minute. It rests in August."
DAMAGED = b"%PDF-1.7\n" + bytes(range(256)) * 9


def client_for(app: App, key: str = "unused") -> openai.AsyncOpenAI:
    transport = httpx2.ASGITransport(make_api(app), client=("127.0.0.1", 50_000))
    http = httpx2.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key=key, http_client=http, max_retries=0)


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


@pytest.fixture
async def client(app: App) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_for(app) as made:
        yield made


async def stored(client: openai.AsyncOpenAI, data: bytes = TURBINE, name: str = "turbine.txt") -> str:
    return (await client.files.create(file=(name, data), purpose="assistants")).id


async def filled(client: openai.AsyncOpenAI, app: App, *words: str, **more: Any) -> tuple[str, list[str]]:
    """A store with a file for each word, processed."""
    store = await client.vector_stores.create(name="Words")
    files = [await stored(client, f"a text about {word}".encode(), f"{word}.txt") for word in words]
    if files:
        await client.vector_stores.file_batches.create(store.id, file_ids=files, **more)
    await app.run()
    return store.id, files


async def test_a_file_is_kept_as_it_was_sent(client: openai.AsyncOpenAI, app: App) -> None:
    made = await client.files.create(file=("notes/turbine.txt", TURBINE), purpose="assistants")
    assert (made.filename, made.bytes, made.purpose, made.status) == ("turbine.txt", 65, "assistants", "processed")
    assert await client.files.retrieve(made.id) == made
    assert (await client.files.content(made.id)).read() == TURBINE
    # The same bytes again are another file, and no worker touches either.
    again = await client.files.create(file=("turbine.txt", TURBINE), purpose="user_data")
    assert again.id != made.id
    assert (await app.run()).completed == 0
    assert [one.id async for one in client.files.list()] == [again.id, made.id]
    assert [one.id async for one in client.files.list(purpose="assistants")] == [made.id]
    # A client that repeats a call with the same key gets the same file.
    once: Any = {"file": ("a.txt", b"once"), "purpose": "assistants", "extra_headers": {"Idempotency-Key": "k1"}}
    assert (await client.files.create(**once)).id == (await client.files.create(**once)).id
    assert (await client.files.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.files.content(made.id)
    assert [one.filename async for one in client.files.list()] == ["a.txt", "turbine.txt"]


async def test_a_large_file_streams_into_the_blobs_and_into_stores(client: openai.AsyncOpenAI, app: App) -> None:
    data = b"".join(b"line %d of the great log\n" % i for i in range(120_000))
    assert len(data) > 2 << 20
    file = await stored(client, data, "log.txt")
    assert (await client.files.content(file)).read() == data
    store = await client.vector_stores.create()
    await client.vector_stores.files.create(store.id, file_id=file)
    assert (await app.run()).completed == 1
    text = await client.vector_stores.files.content(file, vector_store_id=store.id)
    assert sum(len(one.text or "") for one in text.data) > 2 << 20


async def test_one_file_is_in_several_stores_and_leaves_them_one_by_one(client: openai.AsyncOpenAI, app: App) -> None:
    file = await stored(client)
    first, second = [(await client.vector_stores.create(name=name)).id for name in ("one", "two")]
    for store, year in ((first, 2020), (second, 2021)):
        added = await client.vector_stores.files.create(store, file_id=file, attributes={"year": year})
        assert (added.id, added.status, added.vector_store_id) == (file, "in_progress", store)
        # Again: nothing new.
        assert (await client.vector_stores.files.create(store, file_id=file)).created_at == added.created_at
    assert (await app.run()).completed == 2

    async def hits(store: str) -> list[Any]:
        return (await client.vector_stores.search(store, query="how fast is the turbine?")).data

    for store, year in ((first, 2020), (second, 2021)):
        [hit] = await hits(store)
        assert (hit.file_id, hit.filename, hit.attributes) == (file, "turbine.txt", {"year": year})
        assert hit.content[0].text == TURBINE.decode()
        assert 0.5 < hit.score <= 1
    assert (await client.vector_stores.files.delete(file, vector_store_id=first)).deleted
    assert (await hits(first), len(await hits(second))) == ([], 1)
    with pytest.raises(openai.NotFoundError, match="in the vector store"):
        await client.vector_stores.files.retrieve(file, vector_store_id=first)
    assert (await client.files.delete(file)).deleted
    assert await hits(second) == []
    assert (await client.vector_stores.retrieve(second)).file_counts.total == 0


async def test_a_collection_is_a_vector_store(client: openai.AsyncOpenAI, app: App) -> None:
    await app.ingest(data=TURBINE, name="turbine.txt", collection="handbook", metadata={"year": 2020})
    [store] = (await client.vector_stores.list()).data
    assert (store.id, store.name, store.file_counts.completed, store.usage_bytes) == ("vs_handbook", "handbook", 1, 65)
    [file] = (await client.vector_stores.files.list(store.id)).data
    assert (file.status, file.attributes) == ("completed", {"year": 2020})
    assert (await client.files.content(file.id)).read() == TURBINE
    [hit] = (await client.vector_stores.search(store.id, query="turbine")).data
    assert hit.file_id == file.id
    # It can be added to other stores, and is itself there, where it is already.
    other = await client.vector_stores.create()
    assert (await client.vector_stores.files.create(other.id, file_id=file.id)).id == file.id
    assert (await client.vector_stores.files.create(store.id, file_id=file.id)).created_at == file.created_at
    changed = await client.vector_stores.update(store.id, name="Handbook", metadata={"for": "all"})
    assert (changed.name, changed.metadata, changed.created_at) == ("Handbook", {"for": "all"}, store.created_at)
    assert (await client.vector_stores.delete(store.id)).deleted
    assert [one.id for one in (await client.vector_stores.list()).data] == [other.id]
    # The files stay, unless they were the documents of the collection.
    await app.run()
    assert (await client.vector_stores.retrieve(other.id)).file_counts.completed == 1
    assert (await app.check()).problems == []


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"type": "eq", "key": "year", "value": 2020}, {"ash"}),
        ({"type": "ne", "key": "year", "value": 2020}, {"birch", "cedar"}),
        ({"type": "gt", "key": "year", "value": 2020}, {"birch", "cedar"}),
        ({"type": "gte", "key": "year", "value": 2021}, {"birch", "cedar"}),
        ({"type": "lt", "key": "year", "value": 2021}, {"ash"}),
        ({"type": "lte", "key": "year", "value": 2021}, {"ash", "birch"}),
        ({"type": "in", "key": "lang", "value": ["de", "fr"]}, {"ash", "birch"}),
        ({"type": "nin", "key": "lang", "value": ["de", "fr"]}, {"cedar"}),
        ({"type": "eq", "key": "good", "value": True}, {"ash", "cedar"}),
        # An attribute may have the name of a field.
        ({"type": "eq", "key": "status", "value": "draft"}, {"birch"}),
        (
            {
                "type": "and",
                "filters": [
                    {"type": "eq", "key": "good", "value": True},
                    {
                        "type": "or",
                        "filters": [
                            {"type": "eq", "key": "year", "value": 2020},
                            {"type": "eq", "key": "year", "value": 2021},
                        ],
                    },
                ],
            },
            {"ash"},
        ),
    ],
)
async def test_filters_choose_by_attributes(start_app: StartApp, filters: Any, expected: set[str]) -> None:
    app = await start_app()
    async with client_for(app) as client:
        store = (await client.vector_stores.create()).id
        given: dict[str, dict[str, Any]] = {
            "ash": {"year": 2020, "lang": "de", "good": True},
            "birch": {"year": 2021, "lang": "fr", "good": False, "status": "draft"},
            "cedar": {"year": 2022, "lang": "en", "good": True},
        }
        files = [
            {"file_id": await stored(client, f"the tree is called {name}".encode(), name), "attributes": attributes}
            for name, attributes in given.items()
        ]
        await client.vector_stores.file_batches.create(store, files=files)  # type: ignore[arg-type]
        await app.run()
        found = await client.vector_stores.search(store, query="how is the tree called", filters=filters)
        assert {one.filename for one in found.data} == expected


@pytest.mark.parametrize(
    "filters",
    [
        {"type": "like", "key": "a", "value": 1},
        {"type": "eq", "key": "a"},
        {"type": "eq", "value": 1},
        {"type": "and", "filters": []},
        {"type": "and", "filters": [{"type": "eq"}]},
        {"type": "in", "key": "a", "value": 1},
        {"type": "gt", "key": "a", "value": True},
        {"type": "eq", "key": "a", "value": 1, "more": 1},
        {},
    ],
)
async def test_a_filter_that_is_none_is_refused(start_app: StartApp, filters: Any) -> None:
    app = await start_app()
    async with client_for(app) as client:
        store, _ = await filled(client, app, "ash")
        with pytest.raises(openai.BadRequestError, match="filter"):
            await client.vector_stores.search(store, query="ash", filters=filters)


async def test_results_are_limited_by_number_and_score(client: openai.AsyncOpenAI, app: App) -> None:
    store, _ = await filled(client, app, "ash", "birch", "cedar", "dogwood")

    async def names(query: Any, **more: Any) -> list[str]:
        found = await client.vector_stores.search(store, query=query, **more)
        assert found.model_extra is not None
        assert found.model_extra["search_query"] == ([query] if isinstance(query, str) else query)
        return [one.filename for one in found.data]

    assert len(await names("a text about birch")) == 4
    assert await names("a text about birch", max_num_results=1) == ["birch.txt"]
    strict: Any = {"ranker": "none", "score_threshold": 0.9}
    assert await names("a text about birch", ranking_options=strict) == ["birch.txt"]
    assert set(await names(["text about ash", "text about cedar"], max_num_results=2)) == {"ash.txt", "cedar.txt"}
    with pytest.raises(openai.BadRequestError, match="rewrite_query"):
        await names("x", rewrite_query=True)
    with pytest.raises(openai.BadRequestError, match="max_num_results"):
        await names("x", max_num_results=51)


async def test_lists_are_read_page_by_page_both_ways(client: openai.AsyncOpenAI, app: App) -> None:
    store, _ = await filled(client, app, "ash", "birch", "cedar", "dogwood", "elm")
    listed = client.vector_stores.files.list
    down = [one.id async for one in listed(store, limit=2)]
    assert len(down) == len(set(down)) == 5
    assert [one.id async for one in listed(store, limit=2, order="asc")] == down[::-1]
    page = await listed(store, limit=2, after=down[0])
    assert ([one.id for one in page.data], page.has_more) == (down[1:3], True)
    page = await listed(store, limit=2, before=down[4])
    assert ([one.id for one in page.data], page.has_more) == (down[2:4], True)
    page = await listed(store, limit=9, after=down[0], before=down[3])
    assert ([one.id for one in page.data], page.has_more) == (down[1:3], False)
    stores = [store, *[(await client.vector_stores.create()).id for _ in range(3)]][::-1]
    assert [one.id async for one in client.vector_stores.list(limit=1)] == stores
    assert [one.id async for one in client.vector_stores.list(limit=3, order="asc")] == stores[::-1]
    some = await client.vector_stores.list(limit=2, before=stores[3])
    assert ([one.id for one in some.data], some.has_more) == (stores[1:3], True)
    files = [one.id async for one in client.files.list(limit=2)]
    assert len(files) == len(set(files)) == 5
    assert [one.id async for one in client.files.list(limit=3, order="asc")] == files[::-1]
    with pytest.raises(openai.NotFoundError):
        await listed(store, after="file-01M7GZQJXCK1BXB2ZYP1YTP0G8")


async def test_the_states_of_files_are_those_of_their_documents(client: openai.AsyncOpenAI, app: App) -> None:
    store = (await client.vector_stores.create()).id
    given = {"fine.txt": TURBINE, "bad.pdf": DAMAGED, "odd.bin": bytes(range(256)) * 9, "empty.txt": b""}
    files = {name: await stored(client, data, name) for name, data in given.items()}
    batch = await client.vector_stores.file_batches.create(store, file_ids=list(files.values()))
    assert (batch.status, batch.file_counts.in_progress, batch.file_counts.total) == ("in_progress", 4, 4)
    assert (await client.vector_stores.retrieve(store)).status == "in_progress"
    await app.run()
    found = {one.id: one async for one in client.vector_stores.files.list(store)}
    states = {name: found[file].status for name, file in files.items()}
    assert states == {"fine.txt": "completed", "bad.pdf": "failed", "odd.bin": "failed", "empty.txt": "failed"}
    errors = {name: found[file].last_error for name, file in files.items()}
    codes = {name: None if error is None else error.code for name, error in errors.items()}
    assert codes == {
        "fine.txt": None, "bad.pdf": "invalid_file", "odd.bin": "unsupported_file", "empty.txt": "invalid_file",
    }  # fmt: skip
    assert "damaged" in errors["bad.pdf"].message  # type: ignore[union-attr]
    failed = [one.id async for one in client.vector_stores.files.list(store, filter="failed", limit=1)]
    assert set(failed) == {files["bad.pdf"], files["odd.bin"], files["empty.txt"]}
    batch = await client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store)
    assert (batch.status, batch.file_counts.completed, batch.file_counts.failed) == ("completed", 1, 3)
    in_batch = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store, limit=1, filter="failed")
    assert [one.id async for one in in_batch] == failed


async def test_a_batch_is_cancelled_as_far_as_it_has_not_ended(client: openai.AsyncOpenAI, app: App) -> None:
    store, [first] = await filled(client, app, "ash")
    second = await stored(client)
    batch = await client.vector_stores.file_batches.create(store, file_ids=[first, second])
    batch = await client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store)
    assert (batch.status, batch.file_counts.cancelled, batch.file_counts.completed) == ("cancelled", 1, 1)
    assert (await app.run()).completed == 0
    assert (await client.vector_stores.files.retrieve(second, vector_store_id=store)).status == "cancelled"
    # It may be added again, and then it is processed.
    await client.vector_stores.files.create(store, file_id=second)
    await app.run()
    assert (await client.vector_stores.retrieve(store)).file_counts.completed == 2


async def test_attributes_are_replaced_without_new_work(client: openai.AsyncOpenAI, app: App) -> None:
    store, [file] = await filled(client, app, "ash", attributes={"year": 2020, "lang": "de"})
    changed = await client.vector_stores.files.update(
        file, vector_store_id=store, attributes={"year": 2021, "weight": 0.5, "good": True}
    )
    assert changed.attributes == {"year": 2021, "weight": 0.5, "good": True}
    assert (await app.run()).completed == 0
    [hit] = (await client.vector_stores.search(store, query="ash")).data
    assert hit.attributes == changed.attributes
    with pytest.raises(openai.BadRequestError):
        await client.vector_stores.files.update(file, vector_store_id=store, attributes={"a": "x" * 513})
    with pytest.raises(openai.BadRequestError):
        await client.vector_stores.files.update(file, vector_store_id=store, attributes={f"k{i}": i for i in range(17)})


async def test_chunks_have_the_size_that_the_client_asks_for(client: openai.AsyncOpenAI, app: App) -> None:
    file = await stored(client, b" ".join(b"sentence number %d is here." % i for i in range(300)))
    store = (await client.vector_stores.create()).id
    strategy: Any = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 10}}
    await client.vector_stores.files.create(store, file_id=file, chunking_strategy=strategy)
    await app.run()
    [small] = await app.list_documents(collection=store.removeprefix("vs_"))
    whole = (await client.vector_stores.create(file_ids=[file])).id
    await app.run()
    [normal] = await app.list_documents(collection=whole.removeprefix("vs_"))
    assert (small.chunks or 0) > 2 * (normal.chunks or 0) > 0
    strategy["static"]["chunk_overlap_tokens"] = 100
    with pytest.raises(openai.BadRequestError, match="overlap"):
        await client.vector_stores.files.create(whole, file_id=file, chunking_strategy=strategy)


async def test_what_penstock_has_not_is_refused_with_a_sentence(client: openai.AsyncOpenAI) -> None:
    expiry: Any = {"anchor": "last_active_at", "days": 1}
    with pytest.raises(openai.BadRequestError, match="expires_after"):
        await client.vector_stores.create(expires_after=expiry)
    with pytest.raises(openai.BadRequestError, match="expires_after"):
        await client.files.create(
            file=("a.txt", b"a"), purpose="assistants", expires_after={"anchor": "created_at", "seconds": 3600}
        )
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await client.files.create(file=("a.txt", b"a"), purpose="x")  # type: ignore[arg-type]
    assert [one async for one in client.files.list()] == []
    with pytest.raises(openai.APIStatusError, match="no language models") as caught:
        await client.chat.completions.create(model="m", messages=[])
    assert caught.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.APIStatusError, match="no assistants"):
        await client.post("/assistants", body={"model": "m"}, cast_to=object)
    with pytest.raises(openai.BadRequestError, match="unknown"):
        await client.vector_stores.create(extra_body={"unknown": 1})
    for text in ("file-", "file-x", "x", "file-01M7GZQJXCK1BXB2ZYP1YTP0G8"):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.files.retrieve(text)
        assert missing.value.body == {
            "message": f"no file {text!r}", "type": "not_found_error", "param": None, "code": "not_found",
        }  # fmt: skip
    for store in ("vs_", "vs_nothing", "vs_openai-files", "x", "vs_../x"):
        with pytest.raises((openai.NotFoundError, openai.PermissionDeniedError)):
            await client.vector_stores.retrieve(store)


async def test_a_form_that_is_no_file_leaves_nothing(app: App) -> None:
    async with client_of(app) as http:
        ask = http.post
        url = "http://127.0.0.1/v1/files"
        two = [("file", ("a.txt", b"a")), ("file", ("b.txt", b"b"))]
        assert (await ask(url, files=two)).status_code == 400
        late = b'--e\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nabc\r\n%s--e--\r\n'
        field = b'--e\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
        headers = {"Content-Type": "multipart/form-data; boundary=e"}
        refused = await ask(url, content=late % (field % (b"purpose", b"nonsense")), headers=headers)
        assert refused.status_code == 400
        assert (await ask(url, files={"other": ("a.txt", b"a")})).status_code == 400
        assert (await ask(url, data={"purpose": "assistants"})).status_code in (400, 415)
        assert (await ask(url, json={})).status_code == 415
        assert await app.list_documents() == []
        done = await ask(url, content=late % (field % (b"purpose", b"vision")), headers=headers)
        assert done.json()["purpose"] == "vision"
        assert (await http.get(f"{url}/{done.json()['id']}")).json() == done.json()


async def test_i10_the_files_and_stores_of_another_owner_are_not_there(app: App) -> None:
    keys = {name: (await app.for_owner(name).create_key(scopes=["search", "read", "ingest", "write"])).secret
            for name in ("anna", "bert")}  # fmt: skip
    async with client_for(app, keys["anna"]) as anna, client_for(app, keys["bert"]) as bert:
        store, [file] = await filled(anna, app, "saffron")
        batch = await anna.vector_stores.file_batches.create(store, file_ids=[file])
        own = (await bert.vector_stores.create()).id
        stores = bert.vector_stores
        attempts: list[Any] = []
        attempts += [bert.files.retrieve(file), bert.files.content(file), bert.files.delete(file)]
        attempts += [stores.retrieve(store), stores.update(store, name="x"), stores.delete(store)]
        attempts += [stores.search(store, query="saffron"), stores.files.create(own, file_id=file)]
        attempts += [stores.files.create(store, file_id=file), stores.create(file_ids=[file])]
        attempts += [stores.files.retrieve(file, vector_store_id=one) for one in (store, own)]
        attempts += [stores.files.content(file, vector_store_id=one) for one in (store, own)]
        attempts += [stores.files.delete(file, vector_store_id=one) for one in (store, own)]
        attempts += [stores.file_batches.retrieve(batch.id, vector_store_id=one) for one in (store, own)]
        attempts += [stores.file_batches.cancel(batch.id, vector_store_id=one) for one in (store, own)]
        attempts += [stores.file_batches.create(own, file_ids=[file])]
        for attempt in attempts:
            with pytest.raises(openai.NotFoundError):
                await attempt
        assert [one.id async for one in bert.files.list()] == []
        # A store that was not made whole is not there either.
        assert [one.id async for one in stores.list()] == [own]
        assert (await anna.vector_stores.retrieve(store)).file_counts.completed == 1


async def test_i10_a_key_for_some_collections_stays_within_them(app: App) -> None:
    await app.ingest(data=TURBINE, name="a.txt", collection="one")
    await app.ingest(data=TURBINE, name="b.txt", collection="two")
    limited = await app.create_key(scopes=["search", "read", "ingest", "write"], collections=["one", "openai-files"])
    no_files = await app.create_key(scopes=["read", "ingest"], collections=["one"])
    async with client_for(app, limited.secret) as client, client_for(app, no_files.secret) as narrow:
        assert [one.id for one in (await client.vector_stores.list()).data] == ["vs_one"]
        with pytest.raises(openai.NotFoundError):
            await client.vector_stores.search("vs_two", query="turbine")
        with pytest.raises(openai.PermissionDeniedError):
            await client.vector_stores.create()
        [other] = await app.list_documents(collection="two")
        with pytest.raises(openai.NotFoundError):
            await client.vector_stores.files.create("vs_one", file_id=f"file-{other.id}")
        file = await stored(client)
        assert (await client.vector_stores.files.create("vs_one", file_id=file)).id == file
        with pytest.raises(openai.PermissionDeniedError, match="openai-files"):
            await stored(narrow)
        with pytest.raises(openai.NotFoundError):
            await narrow.files.retrieve(file)


async def test_i1_what_the_client_was_told_survives_a_killed_server(tmp_path: Path) -> None:
    """Each call meets a server that was started anew after the one before was killed."""
    home = tmp_path / "home"

    def on_a_server(call: Any) -> Any:
        with serving(home) as served:
            answer = call(_sync(served))
            served.kill()
        return answer

    def run() -> None:
        file = on_a_server(lambda c: c.files.create(file=("turbine.txt", TURBINE), purpose="assistants"))
        assert on_a_server(lambda c: c.files.content(file.id).read()) == TURBINE
        store = on_a_server(lambda c: c.vector_stores.create(name="Handbook"))
        added = on_a_server(lambda c: c.vector_stores.files.create(store.id, file_id=file.id))
        assert added.id == file.id
        done = on_a_server(lambda c: c.vector_stores.files.poll(file.id, vector_store_id=store.id))
        assert done.status == "completed"
        more = on_a_server(
            lambda c: [c.files.create(file=(f"{i}.txt", b"text %d" % i), purpose="assistants").id for i in range(5)]
        )
        batch = on_a_server(lambda c: c.vector_stores.file_batches.create(store.id, file_ids=more))
        batch = on_a_server(lambda c: c.vector_stores.file_batches.poll(batch.id, vector_store_id=store.id))
        assert (batch.status, batch.file_counts.completed) == ("completed", 5)
        found = on_a_server(lambda c: c.vector_stores.search(store.id, query="how fast is the turbine?").data)
        assert found[0].file_id == file.id

    await asyncio.to_thread(run)


def _sync(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused")


async def test_the_page_runs_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "turbine.txt").write_bytes(TURBINE)
    (notes / "dam.md").write_text("# Dam\n\nThe dam is inspected every spring.\n")
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "home") as served:
        namespace: dict[str, Any] = {}
        await pages.run_python("docs/how-to/openai.md", namespace, {"http://127.0.0.1:8440": served.url})
        namespace["client"].close()


def test_the_helpers_of_the_client_work_against_a_server(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as served, _sync(served) as client:
        store = client.vector_stores.create(name="Handbook")
        one = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("a.txt", TURBINE))
        assert one.status == "completed"
        again = client.files.create(file=("b.txt", b"the second text"), purpose="assistants")
        two = client.vector_stores.files.create_and_poll(again.id, vector_store_id=store.id, attributes={"n": 2})
        assert (two.status, two.attributes) == ("completed", {"n": 2})
        batch = client.vector_stores.file_batches.upload_and_poll(
            store.id, files=[(f"{i}.txt", b"text %d" % i) for i in range(4)], file_ids=[one.id]
        )
        assert (batch.status, batch.file_counts.completed, batch.file_counts.total) == ("completed", 5, 5)
        with client.files.with_streaming_response.content(one.id) as answer:
            assert b"".join(answer.iter_bytes()) == TURBINE
        raw = client.vector_stores.with_raw_response.retrieve(store.id)
        assert json.loads(raw.text)["file_counts"]["completed"] == 6
        assert raw.headers["x-request-id"]
