"""Sounds for tests: tones with pauses, in every format, and a transcriber that names the tones it hears."""

import io
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.audio.resampler import AudioResampler

from penstock.transcribers.base import RATE, Line, Samples

CODECS = {
    "wav": ("wav", "pcm_s16le"),
    "mp3": ("mp3", "libmp3lame"),
    "flac": ("flac", "flac"),
    "m4a": ("mp4", "aac"),
    "ogg": ("ogg", "libopus"),
}


def tones(*pitches: int, seconds: float = 4.0, pause: float = 1.0) -> Samples:
    """One tone after the other, each with a pause after it."""
    time = np.arange(int(seconds * RATE)) / RATE
    quiet = np.zeros(int(pause * RATE), dtype=np.float32)
    parts = [part for pitch in pitches for part in (0.5 * np.sin(2 * np.pi * pitch * time), quiet)]
    return np.concatenate(parts).astype(np.float32)


def encoded(samples: Samples, suffix: str = "wav") -> bytes:
    data = (samples * 32767).astype("<i2")
    out = io.BytesIO()
    if suffix == "wav":
        with wave.open(out, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(data.tobytes())
        return out.getvalue()
    container, codec = CODECS[suffix]
    rate = 48_000
    with av.open(out, "w", format=container, options={"brand": "M4A "} if suffix == "m4a" else {}) as file:
        stream: Any = file.add_stream(codec, rate=rate)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(data.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE, 0
        resampler = AudioResampler(format=stream.codec_context.format.name, layout="mono", rate=rate, frame_size=960)
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return out.getvalue()


class ToneTranscriber:
    """Names the tones by their pitch, rounded to ten."""

    version = "tones-1"
    rough = True

    def __init__(self) -> None:
        self.heard: list[int] = []
        """The number of samples of each call."""

    def transcribe(self, samples: Samples) -> list[Line]:
        self.heard.append(len(samples))
        pitches: list[int] = []
        step = RATE // 4
        for at in range(0, len(samples) - step + 1, step):
            part = samples[at : at + step]
            loud = np.abs(part).mean() > 0.1
            pitch = round(int(np.abs(np.fft.rfft(part))[1:].argmax() + 1) * 4 / 10) * 10 if loud else 0
            if pitch and (not pitches or pitches[-1] != pitch):
                pitches.append(pitch)
        return [Line(0.0, len(samples) / RATE, _words(pitches))]


def _words(pitches: Sequence[int]) -> str:
    return " ".join(f"tone{pitch}" for pitch in pitches)


def untrained_whisper(folder: Path) -> Path:
    """A Whisper model that was never trained and hears the same word everywhere: real files, real loading, no sense."""
    from ctranslate2.specs import whisper_spec
    from tokenizers import Tokenizer, models

    width, times = 16, [f"<|{number * 0.02:.2f}|>" for number in range(1501)]
    control = [
        "endoftext",
        "startoftranscript",
        "en",
        "translate",
        "transcribe",
        "startoflm",
        "startofprev",
        "nospeech",
    ]
    special = [*(f"<|{name}|>" for name in (*control, "notimestamps")), *times]
    vocabulary = ["unknown", "wordword", *special]
    random = np.random.default_rng(0)
    spec: Any = whisper_spec.WhisperSpec(1, 2, 1, 2)

    def weights(*shape: int) -> Any:
        return random.normal(0, 0.1, shape).astype(np.float32)

    def normal(layer: Any) -> None:
        layer.gamma, layer.beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    def linear(layer: Any, out: int, into: int = width) -> None:
        layer.weight, layer.bias = weights(out, into), weights(out)

    def block(layer: Any, *, decodes: bool) -> None:
        for attention in (layer.self_attention, *((layer.attention,) if decodes else ())):
            normal(attention.layer_norm)
            outs = (width, 2 * width, width) if len(attention.linear) == 3 else (3 * width, width)
            for inner, out in zip(attention.linear, outs, strict=True):
                linear(inner, out)
        normal(layer.ffn.layer_norm)
        linear(layer.ffn.linear_0, 4 * width)
        linear(layer.ffn.linear_1, width, 4 * width)

    encoder, decoder = spec.encoder, spec.decoder
    for convolution, into in ((encoder.conv1, 80), (encoder.conv2, width)):
        convolution.weight, convolution.bias = weights(width, into, 3), weights(width)
    encoder.position_encodings.encodings = weights(1500, width)
    decoder.position_encodings.encodings = weights(448, width)
    decoder.embeddings.weight = decoder.projection.weight = weights(len(vocabulary), width)
    decoder.projection.bias = np.zeros(len(vocabulary), np.float32)
    decoder.projection.bias[1] = 12.0
    for side in (encoder, decoder):
        normal(side.layer_norm)
        block(side.layer[0], decodes=side is decoder)
    spec.register_vocabulary(vocabulary)
    spec.config.suppress_ids, spec.config.suppress_ids_begin = [], []
    spec.config.lang_ids, spec.config.alignment_heads = [vocabulary.index("<|en|>")], [(0, 0)]
    spec.validate()
    spec.optimize()
    folder.mkdir()
    spec.save(str(folder))
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(vocabulary)}, unk_token="unknown"))
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
