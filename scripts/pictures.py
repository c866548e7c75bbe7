"""Makes the pictures of the dashboard in docs/, with the documents of the demo, in Debian's Chromium.

python scripts/pictures.py
"""

import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from penstock.demo.samples import HANDBOOK, write_samples

ROOT = Path(__file__).parents[1]
PORT = 18_440
URL = f"http://127.0.0.1:{PORT}"
QUESTION = "How thick is the wall of the penstock at Tarnhead?"


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, _served(Path(folder)), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 860})
        page.goto(URL)
        page.locator("#live-mark", has_text="live").wait_for()
        _save(page, "dashboard")
        [hit] = _asked("/api/v1/search", {"query": QUESTION, "k": 1})["hits"]
        assert hit["name"] == HANDBOOK, hit
        page.goto(f"{URL}/documents/{hit['document_id']}?page={hit['page']}&chunk={hit['ordinal']}")
        page.wait_for_function("document.querySelector('.paper img').naturalWidth > 1000")
        page.evaluate("scrollBy(0, document.querySelector('#text h2').getBoundingClientRect().top - 70)")
        _save(page, "dashboard-document")
        browser.close()


@contextmanager
def _served(folder: Path) -> Iterator[None]:
    """The dashboard with the documents of the demo, which a worker has just read, and one that fails."""
    write_samples(folder / "documents")
    (folder / "documents" / "torn-scan.pdf").write_bytes(b"%PDF-1.7 torn")
    command = [sys.executable, "-m", "penstock.cli.main", "serve", "--port", str(PORT), "--home", f"{folder}/home"]
    with subprocess.Popen(command) as server:
        try:
            _wait(lambda: urllib.request.urlopen(f"{URL}/healthz", timeout=5))
            ingest = [*command[:3], "ingest", "documents", "--home", f"{folder}/home"]
            subprocess.run(ingest, check=False, stdout=subprocess.DEVNULL, cwd=folder)
            # Workers sample what they did every ten seconds.
            time.sleep(12)
            yield
        finally:
            server.terminate()


def _wait(call: Any) -> None:
    for _ in range(300):
        with suppress(OSError):
            call()
            return
        time.sleep(0.1)
    sys.exit("the server does not answer")


def _asked(path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _save(page: Page, name: str) -> None:
    """With a palette, so that the file is small."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    small = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(ROOT / "docs" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
