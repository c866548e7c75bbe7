"""Keys, tenant tokens and browser sessions: who gets in, as whom, and for how long."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jwt
import pytest
from tests.conftest import StartApp
from tests.integration.test_hostile_arguments import TEXTS
from tests.kit.ledger import TABLES

from penstock.app import App
from penstock.errors import Forbidden, NotAuthenticated, NotFound, UsageError
from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.engine import api_keys
from penstock.model.callers import Caller, KeyScope
from penstock.verbs import authentication
from penstock.verbs.authentication import Authenticator


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


@pytest.fixture
async def door(app: App) -> AsyncIterator[Authenticator]:
    door = Authenticator(app.resources)
    yield door
    await door.close()


async def refused(door: Authenticator, text: str) -> bool:
    try:
        await door.authenticate(text)
    except NotAuthenticated:
        return True
    return False


async def test_a_key_says_who_calls_and_what_it_may_do(app: App, door: Authenticator) -> None:
    assert not await door.any_key()
    made = await app.for_owner("anna").create_key(scopes=["ingest", "read"], collections=["a", "b"], expires_s=60)
    assert await door.any_key()
    caller = await door.authenticate(made.secret)
    assert (caller.owner, caller.actor, caller.collections) == ("anna", f"key:{made.key.id}", ("a", "b"))
    assert [caller.has(scope) for scope in KeyScope] == [False, True, True, False, False, False]
    assert [caller.sees(name) for name in ("a", "default")] == [True, False]
    assert caller.expires_at == made.key.expires_at
    assert caller.expires_at is not None
    assert abs(caller.expires_at - app.runtime.now() - 60) < 5


async def test_admin_includes_all_scopes(app: App, door: Authenticator) -> None:
    made = await app.create_key(scopes=["admin"])
    caller = await door.authenticate(made.secret)
    assert all(caller.has(scope) for scope in KeyScope)


async def test_only_the_whole_key_gets_in(app: App, door: Authenticator) -> None:
    made, other = await app.create_key(), await app.create_key()
    kind, key, secret = made.secret.split("_")
    digit = "0" if secret[5] != "0" else "1"
    wrong = [
        f"{kind}_{key}_{secret[:5]}{digit}{secret[6:]}",
        f"ps_{key}_{secret}",
        f"{kind}_{other.key.id}_{secret}",
        made.secret.upper(), made.secret + " ", made.secret[:-1], f" {made.secret}", made.secret + "\n",
        hashlib.sha256(made.secret.encode()).hexdigest(), key, "Bearer", *TEXTS,
    ]  # fmt: skip
    assert [text for text in wrong if not await refused(door, text)] == []
    assert not await refused(door, made.secret)


async def test_a_key_with_a_right_checksum_and_a_wrong_secret_is_refused(app: App, door: Authenticator) -> None:
    from penstock.verbs import key_texts

    made = await app.create_key()
    forged = key_texts.make(app.runtime)
    text = f"pk_{made.key.id}_{'0' * 64}"
    whole = text + key_texts._checksum("pk", made.key.id, "0" * 64)
    assert key_texts.parse(whole) is not None
    assert await refused(door, whole)
    assert await refused(door, forged.whole)


def _rows(connection: Connection, text: str) -> list[Row]:
    return connection.script(text)


async def test_the_ledger_has_no_secret(app: App, door: Authenticator) -> None:
    made = await app.create_key(scopes=["admin"])
    session = await door.open_session(made.secret)
    for table in TABLES:
        rows = repr(await app.ledger.read(_rows, f"SELECT * FROM {table}"))
        for text in (made.secret, session.cookie, session.csrf):
            assert text.rpartition("_")[2][:32] not in rows, table


async def test_a_revoked_key_is_refused_with_its_tokens_and_sessions(app: App, door: Authenticator) -> None:
    """By another process, too, within a second."""
    made = await app.create_key(scopes=["search", "read", "write"])
    token = await app.create_token(made.key.id)
    session = await door.open_session(made.secret)
    texts = [made.secret, token.token, session.cookie]
    assert [await refused(door, text) for text in texts] == [False] * 3
    await app.revoke_key(made.key.id)
    for _ in range(100):
        if all([await refused(door, text) for text in texts]):
            break
        await asyncio.sleep(0.02)
    assert [await refused(door, text) for text in texts] == [True] * 3
    assert authentication.FRESH_S < 1
    with pytest.raises(NotFound, match="no valid key"):
        await app.create_token(made.key.id)


async def test_an_expired_key_is_refused_although_it_is_remembered(app: App, door: Authenticator) -> None:
    made = await app.create_key(expires_s=0.4)
    assert not await refused(door, made.secret)
    await asyncio.sleep(0.45)
    assert await refused(door, made.secret)
    assert [one.id for one in await app.list_keys()] == [made.key.id]


async def test_a_session_ends_with_its_key_and_when_it_is_closed(app: App, door: Authenticator) -> None:
    made = await app.create_key(scopes=["read"], collections=["a"])
    session = await door.open_session(made.secret)
    caller = await door.authenticate(session.cookie)
    assert caller == Caller(
        app.owner, frozenset({KeyScope.READ}), f"session:{made.key.id}", made.key.id, ("a",), None,
        caller.expires_at, session.csrf,
    )  # fmt: skip
    for text in (session.cookie, (await app.create_token(made.key.id, scopes=["read"])).token):
        with pytest.raises(Forbidden):
            await door.open_session(text)
    await door.close_session(session.cookie)
    await door.close_session(session.cookie)
    await door.close_session(made.secret)
    assert [await refused(door, text) for text in (session.cookie, made.secret)] == [True, False]
    assert [one.id for one in await app.list_keys()] == [made.key.id], "sessions are not keys"


def claims(text: str) -> dict[str, Any]:
    found: dict[str, Any] = jwt.decode(text, options={"verify_signature": False})
    return found


async def test_a_token_only_reads_in_its_collections_and_with_its_filter(app: App, door: Authenticator) -> None:
    made = await app.for_owner("anna").create_key(scopes=["admin"], collections=["a", "b"])
    anna = app.for_owner("anna")
    token = await anna.create_token(made.key.id, collections=["b"], filter={"year": {"$gt": 2020}}, expires_s=60)
    caller = await door.authenticate(token.token)
    assert (caller.owner, caller.collections, caller.filter) == ("anna", ("b",), {"year": {"$gt": 2020}})
    assert [scope for scope in KeyScope if caller.has(scope)] == [KeyScope.SEARCH, KeyScope.READ]
    whole = await door.authenticate((await anna.create_token(made.key.id)).token)
    assert whole.collections == ("a", "b")


async def test_a_token_cannot_be_more_than_its_key(app: App) -> None:
    made = await app.create_key(scopes=["search"], collections=["a"])
    beyond: list[dict[str, Any]] = [{"scopes": ["read"]}, {"scopes": ["search"], "collections": ["a", "b"]}]
    for wrong in beyond:
        with pytest.raises(Forbidden):
            await app.create_token(made.key.id, **wrong)
    mistakes: list[dict[str, Any]] = [
        {"scopes": ["write"]}, {"scopes": []}, {"expires_s": 86_401}, {"expires_s": 0}, {"collections": []},
        {"filter": {"a": {"$what": 1}}}, {"filter": {"a": "x" * 3_000}},
    ]  # fmt: skip
    for bad in mistakes:
        with pytest.raises(UsageError):
            await app.create_token(made.key.id, **{"scopes": ["search"], **bad})
    with pytest.raises(NotFound):
        await app.for_owner("bert").create_token(made.key.id, scopes=["search"])


def forgeries(token: str, signing: str, key: str, other: str) -> Iterator[str]:
    good = claims(token)
    now = good["iat"]

    def signed(secret: str = signing, kid: Any = key, algorithm: str = "HS256", **changes: Any) -> str:
        given = {name: value for name, value in {**good, **changes}.items() if value is not ...}
        return jwt.encode(given, secret, algorithm=algorithm, headers={"kid": kid})

    yield signed("0" * 64)
    yield signed(kid=other)
    yield signed(algorithm="HS512")
    yield jwt.encode(good, "", algorithm="none", headers={"kid": key})
    yield signed(exp=now - 1)
    yield signed(exp=now + 86_402)
    yield signed(iat=now + 3_600, exp=now + 7_200)
    yield signed(exp=...)
    yield signed(iat=...)
    yield signed(exp="tomorrow")
    yield signed(scopes=["read", "write"])
    yield signed(scopes=["everything"])
    yield signed(scopes="read")
    yield signed(collections="a")
    yield signed(filter="a")
    yield f"{token.rpartition('.')[0]}."
    yield token[:-2]
    head, body, signature = token.split(".")
    yield f"{head}.{body[:-2]}.{signature}"
    yield ".."
    yield "a.b.c"


async def test_a_token_that_was_not_made_here_is_refused(app: App, door: Authenticator) -> None:
    made, other = await app.create_key(), await app.create_key()
    token = await app.create_token(made.key.id)
    parent = await app.ledger.read(api_keys.secret, made.key.id)
    assert parent is not None
    assert not await refused(door, token.token)
    wrong = [str(one) for one in forgeries(token.token, parent.signing, made.key.id, other.key.id)]
    assert [text for text in wrong if not await refused(door, text)] == []


async def test_many_requests_at_once_are_one_read_and_one_write(app: App, door: Authenticator) -> None:
    made = await app.create_key()
    reads = 0
    read = app.ledger.read

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*args, **kwargs)

    app.ledger.read = counted  # type: ignore[method-assign]
    commits = app.ledger.commits
    await asyncio.gather(*(door.authenticate(made.secret) for _ in range(300)))
    for _ in range(300):
        await door.authenticate(made.secret)
    assert reads <= 3
    await asyncio.gather(*door._writing)
    assert app.ledger.commits - commits <= 1
    [one] = await app.list_keys()
    assert one.used_at is not None


async def test_a_caller_that_gives_up_does_not_keep_others_from_getting_in(app: App, door: Authenticator) -> None:
    made = await app.create_key()
    first, second = (asyncio.create_task(door.authenticate(made.secret)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).key == made.key.id


async def test_changes_of_keys_are_in_the_audit_log(app: App, door: Authenticator) -> None:
    boss = app.for_owner("anna", actor="key:boss")
    made = await boss.create_key(name="portal", scopes=["read"])
    await boss.create_token(made.key.id, scopes=["read"])
    await boss.revoke_key(made.key.id)
    await boss.revoke_key(made.key.id)
    found = await boss.list_audit()
    assert [(one.actor, one.action, one.subject) for one in found] == [
        ("key:boss", action, made.key.id) for action in ("key.revoke", "token.create", "key.create")
    ]
    assert found[0].former == {"name": "portal", "scopes": ["read"]}
    assert found[2].given["name"] == "portal"
    assert [one.id for one in await boss.list_audit(before=found[0].id, limit=1)] == [found[1].id]
    assert await app.for_owner("bert").list_audit() == []
    assert made.secret not in json.dumps([one.given for one in found])
