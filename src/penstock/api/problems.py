"""Errors as `application/problem+json` (RFC 9457). A client never sees a traceback."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from penstock import errors
from penstock.api.methods import allowed
from penstock.redaction import masked
from penstock.verbs.as_json import encode

PROBLEM_JSON = "application/problem+json"
PAGE = "/problems"

DETAIL_LIMIT = 2_000


class Kind(msgspec.Struct, frozen=True):
    """One kind of problem: its status, and what it means."""

    status: int
    title: str
    about: str


KINDS: dict[str, Kind] = {
    "bad_request": Kind(400, "The request cannot be understood", "Correct the request. Do not repeat it as it is."),
    "unauthorized": Kind(401, "A key is needed", "Send `Authorization: Bearer KEY` with a valid key."),
    "forbidden": Kind(403, "The key does not allow this", "Use a key with the scope that the detail names."),
    "quota_exceeded": Kind(403, "The quota is used up", "Delete documents, or ask the operator for a larger quota."),
    "not_found": Kind(404, "There is nothing here", "It does not exist, or belongs to another owner."),
    "method_not_allowed": Kind(405, "The method is not allowed", "The header `Allow` names the methods of this path."),
    "too_slow": Kind(408, "The upload was too slow", "Send it again: nothing of it was kept."),
    "conflict": Kind(409, "This conflicts with other work", "Wait until the other work has ended, then try again."),
    "gone": Kind(410, "This is no longer here", "It existed, and was removed."),
    "precondition_failed": Kind(412, "The precondition is not met", "Get the current state, then decide anew."),
    "too_large": Kind(413, "The request is too large", "Send less. The detail names the limit."),
    "unsupported_type": Kind(415, "The media type is not supported", "The detail names those that are."),
    "range_not_satisfiable": Kind(416, "The range is not satisfiable", "`Content-Range` names the size."),
    "invalid": Kind(422, "A value is not valid", "Correct the value that the detail names."),
    "locked": Kind(423, "Another request is at work here", "Try again after the seconds in `Retry-After`."),
    "rate_limited": Kind(429, "Too many requests", "Try again after the seconds in `Retry-After`."),
    "checksum_differs": Kind(460, "The checksum is not that of the bytes", "Send the bytes again."),
    "internal": Kind(500, "Something unexpected happened", "This is a bug. Report it with the request id."),
    "not_supported": Kind(501, "This is not supported", "The detail says why."),
    "unavailable": Kind(503, "Not available for the moment", "Try again after the seconds in `Retry-After`."),
    "disk_full": Kind(507, "The disk is full", "Free some space on the server. What was accepted is kept."),
}

_BY_STATUS = {kind.status: code for code, kind in reversed(KINDS.items())}

_log = logging.getLogger("penstock.api")


class Problem(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members
        """Further members of the object."""


def not_found(what: str, name: str) -> Problem:
    return Problem("not_found", f"no {what} {name[:200]!r}")


def problem_of(error: Exception) -> Problem:
    """The problem that tells a client about an error."""
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return _of_validation(error)
        case HTTPException():
            code = _BY_STATUS.get(error.status_code, "bad_request" if error.status_code < 500 else "internal")
            return Problem(code, str(error.detail), headers=error.headers)
        case errors.PenstockError():
            return _of_ours(error)
    return Problem("internal", "the server met an unexpected error; accepted documents are safe")


def _of_ours(error: errors.PenstockError) -> Problem:
    said = masked(str(error))
    match error:
        case errors.Ambiguous():
            return Problem("conflict", error.message)
        case errors.NotFound() | errors.NoDefinition():
            return Problem("not_found", said)
        case errors.NotSupported():
            return Problem("not_supported", said)
        case errors.NotAuthenticated():
            return Problem("unauthorized", said)
        case errors.IntakePaused():
            # The body of the request may not have been read.
            headers = {"Retry-After": str(int(error.retry_after)), "Connection": "close"}
            return Problem("unavailable", said, headers=headers)
        case errors.QuotaExceeded():
            return Problem("quota_exceeded", said, headers={"Connection": "close"})
        case errors.AccessError():
            return Problem("forbidden", said)
        case errors.LedgerTooNew():
            return Problem("unavailable", said)
        case errors.UsageError() | errors.SourceError():
            return Problem("invalid", said)
        case errors.BlobMissing():
            return Problem("gone", "the bytes are missing in the blob store: `penstock check` tells more")
        case errors.LockHeld() | errors.Cancelled() | errors.LeaseLost():
            return Problem("conflict", said)
        case errors.DiskFull():
            return Problem("disk_full", "the disk is full: what was accepted is kept")
        case errors.Refused():
            return Problem("invalid", "the ledger refused a value")
        case errors.Away():
            seconds = max(1, round(error.retry_after or 5))
            return Problem("unavailable", said, headers={"Retry-After": str(seconds)})
        case errors.StorageError() | errors.BlobUnreadable():
            return Problem("unavailable", said, headers={"Retry-After": "5"})
        case errors.StepError():
            return Problem("invalid", said, reason=error.reason)
    return Problem("internal", said)


def _of_validation(error: RequestValidationError) -> Problem:
    found = [(".".join(str(part) for part in one["loc"]), str(one["msg"])) for one in error.errors()[:20]]
    detail = "; ".join(f"{place}: {message}" for place, message in found)
    if any(one["type"] == "json_invalid" for one in error.errors()):
        return Problem("bad_request", detail)
    return Problem("invalid", detail, errors=[{"place": place[:200], "message": text[:500]} for place, text in found])


OPENAI = "/v1/"
"""Where OpenAI's clients call."""
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def answer_of(problem: Problem, request_id: str | None = None, path: str = "") -> Response:
    """The problem as a response. `path`: that of the request. OpenAI's clients expect an object as `error`, and 400 for
    every value that is not valid."""
    kind, error = KINDS[problem.code], problem.detail[:DETAIL_LIMIT]
    status: int = kind.status
    shown: str | dict[str, str | None] = error
    if path.startswith(OPENAI):
        status = 400 if kind.status == 422 else kind.status
        name = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        shown = {"message": error, "type": name, "param": None, "code": problem.code}
    body: dict[str, Any] = {
        "type": f"{PAGE}#{problem.code}",
        "title": kind.title,
        "status": status,
        "detail": error,
        "error": shown,
        **problem.members,
    }
    if request_id is not None:
        body["request_id"] = request_id
    headers = dict(problem.headers)
    if status == 401:
        headers.setdefault("WWW-Authenticate", 'Bearer realm="penstock"')
    return Response(encode(body), status, headers, PROBLEM_JSON)


def log_unexpected(error: BaseException, request_id: str) -> None:
    _log.error("request %s met an unexpected error", request_id, exc_info=error)


async def _handle(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    request_id = request.scope.get("penstock.request_id")
    if problem.code == "method_not_allowed":
        problem.headers["Allow"] = ", ".join(allowed(request))
    if problem.code == "internal":
        log_unexpected(error, str(request_id))
    return answer_of(problem, request_id, request.url.path)


def add_handlers(api: FastAPI) -> None:
    """Let the app answer every error as a problem."""
    for kind in (Problem, RequestValidationError, HTTPException, errors.PenstockError):
        api.add_exception_handler(kind, _handle)
