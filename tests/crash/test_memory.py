"""Memory stays within a bound however much is indexed. The short form of it is in tests/unit/test_lance.py: what upkeep
takes at once does not grow with the table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG = os.environ.get("PENSTOCK_LONG") == "1"
ROOT = Path(__file__).parents[2]
MOST_MB = 900
"""A merge of 182,000 rows of both text indexes took 805 MB."""
ROWS = 570_000


@pytest.mark.skipif(not LONG, reason="takes minutes: make crash")
def test_an_index_of_half_a_million_rows_takes_no_more_than_900_megabytes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.growing", str(tmp_path), str(ROWS)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    resident, highest = map(int, ran.stdout.split())
    assert resident <= highest <= MOST_MB, f"{resident} MB now, {highest} MB at most"
