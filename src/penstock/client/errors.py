"""What a server answers instead of a result.

    ServiceError            any answer that is an error: `status`, `code`, `request_id`
    ├── InvalidRequest      400, 412, 413, 415, 422: also a UsageError
    ├── KeyRejected         401: also NotAuthenticated
    ├── NotAllowed          403: also Forbidden
    ├── NotThere            404, 410: also NotFound
    ├── Conflict            409, 423
    ├── TooManyRequests     429: also RateLimited
    ├── Unavailable         408, 502, 503, 504: also Away
    ├── ServerDiskFull      507: also DiskFull
    └── ServerFailed        500, and an answer that cannot be understood

A server that does not answer at all is `Away`.
"""

import json
from collections.abc import Mapping
from typing import Any

from penstock.errors import (
    Away,
    DiskFull,
    Forbidden,
    NotAuthenticated,
    NotFound,
    PenstockError,
    RateLimited,
    UsageError,
)


class ServiceError(PenstockError):
    """The server has answered with an error."""

    status: int = 0
    code: str = ""
    """The kind of problem, as `/problems` of the server explains it."""
    request_id: str | None = None
    """For the one who operates the server: its log names it too."""
    problem: Mapping[str, Any] = {}
    """The whole answer."""
    retry_after: float | None = None
    """The seconds that the server asks to wait."""


class InvalidRequest(ServiceError, UsageError):
    """The request is wrong."""


class KeyRejected(ServiceError, NotAuthenticated):
    """There is no key, or it is not valid."""


class NotAllowed(ServiceError, Forbidden):
    """The key does not allow this."""


class NotThere(ServiceError, NotFound):
    """It does not exist, or belongs to another owner."""


class Conflict(ServiceError):
    """Another request or the present state is in the way."""


class TooManyRequests(ServiceError, RateLimited):
    """The server asks to come back later."""


class Unavailable(ServiceError, Away):
    """The server cannot work for the moment."""


class ServerDiskFull(ServiceError, DiskFull):
    """The disk of the server is full. What was accepted is kept."""


class ServerFailed(ServiceError):
    """The server has failed, or is no Penstock server."""


_KINDS: dict[int, type[ServiceError]] = {
    **dict.fromkeys((400, 405, 412, 413, 415, 416, 422, 460), InvalidRequest),
    401: KeyRejected,
    403: NotAllowed,
    **dict.fromkeys((404, 410), NotThere),
    **dict.fromkeys((409, 423), Conflict),
    429: TooManyRequests,
    **dict.fromkeys((408, 502, 503, 504), Unavailable),
    507: ServerDiskFull,
}


def error_of(status: int, headers: Mapping[str, str], body: bytes, retry_after: float | None) -> ServiceError:
    """The error of an answer. An answer that is no problem+json comes from something else than a Penstock server."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    problem = _problem(body) if kind == "application/problem+json" else {}
    said = str(problem.get("detail") or "")
    if not said and 300 <= status < 400:
        said = f"the server redirects to {headers.get('location', 'another address')[:200]}: use that address"
    error = _KINDS.get(status, ServerFailed)(said or f"the server answered {status}: is this a Penstock server?")
    error.status, error.problem = status, problem
    error.code = str(problem.get("type") or "").rpartition("#")[2]
    error.request_id = problem.get("request_id") or headers.get("x-request-id")
    error.retry_after = retry_after
    return error


def _problem(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
