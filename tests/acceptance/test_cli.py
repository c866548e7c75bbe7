"""What each command answers: JSON that others rely on, sentences for people, exit codes."""

import json
import re
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kit.cli import COMMAND, Cli, write

from penstock.cli.changes import by_step

COMMANDS = (
    *("ingest", "run", "status", "list", "search", "show", "retry", "cancel", "delete", "check", "prune", "vacuum"),
    *("dlq list", "dlq show", "dlq replay", "dlq discard", "config show", "config check", "db migrate", "demo"),
    *("batch list", "batch start", "group list", "group show", "group retry", "group cancel"),
)
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """A home that nobody changes: a good text, a strange name, an empty file, rubbish."""
    base = tmp_path_factory.mktemp("library")
    write(base / "cwd")
    docs = write(
        base / "docs",
        whales__md="# Whales\n\nThe blue whale is the largest animal.\n\n## Food\n\nIt eats krill.\n",
        empty__txt="",
    )
    (docs / "bad\n\x1b[31mname.txt").write_text("A name can hold a line break.")
    (docs / "rubbish.dat").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 40)
    cli = Cli(base / "home", base / "cwd", {})
    assert cli("ingest", docs).code == 1
    return cli


def one(library: Cli, name: str) -> str:
    found: str = library.documents()[name]["id"]
    return found


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_explains_every_command(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: penstock {command}".rstrip())
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize("command", ["", "ingest"])
def test_help_answers_at_once(cli: Cli, command: str) -> None:
    took, bare = [], []
    for _ in range(3):
        began = time.perf_counter()
        cli.process(*command.split(), "--help")
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import click"], check=True)
        bare.append(time.perf_counter() - began)
    assert min(took) < max(0.4, 4 * min(bare)), "on a busy machine both take longer"


def test_help_loads_nothing_that_takes_time() -> None:
    code = "import sys; from penstock.cli.main import run; run(['--help']); print(*sys.modules)"
    shown = subprocess.run([COMMAND[0], "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in shown.stdout.splitlines()[-1].split()}
    assert not loaded & {"asyncio", "msgspec", "decimal", "sqlite3", "numpy", "rich"}


@pytest.mark.parametrize("command", ["status", "list", "dlq list"])
def test_reading_the_ledger_loads_nothing_heavy(library: Cli, command: str) -> None:
    code = "import sys; from penstock.cli.main import run; run(sys.argv[1:]); print(*sys.modules)"
    shown = subprocess.run(
        [COMMAND[0], "-c", code, *command.split()],
        env=library.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in shown.stdout.splitlines()[-1].split()}
    assert "sqlite3" in loaded
    assert not loaded & {"numpy", "pyarrow", "lance", "rich", "wordllama"}


def test_list_answers_documents_newest_first(library: Cli) -> None:
    documents = library("list", "--json").json["documents"]
    assert [d["id"] for d in documents] == sorted((d["id"] for d in documents), reverse=True)
    whales = library.documents()["whales.md"]
    expected: dict[str, Any] = {
        "status": "COMPLETED", "pages": 1, "searchable": True, "stale": False, "error": None,
    }  # fmt: skip
    assert expected.items() <= whales.items()
    assert whales["chunks"] >= 1
    assert whales["source"].endswith("/docs/whales.md")
    assert ISO.fullmatch(whales["created_at"])
    assert set(library.documents("--status", "failed")) == {"rubbish.dat"}
    assert set(library.documents("--name", "w*")) == {"whales.md"}
    assert len(library.documents("--limit", "2")) == 2
    assert library("list", "--collection", "other").code == 2
    assert not library.documents("--owner", "somebody")


def test_names_are_printed_so_that_they_cannot_steer_a_terminal(library: Cli) -> None:
    result = library("list")
    assert "\x1b" not in result.out
    assert r"bad\n\x1b[31mname.txt" in result.out
    assert len(result.out.splitlines()) == 5


def test_status_counts(library: Cli) -> None:
    answer = library("status", "--json").json
    assert answer["documents"] == {"COMPLETED": 2, "FAILED": 1, "NOT_INDEXABLE": 1}
    assert answer["steps"]["FAILED"] == 1
    assert answer["dead_letters"] == 1
    assert "dlq list" in library("status").out


def test_status_of_a_document_shows_its_steps(library: Cli) -> None:
    document = one(library, "rubbish.dat")
    answer = library("status", document.lower(), "--json").json
    assert {"id", "name", "status", "searchable", "stale", "attempts", "retry_count", "error"} <= set(answer)
    assert set(answer["progress"]) == {
        *("phase", "pages", "total_pages", "chunks", "total_chunks", "embedded", "indexed", "last_checkpoint"),
    }
    assert [step["name"] for step in answer["steps"]] == ["validate", "extract", "clean", "chunk", "embed", "index"]
    assert set(answer["steps"][0]) == {
        *("name", "kind", "status", "attempts", "waiting_on", "started_at", "finished_at", "meta", "last_progress"),
        *("created_at", "retry_at", "crashes", "errors", "error"),
    }
    assert [step["status"] for step in answer["steps"]] == ["COMPLETED", "FAILED", *4 * ["CANCELLED"]]
    assert ISO.fullmatch(answer["steps"][0]["started_at"])
    people = library("status", document).out
    assert re.search(r"^extract +FAILED +1", people, flags=re.MULTILINE)
    assert max(map(len, people.splitlines())) <= 100


def test_search_finds_the_passage_with_its_place(library: Cli) -> None:
    hits = library("search", "krill", "-k", "1", "--mode", "text", "--json").json["hits"]
    assert len(hits) == 1
    assert {"score", "document_id", "name", "page", "page_end", "start", "end", "text", "metadata"} <= set(hits[0])
    assert hits[0]["name"] == "whales.md"
    page = library("show", hits[0]["document_id"], "--pages", "--json").json["pages"][0]["text"]
    assert "krill" in page[hits[0]["start"] : hits[0]["end"]]
    people = library("search", "krill", "--mode", "text").out
    assert re.search(r"^ 1\. \d\.\d+  \S*whales\.md  p\. 1  \[\d+–\d+\]\n    Whales\n", people)
    assert max(map(len, people.splitlines())) <= 80
    other = library("search", "krill", "--collection", "other", "--json")
    assert other.code == 2
    assert other.json["error"].startswith("there is no collection 'other'. Collections: ")


def test_show_prints_pages_exactly(library: Cli) -> None:
    document = one(library, "whales.md")
    text = "# Whales\n\nThe blue whale is the largest animal.\n\n## Food\n\nIt eats krill."
    assert library("show", document, "--pages").out.startswith(f"--- page 1 ---\n{text}")
    answer = library("show", document, "--pages", "--json").json
    assert answer["id"] == document
    assert answer["pages"][0]["text"].rstrip() == text


def test_show_prints_chunks_and_blocks_with_their_offsets(library: Cli) -> None:
    document = one(library, "whales.md")
    page = library("show", document, "--pages", "--json").json["pages"][0]["text"]
    chunks = library("show", document, "--chunks", "--json").json["chunks"]
    assert [chunk["ordinal"] for chunk in chunks] == list(range(len(chunks)))
    for piece in chunks + library("show", document, "--blocks", "--json").json["blocks"]:
        assert page[piece["start"] : piece["end"]].strip() == piece["text"].strip()
    assert re.match(r"--- chunk 0, page 1, \d+–\d+ ---\n", library("show", document, "--chunks").out)
    assert "--- page 1, heading 2, " in library("show", document, "--blocks").out
    assert library("show", document, "--json").json["steps"]
    assert library("show", document, "--pages", "--chunks", "--json").code == 2


def test_dead_letters_are_counted_and_explained(library: Cli) -> None:
    answer = library("dlq", "list", "--json").json
    assert answer["total"] == 1
    assert answer["by_reason"] == {"damaged": 1}
    assert ISO.fullmatch(answer["oldest"])
    number = answer["letters"][0]["id"]
    letter = library("dlq", "show", str(number), "--json").json
    assert letter == answer["letters"][0]
    assert letter["name"] == "rubbish.dat"
    assert re.search(rf"^{number} +damaged +extract +rubbish.dat$", library("dlq", "list").out, re.MULTILINE)
    assert "rubbish.dat" in library("dlq", "show", str(number)).out


def test_check_finds_a_healthy_home_ok(library: Cli) -> None:
    answer = library("check", "--json").json
    assert answer["ok"] is True
    assert answer["problems"] == []
    assert "garbage" in answer


def test_check_exits_1_when_a_blob_is_gone(cli: Cli, tmp_path: Path) -> None:
    assert cli("ingest", write(tmp_path / "docs", a__txt="a text " * 1000)).code == 0
    for blob in (cli.home / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    result = cli("check", "--json")
    assert result.code == 1
    assert result.json["ok"] is False
    assert result.json["problems"]


def test_prune_answers_counts(cli: Cli) -> None:
    cli("db", "migrate")
    answer = cli("prune", "--json").json
    assert answer
    assert all(isinstance(n, int) for n in answer.values())


def test_config_show_masks_passwords(cli: Cli) -> None:
    cli.settings["PENSTOCK_DATABASE"] = "postgresql://me:s3cret@db:5432/penstock?password=s3cret"
    result = cli("config", "show", "--json")
    assert result.json["database"] == "postgresql://me:…@db:5432/penstock?password=…"
    assert result.json["embedder"] == "fake"
    assert "s3cret" not in cli("config", "show").out


def test_every_problem_of_the_settings_is_a_line(cli: Cli) -> None:
    (cli.folder / "bad.yaml").write_text("worker: {slots: 0}\nchunk: {sizee: 500}\n")
    lines = cli("config", "check", "--config", "bad.yaml").err.splitlines()
    assert [line.split(" ")[1] for line in lines] == ["bad.yaml:1:10:", "bad.yaml:2:9:"]


def test_a_list_of_an_unknown_collection_is_an_error(cli: Cli) -> None:
    cli("db", "migrate")
    refused = cli("list", "--collection", "nope")
    assert (refused.code, "no collection 'nope'" in refused.err) == (2, True)


def test_config_check_names_what_is_wrong(cli: Cli) -> None:
    assert cli("config", "check", "--json").json["ok"] is True
    (cli.folder / "penstock.yaml").write_text("embeder: x\n")
    result = cli("config", "check", "--json")
    assert result.code == 2
    assert "embeder" in result.json["error"]


def test_db_migrate_says_the_version(cli: Cli) -> None:
    assert cli("db", "migrate", "--json").json["version"] >= 1


USAGE = [
    "nonsense", "ingest", "ingest /no/such/path", "ingest ftp://example.org/a.pdf", "ingest -", "ingest . --name x",
    "ingest . --key k", "ingest . --priority x", "run --budget soon", "run --budget 0", "list --status DONE",
    "list --limit 0", "list --owner ../up", "search x -k 0", "search x --mode psychic", "search x --collection a/b",
    "status NOSUCH", "show NOSUCH --pages", "retry NOSUCH", "cancel NOSUCH", "delete NOSUCH", "dlq", "dlq show 7",
    "dlq replay", "dlq discard 7", "--config /no/such.yaml list", "status --watch",
]  # fmt: skip


@pytest.mark.parametrize("command", USAGE)
def test_a_usage_error_exits_2_with_a_sentence_and_one_object(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--json")
    assert result.code == 2
    assert set(result.json) == {"error"}
    assert result.err.startswith("penstock: ")
    assert "Traceback" not in result.err


def test_an_unknown_status_names_the_allowed_ones(cli: Cli) -> None:
    cli("db", "migrate")
    assert "NOT_INDEXABLE" in cli("list", "--status", "DONE").err


def test_global_options_stand_before_or_after_the_command(library: Cli, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    library("db", "migrate", "--home", other)
    empty: dict[str, object] = {"documents": [], "after": None, "more": 0, "total": 0, "exact": True}
    assert library("--home", other, "--json", "list").json == empty
    assert library("list", "--json", "--home", other).json == empty
    assert library("--json", "--owner", "nobody", "dlq", "list").json["total"] == 0


def test_a_home_that_cannot_be_made_exits_1(cli: Cli) -> None:
    result = cli.process("ingest", ".", "--json", "--home", "/etc/hostname/x")
    assert result.code == 1
    assert "/etc/hostname/x" in result.json["error"]


def test_a_ledger_of_a_newer_version_is_refused(cli: Cli) -> None:
    cli("db", "migrate")
    with sqlite3.connect(cli.home / "ledger.db") as ledger:
        ledger.execute("INSERT INTO schema_versions VALUES (99, 0)")
    ledger.close()
    result = cli("list", "--json")
    assert result.code == 2
    assert "99" in result.json["error"]


def test_what_is_no_ledger_is_told_apart_from_a_bug(cli: Cli) -> None:
    write(cli.home, ledger__db="this is not a database, but long enough to be looked at as one")
    result = cli("list", "--json")
    assert result.code == 1
    assert "ledger.db" in result.json["error"]
    assert "Traceback" not in result.err


def test_a_reader_that_leaves_early_is_no_error(library: Cli) -> None:
    process = library.start("show", one(library, "whales.md"), "--pages")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(10) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_closed_streams_are_no_error(library: Cli) -> None:
    command = " ".join((*COMMAND, "list", "--json"))
    environment = library.environment()
    assert subprocess.run(f"{command} >&-", shell=True, env=environment).returncode == 0
    shown = subprocess.run(f"{command} 2>&- <&-", shell=True, env=environment, stdout=subprocess.PIPE)
    assert len(json.loads(shown.stdout)["documents"]) == 4


def test_a_damaged_segment_is_a_sentence_and_no_half_answer(cli: Cli, tmp_path: Path) -> None:
    cli("ingest", write(tmp_path / "docs", a__txt="a text " * 1000))
    for blob in (cli.home / "blobs").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"")
    result = cli("show", one(cli, "a.txt"), "--pages", "--json")
    assert result.code == 1
    assert set(result.json) == {"error"}
    assert "Traceback" not in result.err


def test_a_failed_document_is_tried_again_with_other_values(cli: Cli) -> None:
    write(cli.folder / "files", a__txt="A few words.")
    (cli.folder / "narrow.yaml").write_text("id: narrow\nconfig: {gate: {width: 1}, chunk: {size: 100, overlap: 9}}\n")
    (cli.folder / "narrow_gate.py").write_text(
        "from penstock import Permanent\n\n\nasync def run(ctx):\n"
        "    if ctx.params['width'] < 2:\n        raise Permanent('too narrow', reason='narrow')\n"
    )
    (cli.folder / "gated.yaml").write_text(
        "id: gated\nsteps: {validate: , gate: {kind: enrich, method: narrow_gate.run}, extract: , clean: , chunk: }\n"
    )
    cli.settings["PENSTOCK_WORKFLOW"] = "gated.yaml"
    assert cli("ingest", "files", "--params", "narrow.yaml").code == 1
    letter = cli("dlq", "show", "1", "--json").json
    assert (letter["workflow"], letter["params"]) == ("gated", str(cli.folder / "narrow.yaml"))
    assert letter["parameters"]["chunk"]["size"] == 100
    assert "chunk.size=100" in cli("dlq", "show", "1").out
    refused = cli("retry", letter["document_id"], "--set", "chunk.overlap=200")
    assert (refused.code, "overlap must be smaller than the size" in refused.err) == (2, True)
    for wrong in ("chunk", "chunk=3", "chunk.size", ".size=3", "chunk.=3", "chunk.x=[1]", "chunk.x={", "chunk.x=.nan"):
        for command in (["retry", letter["document_id"]], ["dlq", "replay", "1"]):
            refused = cli(*command, "--set", wrong)
            assert (refused.code, "--set" in refused.err) == (2, True), wrong
    assert cli("retry", letter["document_id"], "--set", "chunks.size=1").code == 2
    would = cli("dlq", "replay", "--reason", "narrow", "--set", "gate.width=2", "--dry-run", "--json").json
    assert (would["count"], would["started"], would["replayed"], would["dry_run"]) == (1, 1, [], True)
    (cli.folder / "narrow.yaml").unlink()
    retried = cli("retry", letter["document_id"], "--set", "gate.width=2", "--json").json
    assert retried["retried"] == [letter["document_id"]]
    assert "narrow.yaml" in retried["notes"][0]
    assert cli("run").code == 0
    for wrong in ("replay", "replay 1 --all", "discard --all --reason x", "discard"):
        assert cli("dlq", *wrong.split()).code == 2


def test_a_value_is_what_yaml_takes_it_for() -> None:
    given = ["a.x=1", "a.y=yes", "a.b.z=2024-01-02", "a.n=", "a.x=two words", "a.e=k=v", "a.f=1.5", 'a.q="7"']
    assert by_step(given) == {
        "a": {"x": "two words", "y": True, "n": None, "e": "k=v", "f": 1.5, "q": "7"},
        "a.b": {"z": "2024-01-02"},
    }


def test_search_shows_the_answer_and_tells_files_of_one_name_apart(cli: Cli, tmp_path: Path) -> None:
    filler = "Nothing of interest happened on that day in the valley. " * 8
    for folder, high in (("north", 41), ("south", 17)):
        (tmp_path / folder).mkdir()
        text = f"{filler}The [bold]dams[/bold] of the {folder} are {high} metres high. {filler}"
        (tmp_path / folder / "dam.txt").write_text(text)
    cli("ingest", str(tmp_path / "north"), str(tmp_path / "south"))
    shown = cli("search", "how high is the dam of the north?", "-k", "2").out
    assert "north/dam.txt" in shown
    assert "south/dam.txt" in shown
    assert "[bold]dams[/bold] of the north are 41" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    full = cli("search", "how high is the dam of the north?", "-k", "1", "--full").out
    assert full.count("Nothing of interest") > shown.count("Nothing of interest")
    explained = cli("search", "how high is the dam", "--explain", "--group", "document").out
    assert re.search(r"^HIT +SCORE +RELEVANCE +FUSED +COSINE +WORDS +GRAMS +NAME$", explained, re.M)
    page = cli("search", "dam", "-k", "1", "--json").json
    [other] = cli("search", "dam", "-k", "1", "--after", page["next"], "--json").json["hits"]
    assert other["source"] != page["hits"][0]["source"]
    assert cli("search", "dam", "--min-score", "1.5").code == 2
    assert cli("search", "dam", "--mode", "fuzzy").code == 2


def test_a_search_before_the_first_ingest_is_an_error(cli: Cli) -> None:
    answer = cli("search", "dam", "--json")
    assert answer.code == 2
    assert answer.json["error"].startswith("there are no documents in")
    cli("db", "migrate")
    assert cli("search", "dam", "--json").json["error"].startswith("nothing was ingested yet")


@pytest.mark.parametrize("command", ["list", "status", "dlq list", "check", "prune", "delete x"])
def test_a_command_in_a_wrong_folder_makes_no_home(cli: Cli, command: str) -> None:
    refused = cli(*command.split())
    assert (refused.code, cli.home.exists()) == (2, False)
    assert f"there are no documents in {cli.home}: add some with" in refused.err
