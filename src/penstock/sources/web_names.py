"""Names, source URIs and revisions of documents on the web."""

import hashlib
import mimetypes
import re
from collections.abc import Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from penstock.redaction import is_secret_parameter

LONGEST = 200
_SIGNED = re.compile(r"x-(amz|goog)-.*", re.IGNORECASE)
_SHARED_ACCESS = frozenset(
    {"sig", "se", "st", "sp", "sv", "sr", "spr", "sip", "skoid", "sktid", "skt", "ske", "sks", "skv"}
)
"""Parameters of a shared access signature of Azure, whose `sig` is the secret."""
_AGE_S = 2.0
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def source_uri(url: str) -> str:
    """The URI that identifies the document of this URL, without secrets: no user name and password, no parameters of a
    signed URL (so that a URL which is signed anew means the same document), and a short hash instead of the value of
    other secret parameters (so that different values stay different documents)."""
    parts = urlsplit(url)
    netloc = parts.netloc.rpartition("@")[2].lower()
    given = parse_qsl(parts.query, keep_blank_values=True)
    if not any(_is_signature(name) or is_secret_parameter(name) for name, _ in given):
        return parts._replace(scheme=parts.scheme.lower(), netloc=netloc, fragment="").geturl()
    shared = any(name.lower() == "sig" for name, _ in given)
    kept = [
        (name, _hashed(value) if is_secret_parameter(name) else value)
        for name, value in given
        if not _SIGNED.fullmatch(name) and not (shared and name.lower() in _SHARED_ACCESS)
    ]
    query = urlencode(kept, quote_via=quote)
    return parts._replace(scheme=parts.scheme.lower(), netloc=netloc, query=query, fragment="").geturl()


def _is_signature(name: str) -> bool:
    return name.lower() == "sig" or _SIGNED.fullmatch(name) is not None


def _hashed(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()[:12]


def name_of(url: str, headers: Mapping[str, str], final: str | None = None) -> str:
    """The name of the document: from `Content-Disposition`, the path of the URL, or the path of the URL that it
    redirects to, whichever has a file name first. The content type adds an ending where there is none."""
    disposition = base_name(_disposition(headers.get("content-disposition", "")))
    if disposition:
        return disposition
    paths = [base_name(unquote(urlsplit(one).path)) for one in (url, final or url)]
    chosen = next((path for path in paths if "." in path), "") or next(filter(None, paths), "")
    chosen = chosen or (urlsplit(url).hostname or "document").replace(".", "-")
    if "." not in chosen:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        chosen += mimetypes.guess_extension(kind) or ""
    return chosen


def _disposition(value: str) -> str:
    message = Message()
    message["Content-Disposition"] = _UNSAFE.sub("", value)
    try:
        return message.get_filename() or ""
    except (LookupError, ValueError, TypeError):
        return ""


def base_name(text: str) -> str:
    """The last part of a path, without characters that disturb a terminal or a file system."""
    name = _UNSAFE.sub("", re.split(r"[/\\]", text)[-1]).strip().strip(".")
    if len(name) > LONGEST:
        stem, dot, ending = name.rpartition(".")
        name = f"{stem[: LONGEST - len(ending) - 1]}.{ending}" if dot and len(ending) < 20 else name[:LONGEST]
    return name


def revision_of(headers: Mapping[str, str], now: float) -> str:
    """ETag, or else the modification date and length; empty if there is neither, or the document is so new that it may
    change again within the same second."""
    if etag := headers.get("etag", "").strip():
        return f"etag {etag}"[:1000]
    modified = _seconds(headers.get("last-modified"))
    if modified is None or (_seconds(headers.get("date")) or now) - modified < _AGE_S:
        return ""
    return f"modified {headers['last-modified'].strip()} {headers.get('content-length', '').strip()}".rstrip()


def conditions(revision: str) -> dict[str, str]:
    """The headers of a request that is answered with 304 if the document still has this revision."""
    kind, _, value = revision.partition(" ")
    if kind == "etag":
        return {"If-None-Match": value}
    if kind == "modified":
        return {"If-Modified-Since": value[: value.find("GMT") + 3]} if "GMT" in value else {}
    return {}


def resume_condition(headers: Mapping[str, str], now: float) -> str | None:
    """The value of `If-Range` that proves equal bytes: a strong ETag, or a date that is a minute old."""
    if etag := headers.get("etag", "").strip():
        return None if etag.startswith("W/") else etag
    modified = _seconds(headers.get("last-modified"))
    if modified is None or (_seconds(headers.get("date")) or now) - modified < 60:
        return None
    return headers["last-modified"].strip()


def _seconds(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
