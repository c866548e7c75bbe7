"""PORT: turn speech into text."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]
else:
    Samples = Any

RATE = 16_000
"""Samples per second of the sound that transcribers receive, with one channel."""


class Line(NamedTuple):
    """A sentence or a part of one, in seconds from the beginning of the samples."""

    start: float
    end: float
    text: str


class Transcriber(Protocol):
    @property
    def version(self) -> str:
        """The model and everything else that affects the text."""

    @property
    def rough(self) -> bool:
        """Whether the text has many errors, because the model is small."""

    def transcribe(self, samples: Samples) -> list[Line]:
        """The lines in order. This call blocks. It is never called by two threads at a time."""
