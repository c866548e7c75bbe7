"""Schemathesis against a server of its own: all checks, with a key, over documents in several states."""

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.kit.service import serving

from penstock.app import open_app
from penstock.model.callers import KeyScope

SETTINGS = Path(__file__).with_name("schemathesis.toml")
HOOKS = "tests.kit.fuzz_hooks"
ROOT = Path(__file__).parents[2]
PDF = b"%PDF-1.7\n" + bytes(range(256)) * 9


@dataclass
class Fuzzed:
    code: int
    text: str
    cases: int
    findings: int


async def prepare(home: Path) -> str:
    """Make a home with documents, a batch, a dead letter and two held documents. Return a key with all scopes."""
    async with open_app(home=home, embedder="fake") as app:
        text = b"# Turbine\n\nThe turbine runs at 375 revolutions a minute.\n\n# Dam\n\nIt is inspected every spring."
        await app.ingest(data=text, name="turbine.md", batch="spring", metadata={"year": 2020})
        await app.ingest(data=PDF, name="broken.pdf", batch="spring")
        async for _ in app.submit(data=b"held", name="held.txt", hold=True):
            pass
        return (await app.create_key(scopes=list(KeyScope), name="fuzz")).secret


def fuzz(home: Path, *options: str, reports: Path | None = None) -> Fuzzed:
    """Run schemathesis with these options. `home` must not exist."""
    key = asyncio.run(prepare(home))
    with serving(home, PENSTOCK_SERVE__REQUESTS_PER_S="100000") as served:
        command = [
            str(Path(sys.executable).with_name("schemathesis")), "--no-color", "--config-file", str(SETTINGS), "run",
            f"{served.url}/openapi.json", "-H", f"Authorization: Bearer {key}", *options,
        ]  # fmt: skip
        if reports is not None:
            command += ["--report", "json", "--report-dir", str(reports)]
        done = subprocess.run(
            command,
            cwd=home.parent,
            env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": str(ROOT), "FUZZ_KEY": key},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert served.process.poll() is None, "the server has ended"
    generated = re.search(r"(\d+) generated", done.stdout)
    found = re.search(r"found (\d+) unique", done.stdout)
    return Fuzzed(done.returncode, done.stdout, int(generated[1]) if generated else 0, int(found[1]) if found else 0)
