"""Owners are walls (I10), whatever a caller gives: every argument of every verb, with texts that mean something to a
database, a shell of globs or a formatter, and with values of a wrong type."""

import asyncio
import inspect
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.ledger import TABLES

from penstock.app import App
from penstock.errors import PenstockError, StorageError, UsageError
from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.verbs.actions import Criteria
from penstock.verbs.owner import OwnerScope

SECRET = "saffron"
EMPTY = tempfile.mkdtemp(prefix="penstock-empty-")

TEXTS = (
    "",
    "'",
    "X' OR '1'='1",
    "X' OR s.owner <> '' OR s.status = 'X",
    "X') UNION SELECT * FROM documents --",
    "'; DELETE FROM documents; --",
    '"; DROP TABLE steps; --',
    "\\'; SELECT 1; --",
    "%",
    "%s %(owner)s %%",
    "_" * 26,
    "*",
    "[!x]*",
    "{now}",
    "{rows} {skip} {owner} {0} {carried}",
    ":owner",
    "?1",
    "$1",
    "a\x00b",
    "\ud800 caf\udce9",
    "x" * 100_000,
    "01" + "~" * 24,
    "../other",
)
WRONG: tuple[Any, ...] = (
    0,
    -1,
    2**70,
    10**400,
    1.5,
    float("nan"),
    True,
    b"x",
    [],
    ["x", None],
    {"x": object()},
    object(),
)
NO_TEXT = {
    "consume": "keeps on; tests/integration/test_streams.py names wrong streams",
    "watch": "keeps on; passes the arguments of ingest to the same functions",
    "events": "takes a task",
    "stop": "takes nothing",
    "record": "called by the faces, after they have validated a change",
    "count_workers": "takes nothing; says nothing of an owner",
    "list_workers": "takes nothing; says nothing of an owner",
}


async def _show(scope: OwnerScope, **given: Any) -> list[Any]:
    return [item async for item in scope.show(**given)]


async def _hold(scope: OwnerScope, **given: Any) -> None:
    async with scope.hold_index(**given):
        pass


def _plain(name: str) -> Callable[..., Any]:
    return lambda scope, **given: getattr(scope, name)(**given)


Call = tuple[Callable[..., Any], dict[str, Any]]


@dataclass(frozen=True)
class Verb:
    """A verb of an owner's scope, or of the app itself."""

    of: type[OwnerScope]
    name: str
    call: Callable[..., Any]
    needed: dict[str, Any]


def public(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}


def verbs(document: str) -> list[Verb]:
    """Every verb with arguments that it must have; those that it may have come from its signature. What the app
    inherits is the scope's own."""
    found: dict[str, Call] = {
        "append_upload": (_plain("append_upload"), {"upload_id": document, "offset": 0, "pieces": None}),
        "count_action": (_plain("count_action"), {"verb": "cancel", "criteria": Criteria(name=SECRET)}),
        "complete_upload": (_plain("complete_upload"), {"upload_id": document, "etags": {1: "etag"}}),
        "presign_upload": (_plain("presign_upload"), {"size": 9, "name": "b.txt"}),
        "create_upload": (_plain("create_upload"), {"size": 9, "name": "b.txt"}),
        "start_action": (_plain("start_action"), {"verb": "cancel", "criteria": Criteria(name=SECRET)}),
        "cancel": (_plain("cancel"), {"names": [document]}),
        "cancel_group": (_plain("cancel_group"), {"name": document}),
        "dead_letter": (_plain("dead_letter"), {"letter": 1}),
        "create_token": (_plain("create_token"), {"key": document}),
        "delete": (_plain("delete"), {"names": [document]}),
        "evaluate": (_plain("evaluate"), {"questions": [{"question": SECRET, "answer": SECRET}], "dry_run": True}),
        "for_owner": (_plain("for_owner"), {"owner": "bert"}),
        "group": (_plain("group"), {"name": document}),
        "hold_index": (_hold, {"max_wait": 0.0}),
        "ingest": (_plain("ingest"), {"data": b"words of bert", "name": "b.txt", "wait": False}),
        "plan_ingest": (_plain("plan_ingest"), {"paths": [__file__]}),
        "estimate": (_plain("estimate"), {"paths": [EMPTY]}),
        "release_lock": (_plain("release_lock"), {"key": "index:bert/default/1"}),
        "revoke_key": (_plain("revoke_key"), {"key": document}),
        "retry": (_plain("retry"), {"names": [document]}),
        "retry_group": (_plain("retry_group"), {"name": document}),
        "run": (_plain("run"), {"budget_s": 0.1}),
        "search": (_plain("search"), {"query": SECRET, "mode": "text"}),
        "set_metadata": (_plain("set_metadata"), {"document": document, "changes": {"a": 1}}),
        "show": (_show, {"document": document, "what": "pages"}),
        "start_document": (_plain("start_document"), {"document": document}),
        "start_batch": (_plain("start_batch"), {"batch": "spring"}),
        "vacuum": (_plain("vacuum"), {"wait_s": 0.0}),
        "create_webhook": (_plain("create_webhook"), {"url": "https://93.184.216.34/hook"}),
        "webhook": (_plain("webhook"), {"webhook": document}),
        "change_webhook": (_plain("change_webhook"), {"webhook": document}),
        "delete_webhook": (_plain("delete_webhook"), {"webhook": document}),
        "test_webhook": (_plain("test_webhook"), {"webhook": document}),
        "list_webhook_deliveries": (_plain("list_webhook_deliveries"), {"webhook": document}),
        "redeliver_webhook": (_plain("redeliver_webhook"), {"webhook": document, "delivery": 1}),
        "work": (_plain("work"), {"pools": "x"}),
    }
    crossing = {name for name in public(App) if name in vars(App)}
    assert public(App) - crossing <= public(OwnerScope)
    chosen = [(OwnerScope, name) for name in public(OwnerScope)] + [(App, name) for name in crossing]
    return [
        Verb(of, name, *found.get(name, (_plain(name), {})))
        for of, name in sorted(chosen, key=str)
        if name not in NO_TEXT
    ]


