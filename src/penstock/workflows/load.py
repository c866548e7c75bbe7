"""Workflow definitions: the shipped one, and the settings of a collection merged into it."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import msgspec

from penstock.artifacts.fingerprints import fingerprint
from penstock.errors import ConfigError
from penstock.model.nouns import Workflow


def shipped(name: str = "default") -> Workflow:
    import yaml

    text = files("penstock.workflows").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), Workflow)


def with_parameters(workflow: Workflow, parameters: Mapping[str, Mapping[str, Any]]) -> Workflow:
    """The workflow with values merged into its steps, by step name."""
    unknown = set(parameters) - {step.name for step in workflow.steps}
    if unknown:
        raise ConfigError(f"workflow {workflow.id!r} has no step {', '.join(sorted(unknown))}")
    steps = tuple(
        msgspec.structs.replace(step, parameters={**step.parameters, **parameters.get(step.name, {})})
        for step in workflow.steps
    )
    return msgspec.structs.replace(workflow, steps=steps)


def encode(workflow: Workflow) -> tuple[str, str]:
    """The snapshot that a run keeps: its fingerprint and its body."""
    body = msgspec.json.encode(workflow).decode()
    return fingerprint("workflow", body), body


def decode(body: str) -> Workflow:
    return msgspec.json.decode(body, type=Workflow)
