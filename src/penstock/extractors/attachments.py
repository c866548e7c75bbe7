"""The attachments of messages (EML, MSG), read in a parser process. Enclosed messages are part of the text of the
message; their attachments are sent too."""

import os
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from typing import Any, BinaryIO

from penstock.extractors import formats, msg
from penstock.extractors.mail import DEEPEST, filename
from penstock.extractors.members import Limits, Output, Report, Sender


def read(
    document: BinaryIO,
    output: Output,
    *,
    media_type: str,
    name: str,
    start: int,
    again: list[int],
    password: str | None,
    limits: dict[str, int],
) -> Report:
    sender = Sender(output, start, frozenset(again), Limits(**limits), os.fstat(document.fileno()).st_size)
    found: Iterator[tuple[str, bytes]]
    if media_type == formats.MSG:
        found = msg.attachments(document)
    else:
        parsed = BytesParser(policy=policy.default.clone(raise_on_defect=False)).parse(document)
        found = _attachments(parsed, 0)
    for number, (title, data) in enumerate(found, 1):
        sender.send(title.replace("/", "_").replace("\\", "_") or f"attachment-{number}", lambda data=data: [data])  # type: ignore[misc]
    return sender.report()


def _attachments(part: Any, depth: int) -> Iterator[tuple[str, bytes]]:
    kind = part.get_content_type()
    if kind == "message/rfc822":
        for inner in part.get_payload() if depth < DEEPEST else ():
            if isinstance(inner, EmailMessage):
                yield from _attachments(inner, depth + 1)
    elif part.is_multipart():
        for inner in part.iter_parts():
            if isinstance(inner, EmailMessage):
                yield from _attachments(inner, depth)
    elif is_attachment(part):
        data = part.get_payload(decode=True)
        yield filename(part), data if isinstance(data, bytes) else b""


def is_attachment(part: EmailMessage) -> bool:
    """Not the text of the message, and not a picture within it."""
    if part.get_content_disposition() == "attachment":
        return True
    kind = part.get_content_type()
    inline = kind.startswith("image/") and part.get("Content-ID") is not None
    return not kind.startswith("text/") and not inline and bool(filename(part))
