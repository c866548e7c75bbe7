"""A Whisper model in a local folder, in the format of CTranslate2, by faster-whisper."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.transcribers.base import Line, Samples


class WhisperTranscriber:
    rough = False

    def __init__(self, folder: Path) -> None:
        if not (folder / "model.bin").is_file():
            raise ConfigError(
                f"transcriber whisper:{folder}: the folder has no model.bin. Use the folder of a Whisper model in the "
                "format of CTranslate2, with model.bin, config.json and tokenizer.json"
            )
        self._folder = folder

    @cached_property
    def version(self) -> str:
        """The weights are too large to hash: their size and the hash of the small files identify them."""
        digest = hashlib.sha256(str((self._folder / "model.bin").stat().st_size).encode())
        for path in sorted(self._folder.glob("*.json")):
            digest.update(path.read_bytes())
        return f"whisper-{digest.hexdigest()[:16]}"

    @cached_property
    def _model(self) -> Any:
        try:
            from faster_whisper import WhisperModel
        except ImportError as error:
            raise ConfigError(
                "transcriber whisper needs faster-whisper: pip install 'penstock-rag[audio,whisper]'"
            ) from error
        return WhisperModel(str(self._folder), local_files_only=True)

    def transcribe(self, samples: Samples) -> list[Line]:
        # One temperature and no text from before: the same sound gives the same text after an interruption.
        segments, _ = self._model.transcribe(samples, temperature=0.0, condition_on_previous_text=False)
        return [Line(segment.start, segment.end, segment.text.strip()) for segment in segments]
