"""`ingest` and `run` from the outside: what is submitted, what is done again, and how they end."""

import os
import re
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.apps import PATIENCE_S
from tests.kit.busy import Stopwatch, slowness
from tests.kit.cli import Cli, Result, finish, write

SUMMARY = ("submitted", "skipped", "completed", "not_indexable", "failed", "cancelled", "pending", "elapsed_s")


def counts(result: Result) -> dict[str, int]:
    """Of a summary, what is not zero."""
    assert set(SUMMARY) <= set(result.json)
    named = (*SUMMARY[:-1], "refused", "deleted", "stale_settings")
    return {name: result.json[name] for name in named if result.json[name]}


def large_text(path: Path, megabytes: float) -> Path:
    line = "The quick brown fox number {} jumps over the lazy dog and walks home along the river. "
    with path.open("w") as file:
        for i in range(int(megabytes * 1_000_000 / 870)):
            file.write("".join(line.format(10 * i + j) for j in range(10)) + "\n\n")
    return path


def test_ingest_answers_what_became_of_each_document(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", a__txt="some text", b__md="# more text", empty__txt="")
    (docs / "rubbish.dat").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 40)
    result = cli("ingest", docs, "--json")
    assert counts(result) == {"submitted": 4, "completed": 2, "not_indexable": 1, "failed": 1}
    assert result.code == 1
    assert "penstock dlq list" in result.err


def test_again_follows_the_rules(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", a__txt="some text", empty__txt="")
    (docs / "rubbish.dat").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 40)
    cli("ingest", docs)
    before = cli.documents()
    same = cli("ingest", docs, "--json")
    assert (counts(same), same.code) == ({"skipped": 3}, 0)
    retried = cli("ingest", docs, "--retry", "--json")
    assert (counts(retried), retried.code) == (
        {"submitted": 2, "skipped": 1, "not_indexable": 1, "failed": 1},
        1,
    )
    write(docs, a__txt="other text")
    assert counts(cli("ingest", docs, "--json")) == {"submitted": 1, "skipped": 2, "completed": 1}
    after = cli.documents()
    assert {name: d["id"] for name, d in after.items()} == {name: d["id"] for name, d in before.items()}
    pages = cli("show", after["a.txt"]["id"], "--pages", "--json").json["pages"]
    assert [page["text"] for page in pages] == ["other text"]


