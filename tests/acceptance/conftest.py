from pathlib import Path

import pytest
from tests.kit.cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    folder = tmp_path / "cwd"
    folder.mkdir()
    return Cli(tmp_path / "home", folder, {})
