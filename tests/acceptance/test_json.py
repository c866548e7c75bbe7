"""The JSON that others rely on has the shape that the reference shows."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from scripts.reference import SHAPES
from tests.kit.cli import Cli, write
from tests.kit.models import tiny_bert

CALLS: dict[tuple[str, str], str] = {
    ("ingest", "--dry-run"): "ingest files --dry-run",
    ("ingest", "--estimate"): "ingest files --estimate",
    ("ingest", ""): "ingest files --batch spring",
    ("run", ""): "run",
    ("status", "ID"): "status {good}",
    ("list", ""): "list",
    ("search", ""): "search dam",
    ("show", ""): "show {good}",
    ("show", "--pages"): "show {good} --pages",
    ("show", "--chunks"): "show {good} --chunks",
    ("show", "--blocks"): "show {good} --blocks",
    ("batch list", ""): "batch list",
    ("group list", ""): "group list",
    ("group show", ""): "group show {group}",
    ("steps", ""): "steps",
    ("bench queue", ""): "bench queue --documents 3",
    ("check", ""): "check",
    ("dlq list", ""): "dlq list",
    ("dlq show", ""): "dlq show 1",
    ("dlq replay", ""): "dlq replay 1",
    ("cancel", ""): "cancel {bad}",
    ("meta", ""): "meta {good} year=2024",
    ("retry", ""): "retry {bad}",
    ("status", ""): "status",
    ("dlq discard", ""): "dlq discard 2",
    ("batch start", ""): "batch start spring --again",
    ("start", ""): "start {bad}",
    ("group cancel", ""): "group cancel {group}",
    ("group retry", ""): "group retry {group}",
    ("collection list", ""): "collection list",
    ("collection show", ""): "collection show default",
    ("reindex", "--estimate"): "reindex --set chunk.size=500 --estimate",
    ("reindex", ""): "reindex --set chunk.size=500",
    ("delete", ""): "delete {good}",
    ("collection drop", ""): "collection drop other",
    ("prune", ""): "prune",
    ("vacuum", ""): "vacuum",
    ("backup", ""): "backup saved",
    ("restore", ""): "restore saved --force",
    ("model add", ""): "model add tiny tiny",
    ("model list", ""): "model list",
    ("model remove", ""): "model remove tiny",
    ("workflow list", ""): "workflow list",
    ("workflow show", ""): "workflow show default",
    ("workflow check", ""): "workflow check flows/wrong.yaml",
    ("key create", ""): "key create --name shape",
    ("key list", ""): "key list",
    ("audit", ""): "audit",
    ("intake pause", ""): "intake pause",
    ("intake status", ""): "intake status",
    ("intake resume", ""): "intake resume",
    ("quota set", ""): "quota set --documents 100",
    ("quota show", ""): "quota show",
    ("quota clear", ""): "quota clear",
    ("webhook create", ""): "webhook create https://93.184.216.34/hook",
    ("webhook list", ""): "webhook list",
    ("webhook change", ""): "webhook change {hook} --disable",
    ("webhook delete", ""): "webhook delete {hook}",
    ("config show", ""): "config show",
    ("config check", ""): "config check",
    ("db migrate", ""): "db migrate",
}
"""In an order in which each finds what it needs."""
ELSEWHERE = {
    ("demo", ""),
    ("usage", ""),
    ("eval", ""),
    ("worker", ""),
    ("serve", ""),
    ("mcp", ""),
    ("workers", ""),
    ("lock list", ""),
    ("lock release", ""),
    ("key revoke", ""),
    ("consume", ""),
    ("webhook test", ""),
    ("webhook deliveries", ""),
    ("webhook redeliver", ""),
}
"""What takes half a minute, or wants somebody who works: left to tests of their own."""


def fits(shape: Any, answer: Any) -> bool:
    """The same names, all the way down. `…` is an open set of names, None is not looked into."""
    match shape:
        case None:
            return True
        case {"…": inner}:
            return isinstance(answer, Mapping) and bool(answer) and all(fits(inner, v) for v in answer.values())
        case Mapping():
            return (
                isinstance(answer, Mapping)
                and shape.keys() == answer.keys()
                and all(fits(inner, answer[name]) for name, inner in shape.items())
            )
        case _:
            assert isinstance(shape, Sequence)
            return isinstance(answer, list) and bool(answer) and all(fits(shape[0], item) for item in answer)


def test_every_answer_has_the_shape_that_the_reference_shows(cli: Cli) -> None:
    assert set(CALLS) | ELSEWHERE == {(path, given) for path, shapes in SHAPES.items() for given in shapes}
    folder = write(cli.folder / "files", dam__md="# Dam\n\nThe dam is inspected every spring.\n")
    (folder / "noise.bin").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 40)
    tiny_bert(cli.folder / "tiny")
    (cli.folder / "flows").mkdir()
    (cli.folder / "flows" / "wrong.yaml").write_text("id: x\nsteps: {shred: }\n")
    ids: dict[str, str] = {}
    for (path, given), call in CALLS.items():
        if path == "dlq discard":
            cli("run")
        arguments = call.format(**ids).split()
        answer = cli(*arguments, "--json").json
        assert fits(SHAPES[path][given], answer), f"penstock {call} --json: {answer}"
        if (path, given) == ("ingest", ""):
            ids = {"good" if n == "dam.md" else "bad": d["id"] for n, d in cli.documents().items()}
            ids["group"] = answer["group"]
        if path == "webhook create":
            ids["hook"] = answer["id"]


@pytest.mark.parametrize(
    "wrong", [{}, {"a": 1}, {"a": 1, "b": [{"c": 1, "d": 2}]}, {"a": 1, "b": []}, {"a": 1, "b": {}}]
)
def test_another_shape_does_not_fit(wrong: Any) -> None:
    shape = {"a": None, "b": [{"c": None}]}
    assert fits(shape, {"a": 1, "b": [{"c": 1}, {"c": 2}]})
    assert not fits(shape, wrong)
