"""Owners are walls (I10): every operation of the OpenAPI document, also one that is added later, is tried without a
key, with a revoked key, without the scope, with what belongs to another owner, and with hostile values."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from fastapi import FastAPI
from tests.conftest import StartApp
from tests.integration.test_hostile_arguments import TEXTS
from tests.kit.ledger import TABLES

from penstock.api.app import make_api
from penstock.app import App
from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import vector_stores
from penstock.model.callers import KeyScope
from penstock.model.nouns import DocumentId, Owner

SECRET, WORD = "saffron", "crocus"
"""The names of what is Anna's, which are sent too; and a word of her documents, which is never sent."""
OPEN = re.compile(r"/(healthz|readyz|metrics|problems|docs|openapi\.json)\b|/api/v1/session$")
"""What answers without a key: whether the server is alive, and the exchange of a key for a session."""
ANY_SCOPE = {("POST", "/api/v1/tokens"), ("GET", "/api/v1/session"), ("DELETE", "/api/v1/session")}
"""What a key of any scope may do: it concerns the key itself."""
HOSTILE = [text for text in TEXTS if len(text) < 1_000] + ["\u202e\x1b[31m", "9" * 30, "-1", "null", "\ufffd"]
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    spec: dict[str, Any] = field(hash=False, compare=False)
    schemas: dict[str, Any] = field(hash=False, compare=False)

    def parameters(self, place: str) -> list[dict[str, Any]]:
        return [one for one in self.spec.get("parameters", ()) if one["in"] == place]

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = self.spec.get("requestBody", {}).get("content", {})
        return found

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self.schemas[schema["$ref"].rpartition("/")[2]]
        for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
            found = self.resolved(one)
            if found.get("type") != "null":
                return {**found, **{name: schema[name] for name in ("examples", "default") if name in schema}}
        return schema

    def example(self, schema: dict[str, Any], text: str | None) -> Any:
        """A value that fits; with `text`, each text in it is this one."""
        schema = self.resolved(schema)
        if schema.get("properties") and "example" not in schema:
            return {name: self.example(one, text) for name, one in schema["properties"].items()}
        given = next((schema[name] for name in ("examples", "example", "default") if schema.get(name)), None)
        if isinstance(given, list) and "examples" in schema:
            given = given[0]
        if text is not None:
            return text if schema.get("type", "string") in ("string", "integer", "number") else _replaced(given, text)
        if given is not None:
            return given
        return {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}.get(schema.get("type", ""), "x")


def _replaced(value: Any, text: str) -> Any:
    match value:
        case str():
            return text
        case list():
            return [_replaced(one, text) for one in value]
        case dict():
            return {name: _replaced(one, text) for name, one in value.items()}
    return value


def operations(api: FastAPI) -> list[Operation]:
    document = api.openapi()
    schemas = document.get("components", {}).get("schemas", {})
    return [
        Operation(method.upper(), path, spec, schemas)
        for path, methods in document["paths"].items()
        for method, spec in methods.items()
        # OPTIONS says what the server supports, to anybody.
        if method in ("get", "put", "post", "patch", "delete", "head")
    ]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace") + json.dumps(self.headers)


@dataclass
class Wall:
    app: App
    api: FastAPI
    keys: dict[str, str]
    anna: dict[str, str]
    """What is hers, by what it is."""

    def shows(self, answer: Answer) -> bool:
        """Whether an answer has something of hers. What was sent may be repeated as a name, but never as an id."""
        ids = [
            self.anna[name]
            for name in ("document_id", "failed", "group_id", "key_id", "file_id", "batch_id", "webhook_id")
        ]
        text = answer.text.replace(" ", "")
        return WORD in text or any(
            re.search(rf'"(?:id|document_id|group_id|key_id|webhook_id)":"{one}"', text) for one in ids
        )

    async def ask(
        self, one: Operation, key: str | None, values: str | dict[str, str], *, in_query: bool = True, kind: str = ""
    ) -> Answer:
        """`values`: one text for everything, or texts by parameter."""

        def value(name: str) -> str:
            if isinstance(values, str):
                return values
            # A path whose part is no number does not exist, for anybody.
            return values.get("number", "1") if name in numbers else values.get(name, next(iter(values.values())))

        numbers = {p["name"] for p in one.parameters("path") if p.get("schema", {}).get("type") == "integer"}
        path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda m: quote(value(m[1]).encode("utf-8", "replace"), safe=""), one.path)
        named = one.parameters("query") if in_query else [p for p in one.parameters("query") if p.get("required")]
        pairs = [(p["name"], value(p["name"]).encode("utf-8", "replace")) for p in named if p["name"] != "wait"]
        kind, body = _body(one, values if isinstance(values, str) else values.get("x"), kind)
        headers = [(b"content-type", kind.encode())] if kind else []
        headers += [(b"authorization", f"Bearer {key}".encode())] if key is not None else []
        headers.append((b"content-length", str(len(body)).encode()))
        return await ask(self.api, one.method, path, urlencode(pairs), headers, body)


