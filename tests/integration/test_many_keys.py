"""`check` and `prune` on a bucket with very many keys: they hold one page of the listing in memory."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.crash.harness import REPOSITORY, command, environment
from tests.kit import many_objects

LONG = os.environ.get("PENSTOCK_LONG") == "1"
FEW, MANY = (11_000, 1_000_000 if LONG else 30_000)
"""More than what `check` looks at twice."""
MOST_MB = 15


def run(home: Path, count: int, *words: str) -> tuple[dict[str, Any], float, many_objects.ManyObjects]:
    """What a command says, its highest memory in megabytes, and the bucket."""
    with many_objects.serving(count, "penstock/default/segments") as bucket, (home / "hints").open("wb") as hints:
        settings = {"BLOBS": f"s3://{many_objects.BUCKET}/penstock", "EMBEDDER": "fake"}
        process = subprocess.Popen(
            command(*words, "--json", "--home", str(home)),
            cwd=REPOSITORY,
            env={**environment(**settings), **bucket.environment},
            stdout=subprocess.PIPE,
            stderr=hints,
        )
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        assert process.returncode == 0, said
        return json.loads(said), used.ru_maxrss / 1024, bucket


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("The otter swims.")
    subprocess.run(
        command("ingest", str(tmp_path / "a.txt"), "--quiet", "--home", str(tmp_path / "home")),
        cwd=REPOSITORY,
        env=environment(EMBEDDER="fake"),
        check=True,
    )
    return tmp_path / "home"


def test_check_lists_a_crowded_bucket_page_by_page(home: Path) -> None:
    _, small, _ = run(home, FEW, "check")
    said, large, bucket = run(home, MANY, "check")
    assert [(one["kind"], one["count"]) for one in said["garbage"]] == [("orphan_blob", MANY)]
    assert f"{MANY:,} leftovers" in (home / "hints").read_text()
    assert max(bucket.listed) <= many_objects.PAGE
    assert len(bucket.listed) >= MANY // many_objects.PAGE
    assert large - small < MOST_MB, f"{small} MB, then {large} MB"


def test_prune_empties_a_crowded_bucket_page_by_page(home: Path) -> None:
    _, small, _ = run(home, FEW, "prune")
    said, large, bucket = run(home, MANY, "prune")
    assert said["blobs"] == MANY
    assert all(bucket.deleted)
    assert max(bucket.listed) <= many_objects.PAGE
    assert large - small < MOST_MB, f"{small} MB, then {large} MB"
