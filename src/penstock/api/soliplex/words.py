"""How calls of Soliplex's clients are read: every parameter from the query, a form or JSON, with hyphens or
underscores, and paths with or without a slash at the end, without a redirect."""

import itertools
import json
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import IO, Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Request, Response
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from penstock.api.answers import answer
from penstock.api.callers import Access, requires, service_of
from penstock.api.fields import is_definition_id
from penstock.api.problems import Problem, not_found
from penstock.api.soliplex.parameters import LARGEST, Word, schema_of
from penstock.verbs import arguments

FIELDS_BYTES = 8 << 20
"""Maximum size of all fields of a request except for a file."""
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")
FORM, MULTIPART, JSON = "application/x-www-form-urlencoded", "multipart/form-data", "application/json"


@dataclass
class Upload:
    """A file of a request, on disk."""

    name: str
    media_type: str | None
    file: IO[bytes]


class Values(dict[str, Any]):
    """The parameters of a call, converted. Those that are not given are None."""


Handler = Callable[[Access, Values], Awaitable[Any]]


def call(
    router: APIRouter, method: str, path: str, scope: str, *words: Word, status: int = 200
) -> Callable[[Handler], Handler]:
    """Add a call to the router, under all spellings of its path. Only the first one is in the OpenAPI document."""
    has_body = method in ("POST", "PUT")

    def add(handler: Handler) -> Handler:
        async def operation(request: Request, access: Annotated[Access, Depends(requires(scope))]) -> Response:
            if access.caller.collections is not None or access.caller.filter is not None:
                raise Problem("forbidden", "a key for some collections cannot use the calls of Soliplex's clients")
            given = await _given(request, access, has_body)
            try:
                values = _converted(words, given)
                values.update(request.path_params)
                done = await handler(access, values)
            finally:
                for one in given.values():
                    if isinstance(one, Upload):
                        one.file.close()
            return done if isinstance(done, Response) else answer(done, status)

        operation.__doc__ = handler.__doc__
        for place, spelling in enumerate(_spellings(path)):
            router.add_api_route(
                spelling,
                operation,
                methods=[method],
                status_code=status,
                name=handler.__name__,
                operation_id=f"soliplex_{handler.__name__}",
                include_in_schema=place == 0,
                openapi_extra=_documented(path, words, has_body),
                response_model=None,
            )
        return handler

    return add


def _spellings(path: str) -> list[str]:
    """The path as it is first, then with underscores or hyphens, each with and without a slash at its end."""
    if path == "/":
        return ["/", ""]
    parts = [
        dict.fromkeys((part, *(() if "{" in part else (part.replace("-", "_"), part.replace("_", "-")))))
        for part in path.strip("/").split("/")
    ]
    return [f"/{'/'.join(some)}{end}" for some in itertools.product(*parts) for end in ("", "/")]


def _documented(path: str, words: tuple[Word, ...], has_body: bool) -> dict[str, Any]:
    named = [part[1:-1].partition(":")[0] for part in path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "example": "1"} for name in named
    ]
    if not has_body:
        parameters += [
            {"name": word.name, "in": "query", "required": word.needed, "schema": schema_of(word)} for word in words
        ]
        return {"parameters": parameters}
    needed = [word.name for word in words if word.needed]
    kinds = [MULTIPART] if any(word.kind == "file" for word in words) else [FORM, JSON]
    example = {word.name: word.example for word in words if word.needed or word.kind == "file"}
    content = {
        kind: {
            "schema": {
                "type": "object",
                "properties": {word.name: schema_of(word, in_json=kind == JSON) for word in words},
                "required": needed,
            },
            "example": example,
        }
        for kind in kinds
    }
    # They may be in the query too. The document names them only once.
    body = {"required": bool(needed), "content": content} if words else None
    return {"parameters": parameters, **({"requestBody": body} if body else {})}


async def _given(request: Request, access: Access, has_body: bool) -> dict[str, Any]:
    found: dict[str, Any] = {_plain(name): value for name, value in request.query_params.multi_items()}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not has_body:
        return found
    if kind == MULTIPART:
        return found | await _parts(request, access)
    body = await _limited(request)
    if not body:
        return found
    if kind in ("", FORM):
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=1_000)
        return found | {_plain(name): value for name, value in pairs}
    if kind == JSON:
        try:
            made = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Problem("bad_request", f"the body is no JSON: {error}") from None
        if not isinstance(made, dict):
            raise Problem("invalid", "the body must be a JSON object")
        return found | {_plain(name): value for name, value in made.items()}
    raise Problem("unsupported_type", f"use {FORM}, {MULTIPART} or {JSON}")


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()


async def _limited(request: Request) -> bytes:
    held = bytearray()
    async for piece in request.stream():
        held += piece
        if len(held) > FIELDS_BYTES:
            raise _too_large()
    return bytes(held)


