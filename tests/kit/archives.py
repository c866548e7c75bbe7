"""Archives and messages with attachments, made of names and contents."""

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
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


def make_partly_encrypted_zip(contents: Contents, name: str, data: bytes, password: bytes) -> bytes:
    """A zip file whose first member `name` is encrypted, as old programs do it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        crc = zlib.crc32(data)
        archive.writestr(name, _encrypted(bytes(11) + bytes([crc >> 24]) + data, password))
        first = archive.getinfo(name)
        first.flag_bits, first.CRC, first.file_size = 1, crc, len(data)
        for other, content in _pairs(contents):
            archive.writestr(other, content)
    packed = bytearray(out.getvalue())
    packed[6:8] = struct.pack("<H", 1)
    packed[14:26] = struct.pack("<III", crc, len(data) + 12, len(data))
    return bytes(packed)


def _encrypted(data: bytes, password: bytes) -> bytes:
    keys = [0x12345678, 0x23456789, 0x34567890]

    def update(byte: int) -> None:
        keys[0] = zlib.crc32(bytes([byte]), keys[0] ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
        keys[1] = ((keys[1] + (keys[0] & 0xFF)) * 134775813 + 1) & 0xFFFFFFFF
        keys[2] = zlib.crc32(bytes([keys[1] >> 24]), keys[2] ^ 0xFFFFFFFF) ^ 0xFFFFFFFF

    for byte in password:
        update(byte)
    out = bytearray()
    for byte in data:
        mixed = (keys[2] & 0xFFFF) | 2
        out.append(byte ^ ((mixed * (mixed ^ 1)) >> 8) & 0xFF)
        update(byte)
    return bytes(out)


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
