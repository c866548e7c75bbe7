"""I10, owners are walls: in the signatures of the ledger, and in everything an App does."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType

import pytest
from tests.conftest import StartApp

from penstock import ledger as package
from penstock.app import App
from penstock.errors import ConfigError, NotFound
from penstock.verbs.owner import OwnerScope

FOR_USERS = {
    "documents", "dead_letters", "stats", "runs", "generations", "batches", "submissions", "submits", "cancellations",
    "answers",
    "deletions", "restarts", "index_versions", "searchable", "adoptions", "metadata",
    "collections", "forgotten", "children",
    "revisions", "usage", "reindexes", "switches", "api_keys", "audit_log", "feed", "uploads", "numbers", "clients",
    "run_lists", "history", "actions", "related", "samples", "messages", "vector_stores", "webhooks", "admission",
}  # fmt: skip
"""Modules whose functions are called for a user: `owner` comes first."""
ENGINE = {
    "steps", "resource_keys", "completions", "flips", "failures", "releases", "checkpoints", "locks", "workers",
    "work", "liveness", "audit", "audit_index", "checksums", "repairs", "retention", "store", "writer", "notifier",
    "database", "statements", "connection", "sqlite", "postgres", "groups", "outbox", "gauges", "lifecycle",
    "steps_vacuum", "claims", "leasing", "postgres_statements", "histories", "commit_counter", "outage_wait",
    "evictions", "retired_versions", "compaction",
    "versions", "targets", "refusals", "backup_guard", "backup_tables", "limits", "pacing",
    "small_blobs", "blobs", "requests", "read_only", "reserve", "queue", "webhook_sending",
}  # fmt: skip
"""Modules whose statements cross owners: the engine's own."""
CROSSING = {
    "documents.live": "the documents of claimed steps, whoever owns them",
    "documents.live_row": "the same",
    "documents.listed_row": "a row that a statement for an owner returned",
    "documents.page_of": "the same",
    "children.check_limits": "compares numbers",
    "index_versions.stores": "the names of indexes, which all owners share",
    "dead_letters.insert": "inside the transaction that fails a step",
    "generations.activate": "inside the transaction of a flip",
    "generations.place": "the same",
    "generations.stage": "the same",
    "generations.active_condition": "an SQL condition that names no owner: the table it is for belongs to one",
    "generations.schedule_purge": "inside flips, submits and deletes",
    "generations.retire": "inside submits and deletes, for documents that were looked up by owner",
    "submissions.enter": "inside a submit; the submission carries the owner",
    "submissions.begin": "the same",
    "submissions.is_one_statement": "the same",
    "generations.due_purges": "upkeep",
    "collections.begun": "the same",
    "reindexes.worked": "the same",
    "reindexes.expired": "the same",
    "feed.present": "the time, and how often the ledger was put back",
    "uploads.whole": "upkeep",
    "uploads.planned": "the same",
    "actions.is_waiting": "for the worker, which takes actions of all owners",
    "samples.standing": "for the worker, which samples the queues of all owners",
    "feed.oldest_writer": "the time of a transaction",
    "usage.book": "inside the transactions of what is counted; the bookings carry the owner",
    "usage.by_owner": "for the operator",
    "runs.start_runs": "inside submits; the submission carries the owner",
    "runs.keep_password": "the same",
    "runs.drop_held": "inside starts and re-indexes, for documents that were looked up by owner",
    "runs.stop_runs": "inside submits, cancels and deletes, for documents that were looked up by owner",
    "runs.replay_runs": "inside submits and retries, for runs that were looked up by owner",
    "cancellations.cancel_documents": "inside cancels and deletes, for documents that were looked up by owner",
    "admission.unsettled": "upkeep",
    "webhooks.told": "what the audit log says of a webhook that was looked up by owner",
    "audit_log.record": "inside the transactions of what is changed; the changes carry the owner",
    "api_keys.secret": "the owner of a caller is not known before its key is found",
    "api_keys.any_key": "whether callers need a key, whoever they are",
    "runs.end_runs": "inside the transaction that ends the last step of a run",
}


def functions(module: ModuleType) -> dict[str, Callable[..., object]]:
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and function.__module__ == module.__name__
    }


MODULES = {
    module.name.rpartition(".")[2]: module.name
    for module in walk_packages(package.__path__, "penstock.ledger.")
    if not module.ispkg and "migrations" not in module.name
}


def test_i10_every_module_of_the_ledger_is_for_users_or_the_engine_s_own() -> None:
    assert set(MODULES) == FOR_USERS | ENGINE


@pytest.mark.parametrize("name", sorted(FOR_USERS))
def test_i10_every_ledger_function_for_a_user_takes_the_owner_first(name: str) -> None:
    for function_name, function in functions(import_module(MODULES[name])).items():
        first = next(iter(inspect.signature(function).parameters.values()))
        if f"{name}.{function_name}" in CROSSING:
            assert first.name != "owner"
            continue
        assert first.name == "owner", f"{name}.{function_name}"
        assert first.default is inspect.Parameter.empty


def test_i10_the_list_of_crossing_functions_is_not_out_of_date() -> None:
    for entry in CROSSING:
        module, _, name = entry.partition(".")
        assert name in functions(import_module(MODULES[module])), entry


