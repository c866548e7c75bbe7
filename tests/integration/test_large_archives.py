"""Archives with many files, and with large ones: as fast as a folder, and with little memory."""

import os
import random
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.kit.apps import text
from tests.kit.archives import make_zip
from tests.kit.memory import ingest

Files = Callable[..., Path]

LONG = bool(os.environ.get("PENSTOCK_LONG"))
MEMBERS = 10_000 if LONG else 1000
MEGABYTES = 2048 if LONG else 300
MOST_MB = 260
LEAST_SHARE = 0.7
"""Of the throughput of a folder."""


@pytest.mark.timeout(1200 if LONG else 300)
async def test_an_archive_is_ingested_nearly_as_fast_as_a_folder(
    start_app: StartApp, files: Files, tmp_path: Path
) -> None:
    """Processor time is compared, because others may use the machine."""
    contents = {f"{number:05}.txt": text(3, f"subject{number}") for number in range(MEMBERS)}
    archive = tmp_path / "all.zip"
    archive.write_bytes(make_zip(contents))
    folder = files(**contents)

    async def seconds(home: str, path: Path) -> float:
        app = await start_app(home)
        began = time.process_time()
        summary = await app.ingest([path])
        assert (summary.failed, summary.completed - summary.submitted) == (0, summary.children)
        return time.process_time() - began

    of_folder = await seconds("one", folder)
    of_archive = await seconds("two", archive)
    assert of_archive <= of_folder / LEAST_SHARE


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured with /proc")
@pytest.mark.timeout(1200 if LONG else 300)
def test_a_large_file_in_an_archive_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.zip"
    # It repeats itself, so that it can be compressed, but not so well that it looks like a bomb.
    piece = random.Random(1).randbytes(16 << 10) * 64
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        with packed.open("large.bin", "w", force_zip64=True) as member:
            for _ in range(MEGABYTES):
                member.write(piece)
        packed.writestr("note.txt", "The alphaword.")
    assert path.stat().st_size * 250 > MEGABYTES << 20
    assert ingest(tmp_path / "home", path) < MOST_MB
