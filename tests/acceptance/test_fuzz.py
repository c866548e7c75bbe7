"""Schemathesis with all of its checks, against a server with documents: nothing to find."""

import os
from pathlib import Path

import pytest
from tests.kit.fuzzing import fuzz

LONG = bool(os.environ.get("PENSTOCK_LONG"))


@pytest.mark.timeout(3_600 if LONG else 300)
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """The short form sends the examples and a few values at the limits of each schema. `make fuzz` sends many, also in
    sequences of calls."""
    if LONG:
        options = ["--max-examples", "50"]
    else:
        options = ["--phases", "examples,fuzzing", "--max-examples", "1", "--generation-deterministic", "--no-shrink"]
    found = fuzz(tmp_path / "home", "--checks", "all", *options)
    assert found.code == 0, found.text
    assert found.cases > (2_000 if LONG else 100)
