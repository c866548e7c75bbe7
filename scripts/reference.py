"""Write docs/reference/cli.md, configuration.md and formats.md from the code: `python scripts/reference.py`."""

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from penstock.bench.queue import Figures
from penstock.cli.call import SHARED
from penstock.cli.main import penstock
from penstock.config import Config
from penstock.config_values import bounds
from penstock.embedders.store import AddedModel
from penstock.evaluation.report import Built, Evaluation, Latency, Missed, Plan, Result, TrialPlan
from penstock.extractors.formats import FORMATS, PLAIN, Format, Magic, Mark, Named, Office, Ole, Text
from penstock.ledger.engine.api_keys import ApiKey
from penstock.ledger.engine.audit_log import AuditEntry
from penstock.ledger.engine.dead_letters import DeadLetter
from penstock.ledger.engine.webhooks import Webhook, WebhookDelivery
from penstock.ledger.reads.batches import Batch, Group
from penstock.ledger.reads.stats import ListedLock, ListedStep, LockRelease, WaitingEvents
from penstock.model.nouns import StepView
from penstock.search.results import Hit
from penstock.upkeep.backup import BackupReport
from penstock.upkeep.prune import Pruned
from penstock.upkeep.report import CheckReport
from penstock.upkeep.restore import Restored
from penstock.upkeep.vacuum import Vacuumed
from penstock.verbs.collections import CollectionView, Dropped
from penstock.verbs.consuming import Consumed
from penstock.verbs.dead_letters import DeadLetters
from penstock.verbs.estimate import Estimate
from penstock.verbs.groups import BatchStart
from penstock.verbs.ingest_plan import IngestPlan, TypePlan
from penstock.verbs.intake_pauses import IntakeState
from penstock.verbs.jobs import Summary
from penstock.verbs.quotas import QuotaView
from penstock.verbs.reindex import ReindexEstimate, ReindexView
from penstock.verbs.replays import Discard, Replay
from penstock.verbs.usage import Sum, Usage, UsageRow
from penstock.verbs.views import Counts, DocumentDetails, DocumentProgress, DocumentView, WorkerView

FOLDER = Path(__file__).parents[1] / "docs" / "reference"

COMMANDS = """\
# Command line

`python scripts/reference.py` generates this page from the commands; a test verifies that it is up to date.

Every command accepts the options {shared}, before or after its name.
Where a command takes an ID, you can use the first letters of the id if they are unique.
"""

EXIT_CODES = """\
## Exit codes

The first one that applies:

| code | meaning |
|---|---|
| 2 | the arguments or the configuration are wrong; nothing was done |
| 130, 143 | interrupted (Ctrl-C, SIGTERM): progress is kept. A `penstock worker` that stops in time exits with 0 |
| 3 | the budget is spent and there is work left: repeat the command |
| 1 | a document failed, a file could not be read, `check` found problems, or `vacuum` could not lock an index |
| 0 | success |

## JSON

With `--json`, the command prints exactly one JSON object to standard output, for every exit code; on an error it is
`{"error"}`. Notes for people go to standard error. Times are ISO 8601 in UTC. New versions may add fields but do not
rename them. Below, `…` stands for an open set of names.
"""

SETTINGS = """\
# Configuration

`python scripts/reference.py` generates this page from `config.py`; a test verifies that it is up to date.

Settings come from `penstock.yaml` in the working directory (or the file that `--config` or `PENSTOCK_CONFIG` names),
then from `PENSTOCK_*` variables, then from flags; later ones override earlier ones. In the name of a variable, two
underscores stand for a dot. Unknown settings and variables are errors. `penstock config show` prints the effective
settings, `penstock config check` verifies them.
"""

FORMATS_HEAD = """\
# Formats

Written from `extractors/formats.py` by `python scripts/reference.py`; a test holds them together.

The content of a file decides first, then its name. What another program says about its type does not count.

## Read
"""

FORMATS_KNOWN = """\
## Recognised, and not read

Such a document ends as UNSUPPORTED, which is not a failure. So does every other file that is not text.
"""

Shape = Mapping[str, Any] | Sequence[Any] | None

