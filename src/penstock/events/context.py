"""The context that a handler receives besides the event."""

from typing import Any

import msgspec

from penstock.model.nouns import Json, Workflow


class HandlerContext(msgspec.Struct, frozen=True):
    parameters: Json
    """The parameters of the handler in its workflow."""
    attempt: int
    """1 for the first."""
    workflow: Workflow
    """The workflow snapshot of the run or group."""
    app: Any
    """The open App of the worker that delivers the event. Use it to search, show, or submit without waiting."""