def _body(one: Operation, text: str | None, kind: str) -> tuple[str, bytes]:
    if not one.content:
        return "", b""
    kind = kind or next(iter(one.content))
    made = one.example(one.content[kind].get("schema", {}), text)
    if kind == FORM:
        flat = {name: value if isinstance(value, str) else json.dumps(value) for name, value in dict(made).items()}
        return kind, urlencode({name: value.encode("utf-8", "replace") for name, value in flat.items()}).encode()
    if kind == MULTIPART:
        parts = dict(made).items() if isinstance(made, dict) else ()
        lines = [
            f'--edge\r\nContent-Disposition: form-data; name="{name}"'
            + ('; filename="a.txt"' if name.startswith("file") else "")
            + f"\r\n\r\n{value if isinstance(value, str) else json.dumps(value)}\r\n"
            for name, value in parts
        ]
        return f"{kind}; boundary=edge", ("".join(lines) + "--edge--\r\n").encode("utf-8", "replace")
    if "json" in kind:
        # A client can write lone surrogates as escapes.
        return kind, json.dumps(made).encode()
    return kind, b"some bytes"


async def ask(
    api: FastAPI, method: str, path: str, query: str, headers: list[tuple[bytes, bytes]], body: bytes
) -> Answer:
    """A request without a socket. A stream of events is left after its beginning."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": _unquoted(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), *headers], "client": ("10.1.2.3", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent, left, started = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event(), {}
    pieces: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
            if any(b"event-stream" in value for _, value in message["headers"]):
                left.set()
        elif message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))

    await asyncio.wait_for(api(scope, receive, send), 20)  # type: ignore[arg-type]
    named = {name.decode().lower(): value.decode("latin-1") for name, value in started["headers"]}
    return Answer(started["status"], named, b"".join(pieces))


def _unquoted(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)


@pytest.fixture
async def wall(start_app: StartApp) -> Wall:
    app = await start_app(owner="bert")
    anna, bert = app.for_owner("anna"), app.for_owner("bert")
    for scope, word in ((anna, SECRET), (bert, "plain")):
        await scope.ingest(
            data=f"the {WORD if word == SECRET else word} of spring".encode(), name=f"{word}.txt", batch=f"{word}-batch"
        )
        await scope.ingest(data=b"%PDF-1.7\n" + bytes(range(256)) * 9, name=f"{word}.bin", collection=word)
    keys = {str(scope): (await bert.create_key(scopes=[scope])).secret for scope in KeyScope}
    keys["all"] = (await bert.create_key(scopes=list(KeyScope))).secret
    revoked = await bert.create_key(scopes=list(KeyScope))
    keys["revoked"] = revoked.secret
    await bert.revoke_key(revoked.key.id)
    documents = {document.name: document.id for document in await anna.list_documents()}
    letters = (await anna.list_dead_letters()).letters
    hers = {
        "document_id": documents[f"{SECRET}.txt"], "failed": documents[f"{SECRET}.bin"],
        "group_id": (await anna.list_groups())[0].id, "key_id": (await anna.create_key()).key.id,
        "batch": f"{SECRET}-batch", "collection": SECRET, "number": str(letters[0].id), "name": f"{SECRET}.txt",
        "vector_store_id": f"vs_{SECRET}", "file_id": f"file-{documents[f'{SECRET}.bin']}",
        "webhook_id": (await anna.create_webhook("https://93.184.216.34/hook")).webhook.id,
    }  # fmt: skip
    batch = vector_stores.NewBatch(Owner("anna"), app.runtime.ulid(), SECRET, (DocumentId(hers["failed"]),))
    await app.ledger.write(vector_stores.ADD_FILE_BATCH, batch)
    hers["batch_id"] = f"vsfb_{batch.id}"
    return Wall(app, make_api(app), keys, hers)


async def _of_anna(app: App) -> dict[str, list[Row]]:
    def look(connection: Connection) -> dict[str, list[Row]]:
        everything = {table: connection.run(Statement(f"SELECT * FROM {table}")) for table in TABLES}
        return {table: sorted((r for r in rows if "anna" in repr(r)), key=repr) for table, rows in everything.items()}

    return await app.ledger.read(look)


def closed(wall: Wall) -> Iterator[Operation]:
    return (one for one in operations(wall.api) if not OPEN.search(one.path) or (one.method, one.path) in ANY_SCOPE)


async def test_i10_no_operation_answers_without_a_valid_key(wall: Wall) -> None:
    wrong = []
    for one in closed(wall):
        for key in (None, wall.keys["revoked"], "pk_0_0", "a.b.c"):
            answer = await wall.ask(one, key, wall.anna)
            if answer.status != 401 or answer.headers["content-type"] != "application/problem+json":
                wrong.append(f"{one.method} {one.path} with {key}: {answer.status}")
    assert not wrong, "\n".join(wrong)
    assert len(list(closed(wall))) > 8


async def test_i10_each_operation_needs_its_scope(wall: Wall) -> None:
    """A key with a single scope: of the others, all but one (and admin) are refused."""
    wrong = []
    for one in closed(wall):
        if (one.method, one.path) in ANY_SCOPE:
            continue
        refused = [s for s in KeyScope if (await wall.ask(one, wall.keys[s], wall.anna)).status == 403]
        if len(refused) < len(KeyScope) - 2:
            wrong.append(f"{one.method} {one.path} is refused only for {refused}")
    assert not wrong, "\n".join(wrong)


async def test_i10_what_is_another_owner_s_is_not_there(wall: Wall) -> None:
    before, wrong = await _of_anna(wall.app), []
    for one in closed(wall):
        for what in ({}, *({"x": text} for text in wall.anna.values())):
            for in_query in (False, True):
                values = what or wall.anna
                for kind in one.content or ("",):
                    answer = await wall.ask(one, wall.keys["all"], values, in_query=in_query, kind=kind)
                    if wall.shows(answer):
                        wrong.append(f"{one.method} {one.path} with {what} shows {answer.text[:200]}")
                    if answer.status >= 500 and answer.status not in (501, 503):
                        wrong.append(f"{one.method} {one.path} with {what}: {answer.status} {answer.text[:200]}")
    assert not wrong, "\n".join(wrong)
    assert await _of_anna(wall.app) == before


async def test_i10_hostile_values_are_refused_and_open_nothing(wall: Wall) -> None:
    before, wrong = await _of_anna(wall.app), []
    for one in closed(wall):
        if (one.method, one.path) == ("DELETE", "/api/v1/session"):
            continue
        for text in HOSTILE:
            for kind in one.content or ("",):
                answer = await wall.ask(one, wall.keys["all"], text, kind=kind)
                where = f"{one.method} {one.path} with {text!a}"
                if answer.status >= 500 and answer.status not in (501, 503):
                    wrong.append(f"{where}: {answer.status} {answer.text[:200]}")
                if answer.status >= 400 and answer.headers.get("content-type") != "application/problem+json":
                    wrong.append(f"{where}: {answer.status} is no problem")
                if wall.shows(answer):
                    wrong.append(f"{where} shows what is Anna's: {answer.text[:200]}")
    assert not wrong, "\n".join(wrong)
    assert await _of_anna(wall.app) == before


async def test_a_body_that_is_no_json_is_a_problem(wall: Wall) -> None:
    authorized = [(b"authorization", f"Bearer {wall.keys['all']}".encode()), (b"content-type", b"application/json")]
    for one in closed(wall):
        if "application/json" not in one.content:
            continue
        path = re.sub(r"\{[^}]+\}", "x", one.path)
        for body in (b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"a":' * 2_000, b'"\\ud800"', b"1e999"):
            answer = await ask(wall.api, one.method, path, "", authorized, body)
            assert answer.status < 500, (one.method, one.path, body[:20], answer.text[:300])
