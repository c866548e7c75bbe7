"""Small blobs are kept in the ledger, in the transaction that writes the row that names them. So no file and no object
is made for them, and none can be left behind. Their keys begin with `OWNER/small/`."""

from penstock.blobs.base import Blobs

_FOLDER = "small"
UPLOAD_FACTOR = 4
"""Uploads are kept in the ledger up to this multiple of the limit: the flush of a file for each costs more than all
else."""


def small_key(owner: str, name: str) -> str:
    return f"{owner}/{_FOLDER}/{name}"


def is_small(key: str) -> bool:
    return key.split("/", 2)[1:2] == [_FOLDER]


def small_limit(blobs: Blobs) -> int:
    """The size in bytes up to which a blob is passed to the ledger instead of these blobs; -1: none is."""
    return getattr(blobs, "small_bytes", 0) or -1


def upload_limit(blobs: Blobs) -> int:
    """The same for the raw bytes of documents that callers send one at a time."""
    return UPLOAD_FACTOR * small_limit(blobs)
