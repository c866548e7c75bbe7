"""Merge parameters into workflows, and encode the snapshots that runs keep."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.artifacts.fingerprints import fingerprint
from penstock.config import WebhookConfig, chunk_parameter_problems, completed_chunk_parameters
from penstock.errors import ConfigError
from penstock.model.nouns import Handler, StepDefinition, Workflow, WorkflowRef
from penstock.yaml_file import SUFFIXES


def with_parameters(workflow: Workflow, parameters: Mapping[str, Mapping[str, Any]], what: str) -> Workflow:
    """The workflow with values, by step name or kind, that override those of its steps. `what` names their origin in
    error messages."""
    unknown = set(parameters) - {word for step in workflow.steps for word in (step.name, step.kind)}
    if unknown:
        raise ConfigError(f"{what}: workflow {workflow.id!r} has no step {', '.join(sorted(unknown))}")
    return _merged(workflow, lambda step: {**step.parameters, **_of(parameters, step)})


def with_defaults(workflow: Workflow, parameters: Mapping[str, Mapping[str, Any]]) -> Workflow:
    """The workflow with default values for its steps."""
    return _merged(workflow, lambda step: {**_of(parameters, step), **step.parameters})


def with_webhooks(workflow: Workflow, webhooks: Mapping[str, WebhookConfig]) -> Workflow:
    """The workflow with the webhooks that receive events of every run. Only their names are stored."""
    events = dict(workflow.lifecycle_events)
    for name, webhook in webhooks.items():
        handler = Handler(name, webhook=name, retries=webhook.retries, timeout=webhook.timeout)
        for event in webhook.events:
            there = events.get(event, ())
            if all(one.webhook != name for one in there):
                events[event] = (*there, handler)
    return msgspec.structs.replace(workflow, lifecycle_events=events)


def _merged(workflow: Workflow, parameters: Callable[[StepDefinition], dict[str, Any]]) -> Workflow:
    steps = tuple(msgspec.structs.replace(step, parameters=parameters(step)) for step in workflow.steps)
    return msgspec.structs.replace(workflow, steps=steps)


def _of(parameters: Mapping[str, Mapping[str, Any]], step: StepDefinition) -> dict[str, Any]:
    return {**parameters.get(step.kind, {}), **parameters.get(step.name, {})}


def with_chunk_sizes(workflow: Workflow) -> Workflow:
    """The workflow with all values of its chunk steps. Raises ConfigError if a chunk step has values that no document
    can be chunked with."""
    for step in workflow.steps:
        if step.kind == "chunk" and step.method is None:
            for _, message in chunk_parameter_problems(step.parameters):
                raise ConfigError(f"workflow {workflow.id!r}, step {step.name!r}: {message}")
    return _merged(workflow, _completed)


def with_embedder(workflow: Workflow) -> Workflow:
    """The workflow with the embedder of its last embed step in its index steps, which store vectors of that model."""
    chosen = [step.parameters.get("embedder") for step in workflow.steps if step.kind == "embed"]
    if not any(chosen):
        return workflow
    if not isinstance(chosen[-1], str):
        raise ConfigError(f"workflow {workflow.id!r}: the embedder {chosen[-1]!r} is not a name")
    own = {"embedder": chosen[-1]}
    return _merged(workflow, lambda step: {**step.parameters, **own} if step.kind == "index" else step.parameters)


def _completed(step: StepDefinition) -> dict[str, Any]:
    is_ours = step.kind == "chunk" and step.method is None
    return completed_chunk_parameters(step.parameters) if is_ours else step.parameters


def merged(*all_values: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Values by step; later ones override earlier ones."""
    found: dict[str, dict[str, Any]] = {}
    for values in all_values:
        for step, given in values.items():
            found.setdefault(step, {}).update(given)
    return found


def remember(workflow: Workflow, asked: WorkflowRef) -> Workflow:
    """The workflow with the names that a retry needs to find it again. Nothing is added if the id is sufficient."""
    if asked.workflow.endswith(SUFFIXES):
        asked = msgspec.structs.replace(asked, workflow=str(Path(asked.workflow).absolute()))
    if asked.params is not None and asked.params.endswith(SUFFIXES):
        asked = msgspec.structs.replace(asked, params=str(Path(asked.params).absolute()))
    return msgspec.structs.replace(workflow, asked=asked if asked != WorkflowRef(workflow.id) else None)


def encode(workflow: Workflow) -> tuple[str, str]:
    """The snapshot that a run keeps: its fingerprint and its body."""
    body = msgspec.json.encode(workflow).decode()
    return fingerprint("workflow", body), body


def decode(body: str) -> Workflow:
    return msgspec.json.decode(body, type=Workflow)