def _too_large() -> Problem:
    return Problem("too_large", f"the parameters have at most {FIELDS_BYTES >> 20} MB", headers={"Connection": "close"})


async def _parts(request: Request, access: Access) -> dict[str, Any]:
    """The fields of a multipart body. A file is written to the disk, because its fields may come after it."""
    _, options = parse_options_header(request.headers["content-type"])
    boundary = options.get("boundary", "")
    if not boundary:
        raise Problem("bad_request", "multipart/form-data needs a boundary")
    reader = _PartReader(request, access)
    try:
        with PushMultipartParser(boundary, max_segment_count=1_000) as parser:
            async for piece in request.stream():
                for event in parser.parse(piece) if piece else ():
                    await reader.take(event)
    except (MultipartError, UnicodeError) as error:
        reader.close()
        raise Problem("bad_request", f"the multipart body cannot be read: {error}") from None
    except BaseException:
        reader.close()
        raise
    return reader.found


class _PartReader:
    """Collects the parts of a body."""

    def __init__(self, request: Request, access: Access) -> None:
        self.found: dict[str, Any] = {}
        self._runtime = service_of(request).runtime
        self._folder = access.service.app.config.home_path
        self._name = ""
        self._held = bytearray()
        self._fields = 0
        self._upload: Upload | None = None
        self._left = access.service.app.config.limits.megabytes << 20

    async def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        if isinstance(event, MultipartSegment):
            self._name = _plain(event.name or "")
            self._held.clear()
            self._upload = None
            if event.filename is not None:
                if isinstance(former := self.found.get(self._name), Upload):
                    former.file.close()
                file = tempfile.TemporaryFile(dir=self._folder, prefix="upload-")  # noqa: SIM115 (the call closes it)
                self._upload = self.found[self._name] = Upload(event.filename, event.content_type, file)
        elif event is not None and self._upload is not None:
            self._left -= len(event)
            if self._left < 0:
                raise Problem("too_large", "the file is larger than limits.megabytes", headers={"Connection": "close"})
            await self._runtime.run_sized("io", len(event), self._upload.file.write, bytes(event))
        elif event is not None:
            self._held += event
            self._fields += len(event)
            if self._fields > FIELDS_BYTES:
                raise _too_large()
        elif self._upload is not None:
            self._upload.file.seek(0)
        else:
            self.found[self._name] = self._held.decode("utf-8", "replace")

    def close(self) -> None:
        for one in self.found.values():
            if isinstance(one, Upload):
                one.file.close()


def _converted(words: tuple[Word, ...], given: dict[str, Any]) -> Values:
    values = Values()
    for word in words:
        found = given.get(word.name, given.get(word.also) if word.also else None)
        if found is None or (found == "" and not word.needed):
            if word.needed:
                raise Problem("invalid", f"the parameter {word.name!r} is missing")
            values[word.name] = None
            continue
        values[word.name] = _value(word, found)
    return values


def _value(word: Word, given: Any) -> Any:
    match word.kind:
        case "file":
            if isinstance(given, Upload):
                return given
            raise Problem("invalid", f"{word.name}: send a file")
        case "number":
            found = number(word.name, given)
            if not word.least <= found <= word.most:
                raise Problem("invalid", f"{word.name}: use {word.least:,} to {word.most:,}")
            return found
        case "flag":
            if isinstance(given, bool):
                return given
            if isinstance(given, str | int) and str(given).lower() in _TRUE + _FALSE:
                return str(given).lower() in _TRUE
            raise Problem("invalid", f"{word.name}: use true or false")
        case "json":
            return _json(word.name, given)
        case "definition":
            # A path would read a file of the server.
            if isinstance(given, str) and len(given) <= 200 and is_definition_id(given):
                return given
            raise Problem("invalid", f"{word.name}: name a workflow or a parameter set by its id")
        case "text":
            if isinstance(given, str | int | float) and not isinstance(given, bool):
                return arguments.text(word.name, str(given))
            raise Problem("invalid", f"{word.name}: expected text")


def _json(name: str, given: Any) -> dict[str, Any]:
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        raise Problem("invalid", f"{name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Problem("invalid", f"{name} must be a JSON object")
    return found


def number(name: str, given: Any) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and abs(given) <= LARGEST:
        return given
    if isinstance(given, float) and given.is_integer() and abs(given) <= LARGEST:
        return int(given)
    text = str(given).strip()
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise Problem("invalid", f"{name}: expected a whole number")
    return int(text)


def id_of(what: str, given: Any) -> int:
    """A number in a path. What is no number names nothing."""
    text = str(given)
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise not_found(what, text)
    return int(text)


def times(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with those that end in `_date` as ISO 8601."""
    from penstock.verbs.as_json import when

    return {name: when(value) if name.endswith("_date") else value for name, value in row.items()}
