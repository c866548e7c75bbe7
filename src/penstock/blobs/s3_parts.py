"""Uploads in parts straight into a bucket of S3: others send the parts with signed URLs, and the bucket makes one
object of them."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from html import escape, unescape
from typing import TYPE_CHECKING

from penstock.blobs.base import LeftParts, PartSum
from penstock.blobs.object_errors import Errors
from penstock.errors import Away, BlobMissing, RateLimited, StorageError, Unauthorized, UsageError
from penstock.net.s3_requests import Place, signed
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.net.client import Reply

SHORT_S = 300
"""How long the signature of a request of our own is valid."""
WAIT_S = 120.0
"""Buckets may take long to join many parts."""
_FIELD = "<{0}>([^<]*)</{0}>"
_UPLOAD = re.compile(r"<Upload>(.*?)</Upload>", re.DOTALL)
_WRONG_PARTS = ("InvalidPart", "InvalidPartOrder", "EntityTooSmall", "MalformedXML", "InvalidRequest", "BadDigest")


class S3Parts:
    def __init__(self, place: Place, folder: str, errors: Errors, runtime: Runtime) -> None:
        """`folder`: what the keys of all objects begin with."""
        self._place = place
        self._folder = folder
        self._target = errors.target
        self._runtime = runtime

    async def begin(self, key: str) -> str:
        """Begin an upload in parts. Return its id."""
        reply = await self._send("POST", key, {"uploads": ""})
        found = _field("UploadId", _text(reply))
        if not found:
            raise StorageError(f"{self._target}: the bucket began no upload in parts")
        return found

    def sign(self, key: str, upload: str, numbers: Sequence[int], expires_s: int) -> list[str]:
        """URLs that take the parts with these numbers by PUT."""
        now = self._runtime.now()
        return [
            signed(
                self._place, "PUT", self._folder + key, {"partNumber": str(number), "uploadId": upload}, now, expires_s
            )
            for number in numbers
        ]

    async def complete(self, key: str, upload: str, parts: Sequence[PartSum]) -> None:
        """Make one object of the parts. Raises UsageError if the bucket has other ones, and BlobMissing if it does not
        know the upload: it was completed or aborted before."""
        body = "".join(
            f"<Part><PartNumber>{part.number}</PartNumber><ETag>{escape(part.etag)}</ETag></Part>" for part in parts
        )
        content = f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>".encode()
        reply = await self._send("POST", key, {"uploadId": upload}, content)
        if "<Error>" in _text(reply):
            # The bucket begins to answer before it has joined the parts.
            self._check(reply, failed=True)

    async def abort(self, key: str, upload: str) -> None:
        """Remove the parts of an upload. One that is not there is ignored."""
        with suppress(BlobMissing):
            await self._send("DELETE", key, {"uploadId": upload})

    async def left(self, prefix: str) -> list[LeftParts]:
        """The uploads in parts that are neither complete nor aborted, whose keys begin with a prefix."""
        found: list[LeftParts] = []
        query = {"uploads": "", "prefix": self._folder + prefix}
        while True:
            text = _text(await self._send("GET", "", query))
            for one in _UPLOAD.findall(text):
                key = _field("Key", one).removeprefix(self._folder)
                found.append(LeftParts(key, _field("UploadId", one), _moment(_field("Initiated", one))))
            if _field("IsTruncated", text) != "true":
                return found
            marks = _field("NextKeyMarker", text), _field("NextUploadIdMarker", text)
            if marks == (query.get("key-marker"), query.get("upload-id-marker")):
                raise StorageError(f"{self._target}: the list of uploads in parts does not end")
            query |= {"key-marker": marks[0], "upload-id-marker": marks[1]}

    async def _send(self, method: str, key: str, query: Mapping[str, str], content: bytes | None = None) -> "Reply":
        from penstock.net.client import Client, Limits

        url = signed(self._place, method, self._folder + key if key else "", query, self._runtime.now(), SHORT_S)
        client = Client(self._runtime, allow_private=True)
        try:
            reply = await client.request(method, url, content=content, limits=Limits(wait_s=WAIT_S))
        except Away as error:
            raise Away(f"{self._target}: {error}", target=self._target) from None
        finally:
            await client.close()
        self._check(reply, failed=not reply.ok)
        return reply

    def _check(self, reply: "Reply", *, failed: bool) -> None:
        if not failed:
            return
        text = _text(reply)
        code, said = _field("Code", text), f"{self._target}: the bucket answered {reply.status}"
        said += f" ({code})" if re.fullmatch("[A-Za-z]{1,60}", code) else ""
        if code == "NoSuchUpload" or (reply.status == 404 and code != "NoSuchBucket"):
            raise BlobMissing(f"{said}: it does not know the upload")
        if code in _WRONG_PARTS:
            raise UsageError(f"the parts are not those that the bucket has, or one but the last is too small ({code})")
        if reply.status in (401, 403):
            setting = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise Unauthorized(f"{said}: check {setting}", setting=setting, target=self._target)
        if reply.status in (429, 503) or code == "SlowDown":
            raise RateLimited(said, target=self._target, retry_after=reply.retry_after)
        if reply.status >= 500 or reply.ok:
            raise Away(said, target=self._target)
        raise StorageError(said)


def _moment(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _text(reply: "Reply") -> str:
    return reply.body.decode("utf-8", "replace")


def _field(name: str, text: str) -> str:
    found = re.search(_FIELD.format(name), text)
    return unescape(found[1]) if found else ""
