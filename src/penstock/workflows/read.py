"""Convert YAML to workflows and parameter sets. All problems are reported at once, each with its line.

Two forms are accepted: our own (`steps`, as a list or by name), and that of workflow systems that list `item_steps` by
kind and name their own functions for the built-in stages. Those names are translated to ours."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from penstock.config import chunk_parameter_problems
from penstock.model.nouns import Handler, ParameterSet, StepDefinition, Workflow
from penstock.yaml_file import Place, YamlFile, suggestion

SHIPPED_KINDS = ("validate", "extract", "clean", "chunk", "embed", "index")
OPEN_KINDS = ("enrich", "route")
FETCH = "fetch"
"""A kind that does not exist, although other systems have it."""
KINDS = (*SHIPPED_KINDS, *OPEN_KINDS)
EVENTS = (
    "group_start", "group_end", "item_start", "item_end", "item_failed", "step_start", "step_end", "step_failed",
)  # fmt: skip

MOST = {"retries": 1_000, "timeout": 7 * 86_400}

T = TypeVar("T")

_KIND_WORDS = {"ingest": FETCH, "parse": "extract", "store": "index"}
_METHOD_WORDS = {
    "validate_document": "validate",
    "parse_document": "extract",
    "split_parse_document": "extract",
    "chunk_document": "chunk",
    "embed_document": "embed",
    "save_to_rag": "index",
}
_FOREIGN = "soliplex.ingester."
_HANDLER_WORDS = {"log_event": "penstock.events.handlers.log", "run_end": "penstock.events.handlers.vacuum"}
_PARAMETER_WORDS = {"chunk": {"chunk_size": "size", "chunk_overlap": "overlap"}}

_WORKFLOW_KEYS = {"id", "name", "meta", "steps", "item_steps", "lifecycle_events"}
_STEP_KEYS = set(StepDefinition.__struct_fields__)
_HANDLER_KEYS = set(Handler.__struct_fields__)
_SET_KEYS = set(ParameterSet.__struct_fields__)


def workflow(source: YamlFile) -> Workflow | None:
    """The workflow in a file, or None if the source has problems."""
    values = _mapping(source, ())
    if values is None:
        return None
    _unknown(source, (), values, _WORKFLOW_KEYS)
    if ("steps" in values) == ("item_steps" in values):
        source.complain((), "a workflow needs `steps`, as a list or by name")
        return None
    key = "steps" if "steps" in values else "item_steps"
    steps = _steps(source, (key,), values[key])
    _check_graph(source, key, steps)
    events = {
        str(event): _handlers(source, ("lifecycle_events", event))
        for event in _mapping(source, ("lifecycle_events",)) or {}
    }
    raw = {
        "id": values.get("id"),
        "name": values.get("name") or values.get("id"),
        "meta": values.get("meta") or {},
        "steps": [step for _, step in steps],
        "lifecycle_events": events,
    }
    return _convert(source, raw, Workflow)


def parameter_set(source: YamlFile) -> ParameterSet | None:
    values = _mapping(source, ())
    if values is None:
        return None
    _unknown(source, (), values, _SET_KEYS)
    config = _mapping(source, ("config",)) or {}
    for step in config:
        given = _mapping(source, ("config", step))
        if step == "chunk" and given:
            _check_chunk(source, ("config", step), _parameters("chunk", given))
    renamed = {
        _KIND_WORDS.get(step, step): _parameters(_KIND_WORDS.get(step, step), given) for step, given in config.items()
    }
    return _convert(source, {**values, "config": renamed}, ParameterSet)


def _steps(source: YamlFile, path: tuple[str, ...], given: Any) -> list[tuple[Place, dict[str, Any]]]:
    """Each step with its place, in order, with translated names."""
    found: list[tuple[Place, dict[str, Any]]] = []
    if isinstance(given, list):
        entries: list[tuple[str | int, Any]] = list(enumerate(given))
    elif isinstance(given, dict):
        entries = list(given.items())
    else:
        source.complain(path, "steps must be a list, or a mapping by name")
        return []
    for key, value in entries:
        place = (*path, key)
        step = dict(value) if isinstance(value, dict) else {}
        if value is not None and not isinstance(value, dict):
            source.complain(place, "a step must be a mapping: {kind: …, retries: …, parameters: …}")
            continue
        if path == ("item_steps",):
            step = _foreign(str(key), step)
        elif isinstance(key, str):
            step.setdefault("name", key)
        elif "kind" in step:
            step.setdefault("name", str(step["kind"]))
        elif "name" not in step:
            source.complain(place, "a step needs a `kind`")
            continue
        step.setdefault("kind", step.get("name"))
        step["kind"] = _KIND_WORDS.get(str(step["kind"]), step["kind"])
        step["parameters"] = _parameters(str(step["kind"]), step.get("parameters") or {})
        _check_step(source, place, step)
        found.append((place, {k: v for k, v in step.items() if k in _STEP_KEYS}))
    if path == ("item_steps",):
        _add_clean(found)
    return found


def _foreign(key: str, step: dict[str, Any]) -> dict[str, Any]:
    """Translate a step of another system, whose key is its kind and whose function may be built in here."""
    kind = _KIND_WORDS.get(key, key)
    method = step.get("method")
    if isinstance(method, str) and method.startswith(_FOREIGN):
        kind = _METHOD_WORDS.get(method.rpartition(".")[2], kind)
        step = {k: v for k, v in step.items() if k != "method"}
    return {**step, "name": key if key not in _KIND_WORDS else kind, "kind": step.get("kind", kind)}


def _add_clean(found: list[tuple[Place, dict[str, Any]]]) -> None:
    """Insert a clean step before chunk, which other systems do not have."""
    kinds = [step["kind"] for _, step in found]
    if "chunk" in kinds and "clean" not in kinds:
        at = kinds.index("chunk")
        found.insert(at, (found[at][0], {"name": "clean", "kind": "clean"}))


def _parameters(kind: str, given: Any) -> dict[str, Any]:
    words = _PARAMETER_WORDS.get(kind, {})
    return {words.get(str(name), str(name)): value for name, value in given.items()} if isinstance(given, dict) else {}


def _check_step(source: YamlFile, place: Place, step: dict[str, Any]) -> None:
    _unknown(source, place, step, _STEP_KEYS)
    kind = step["kind"]
    if kind == FETCH and kind not in KINDS:
        source.complain(
            (*place, "kind") if "kind" in step else place,
            "there is no fetch step: documents are fetched when they are submitted "
            "(docs/decisions/0023-no-fetch-step.md). Remove the step",
        )
    elif kind not in KINDS:
        meant = suggestion(str(kind), KINDS)
        hint = f"did you mean {meant!r}?" if meant else f"use one of {', '.join(KINDS)}"
        source.complain((*place, "kind"), f"unknown kind {kind!r}: {hint}")
    elif kind in OPEN_KINDS and not step.get("method"):
        source.complain(place, f"a step of kind {kind} needs a `method`, the dotted path of your function")
    if kind == "route" and not step.get("choices"):
        source.complain(place, "a route needs `choices`: the next step for each choice")
    if kind != "route" and step.get("choices"):
        source.complain((*place, "choices"), "only a step of kind route can have choices")
    if kind == "embed" and step.get("method"):
        source.complain(
            (*place, "method"),
            "an embed step cannot have a `method`: a search would embed its query with another embedder. Add your own "
            "embedder instead, by the entry point `penstock.embedders`, and choose it with the setting `embedder` "
            "(docs/how-to/adapters.md)",
        )
    if kind == "index" and step.get("method"):
        source.complain(
            (*place, "method"),
            "an index step cannot have a `method`: a search would not find its documents. Add your own index instead, "
            "by the entry point `penstock.indexes`, and choose it with the setting `index` (docs/how-to/adapters.md)",
        )
    if kind == "chunk" and not step.get("method"):
        _check_chunk(source, (*place, "parameters"), step["parameters"])
    _check_numbers(source, place, step)
    _check_pool(source, place, step)
    _check_resource_key(source, place, step)


def _check_chunk(source: YamlFile, place: Place, parameters: Mapping[str, Any]) -> None:
    for path, message in chunk_parameter_problems(parameters):
        source.complain((*place, *path), message)


def _check_numbers(source: YamlFile, place: Place, given: Mapping[str, Any]) -> None:
    for name in ("retries", "timeout"):
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST[name]:
            source.complain(
                (*place, name), f"{name} must be a number above zero, at most {MOST[name]:,}, not {value!r}"
            )


def is_pool_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[a-z][a-z0-9_-]*", value) is not None


def _check_pool(source: YamlFile, place: Place, step: dict[str, Any]) -> None:
    pool = step.get("pool")
    if pool is not None and not is_pool_name(pool):
        source.complain((*place, "pool"), f"pool must consist of lower-case letters, digits, - and _, not {pool!r}")
    elif pool == "index" != step["kind"]:
        source.complain((*place, "pool"), "the pool `index` is for index steps only")


def _check_resource_key(source: YamlFile, place: Place, step: dict[str, Any]) -> None:
    key = step.get("resource_key")
    if key is None:
        return
    if not isinstance(key, str) or not key or not key.isprintable():
        source.complain((*place, "resource_key"), f"resource_key must be printable text, not {key!r}")
    elif strange := set(re.findall(r"\{.*?\}", key)) - {"{owner}", "{collection}"}:
        names = ", ".join(sorted(strange))
        source.complain((*place, "resource_key"), f"resource_key may contain {{owner}} and {{collection}}, not {names}")
    if not step.get("method") or step["kind"] == "index":
        source.complain((*place, "resource_key"), "only a step with its own `method` can have a resource_key")


def _check_graph(source: YamlFile, key: str, steps: list[tuple[Place, dict[str, Any]]]) -> None:
    """Names must be unique, and each step may only lead to a later one, so that every run ends."""
    if not steps:
        source.complain((key,), "a workflow needs at least one step")
    order: dict[str, int] = {}
    for i, (place, step) in enumerate(steps):
        if step["name"] in order:
            source.complain(place, f"two steps are named {step['name']!r}")
        order.setdefault(str(step["name"]), i)
    for i, (place, step) in enumerate(steps):
        choices = step.get("choices") if isinstance(step.get("choices"), dict) else {}
        ways = [("next", step.get("next")), *[("choices", way) for way in (choices or {}).values()]]
        for name, target in ways:
            if target is None or str(target) in ENDINGS or str(target).startswith(ELSEWHERE):
                continue
            if str(target) not in order:
                source.complain((*place, name), f"there is no step {target!r}")
            elif order[str(target)] <= i:
                source.complain(
                    (*place, name), f"{target!r} must come after {step['name']!r}: a run only moves forward"
                )


ENDINGS = ("END", "COMPLETED", "NOT_INDEXABLE", "UNSUPPORTED")
"""In place of a step name: the run ends."""
ELSEWHERE = "workflow:"
"""Prefix of the id or file of a workflow, in place of a step name: the run continues with that workflow."""


def _handlers(source: YamlFile, path: Place) -> list[dict[str, Any]]:
    event = path[-1]
    if event not in EVENTS:
        source.complain(path, f"unknown event {event!r}: use one of {', '.join(EVENTS)}")
    given = _at(source.values, path)
    if not isinstance(given, list):
        source.complain(path, "the handlers of an event must be a list")
        return []
    handlers = []
    for i, value in enumerate(given):
        place: Place = (*path, i)
        if not isinstance(value, dict):
            source.complain(place, "a handler must be a mapping: {name: …, method: …}")
            continue
        _unknown(source, place, value, _HANDLER_KEYS)
        handler = dict(value)
        method = handler.get("method")
        if isinstance(method, str) and method.startswith(_FOREIGN):
            handler["method"] = _HANDLER_WORDS.get(method.rpartition(".")[2], method)
        if (handler.get("method") is None) == (handler.get("webhook") is None):
            source.complain(place, "a handler needs either a `method` or a `webhook`")
        handler.setdefault("name", handler.get("method") or handler.get("webhook") or "")
        if handler.get("webhook") is not None:
            # A server may be unavailable for longer than a local function fails.
            handler.setdefault("retries", 8)
            handler.setdefault("timeout", 10.0)
        _check_numbers(source, place, handler)
        handlers.append({k: v for k, v in handler.items() if k in _HANDLER_KEYS})
    return handlers


def _mapping(source: YamlFile, path: Place) -> dict[str, Any] | None:
    value = _at(source.values, path)
    if value is None and path:
        return None
    if not isinstance(value, dict):
        if not source.problems:
            source.complain(path, "this must be a mapping of names to values")
        return None
    return value


def _at(values: Any, path: Place) -> Any:
    for key in path:
        if isinstance(values, Mapping):
            values = values.get(key)
        else:
            values = values[key] if isinstance(values, list) and isinstance(key, int) else None
    return values


def _unknown(source: YamlFile, path: Place, given: Mapping[str, Any], known: set[str]) -> None:
    for key in given:
        if key not in known:
            meant = suggestion(key, known)
            hint = f"did you mean {meant!r}?" if meant else f"use {', '.join(sorted(known))}"
            source.complain((*path, key), f"unknown key {key!r}: {hint}")


def _convert(source: YamlFile, raw: dict[str, Any], kind: type[T]) -> T | None:
    if source.problems:
        return None
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$.")
        source.complain(_place(where.rstrip("`")), message)
        return None


def _place(where: str) -> Place:
    """Convert a path of msgspec, as in `steps[2].retries`."""
    parts: list[str | int] = []
    for part in where.split("."):
        name, *numbers = part.replace("]", "").split("[")
        parts += [name, *[int(n) for n in numbers if n.isdigit()]]
    return tuple(part for part in parts if part != "")