DOCUMENT = dict.fromkeys(DocumentView.__struct_fields__)
BLOCK = dict.fromkeys(("page", "kind", "start", "end", "level", "title", "text"))
CHUNK = dict.fromkeys(("ordinal", "page", "page_end", "start", "end", "headings", "text"))
STATUS = {
    **dict.fromkeys(DocumentDetails.__struct_fields__),
    "progress": dict.fromkeys(DocumentProgress.__struct_fields__),
    "steps": [dict.fromkeys(StepView.__struct_fields__)],
}
COLLECTION = {**dict.fromkeys(CollectionView.__struct_fields__), "statuses": {"…": None}}
COUNTS = {
    **dict.fromkeys(Counts.__struct_fields__),
    "documents": {"…": None},
    "steps": {"…": None},
    "events": dict.fromkeys(WaitingEvents.__struct_fields__),
    "usage": None,
}
PLAN = {
    **dict.fromkeys(IngestPlan.__struct_fields__),
    "types": {"…": dict.fromkeys(TypePlan.__struct_fields__)},
}
USAGE = dict.fromkeys(Usage.__struct_fields__, dict.fromkeys(Sum.__struct_fields__))
SUMMARY = dict.fromkeys(Summary.__struct_fields__)
LETTER = dict.fromkeys(DeadLetter.__struct_fields__)

