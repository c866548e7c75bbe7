"""What a handler is given besides the event."""

from typing import Any

import msgspec

from penstock.model.nouns import Json, Workflow


class HandlerContext(msgspec.Struct, frozen=True):
    parameters: Json
    """Those of the handler in its workflow."""
    attempt: int
    """1 for the first."""
    workflow: Workflow
    """As the run or group keeps it."""
    app: Any
    """The open App of the worker that delivers: it searches, shows, submits (without waiting)."""
