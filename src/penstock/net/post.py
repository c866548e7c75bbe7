"""One POST over HTTP: no redirects, no proxies, a limit for time and one for what is read of the answer."""

import http.client
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import msgspec

from penstock.config import check_url
from penstock.errors import Transient

READ = 4096
"""Bytes of an answer that are looked at."""


class Reply(msgspec.Struct, frozen=True):
    status: int
    text: str
    retry_after: float | None = None
    """Seconds."""


class Post:
    """`run` blocks, in a thread; `cut` lets go of it from another one."""

    def __init__(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, now: Callable[[], float]
    ) -> None:
        check_url(url)
        self._url = urlsplit(url)
        self._body = body
        self._headers = headers
        self._timeout_s = timeout_s
        self._now = now
        self._is_cut = False
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> Reply:
        """Raises Transient if there was no answer. Nothing in its sentence tells the URL."""
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=self._timeout_s, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        self._connection = connection
        try:
            connection.connect()
            if self._is_cut:
                raise TimeoutError
            connection.request("POST", self._target, self._body, dict(self._headers))
            response = connection.getresponse()
            text = response.read(READ).decode("utf-8", "replace")
            return Reply(response.status, self._hide(text), self._retry_after(response.getheader("Retry-After")))
        except (OSError, http.client.HTTPException) as error:
            raise Transient(f"no answer: {self._sentence(error)}", reason="webhook_unreachable") from None
        finally:
            connection.close()

    def cut(self) -> None:
        """However slowly the other side talks: whoever waits for it wakes up."""
        self._is_cut = True
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @property
    def _target(self) -> str:
        path = self._url.path or "/"
        return f"{path}?{self._url.query}" if self._url.query else path

    def _hide(self, text: str) -> str:
        for secret in (self._target, self._url.path, self._url.query):
            if len(secret) > 1:
                text = text.replace(secret, "…")
        return " ".join(text.split())

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"nothing within {self._timeout_s:g} s"
        if isinstance(error, ssl.SSLCertVerificationError):
            return "the certificate cannot be trusted"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return type(error).__name__

    def _retry_after(self, value: str | None) -> float | None:
        """Seconds, or a date."""
        if value is None:
            return None
        if value.strip().isascii() and value.strip().isdigit():
            return float(value)
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - self._now())
        except (ValueError, OverflowError):
            return None
