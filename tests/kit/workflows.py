"""Workflows for tests, with the steps of `tests/integration/own_steps.py`."""

from penstock.app import App

OWN = "tests.integration.own_steps"


def define(app: App, body: str, folder: str = "workflows", name: str = "w.yaml") -> None:
    """Write a definition into the home of an app."""
    place = app.config.home_path / folder
    place.mkdir(exist_ok=True)
    (place / name).write_text(body)


def ending(step: str) -> str:
    """A workflow with one more step, `own`, after validate."""
    return f"id: x\nsteps:\n  validate:\n  own: {step}\n  extract:\n  clean:\n  chunk:\n  embed:\n  index:\n"
