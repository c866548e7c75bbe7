"""E-mail messages (EML, MSG), read in a parser process: headers, then the text of the message, and the messages that it
encloses. Attachments are only named: `attachments.py` reads them."""

from collections.abc import Iterator, Sequence
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from functools import partial
from itertools import chain
from typing import BinaryIO

import msgspec

from penstock.extractors import formats, msg
from penstock.extractors.base import FileContent
from penstock.extractors.charsets import decoded
from penstock.extractors.html import markdown
from penstock.extractors.labelled import Part, labelled_pages
from penstock.extractors.message import Message, plain_markdown
from penstock.extractors.office import damaged

HEADERS = ("From", "To", "Cc", "Date")
DEEPEST = 16
"""Messages within messages. Files made to break readers nest more."""


def read(document: BinaryIO, media_type: str, span: Sequence[int] | None = None) -> FileContent:
    if media_type == formats.MSG:
        found = msg.messages(document)
    else:
        # Without the newest policy, headers are not decoded and bodies have no encoding.
        parsed = BytesParser(policy=policy.default.clone(raise_on_defect=False)).parse(document)
        assert isinstance(parsed, EmailMessage)
        found = messages(parsed)
    try:
        labels = ("message", *(f"enclosed message {number}" for number in range(1, 10_000)))
        first = next(found)
        every = zip(labels, chain([first], found), strict=False)
        content = labelled_pages((Part(label, one.texts) for label, one in every), span)
        return msgspec.structs.replace(content, metadata=first.properties())
    except (ValueError, LookupError, RecursionError) as error:
        raise damaged(formats.of(media_type).label, error) from error


def messages(message: EmailMessage, depth: int = 0) -> Iterator[Message]:
    """The message, then the messages that it encloses."""
    texts: list[EmailMessage] = []
    attachments: list[str] = []
    enclosed: list[EmailMessage] = []
    _collect(message, texts, attachments, enclosed)
    yield Message(
        _header(message, "Subject"),
        [(name, _header(message, name)) for name in HEADERS],
        partial(_body, texts),
        attachments,
    )
    for one in enclosed if depth < DEEPEST else ():
        yield from messages(one, depth + 1)


def _body(parts: list[EmailMessage]) -> str:
    texts = (_text(part, html=part.get_content_type() == "text/html") for part in parts)
    return "\n\n".join(text for text in texts if text.strip())


def _collect(
    part: EmailMessage, texts: list[EmailMessage], attachments: list[str], enclosed: list[EmailMessage]
) -> None:
    kind = part.get_content_type()
    if kind == "message/rfc822":
        enclosed += [one for one in part.get_payload() if isinstance(one, EmailMessage)]
    elif part.is_multipart():
        inner = [one for one in part.iter_parts() if isinstance(one, EmailMessage)]
        if kind == "multipart/alternative" and inner:
            inner = [_best(inner)]
        for one in inner:
            _collect(one, texts, attachments, enclosed)
    elif part.get_content_disposition() == "attachment" or not kind.startswith("text/"):
        if name := filename(part):
            attachments.append(name)
    else:
        texts.append(part)


def _best(parts: list[EmailMessage]) -> EmailMessage:
    """Of alternatives, plain text if there is any, because HTML in messages is mostly layout; else the last."""
    plain = (one for one in parts if one.get_content_type() == "text/plain" and _text(one, html=False).strip())
    return next(plain, parts[-1])


def _text(part: EmailMessage, html: bool) -> str:
    data = part.get_payload(decode=True)
    content = data if isinstance(data, bytes) else b""
    charset = part.get_content_charset() or ""
    try:
        text = content.decode(charset) if charset else decoded(content)
    except (LookupError, ValueError):
        text = decoded(content)
    if html:
        return markdown(text)
    return plain_markdown(text)


def _header(message: EmailMessage, name: str) -> str:
    """The value of a header. The parser of headers fails on some damaged ones; then the raw value is used."""
    try:
        value = str(message.get(name) or "")
    except Exception:
        raw = next((value for key, value in message.raw_items() if key.lower() == name.lower()), "")
        value = str(raw).encode("ascii", "replace").decode()
    return " ".join(value.encode("utf-8", "replace").decode().split())


def filename(part: EmailMessage) -> str:
    try:
        return " ".join((part.get_filename() or "").encode("utf-8", "replace").decode().split())
    except Exception:
        return ""
