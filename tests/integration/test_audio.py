"""Sound is decoded in parser processes and becomes pages of half a minute with the time as their label."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.parsers import Listener
from tests.kit.sounds import CODECS, ToneTranscriber, encoded, tones, untrained_whisper

from penstock.errors import ConfigError, Permanent
from penstock.extractors import audio, formats
from penstock.extractors.base import Extracted
from penstock.extractors.media import detect
from penstock.model.states import DocumentStatus
from penstock.runtime import Runtime
from penstock.transcribers.base import RATE
from penstock.worker.parsers.pool import ParserPool

PITCHES = [400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2000, 2200, 2400, 2600, 2800, 3000]
WORDS = [f"tone{pitch}" for pitch in PITCHES]


class Sound(Listener):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @asynccontextmanager
    async def _file(self) -> AsyncIterator[Path]:
        yield self.path

    def file(self) -> Any:
        return self._file()


@pytest.fixture
async def parsers() -> AsyncIterator[ParserPool]:
    pool = ParserPool(children=2, memory_mb=512, timeout_s=60)
    yield pool
    await pool.close()


@pytest.fixture
def hearing(parsers: ParserPool, runtime: Runtime) -> audio.AudioExtractor:
    return audio.AudioExtractor(parsers, runtime, ToneTranscriber, formats.of("audio/wav"))


async def batches(extractor: audio.AudioExtractor, path: Path, cursor: dict[str, Any] | None = None) -> list[Extracted]:
    return [one async for one in extractor.extract(Sound(path), "audio/wav", {}, cursor or {})]


@pytest.mark.parametrize("suffix", CODECS)
async def test_every_format_is_recognised_and_decoded(
    hearing: audio.AudioExtractor, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"sound.{suffix}"
    path.write_bytes(encoded(tones(440, 880), suffix))
    row = formats.of(detect(path.read_bytes(), "unnamed"))
    assert suffix in row.suffixes
    found = await batches(hearing, path)
    text = " ".join(page.text for batch in found for page in batch.pages)
    assert text == "tone440 tone880"
    assert found[-1].metadata["seconds"] == pytest.approx(10, abs=0.2)


async def test_i12_pages_end_in_pauses_and_are_the_same_from_any_cursor(
    hearing: audio.AudioExtractor, tmp_path: Path
) -> None:
    path = tmp_path / "sound.mp3"
    path.write_bytes(encoded(tones(*PITCHES), "mp3"))
    whole = await batches(hearing, path)
    pages = [page for batch in whole for page in batch.pages]
    assert [word for page in pages for word in page.text.split()] == WORDS, "no tone is cut, lost or heard twice"
    assert [page.label for page in pages] == ["0:00:00", *(page.path[0] for page in pages[1:])]
    assert len(pages) == 3
    for at, batch in enumerate(whole):
        rest = await batches(hearing, path, dict(batch.cursor))
        assert [page for one in rest for page in one.pages] == pages[at + 1 :]


async def test_a_file_that_is_cut_off_keeps_what_can_be_heard(hearing: audio.AudioExtractor, tmp_path: Path) -> None:
    data = encoded(tones(*PITCHES), "mp3")
    path = tmp_path / "cut.mp3"
    path.write_bytes(data[: len(data) // 2])
    found = [page.text for batch in await batches(hearing, path) for page in batch.pages]
    assert " ".join(found).split()[:5] == WORDS[:5]


async def test_rubbish_is_damaged(hearing: audio.AudioExtractor, tmp_path: Path) -> None:
    path = tmp_path / "rubbish.mp3"
    path.write_bytes(b"ID3" + os.urandom(2000))
    with pytest.raises(Permanent, match="cannot be decoded") as caught:
        await batches(hearing, path)
    assert caught.value.reason == "damaged"


async def test_without_a_transcriber_sound_is_unsupported_and_not_a_failure(
    start_app: StartApp, tmp_path: Path
) -> None:
    (tmp_path / "sound.wav").write_bytes(encoded(tones(440, seconds=0.5)))
    app = await start_app(transcriber="off")
    summary = await app.ingest(tmp_path / "sound.wav")
    assert summary.unsupported == 1
    (document,) = await app.list_documents()
    assert document.status == DocumentStatus.UNSUPPORTED
    steps = (await app.status(document.id)).steps
    assert any("penstock-rag[audio]" in str((step.meta or {}).get("error")) for step in steps), "what to install"


async def test_speech_is_found_by_its_words(start_app: StartApp, tmp_path: Path) -> None:
    from moonshine_voice import get_assets_path, load_wav_file

    samples, rate = load_wav_file(str(Path(get_assets_path()) / "two_cities.wav"))
    import numpy as np

    speech = np.asarray(samples[: 8 * rate : rate // RATE], dtype=np.float32)
    (tmp_path / "speech.flac").write_bytes(encoded(speech, "flac"))
    app = await start_app(embedder="wordllama")
    assert (await app.ingest(tmp_path / "speech.flac")).completed == 1
    (hit,) = await app.search("the best of times", k=1)
    assert "best of times" in hit.text
    assert hit.headings == ("0:00:00",)


async def test_a_whisper_model_in_a_folder_is_loaded_and_used(start_app: StartApp, tmp_path: Path) -> None:
    (tmp_path / "sound.wav").write_bytes(encoded(tones(440, seconds=1)))
    app = await start_app(transcriber=f"whisper:{untrained_whisper(tmp_path / 'model')}")
    assert (await app.ingest(tmp_path / "sound.wav")).completed == 1
    (hit,) = await app.search("wordword", mode="text", k=1)
    assert hit.text.startswith("wordword wordword")


async def test_a_folder_without_a_model_is_refused(start_app: StartApp, tmp_path: Path) -> None:
    (tmp_path / "sound.wav").write_bytes(encoded(tones(440, seconds=0.5)))
    app = await start_app(transcriber=f"whisper:{tmp_path}")
    with pytest.raises(ConfigError, match=r"model\.bin"):
        await app.ingest(tmp_path / "sound.wav")
