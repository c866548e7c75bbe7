"""Docling Serve: reads documents with a server of the user."""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec

from penstock.errors import Permanent, Transient, Unauthorized
from penstock.extractors.formats import DOCX, HTML, PDF, PPTX, XLSX
from penstock.extractors.pieces import Piece
from penstock.extractors.ranges import MOST_ANSWER_PAGES, OperationGone, Payload, Poll, believed
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.net.client import Client, Reply

URL, KEY = "DOCLING_SERVE_URL", "DOCLING_SERVE_API_KEY"
MEDIA_TYPES = frozenset((PDF, DOCX, PPTX, XLSX, HTML, "image/jpeg", "image/png", "image/tiff", "image/bmp"))
MOST_BYTES = 256 << 20
WAIT_S = 60.0
"""Seconds without an answer after which a request is given up."""
_WHO = "Docling Serve"
_LISTS = ("list_item",)
_FURNITURE = ("page_header", "page_footer")


class DoclingProvider:
    """The operation is the id of a task. The server keeps its result for some minutes after it was read."""

    media_types = MEDIA_TYPES

    def __init__(self, url: str, key: str, runtime: Runtime) -> None:
        self._url = url.rstrip("/")
        self._key = key
        self._runtime = runtime
        self._client: Client | None = None
        self.target = f"docling:{urlsplit(self._url).netloc}/{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        self.version = "docling-serve-v1-1"

    async def begin(self, payload: Payload, params: Mapping[str, Any]) -> str:
        given = params.get("options")
        options = {**(given if isinstance(given, Mapping) else {}), "to_formats": ["json", "md"]}
        options.setdefault("image_export_mode", "placeholder")
        source = {
            "kind": "file",
            "base64_string": base64.b64encode(payload.data).decode(),
            "filename": payload.name,
        }
        body = msgspec.json.encode({"options": options, "sources": [source]})
        answer = _json(await self._request("POST", "/v1/convert/source/async", body))
        task = answer.get("task_id")
        if not isinstance(task, str) or not task:
            raise Transient(f"{_WHO} accepted the pages, but named no task", reason="bad_answer")
        return task

    async def poll(self, operation: str) -> Poll:
        task = quote(operation, safe="")
        status = _json(await self._request("GET", f"/v1/status/poll/{task}", polling=True)).get("task_status")
        if status in ("pending", "started"):
            return Poll(None)
        if status not in ("success", "partial_success", "failure", "skipped"):
            raise Transient(f"{_WHO} sent an answer that cannot be read", reason="bad_answer")
        result = _json(await self._request("GET", f"/v1/result/{task}", polling=True))
        # A task may succeed although the document could not be converted.
        if result.get("status") not in ("success", "partial_success"):
            errors = [str(error.get("error_message", ""))[:200] for error in result.get("errors") or ()]
            raise Permanent(f"{_WHO} could not read it: {'; '.join(errors) or status}", reason="provider_refused")
        try:
            return Poll(_pages(result["document"]))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError) as error:
            raise Transient(f"{_WHO} sent an answer that cannot be read", reason="bad_answer") from error

    async def _request(self, method: str, path: str, body: bytes | None = None, polling: bool = False) -> "Reply":
        from penstock.net.client import Client, Limits, check

        if self._client is None:
            self._client = Client(self._runtime, allow_private=True)
        headers = {"Content-Type": "application/json", **({"X-Api-Key": self._key} if self._key else {})}
        limits = Limits(wait_s=WAIT_S, max_bytes=MOST_BYTES)
        reply = await self._client.request(method, self._url + path, headers=headers, content=body, limits=limits)
        if polling and reply.status == 404:
            raise OperationGone
        if 300 <= reply.status < 400 or (reply.status in (404, 405) and not polling):
            said = f"{_WHO} answered {reply.status}: it is at another address. Correct {URL}"
            raise Unauthorized(said, setting=URL, target=self.target)
        check(reply, _WHO, setting=KEY)
        return reply

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


def _json(reply: "Reply") -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Transient(f"{_WHO} sent an answer that cannot be read", reason="bad_answer")
    return answer


def _pages(document: Mapping[str, Any]) -> list[list[Piece]]:
    content = document.get("json_content")
    if not content:
        return [[Piece("paragraph", document.get("md_content") or document.get("text_content") or "")]]
    pages: dict[int, list[Piece]] = {int(number): [] for number in content.get("pages") or {}}
    for item, depth in _items(content, content["body"], 0, set()):
        number = int(item["prov"][0]["page_no"]) if item.get("prov") else max(pages, default=1)
        pages.setdefault(number, []).extend(_piece(item, depth))
    last = believed(max(pages, default=0), MOST_ANSWER_PAGES)
    return [pages.get(number, []) for number in range(1, last + 1)]


def _items(
    content: Mapping[str, Any], node: Mapping[str, Any], depth: int, seen: set[str]
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The items of the document in reading order, with the depth of lists. Each has one place: items that contain each
    other would never end."""
    for child in node.get("children") or ():
        if child["$ref"] in seen:
            raise ValueError("an item has two places")
        seen.add(child["$ref"])
        _, kind, index = child["$ref"].split("/")
        item = content[kind][int(index)]
        if item.get("content_layer", "body") != "body":
            continue
        if kind in ("texts", "tables"):
            yield item, depth
        if kind != "tables":
            deeper = depth + (kind == "groups" and "list" in str(item.get("label")))
            yield from _items(content, item, deeper, seen)


def _piece(item: Mapping[str, Any], depth: int) -> list[Piece]:
    label, text = item.get("label"), item.get("text") or ""
    if label in _FURNITURE:
        return []
    if label in ("table", "document_index"):
        grid = (item.get("data") or {}).get("grid") or ()
        rows = tuple(
            tuple(" ".join((cell.get("text") or "").split()).replace("|", "\\|") for cell in row) for row in grid
        )
        return [Piece("table", rows=tuple(row for row in rows if any(row)))] if any(map(any, rows)) else []
    if label == "title":
        return [Piece("heading", text, 1)]
    if label == "section_header":
        return [Piece("heading", text, int(item.get("level") or 1) + 1)]
    if label == "list_item":
        return [Piece("item", text, max(depth, 1), item.get("marker") or "-")]
    if label == "code":
        return [Piece("code", text)]
    return [Piece("paragraph", text)] if text else []