SHAPES: dict[str, dict[str, Shape]] = {
    "ingest": {
        "": SUMMARY,
        "--dry-run": PLAN,
        "--estimate": {**dict.fromkeys(Estimate.__struct_fields__), "plan": PLAN},
    },
    "run": {"": SUMMARY},
    "worker": {"": {"processes": None, "restarts": None, "metrics_port": None, **SUMMARY}},
    "consume": {"": dict.fromkeys(Consumed.__struct_fields__)},
    "serve": {"": SUMMARY},
    "status": {"": COUNTS, "ID": STATUS},
    "list": {"": {"documents": [DOCUMENT], "after": None, "more": None, "total": None, "exact": None}},
    "search": {"": {"hits": [dict.fromkeys(Hit.__struct_fields__)], "next": None, "explain": None}},
    "show": {
        "": STATUS,
        "--pages": {"id": None, "pages": [{"number": None, "label": None, "text": None, "blocks": [BLOCK]}]},
        "--chunks": {"id": None, "chunks": [CHUNK]},
        "--blocks": {"id": None, "blocks": [BLOCK]},
    },
    "eval": {
        "": {
            **dict.fromkeys(Evaluation.__struct_fields__),
            "plan": {**dict.fromkeys(Plan.__struct_fields__), "trials": [dict.fromkeys(TrialPlan.__struct_fields__)]},
            "results": [
                {
                    **dict.fromkeys(Result.__struct_fields__),
                    "latency_ms": dict.fromkeys(Latency.__struct_fields__),
                    "missed": [dict.fromkeys(Missed.__struct_fields__)],
                    "absent": [dict.fromkeys(Missed.__struct_fields__)],
                    "built": dict.fromkeys(Built.__struct_fields__),
                }
            ],
        }
    },
    "retry": {"": {"retried": None, "unchanged": None, "notes": None}},
    "cancel": {"": {"cancelled": None, "unchanged": None}},
    "delete": {"": {"deleted": None, "unchanged": None, "count": None, "dry_run": None}},
    "collection list": {"": {"collections": [COLLECTION]}},
    "usage": {"": {"days": [{**dict.fromkeys(UsageRow.__struct_fields__), **USAGE}], "total": USAGE}},
    "collection show": {"": COLLECTION},
    "collection drop": {"": dict.fromkeys(Dropped.__struct_fields__)},
    "reindex": {
        "": dict.fromkeys(ReindexView.__struct_fields__),
        "--estimate": dict.fromkeys(ReindexEstimate.__struct_fields__),
    },
    "meta": {"": {"id": None, "changed": None, "metadata": None}},
    "check": {"": dict.fromkeys(CheckReport.__struct_fields__)},
    "prune": {"": {**dict.fromkeys(Pruned.__struct_fields__), "dry_run": None}},
    "vacuum": {
        "": {
            "collections": [dict.fromkeys(Vacuumed.__struct_fields__)],
            "busy": None,
            "elapsed_s": None,
            "ledger": None,
        },
    },
    "backup": {"": dict.fromkeys(BackupReport.__struct_fields__)},
    "restore": {
        "": {
            "restored": dict.fromkeys(Restored.__struct_fields__),
            "check": dict.fromkeys(CheckReport.__struct_fields__),
            "elapsed_s": None,
        }
    },
    "dlq list": {"": {**dict.fromkeys(DeadLetters.__struct_fields__), "by_reason": {"…": None}, "letters": [LETTER]}},
    "dlq show": {"": LETTER},
    "dlq replay": {"": dict.fromkeys(Replay.__struct_fields__)},
    "dlq discard": {"": dict.fromkeys(Discard.__struct_fields__)},
    "batch list": {"": {"batches": [dict.fromkeys(Batch.__struct_fields__)]}},
    "batch start": {"": dict.fromkeys(BatchStart.__struct_fields__)},
    "start": {"": dict.fromkeys(BatchStart.__struct_fields__)},
    "group list": {"": {"groups": [dict.fromkeys(Group.__struct_fields__)]}},
    "group show": {
        "": {
            **dict.fromkeys(Group.__struct_fields__),
            "durations": None,
            "runs_per_s": None,
            "eta_s": None,
            "usage": USAGE,
        }
    },
    "group retry": {"": {"retried": None}},
    "group cancel": {"": {"cancelled": None}},
    "steps": {"": {"steps": [dict.fromkeys(ListedStep.__struct_fields__)]}},
    "workers": {"": {"workers": [dict.fromkeys(WorkerView.__struct_fields__)]}},
    "lock list": {
        "": {
            "locks": [dict.fromkeys(ListedLock.__struct_fields__)],
            "released": [dict.fromkeys(LockRelease.__struct_fields__)],
        }
    },
    "lock release": {"": dict.fromkeys(("released", "worker", "purpose", "steps"))},
    "workflow list": {"": {"workflows": [dict.fromkeys(("id", "name", "steps", "file"))]}},
    "workflow show": {"": dict.fromkeys(("id", "name", "steps", "meta", "lifecycle_events"))},
    "workflow check": {"": {"ok": None, "problems": [dict.fromkeys(("file", "line", "message", "column"))]}},
    "model add": {"": dict.fromkeys(AddedModel.__struct_fields__)},
    "model list": {"": {"models": [dict.fromkeys(AddedModel.__struct_fields__)]}},
    "model remove": {"": {"removed": None}},
    "key create": {"": {**dict.fromkeys(ApiKey.__struct_fields__), "owner": None, "key": None}},
    "key list": {"": {"keys": [dict.fromkeys(ApiKey.__struct_fields__)]}},
    "key revoke": {"": {"revoked": [dict.fromkeys(ApiKey.__struct_fields__)]}},
    "audit": {"": {"entries": [dict.fromkeys(AuditEntry.__struct_fields__)]}},
    "intake pause": {"": dict.fromkeys(IntakeState.__struct_fields__)},
    "intake resume": {"": dict.fromkeys(IntakeState.__struct_fields__)},
    "intake status": {"": dict.fromkeys(IntakeState.__struct_fields__)},
    "quota show": {"": dict.fromkeys(QuotaView.__struct_fields__)},
    "quota set": {"": dict.fromkeys(QuotaView.__struct_fields__)},
    "quota clear": {"": dict.fromkeys(QuotaView.__struct_fields__)},
    "webhook list": {"": {"webhooks": [dict.fromkeys(Webhook.__struct_fields__)]}},
    "webhook create": {"": {**dict.fromkeys(Webhook.__struct_fields__), "secret": None}},
    "webhook change": {"": {**dict.fromkeys(Webhook.__struct_fields__), "secret": None}},
    "webhook delete": {"": {"deleted": None}},
    "webhook test": {"": dict.fromkeys(WebhookDelivery.__struct_fields__)},
    "webhook deliveries": {"": {"deliveries": [dict.fromkeys(WebhookDelivery.__struct_fields__)]}},
    "webhook redeliver": {"": {"queued": [dict.fromkeys(WebhookDelivery.__struct_fields__)]}},
    "config show": {"": dict.fromkeys(Config.__struct_fields__)},
    "config check": {"": {"ok": None, "index": None, "isolated": None}},
    "db migrate": {"": {"version": None}},
    "bench queue": {"": dict.fromkeys(Figures.__struct_fields__)},
    "mcp": {"": {}},
    "demo": {
        "": {
            **dict.fromkeys(("ok", "documents", "killed", "resumed", "changed", "hits", "check", "elapsed_s")),
            "claims": [{"ok": None, "text": None}],
            "folder": None,
        }
    },
}
"""The output of `--json`, by command and then by its arguments. A test compares real output with it."""


