"""Folders to ingest."""

import time
import zipfile
from pathlib import Path

import httpx2

FILES = 24


def fill(folder: Path, count: int = FILES) -> Path:
    """Notes, an archive with two of them, a damaged PDF, and something that nobody reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"n{number}.txt").write_text(f"Note {number} tells of matter{number}.")
    with zipfile.ZipFile(folder / "letters.zip", "w") as archive:
        archive.writestr("x.txt", "A letter from Ada.")
        archive.writestr("y.txt", "A letter from Ben.")
    (folder / "bad.pdf").write_bytes(b"%PDF-1.7 broken")
    (folder / "odd.bin").write_bytes(bytes(range(256)) * 40)
    return folder


def wait_for_documents(url: str, count: int) -> None:
    until = time.monotonic() + 60
    while True:
        assert time.monotonic() < until
        try:
            if len(httpx2.get(f"{url}/api/v1/documents?limit=500", timeout=5).json()["documents"]) >= count:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.02)
