"""A home with the seven files of `damage.write_files`, made once; a test that harms it has a copy of its own. Parser
processes that fail."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.damage import write_files
from tests.kit.parsers import PATHS

from penstock.app import open_app
from penstock.worker.parsers import process


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    write_files(folder / "files")

    async def ingest() -> None:
        async with open_app(home=str(folder / "home"), embedder="fake") as app:
            assert (await app.ingest([folder / "files"])).completed == 7

    asyncio.run(ingest())
    return folder / "home"


@pytest.fixture
def home(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def curse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Parser processes that fail, as `cursed_child` describes."""
    monkeypatch.setenv("PYTHONPATH", PATHS)
    monkeypatch.setattr(process, "CHILD", "tests.integration.cursed_child")
    return lambda kind: monkeypatch.setenv("PYTHON_CURSE", kind)
