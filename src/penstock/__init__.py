"""Penstock: durable document ingestion. Accepted is safe. Done is kept. Half-done is never seen."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import App, open_app
    from penstock.config import Config
    from penstock.errors import PenstockError

__all__ = ["App", "Config", "PenstockError", "open_app"]

_HOMES = {"App": "app", "open_app": "app", "Config": "config", "PenstockError": "errors"}


def __getattr__(name: str) -> Any:
    """Nothing is loaded before it is used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"penstock.{_HOMES[name]}"), name)
