"""Decode sound in a parser process, with FFmpeg."""

import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import av
import numpy as np
from av.audio.resampler import AudioResampler

from penstock.errors import Permanent

RATE = 16_000


class _Open(NamedTuple):
    """A file that is being decoded, so that the next call continues after this one."""

    identity: tuple[int, int, int]
    position: int
    rest: bytes
    blocks: Iterator[bytes]


_kept: _Open | None = None


def read(document: BinaryIO, first: int, count: int) -> tuple[bytes, bool]:
    """Samples from `first` on, 16 bits each, and whether the sound ends there. The file is always decoded from its
    beginning, because formats without an index cannot be entered at an exact sample."""
    global _kept
    kept, _kept = _kept, None
    identity = _identity(document)
    if kept is None or kept.identity != identity or kept.position > first:
        kept = _Open(identity, 0, b"", _blocks(document))
    position, held = kept.position, bytearray(kept.rest)
    wanted, ended = 2 * count, False
    try:
        while len(held) - 2 * (first - position) < wanted:
            block = next(kept.blocks, None)
            if block is None:
                ended = True
                break
            held += block
            # What lies before the first sample is not kept in memory.
            if (skipped := min(first - position, len(held) // 2)) > 0:
                del held[: 2 * skipped]
                position += skipped
    except (av.FFmpegError, ValueError, OSError) as error:
        if first == 0 and len(held) < 2:
            raise Permanent(f"the sound cannot be decoded ({error})", reason="damaged") from error
        # A file that was cut off: what was decoded is kept.
        ended = True
    found = bytes(held[:wanted])
    if not ended:
        _kept = _Open(identity, position + len(found) // 2, bytes(held[wanted:]), kept.blocks)
    return found, ended


def _identity(document: BinaryIO) -> tuple[int, int, int]:
    status = os.fstat(document.fileno())
    return status.st_dev, status.st_ino, status.st_size


def _blocks(document: BinaryIO) -> Iterator[bytes]:
    # The container keeps reading after this call has ended, so it needs a descriptor of its own.
    file = os.fdopen(os.dup(document.fileno()), "rb")
    file.seek(0)
    with file, av.open(file, mode="r") as container:
        stream: Any = next(iter(container.streams.audio), None)
        if stream is None:
            raise Permanent("the file has no sound", reason="unsupported_type")
        stream.codec_context.thread_count = 1
        resampler = AudioResampler(format="s16", layout="mono", rate=RATE)
        for frame in container.decode(stream):
            for part in resampler.resample(frame):
                yield np.ascontiguousarray(part.to_ndarray(), dtype="<i2").tobytes()
        for part in resampler.resample(None):
            yield np.ascontiguousarray(part.to_ndarray(), dtype="<i2").tobytes()