LEFT = {("retry", "notes"), ("backup", "report")}
"""What is added to. What is called is left out, too."""


def hostile(verb: Verb) -> Iterator[tuple[str, Any]]:
    name = verb.name
    for parameter in list(inspect.signature(getattr(verb.of, name)).parameters.values())[1:]:
        if (name, parameter.name) in LEFT or re.search("Callable|AsyncIterator|Criteria", str(parameter.annotation)):
            continue
        if parameter.annotation is bool:
            # Any of them is but true or false.
            yield parameter.name, TEXTS[2]
            continue
        for value in TEXTS:
            yield parameter.name, value
            if parameter.name in ("names", "letters", "paths", "include", "exclude"):
                yield parameter.name, [value]
            if parameter.name == "values":
                yield parameter.name, {value: {value: value}}
            if parameter.name == "metadata":
                yield parameter.name, {value: value}
        for value in WRONG:
            yield parameter.name, value


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    app = await start_app(database=database_url, owner="bert")
    for owner, word in (("anna", SECRET), ("bert", "plain")):
        await app.for_owner(owner).ingest(data=f"the {word} of {owner}".encode(), name=f"{word}.txt", batch="spring")
        await app.for_owner(owner).ingest(data=b"%PDF-1.7\n" + bytes(range(256)) * 9, name=f"{word}.bin")
    return app


async def _of_anna(app: App) -> dict[str, list[Row]]:
    """All of her rows, and all that could be changed of them."""

    def look(connection: Connection) -> dict[str, list[Row]]:
        texts = {table: f"SELECT * FROM {table}" for table in (*TABLES, "schema_versions")}
        everything = {table: connection.run(Statement(text)) for table, text in texts.items()}
        return {table: sorted((r for r in rows if "anna" in repr(r)), key=repr) for table, rows in everything.items()}

    return await app.ledger.read(look)


async def _give(call: Callable[..., Any], scope: OwnerScope, given: dict[str, Any]) -> object:
    answer = call(scope, **given)
    return await asyncio.wait_for(answer, 120) if inspect.isawaitable(answer) else answer


@pytest.mark.timeout(900)
async def test_i10_no_argument_of_any_verb_opens_a_wall(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [document] = [d.id for d in await app.for_owner("bert").list_documents(name="plain.txt")]
    hers = {d.id for d in await app.for_owner("anna").list_documents()}
    before = await _of_anna(app)
    wrong: list[str] = []
    for verb in verbs(document):
        # A backup goes into whatever folder it is told, and ingest must not find it there.
        here = tmp_path / verb.of.__name__ / verb.name / "here"
        here.mkdir(parents=True)
        monkeypatch.chdir(here)
        scope = app if verb.of is App else app.for_owner("bert")
        for parameter, value in hostile(verb):
            shown = ascii(value)[:60] if not isinstance(value, int) else "…"
            where = f"{verb.of.__name__}.{verb.name}({parameter}={shown})"
            try:
                answer = ascii(await _give(verb.call, scope, {**verb.needed, parameter: value}))
            except PenstockError as error:
                answer = ascii(error)
                if isinstance(error, StorageError):
                    wrong.append(f"{where}: {answer[:200]}")
            except Exception as error:
                answer = ascii(error)
                wrong.append(f"{where}: {answer[:200]}")
            if SECRET in answer.replace(f"'{SECRET}", "") or any(one in answer for one in hers):
                wrong.append(f"{where} shows what is Anna's: {answer[:200]}")
    assert not wrong, "\n".join(wrong)
    assert await _of_anna(app) == before


async def test_a_status_that_there_is_not_is_refused_with_those_that_there_are(app: App) -> None:
    for ask in (app.list_steps, app.list_documents):
        with pytest.raises(UsageError, match=r"status \"X' OR '1'='1\": use one of PENDING, .*CANCELLED"):
            await ask(status="X' OR '1'='1")


async def test_no_owner_s_name_is_not_the_default_owner_s(app: App) -> None:
    for name in ("", " ", None, 0):
        with pytest.raises(UsageError, match="owner "):
            app.for_owner(name)  # type: ignore[arg-type]


async def test_a_text_is_not_taken_for_a_list_of_its_letters(app: App) -> None:
    [document] = [d.id for d in await app.for_owner("anna").list_documents(name=f"{SECRET}.txt")]
    anna = app.for_owner("anna")
    for change in (anna.delete, anna.cancel, anna.retry):
        for names in (document, [""]):
            with pytest.raises(UsageError):
                await change(names)
    assert len(await anna.list_documents()) == 2
