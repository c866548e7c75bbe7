"""The formats of segments: pages, clean pages, chunks, vectors and JSON items."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from penstock.model.items import Chunk, CleanPage, Page, Vectors

T = TypeVar("T")


class Codec(Protocol[T]):
    """Encodes and decodes the items of one kind of artifact."""

    def encode(self, items: Sequence[T]) -> bytes: ...

    def decode(self, data: bytes) -> list[T]: ...


class ItemCodec(Generic[T]):
    def __init__(self, kind: type[T]) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[list[Any]] = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]

    def encode(self, items: Sequence[T]) -> bytes:
        return self._encoder.encode(list(items))

    def decode(self, data: bytes) -> list[T]:
        return self._decoder.decode(data)


_HEADER = struct.Struct("<4sII")


class VectorCodec:
    """Vectors: a header with rows and dimensions, then little-endian float32. An item is one row."""

    def encode(self, items: Sequence[Vectors]) -> bytes:
        import numpy as np

        rows = np.concatenate([np.atleast_2d(item) for item in items])
        return _HEADER.pack(b"PSV1", *rows.shape) + rows.astype("<f4", copy=False).tobytes()

    def decode(self, data: bytes) -> list[Vectors]:
        import numpy as np

        magic, rows, dimensions = _HEADER.unpack_from(data)
        if magic != b"PSV1":
            raise ValueError("not a segment of vectors")
        flat = np.frombuffer(data, dtype="<f4", offset=_HEADER.size)
        return [flat.reshape(rows, dimensions)]


PAGES: ItemCodec[Page] = ItemCodec(Page)
CLEAN_PAGES: ItemCodec[CleanPage] = ItemCodec(CleanPage)
CHUNKS: ItemCodec[Chunk] = ItemCodec(Chunk)
VECTORS = VectorCodec()
JSON_ITEMS: ItemCodec[Any] = ItemCodec(dict)


CODECS: Mapping[str, Codec[Any]] = {
    "extract": PAGES,
    "clean": CLEAN_PAGES,
    "chunk": CHUNKS,
    "embed": VECTORS,
    "enrich": JSON_ITEMS,
}
"""The format of the output of each kind of step. Steps of other kinds make no artifact."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
