"""The small English model in the package moonshine-voice. It runs offline on the CPU."""

from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.transcribers.base import RATE, Line, Samples


def is_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("moonshine_voice") is not None and find_spec("av") is not None


class MoonshineTranscriber:
    rough = True

    @cached_property
    def version(self) -> str:
        from importlib.metadata import version

        return f"moonshine-tiny-en-{version('moonshine-voice')}"

    @cached_property
    def _model(self) -> Any:
        from moonshine_voice import ModelArch, Transcriber, get_assets_path

        return Transcriber(model_path=str(Path(get_assets_path()) / "tiny-en"), model_arch=ModelArch.TINY)

    def transcribe(self, samples: Samples) -> list[Line]:
        found = self._model.transcribe_without_streaming(samples.tolist(), RATE).lines
        return [Line(line.start_time, line.start_time + line.duration, line.text.strip()) for line in found]
