"""A kill at every failpoint: before and after each durable write of the four doors. Whatever the instant, the client
goes on, the work is finished, and the end is that of a run which nobody disturbed."""

import ast
import importlib
import itertools
import pkgutil
import re
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from tests.crash.harness import LONG, Picture, Place, recover
from tests.crash.scenarios import BY_NAME, SCENARIOS

import penstock.ledger
from penstock.config import WorkerConfig

SOURCE = Path(penstock.__file__).parent


def listed() -> list[str]:
    """Every failpoint, by what the four doors say of themselves."""
    from penstock.blobs import local
    from penstock.indexes import lance
    from penstock.ledger.database import writer
    from penstock.stages import embed

    # All verbs are in the ledger: `test_every_name_in_the_source_is_listed` reads the whole source.
    for module in pkgutil.walk_packages(penstock.ledger.__path__, "penstock.ledger."):
        importlib.import_module(module.name)
    return sorted({*writer.failpoints(), *local.FAILPOINTS, *lance.FAILPOINTS, *embed.FAILPOINTS})


ALL = listed()

LEASE_S = WorkerConfig().lease_s

_TRIAL = "only in the ledger of a trial: tests/integration/test_evaluation.py kills it there"
_PROVIDER = "only with a provider that costs money: tests/integration/test_cloud_kills.py kills it there"
_PAID = (
    "lease_limit",
    "refuse_limit",
    "keep_answers",
    "touch_answers",
    "start_operation",
    "forget_answers",
)
_STATED = "only with a provider that states its limits, and written again by each worker: no test kills it there yet"
UNREACHED: dict[str, str] = {"ledger.adopt.before": _TRIAL, "ledger.adopt.after": _TRIAL}
UNREACHED |= {f"ledger.{verb}.{side}": _PROVIDER for verb in _PAID for side in ("before", "after")}
UNREACHED |= dict.fromkeys(("ledger.state_limit.before", "ledger.state_limit.after"), _STATED)
_REMOTE = "only for documents from elsewhere: tests/integration/test_web_source.py kills it there"
UNREACHED |= dict.fromkeys(("ledger.revise.before", "ledger.revise.after"), _REMOTE)
_QUERY = "only for a query that costs money: a search that dies there has not booked it, which is all it would do"
UNREACHED |= dict.fromkeys(("ledger.book.before", "ledger.book.after"), _QUERY)
_UPLOAD = (
    "only for resumable uploads: tests/integration/test_uploads.py dies there, test_service_live.py kills the server"
)
_STREAM = "only for messages of streams: tests/acceptance/test_consume_command.py kills it there"
_ACTION = "only for actions on many documents: tests/integration/test_actions.py dies between their writes"
_WEBHOOK = "only for webhooks of owners: tests/integration/test_owner_webhooks.py kills workers there"
_SERVICE = "one row of the service, which the caller sends again: no test kills it there yet"
_OF_THE_SERVICE = {
    _UPLOAD: ("create_upload", "hold_upload", "add_parts", "let_upload_go", "end_upload", "remove_upload"),
    _STREAM: ("refuse_message", "retried_message"),
    _ACTION: ("start_action", "take_action", "choose", "act", "discard_of", "let_action_go", "end_action"),
    _WEBHOOK: ("take_webhooks", "settle_webhook"),
    _SERVICE: (
        *("create_key", "revoke_key", "used_key", "audit", "enter_request", "renew_request", "store_answer"),
        *("forget_request", "allot_numbers", "create_batch", "set_sync_state", "cancel_action"),
        *("set_store", "forget_store", "add_file_batch", "cancel_file_batch"),
        *("create_webhook", "change_webhook", "delete_webhook", "redeliver", "tested_webhook"),
        *("pause_intake", "resume_intake", "set_quota", "settle_holdings"),
    ),
}
for _why, _verbs in _OF_THE_SERVICE.items():
    UNREACHED |= {f"ledger.{verb}.{side}": _why for verb in _verbs for side in ("before", "after")}
"""Failpoints that no scenario passes, and why that is right."""

BEST = {
    "index.append": "ingest",
    "ledger.checkpoint": "large",
    "ledger.start": "held",
    "ledger.due": "stumbling",
    "ledger.flip": "ingest",
    "ledger.heartbeat": "stumbling",
    "ledger.open": "orphaned",
    "ledger.reap": "orphaned",
    "ledger.submit": "ingest",
}
"""Where a passage means most; otherwise the first scenario that passes."""

HANDFUL = [
    *("ledger.submit.before", "ledger.submit.after", "ledger.claim.after", "ledger.complete.before"),
    *("ledger.flip.before", "ledger.flip.after", "ledger.checkpoint.before", "ledger.reap.before"),
]
"""Tried on PostgreSQL, too, in the short run."""

CHILDREN = ["ledger.submit.before", "ledger.submit.after", "ledger.sweep.before", "ledger.sweep.after"]


