"""Azure Document Intelligence: reads documents with the official SDK (extra `azure`)."""

import hashlib
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from penstock.errors import Away, ConfigError, OutOfQuota, Permanent, RateLimited, Transient, Unauthorized
from penstock.extractors.formats import DOCX, HTML, PDF, PPTX, XLSX
from penstock.extractors.pieces import Piece
from penstock.extractors.ranges import MOST_ANSWER_PAGES, MOST_CELLS, OperationGone, Payload, Poll, believed
from penstock.net.headers import retry_after
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from azure.ai.documentintelligence.aio import DocumentIntelligenceClient

ENDPOINT, KEY = "AZURE_DOCUMENT_INTELLIGENCE_ENDPOINT", "AZURE_DOCUMENT_INTELLIGENCE_KEY"
MODEL = "prebuilt-layout"
WAIT_S = 60.0
"""Seconds without an answer after which a request is given up."""
MEDIA_TYPES = frozenset(
    (PDF, DOCX, PPTX, XLSX, HTML, "image/jpeg", "image/png", "image/tiff", "image/bmp", "image/heif")
)
MOST_BYTES = 256 << 20
_ACCEPTED = 202
_WHO = "Azure Document Intelligence"
_NOT_UNDERSTOOD = (
    msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
_CANNOT_BE_READ = f"{_WHO} sent an answer that cannot be read"


class AzureProvider:
    """The operation is the URL at which Azure keeps the result, for a day."""

    media_types = MEDIA_TYPES

    def __init__(self, endpoint: str, key: str, runtime: Runtime, model: str = "") -> None:
        self._endpoint = endpoint.rstrip("/")
        self._key = key
        self._runtime = runtime
        self._model = model or MODEL
        self._client: DocumentIntelligenceClient | None = None
        host = urlsplit(self._endpoint).netloc
        self.target = f"azure_documents:{host}/{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        self.version = f"azure-{self._model}-2024-11-30-1"

    async def begin(self, payload: Payload, params: Mapping[str, Any]) -> str:
        headers: dict[str, str] = {}
        status, now = 0, self._runtime.now()

        def remember(response: Any) -> None:
            nonlocal status
            status = response.http_response.status_code
            headers.update({name.lower(): value for name, value in response.http_response.headers.items()})

        try:
            with _typed_errors(now):
                await self._open().begin_analyze_document(
                    self._model,
                    io.BytesIO(payload.data),
                    output_content_format="markdown",
                    string_index_type="unicodeCodePoint",
                    polling=False,
                    raw_response_hook=remember,
                )
        except ValueError:
            # The SDK does not understand the answer: the page of a gateway, or a date in Retry-After.
            if status != _ACCEPTED:
                raise _of_status(status, headers.get("retry-after"), now, "") from None
        operation = headers.get("operation-location", "")
        # The key is sent there.
        if urlsplit(operation)[:2] != urlsplit(self._endpoint)[:2]:
            raise Transient(f"{_WHO} accepted the pages, but did not say where the result will be", reason="bad_answer")
        return operation

    async def poll(self, operation: str) -> Poll:
        from azure.core.rest import HttpRequest

        now = self._runtime.now()
        with _typed_errors(now):
            response = await self._open().send_request(HttpRequest("GET", operation), stream=True)
            try:
                if response.status_code != 200:
                    raise _of_status(response.status_code, response.headers.get("Retry-After"), now, "", polling=True)
                body = await _body(response)
            finally:
                await response.close()
        try:
            answer = msgspec.json.decode(body)
            status = answer["status"]
            if status == "succeeded":
                return Poll(_pages(answer["analyzeResult"]))
            said = (answer.get("error") or {}).get("code", status)
        except _NOT_UNDERSTOOD as error:
            raise Transient(_CANNOT_BE_READ, reason="bad_answer") from error
        if status in ("notStarted", "running"):
            return Poll(None, retry_after(response.headers.get("Retry-After"), now))
        raise Permanent(f"{_WHO} could not read it: {said}", reason="provider_refused")

    def _open(self) -> "DocumentIntelligenceClient":
        if self._client is None:
            try:
                from azure.ai.documentintelligence.aio import DocumentIntelligenceClient
                from azure.core.credentials import AzureKeyCredential
            except ImportError as error:
                raise ConfigError(
                    "the extractor azure needs another package: pip install 'penstock-rag[azure]'"
                ) from error
            # Retries are made by the worker, which knows the limits that all workers share.
            self._client = DocumentIntelligenceClient(
                self._endpoint,
                AzureKeyCredential(self._key),
                retry_total=0,
                connection_timeout=WAIT_S,
                read_timeout=WAIT_S,
                logging_enable=False,
                # The SDK would send the key along.
                permit_redirects=False,
            )
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


async def _body(response: Any) -> bytes:
    """The content of an answer. Raises Transient if it is too large."""
    body = bytearray()
    async for piece in response.iter_bytes():
        body += piece
        if len(body) > MOST_BYTES:
            raise Transient(f"{_WHO} sent an answer of more than {MOST_BYTES:,} bytes", reason="bad_answer")
    return bytes(body)


@contextmanager
def _typed_errors(now: float) -> Iterator[None]:
    from azure.core.exceptions import (
        ClientAuthenticationError,
        DecodeError,
        HttpResponseError,
        ServiceRequestError,
        ServiceResponseError,
    )

    try:
        yield
    except DecodeError as error:
        raise Transient(_CANNOT_BE_READ, reason="bad_answer") from error
    except (ServiceRequestError, ServiceResponseError) as error:
        raise Away(f"{_WHO} does not answer: {type(error).__name__}") from None
    except ClientAuthenticationError:
        raise _of_status(401, None, now, "") from None
    except HttpResponseError as error:
        headers: Mapping[str, str] = getattr(error.response, "headers", None) or {}
        code = getattr(error.error, "code", "") or ""
        raise _of_status(error.status_code or 0, headers.get("Retry-After"), now, f"{code} {error.message}") from None


def _of_status(status: int, after: str | None, now: float, said: str, polling: bool = False) -> Exception:
    seconds = retry_after(after, now)
    if status in (403, 429) and "quota" in said.lower():
        return OutOfQuota(
            f"the quota at {_WHO} is used up: wait until it is renewed, or choose a higher tier", retry_after=seconds
        )
    if status == 429:
        return RateLimited(f"{_WHO} answered 429", retry_after=seconds)
    if 300 <= status < 400 or (status in (404, 405) and not polling):
        said = f"{_WHO} answered {status}: it is at another address, or has no such model. Correct {ENDPOINT}"
        return Unauthorized(said, setting=ENDPOINT)
    if status in (401, 403):
        return Unauthorized(f"{_WHO} answered {status}: it rejects the key. Correct {KEY} and {ENDPOINT}", setting=KEY)
    if status in (0, 408) or status >= 500:
        return Away(f"{_WHO} answered {status}" if status else f"{_WHO} does not answer", retry_after=seconds)
    if polling and status == 404:
        return OperationGone()
    return Permanent(f"{_WHO} answered {status}", reason="provider_refused")


def _pages(result: Mapping[str, Any]) -> list[list[Piece]]:
    """The content of each page, in reading order: paragraphs, headings with their level, and tables."""
    content: str = result.get("content") or ""
    found: dict[int, list[tuple[int, Piece]]] = {int(page["pageNumber"]): [] for page in result["pages"]}
    inside = []
    for table in result.get("tables") or ():
        spans = [(span["offset"], span["offset"] + span["length"]) for span in table.get("spans") or ()]
        inside += spans
        if rows := _rows(table):
            page = found.setdefault(_page_of(table), [])
            page.append((min((start for start, _ in spans), default=0), Piece("table", rows=rows)))
    for paragraph in result.get("paragraphs") or ():
        offset = min((span["offset"] for span in paragraph.get("spans") or ()), default=0)
        role = paragraph.get("role")
        if role in ("pageHeader", "pageFooter", "pageNumber") or any(start <= offset < end for start, end in inside):
            continue
        text = paragraph.get("content") or ""
        heading = role in ("title", "sectionHeading")
        piece = Piece("heading", text, _level(content, offset, role)) if heading else Piece("paragraph", text)
        found.setdefault(_page_of(paragraph), []).append((offset, piece))
    for page in result["pages"]:
        pieces = found[int(page["pageNumber"])]
        if not pieces:
            lines = "\n".join(line.get("content") or "" for line in page.get("lines") or ())
            pieces.append((0, Piece("paragraph", lines)))
    numbers = sorted(found)
    return (
        [
            [piece for _, piece in sorted(found.get(number, ()), key=lambda entry: entry[0])]
            for number in range(1, believed(numbers[-1], MOST_ANSWER_PAGES) + 1)
        ]
        if numbers
        else []
    )


def _page_of(part: Mapping[str, Any]) -> int:
    regions = part.get("boundingRegions") or ()
    return int(regions[0]["pageNumber"]) if regions else 1


def _level(content: str, offset: int, role: str | None) -> int:
    """The level of a heading: the number of # in the Markdown of the answer."""
    line = content[content.rfind("\n", 0, offset) + 1 :].lstrip()
    hashes = len(line) - len(line.lstrip("#"))
    return hashes or (1 if role == "title" else 2)


def _rows(table: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    width, height = int(table["columnCount"]), int(table["rowCount"])
    believed(max(width, height, width * height), MOST_CELLS)
    rows = [[""] * width for _ in range(height)]
    for cell in table.get("cells") or ():
        text = " ".join((cell.get("content") or "").split()).replace("|", "\\|")
        rows[int(cell["rowIndex"])][int(cell["columnIndex"])] = text
    return tuple(tuple(row) for row in rows if any(row))
