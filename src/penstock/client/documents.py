"""Documents of a server: their pages one after the other, their raw bytes, and their end."""

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client.connection import Connection, segment
from penstock.errors import Away, StorageError

if TYPE_CHECKING:
    from penstock.verbs.views import DocumentDetails

T = TypeVar("T")

PAGE = 200
LONG_POLL_S = 30.0
PIECES = 1 << 20


async def paged(
    connection: Connection, path: str, field: str, of: type[T], query: Mapping[str, Any] | None = None
) -> AsyncGenerator[T, None]:
    """Yield all entries of a list, page by page, from the `cursor` of the query on."""
    asked: dict[str, Any] = {"limit": PAGE, **(query or {})}
    while True:
        answer = await connection.json("GET", path, query=asked)
        for entry in answer.get(field, ()):
            yield connection.restored(entry, of)
        if answer.get("next") is None:
            return
        asked["cursor"] = answer["next"]


async def wait_for(connection: Connection, document: str, timeout_s: float | None) -> "DocumentDetails":
    """Return the document when it has ended. Raise TimeoutError if that takes longer."""
    from penstock.model.states import ENDS
    from penstock.verbs.views import DocumentDetails

    clock = connection.runtime.clock
    until = None if timeout_s is None else clock() + timeout_s
    while True:
        left = LONG_POLL_S if until is None else min(LONG_POLL_S, until - clock())
        query = {"wait": round(max(0.0, left), 3)}
        path = f"documents/{segment(document)}"
        found: DocumentDetails = await connection.json("GET", path, DocumentDetails, query=query, wait_s=LONG_POLL_S)
        if found.status in ENDS:
            return found
        if until is not None and clock() >= until:
            raise TimeoutError(f"{document} is {found.status} after {timeout_s:g} s")


async def raw(connection: Connection, document: str, start: int = 0) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a document, and go on where the connection was cut off."""
    path, place, size, tag = f"documents/{segment(document)}/raw", start, None, None
    digest = hashlib.sha256()
    patience = connection.patience()
    while size is None or place < size:
        headers = {"Range": f"bytes={place}-"} if place else {}
        try:
            async with connection.stream("GET", path, headers=headers) as stream:
                if tag not in (None, stream.headers.get("etag")):
                    raise StorageError(f"{document} has another version since the download began: begin again")
                tag = stream.headers.get("etag")
                size = _size(stream.headers, place)
                async for piece in stream.pieces():
                    place += len(piece)
                    patience.restart()
                    digest.update(piece)
                    yield piece
            if place < size:
                raise Away(f"{connection.url} has cut the connection")
        except Away as error:
            await patience.wait(error, error.retry_after)
    if start == 0 and tag != f'"{digest.hexdigest()}"':
        raise StorageError(f"{document}: the bytes that arrived are not those of the document: download it again")


def _size(headers: Any, place: int) -> int:
    whole = headers.get("content-range", "").rpartition("/")[2]
    return int(whole) if whole.isdigit() else place + int(headers.get("content-length", "0"))


async def download(connection: Connection, document: str, path: Path) -> int:
    """Write the bytes of a document to a file. It has its name when it is whole."""
    run = connection.runtime.run_blocking
    part = path.with_name(f".{path.name}.part")
    size = 0
    try:
        with await run("io", part.open, "wb") as file:
            async with aclosing(raw(connection, document)) as pieces:
                async for piece in pieces:
                    size += len(piece)
                    await run("io", file.write, piece)
        await run("io", part.replace, path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return size