@dataclass
class Atlas:
    """Who passes where, how often, and what the end is if nobody is disturbed: each scenario is played once."""

    place: Place
    pictures: dict[str, Picture] = field(default_factory=dict)
    passages: dict[str, dict[str, int]] = field(default_factory=dict)
    """By scenario, by failpoint."""

    def play(self, scenario: str) -> dict[str, int]:
        if scenario not in self.passages:
            home = self.place.home(BY_NAME[scenario].start)
            outcome = self.place.player.play(scenario, home, record=True, **self.place.settings(home))
            assert outcome.status == 0, outcome.log
            end = partial(recover, scenario=BY_NAME[scenario], acknowledged=outcome.acknowledged)
            self.pictures[scenario] = self.place.run(home, end)
            self.passages[scenario] = outcome.counts
        return self.passages[scenario]

    def where(self, failpoint: str) -> Iterator[tuple[str, int]]:
        best = BEST.get(failpoint.rpartition(".")[0], "")
        for scenario in sorted(BY_NAME, key=lambda name: name != best):
            if count := self.play(scenario).get(failpoint, 0):
                yield scenario, count

    def cases(self, failpoint: str) -> Iterable[tuple[str, int]]:
        """Scenario and passage: the first in one scenario, or a few in each."""
        if LONG:
            for scenario, count in self.where(failpoint):
                yield from ((scenario, n) for n in sorted({1, 2, count // 2, count} & set(range(1, count + 1))))
        else:
            yield from ((scenario, 1) for scenario, _ in itertools.islice(self.where(failpoint), 1))

    def kill(self, failpoint: str, scenario: str, passage: int) -> None:
        home = self.place.home(BY_NAME[scenario].start)
        outcome = self.place.player.play(scenario, home, f"{failpoint}=kill@{passage}", **self.place.settings(home))
        # How writes are grouped, and when a heart beats, is not the same each time: not every passage comes again.
        sure = passage == 1 and scenario == next(self.where(failpoint))[0]
        assert outcome.status == -signal.SIGKILL or (outcome.status == 0 and not sure), outcome.log
        end = partial(recover, scenario=BY_NAME[scenario], acknowledged=outcome.acknowledged)
        began = time.monotonic()
        assert self.place.run(home, end) == self.pictures[scenario]
        assert time.monotonic() - began < LEASE_S, "the work of the dead was taken over only when its lease was over"


@pytest.fixture(scope="module")
def atlas(on_sqlite: Place) -> Atlas:
    return Atlas(on_sqlite)


@pytest.fixture(scope="module")
def atlas_postgres(on_postgres: Place) -> Atlas:
    return Atlas(on_postgres)


@pytest.mark.parametrize("failpoint", [name for name in ALL if name not in UNREACHED])
def test_a_kill_here_changes_nothing(atlas: Atlas, failpoint: str) -> None:
    cases = list(atlas.cases(failpoint))
    assert cases, f"no scenario passes {failpoint}"
    for scenario, passage in cases:
        try:
            atlas.kill(failpoint, scenario, passage)
        except BaseException as error:
            error.add_note(f"{failpoint}=kill@{passage} in the scenario {scenario!r}")
            raise


@pytest.mark.parametrize(
    "failpoint", [name for name in ALL if name.startswith("ledger.") and name not in UNREACHED] if LONG else HANDFUL
)
def test_a_kill_here_changes_nothing_on_postgres(atlas_postgres: Atlas, failpoint: str) -> None:
    scenario, _ = next(atlas_postgres.where(failpoint), ("nobody", 0))
    atlas_postgres.kill(failpoint, scenario, 1)


@pytest.mark.parametrize("failpoint", CHILDREN)
def test_a_kill_while_an_archive_is_read_changes_nothing_on_postgres(atlas_postgres: Atlas, failpoint: str) -> None:
    """The second submit is that of the children."""
    passages = atlas_postgres.play("archive")[failpoint]
    atlas_postgres.kill(failpoint, "archive", min(2, passages))


def test_every_failpoint_is_passed_by_somebody_and_listed_by_its_door(atlas: Atlas) -> None:
    passed = {failpoint for scenario in SCENARIOS for failpoint in atlas.play(scenario.name)}
    assert passed <= set(ALL), "a failpoint that no door lists"
    assert set(ALL) - passed == set(UNREACHED)


def test_every_name_in_the_source_is_listed() -> None:
    """`hit` is called with a name or with a pattern of one; every verb and every commit of an index fills it in."""
    names = [argument for path in SOURCE.rglob("*.py") for argument in _arguments(path, {"hit"}) if argument]
    assert len(names) >= 8
    for name in names:
        matching = [one for one in ALL if re.fullmatch(name, one)]
        assert matching, f"{name} is not listed"
    commits = set(_arguments(SOURCE / "indexes" / "lance.py", {"_commit", "_change", "_rewrite"})) - {None}
    assert commits
    for commit in commits:
        assert f"index.{commit}.before" in ALL
    for path in SOURCE.rglob("*.py"):
        for verb in _arguments(path, {"Verb"}):
            assert verb is None or f"ledger.{verb}.before" in ALL


def _arguments(path: Path, functions: set[str]) -> Iterator[str | None]:
    """The first argument of each call of these, as a pattern; None where it is no text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in functions:
            yield _pattern(node.args[0])


def _pattern(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(_pattern(part) or "[a-z_]+" for part in parts)
        case _:
            return None
