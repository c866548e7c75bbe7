"""Archives and messages with attachments, made of names and contents."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from email.message import EmailMessage
from typing import Any

import py7zr

Contents = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""Names with bytes or texts."""


def _pairs(contents: Contents) -> list[tuple[str, bytes]]:
    pairs = contents.items() if isinstance(contents, Mapping) else contents
    return [(name, data.encode() if isinstance(data, str) else data) for name, data in pairs]


def make_zip(contents: Contents, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in _pairs(contents):
            # A fixed date, so that equal contents are equal bytes.
            info = zipfile.ZipInfo("x", (2024, 1, 1, 0, 0, 0))
            info.filename = name
            info.compress_type = method
            archive.writestr(info, data)
    return out.getvalue()


def make_tar(contents: Contents, *more: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in _pairs(contents):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for entry in more:
            archive.addfile(entry)
    return out.getvalue()


def make_tar_gz(contents: Contents) -> bytes:
    return gzip.compress(make_tar(contents), mtime=0)


def make_mail(subject: str, body: str, attachments: Contents) -> bytes:
    message = EmailMessage()
    message["From"], message["To"] = "anna@example.org", "bert@example.org"
    message["Subject"], message["Date"] = subject, "Mon, 01 Jan 2024 10:00:00 +0000"
    message.set_content(body)
    for name, data in _pairs(attachments):
        message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    message.set_boundary("part") if message.is_multipart() else None
    return message.as_bytes()


def make_7z(contents: Contents, password: str | None = None, *, whole: bool = False) -> bytes:
    """`whole`: the list of files is encrypted too."""
    out = io.BytesIO()
    with py7zr.SevenZipFile(out, "w", password=password, header_encryption=whole) as archive:
        for name, data in _pairs(contents):
            archive.writestr(data, name)
    return out.getvalue()