def test_i10_every_verb_of_an_owner_takes_its_scope_first_and_names_no_owner() -> None:
    verbs = {
        name: verb for name, verb in inspect.getmembers(OwnerScope, inspect.isfunction) if name in vars(OwnerScope)
    }
    assert len(verbs) > 20
    for name, verb in verbs.items():
        first, *others = inspect.signature(verb).parameters
        assert (first, "owner" in others) == ("scope", False), name
    assert {name for name in verbs if name in vars(App)} == {"check"}, "all others are the scope's own"


@pytest.fixture
async def app(start_app: StartApp) -> App:
    """Anna and Bert have each a document from the same file, and one of their own."""
    app = await start_app()
    for owner in ("anna", "bert"):
        await app.for_owner(owner).ingest(data=b"the shared words of a common file", name="same.txt")
        await app.for_owner(owner).ingest(data=f"the secret of {owner}".encode(), name=f"{owner}.txt")
    return app


async def test_i10_the_same_file_under_two_owners_is_two_documents(app: App, tmp_path: Path) -> None:
    ids = {owner: {e.id for e in await app.for_owner(owner).list_documents()} for owner in ("anna", "bert")}
    assert [len(found) for found in ids.values()] == [2, 2]
    assert ids["anna"].isdisjoint(ids["bert"])
    for owner in ("anna", "bert"):
        for folder in ("blobs", "index"):
            assert (tmp_path / "home" / folder / owner).is_dir()


async def test_i10_work_is_not_shared_across_owners(app: App) -> None:
    for owner in ("anna", "bert"):
        [document] = await app.for_owner(owner).list_documents(name="same.txt")
        status = await app.for_owner(owner).status(document.id)
        assert not any(step.meta.get("reused") for step in status.steps)


async def test_i10_lists_counts_and_searches_stay_within_the_owner(app: App) -> None:
    assert {e.name for e in await app.for_owner("anna").list_documents()} == {"anna.txt", "same.txt"}
    assert (await app.for_owner("anna").status()).documents == {"COMPLETED": 2}
    assert {hit.name for hit in await app.for_owner("anna").search("secret", 50)} == {"anna.txt", "same.txt"}
    assert await app.list_documents() == []
    with pytest.raises(NotFound, match="nothing was ingested yet"):
        await app.search("secret")
    assert (await app.status()).documents == {}


async def test_i10_another_owner_s_document_is_not_there(app: App) -> None:
    [document] = [e.id for e in await app.for_owner("bert").list_documents(name="bert.txt")]
    anna = app.for_owner("anna")
    for change in (anna.cancel, anna.delete, anna.retry):
        with pytest.raises(NotFound):
            await change([document])
    with pytest.raises(NotFound):
        await app.for_owner("anna").status(document)
    with pytest.raises(NotFound):
        [page async for page in app.for_owner("anna").show(document, "pages")]
    assert {hit.name for hit in await app.for_owner("bert").search("secret", 50)} == {"bert.txt", "same.txt"}


async def test_i10_a_short_id_is_looked_for_among_the_owner_s_own(app: App) -> None:
    [document] = [e.id for e in await app.for_owner("bert").list_documents(name="bert.txt")]
    with pytest.raises(NotFound):
        await app.for_owner("anna").status(document[:25])


async def test_i10_dead_letters_are_the_owner_s(app: App) -> None:
    await app.for_owner("bert").ingest(data=b"%PDF-1.7\n" + bytes(range(256)) * 9, name="bad.bin")
    [letter] = (await app.for_owner("bert").list_dead_letters()).letters
    assert (await app.for_owner("anna").list_dead_letters()).total == 0
    with pytest.raises(NotFound):
        await app.for_owner("anna").dead_letter(letter.id)
    anna = app.for_owner("anna")
    for change in (anna.replay, anna.discard):
        with pytest.raises(NotFound):
            await change([letter.id])
        assert (await change()).count == 0
    assert (await app.for_owner("bert").discard([letter.id])).discarded == [letter.id]


@pytest.mark.parametrize(
    "name",
    [
        "../bert",
        "..",
        ".",
        "/etc",
        "a/b",
        "a\\b",
        "a\x00b",
        " ",
        "-x",
        ".hidden",
        "a\nb",
        "x" * 101,
        "ü",
        "a b",
        "a%2Fb",
    ],
)
async def test_i10_names_that_lead_elsewhere_are_refused(app: App, name: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits and _"):
        await app.for_owner(name).ingest(data=b"x", name="x.txt")
    with pytest.raises(ConfigError, match="letters, digits and _"):
        await app.for_owner("anna").ingest(data=b"x", name="x.txt", collection=name)
    with pytest.raises(ConfigError, match="letters, digits and _"):
        await app.for_owner(name).search("x")


async def test_owners_that_differ_only_in_case_are_two(app: App) -> None:
    await app.for_owner("Anna").ingest(data=b"capital words", name="a.txt")
    assert {hit.name for hit in await app.for_owner("Anna").search("capital", 5)} == {"a.txt"}
    assert {e.name for e in await app.for_owner("anna").list_documents()} == {"anna.txt", "same.txt"}