def commands_page() -> str:
    shared = ", ".join(f"`{name}`" for name in _shared())
    parts = [COMMANDS.format(shared=shared), _options(_of(penstock)), EXIT_CODES]
    for path, command in leaves(penstock):
        parts += [f"## penstock {path}\n", f"```\n{_usage(path, command)}\n```\n", _help(command)]
        own = [p for p in _of(command) if p.opts[0] not in _shared()]
        parts += [_options(own)] if own else []
        parts.append(_answers(path))
    return "\n".join(parts).rstrip("\n") + "\n"


def leaves(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands that are not groups, with their full names, in the order of the help."""
    for name, command in group.commands.items():
        path = f"{before}{name}"
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path} ")
        elif not command.hidden:
            yield path, command


def _shared() -> list[str]:
    @click.command()
    def nothing() -> None:
        pass

    for option in SHARED:
        option(nothing)
    return [parameter.opts[0] for parameter in nothing.params]


def _of(command: click.Command) -> list[click.Option]:
    return [p for p in command.params if isinstance(p, click.Option) and not p.hidden]


def _usage(path: str, command: click.Command) -> str:
    arguments = [str(p.metavar) for p in command.params if isinstance(p, click.Argument)]
    return " ".join(["penstock", path, "[OPTIONS]", *arguments])


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "") + "\n"


def _options(options: Sequence[click.Option]) -> str:
    return _table(("option", "default", "description"), [_option(option) for option in options])


def _option(option: click.Option) -> tuple[str, str, str]:
    about, _, told = (option.help or "").partition("  [default: ")
    default = told.rstrip("]")
    name = ", ".join(f"`{name}`" for name in option.opts)
    if not option.is_flag:
        choices = option.type.choices if isinstance(option.type, click.Choice) else ()
        name += " " + ("|".join(map(str, choices)) or option.metavar or option.type.name.upper())
        if isinstance(option.default, int | float | str):
            default = str(option.default)
    return name, default, about + (" May be given several times." if option.multiple else "")


def _answers(path: str) -> str:
    if path not in SHAPES:
        raise KeyError(f"add the output of `penstock {path} --json` to SHAPES in scripts/reference.py")
    lines = []
    for given, shape in SHAPES[path].items():
        words = " ".join(filter(None, ("penstock", path, given)))
        lines.append(f"`{words} --json`:\n\n```\n{textwrap.fill(write_shape(shape), 110)}\n```\n")
    return "\n".join(lines)


def write_shape(shape: Shape) -> str:
    if isinstance(shape, Mapping):
        return "{" + ", ".join(_member(name, inner) for name, inner in shape.items()) + "}"
    return f"[{', '.join(write_shape(item) for item in shape or ())}]"


def _member(name: str, inner: Shape) -> str:
    quoted = name if name == "…" else f'"{name}"'
    return f"{quoted}: {write_shape(inner)}" if inner else quoted


def settings_page() -> str:
    parts = [SETTINGS]
    for prefix, struct, about in _sections("", Config, ""):
        rows = list(_settings(struct, prefix))
        if prefix and rows:
            parts += [f"## {prefix}\n", about + "\n"]
        parts += [_table(("setting", "type", "default", "variable", "description"), rows)] if rows else []
    return "\n".join(parts).rstrip("\n") + "\n"


def _sections(prefix: str, struct: type[msgspec.Struct], about: str) -> Iterator[tuple[str, type[msgspec.Struct], str]]:
    """A struct and the structs in it, each with its prefix and its description."""
    yield prefix, struct, about
    hints, fields = get_type_hints(struct), documented(struct)
    for name, (_, own) in fields.items():
        inner = _inner(hints[name])
        if inner is not None:
            place = ".".join(filter(None, (prefix, name, "NAME" if get_origin(hints[name]) is dict else "")))
            yield from _sections(place, inner, _sentence(own or inner.__doc__))


def _inner(hint: Any) -> type[msgspec.Struct] | None:
    """The struct in a type: the type itself, an optional struct, or the values of a dictionary."""
    for part in (hint, *get_args(hint)):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None


def _settings(struct: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, ...]]:
    hints = get_type_hints(struct, include_extras=True)
    for name, (_, about) in documented(struct).items():
        if _inner(hints[name]) is not None:
            continue
        place = f"{prefix}.{name}" if prefix else name
        variable = "PENSTOCK_" + place.upper().replace(".", "__")
        yield f"`{place}`", _kind(hints[name]), _value(struct, name), f"`{variable}`", _sentence(about)


def _kind(hint: Any) -> str:
    """The type of a setting, with its range."""
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(_kind(part) for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Annotated:
        kind, meta = get_args(hint)
        return f"{_kind(kind)} {bounds(meta)}"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _value(struct: type[msgspec.Struct], name: str) -> str:
    field = next(f for f in msgspec.structs.fields(struct) if f.name == name)
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return "" if value in (None, "", {}) else f"`{value}`"


def documented(struct: type[msgspec.Struct]) -> dict[str, tuple[str, str | None]]:
    """The fields of a struct with their types as written, and the docstring below each."""
    [body] = ast.parse(inspect.getsource(struct)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, tuple[str, str | None]] = {}
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            about = None
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                about = str(following.value.value)
            found[node.target.id] = ast.unparse(node.annotation), about
    return found


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (head, *cells)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:], ""])


def formats_page() -> str:
    read = [row for row in FORMATS if row.adapter is not None]
    known = [row for row in FORMATS if row.adapter is None]
    lines = [FORMATS_HEAD, *table(("format", "media type", "names", "recognised by", "read in", "what is read"))]
    for row in read:
        where = "the worker" if row.reader is None and row.members is None else "a parser process"
        if row.members is not None:
            where += "; the files inside become documents"
        lines.append(cells(row.label, f"`{row.media_type}`", suffixes(row), sign(row), where, row.reads))
    lines += ["", FORMATS_KNOWN, *table(("format", "media type", "names"))]
    lines += [cells(row.label, f"`{row.media_type}`", suffixes(row)) for row in known]
    return "\n".join(lines) + "\n"


def suffixes(row: Format) -> str:
    return ", ".join(f"`.{suffix}`" for suffix in row.suffixes)


def sign(row: Format) -> str:
    match row.sign:
        case Text(None):
            return "its name, if it is text" if row.media_type != PLAIN else "any other name, if it is text"
        case Text():
            return "its first lines, or its name, if it is text"
        case Mark(start):
            return f"`{start.decode('ascii')}` at its beginning"
        case Magic():
            return "its first bytes"
        case Office(_, folder):
            return f"the list of contents of a zip file, or its folder `{folder.decode('ascii')}/`"
        case Ole():
            return "its first bytes, and its name"
        case Named():
            return "the media type in its first member"
        case _:
            return "its first bytes"


def table(names: Sequence[str]) -> list[str]:
    return [cells(*names), "|" + "---|" * len(names)]


def cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


PAGES = {
    FOLDER / "cli.md": commands_page,
    FOLDER / "configuration.md": settings_page,
    FOLDER / "formats.md": formats_page,
}

if __name__ == "__main__":
    for page, draw in PAGES.items():
        page.write_text(draw(), encoding="utf-8")