def test_changed_settings_do_not_redo_what_is_completed(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", a__txt="some text")
    cli("ingest", docs)
    cli.settings["PENSTOCK_CHUNK__SIZE"] = "50"
    result = cli("ingest", docs, "--json")
    assert counts(result) == {"skipped": 1, "stale_settings": 1}
    assert "made with other settings" in result.err


def test_standard_input_is_known_by_its_name(cli: Cli) -> None:
    assert counts(cli.process("ingest", "-", "--name", "n.txt", "--json", data=b"one")) == {
        "submitted": 1,
        "completed": 1,
    }
    assert counts(cli.process("ingest", "-", "--name", "n.txt", "--json", data=b"one")) == {"skipped": 1}
    assert counts(cli.process("ingest", "-", "--name", "n.txt", "--json", data=b"two")) == {
        "submitted": 1,
        "completed": 1,
    }
    assert cli.documents()["n.txt"]["source"] == "n.txt"


def test_an_idempotency_key_answers_the_same_and_refuses_other_bytes(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", a__txt="some text", b__txt="some text", c__txt="other text")
    assert counts(cli("ingest", docs / "a.txt", "--key", "k", "--json"))["completed"] == 1
    assert counts(cli("ingest", docs / "b.txt", "--key", "k", "--json")) == {"skipped": 1}
    other = cli("ingest", docs / "c.txt", "--key", "k", "--json")
    assert other.code == 2
    assert "'k'" in other.json["error"]
    assert set(cli.documents()) == {"a.txt"}


def test_a_folder_is_read_without_what_is_hidden_or_leads_out(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", a__txt="a", b__md="b", c__log="c")
    write(docs / "deep" / "er", d__txt="d")
    write(docs / "drafts", e__txt="e")
    write(docs, __hidden="no")
    write(docs / ".git", f__txt="no")
    write(tmp_path / "outside", g__txt="no")
    (docs / "link.txt").symlink_to(tmp_path / "outside" / "g.txt")
    (docs / "folder").symlink_to(tmp_path / "outside")
    (docs / "loop").symlink_to(docs)
    options = ("--include", "*.txt", "--include", "*.md", "--exclude", "drafts", "--no-wait", "--json")
    result = cli("ingest", docs, *options)
    assert (counts(result), result.code) == ({"submitted": 3, "pending": 3}, 0)
    assert set(cli.documents()) == {"a.txt", "b.md", "d.txt"}


def test_prune_deletes_what_has_left_the_folder(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", a__txt="a", b__txt="b")
    write(tmp_path / "elsewhere", c__txt="c")
    cli("ingest", docs, tmp_path / "elsewhere", "--no-wait")
    (docs / "a.txt").unlink()
    (tmp_path / "elsewhere" / "c.txt").unlink()
    assert counts(cli("ingest", docs, "--prune", "--no-wait", "--json"))["deleted"] == 1
    assert set(cli.documents()) == {"b.txt", "c.txt"}


def test_strange_names_and_places_are_taken_or_refused_with_a_reason(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", a__txt="a")
    Path(os.fsdecode(bytes(docs) + b"/caf\xe9.txt")).write_text("latin")
    (docs / "line\nbreak.txt").write_text("b")
    os.mkfifo(tmp_path / "pipe")
    result = cli("ingest", docs, tmp_path / "pipe", "--no-wait", "--json")
    assert counts(result) == {"submitted": 3, "pending": 3, "refused": 1}
    assert result.code == 1
    assert re.search(r"^refused: .*/pipe: not a file", result.err, flags=re.MULTILINE)
    assert set(cli.documents()) == {"a.txt", r"caf\xe9.txt", "line\nbreak.txt"}


def test_nobody_waits_with_no_wait_and_run_does_the_work(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", a__txt="a", b__txt="b")
    submitted = cli("ingest", docs, "--no-wait", "--json")
    assert (counts(submitted), submitted.code) == ({"submitted": 2, "pending": 2}, 0)
    assert "penstock run" in submitted.err
    worked = cli("run", "--json")
    assert (counts(worked), worked.code) == ({"completed": 2}, 0)
    assert counts(cli("run", "--json")) == {}


def test_a_document_can_be_cancelled_retried_and_deleted(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", a__txt="a", b__txt="b")
    cli("ingest", docs, "--no-wait")
    documents = cli.documents()
    a, b = documents["a.txt"]["id"], documents["b.txt"]["id"]
    assert cli("cancel", a, b, "--json").json == {"cancelled": [a, b], "unchanged": []}
    assert cli("cancel", a, "--json").json == {"cancelled": [], "unchanged": [a]}
    retried = cli("retry", a, "--json")
    assert retried.json == {"retried": [a], "unchanged": [], "notes": []}
    assert "penstock run" in retried.err
    assert counts(cli("run", "--json")) == {"completed": 1}
    assert cli("delete", a, "NOSUCH", "--json").code == 2
    assert cli("search", "a", "--mode", "text", "--json").json["hits"]
    assert cli("delete", a, "--json").json == {"deleted": [a], "unchanged": [], "count": 1, "dry_run": False}
    assert cli("search", "a", "--mode", "text", "--json").json["hits"] == []
    assert set(cli.documents()) == {"b.txt"}
    assert a in cli("status", a).err


def test_dead_letters_are_replayed_and_discarded(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs")
    (docs / "rubbish.dat").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 40)
    cli("ingest", docs)
    document = cli.documents()["rubbish.dat"]["id"]
    replayed = cli("dlq", "replay", "--reason", "damaged", "--json").json
    assert (replayed["replayed"], replayed["by_reason"]) == ([document], {"damaged": 1})
    assert cli("dlq", "list", "--json").json["total"] == 0
    run = cli("run", "--json")
    assert (counts(run), run.code) == ({"failed": 1}, 1)
    number = cli("dlq", "list", "--json").json["letters"][0]["id"]
    assert cli("dlq", "replay", str(number), "--json").json["replayed"] == [document]
    cli("run")
    number = cli("dlq", "list", "--json").json["letters"][0]["id"]
    assert cli("dlq", "discard", str(number), "--json").json["discarded"] == [number]
    assert cli("dlq", "replay", "--all", "--json").json["replayed"] == []
    assert cli.documents()["rubbish.dat"]["status"] == "FAILED"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_work_within_two_seconds_and_keeps_it(
    cli: Cli, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    text = large_text(tmp_path / "large.txt", 3)
    process = cli.start("ingest", text, "--json")
    wait_for_work(cli)
    watch = Stopwatch()
    process.send_signal(number)
    result = finish(process)
    assert watch.seconds() < 2.5
    assert result.code == code
    assert counts(result) == {"submitted": 1, "pending": 1}
    assert result.json["interrupted"] is True
    done = cli("run", "--json")
    assert (counts(done), done.code) == ({"completed": 1}, 0)


def wait_for_work(cli: Cli) -> None:
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        if cli("steps", "--status", "COMPLETED", "--json").json.get("steps"):
            return
    raise AssertionError("no step was completed")


def wait_for_ledger(process: subprocess.Popen[bytes]) -> None:
    """Until it has the ledger open, which is locked, and a while longer."""
    fds, deadline = Path(f"/proc/{process.pid}/fd"), time.perf_counter() + PATIENCE_S
    while not any(os.path.realpath(fd).endswith("ledger.db") for fd in fds.iterdir()):
        assert time.perf_counter() < deadline
        time.sleep(0.02)
    time.sleep(0.5 * slowness())


def test_a_second_interrupt_ends_at_once_whatever_we_wait_for(cli: Cli, tmp_path: Path) -> None:
    cli("db", "migrate")
    with closing(sqlite3.connect(cli.home / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("BEGIN IMMEDIATE")
        process = cli.start("ingest", write(tmp_path / "docs", a__txt="a"))
        wait_for_ledger(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert finish(process, timeout=slowness()).code == 130


def test_a_pipe_that_never_ends_does_not_hold_us(cli: Cli) -> None:
    process = cli.start("ingest", "-", "--name", "x.txt", "--json", stdin=subprocess.PIPE)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(3 * slowness()) == 143
    result = finish(process)
    assert set(result.json) == {"error"}
    assert cli.documents() == {}


def test_a_signal_while_submitting_stops_the_submit(cli: Cli, tmp_path: Path) -> None:
    docs = write(tmp_path / "docs")
    for i in range(12_000):
        (docs / f"{i}.txt").write_text(f"text {i}")
    process = cli.start("ingest", docs, "--no-wait", "--json")
    while not cli.documents("--limit", "1"):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    result = finish(process, timeout=2.5)
    assert result.code == 143
    assert 0 < counts(result)["submitted"] < 12_000
    assert result.json["interrupted"] is True


def test_budgets_finish_any_document_when_repeated(cli: Cli, tmp_path: Path) -> None:
    text = large_text(tmp_path / "large.txt", 4)
    first = cli("ingest", text, "--budget", "0.3s", "--json")
    assert first.code == 3
    assert first.json["budget_spent"] is True
    assert counts(first) == {"submitted": 1, "pending": 1}
    for _ in range(20):
        result = cli("run", "--budget", "1s", "--json")
        if result.code != 3:
            break
    assert (counts(result), result.code) == ({"completed": 1}, 0)


EXITING = """
import asyncio, sys

async def leave():
    sys.exit(3)

async def interrupt():
    raise KeyboardInterrupt

async def step(ctx):
    name = ctx.document.name
    if name == "gather.txt":
        await asyncio.gather(leave(), asyncio.sleep(60))
    elif name == "group.txt":
        async with asyncio.TaskGroup() as group:
            group.create_task(interrupt())
    elif name == "later.txt":
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0.01)
"""


def test_i7_a_step_whose_own_tasks_exit_does_not_end_the_worker(cli: Cli) -> None:
    (cli.folder / "exiting.py").write_text(EXITING)
    own = "mine: {kind: enrich, method: exiting.step, retries: 1}"
    steps = "".join(f"  {step}\n" for step in ("validate:", "extract:", own, "clean:", "chunk:", "embed:", "index:"))
    (cli.folder / "exiting.yaml").write_text(f"id: exiting\nname: Exiting\nsteps:\n{steps}")
    for name in ("gather", "group", "later", "healthy"):
        (cli.folder / f"{name}.txt").write_text(f"About {name}.")
    files = [f"{name}.txt" for name in ("gather", "group", "later", "healthy")]
    result = cli.process("ingest", *files, "--workflow", "exiting.yaml", "--json")
    assert result.code == 1, result
    assert (result.json["completed"], result.json["failed"]) == (2, 2)
    letters = cli("dlq", "list", "--json").json["letters"]
    assert sorted(letter["name"] for letter in letters) == ["gather.txt", "group.txt"]
