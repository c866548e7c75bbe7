"""Makes docs/dashboard.png: the dashboard with the documents of the demo, in Debian's Chromium.

python scripts/pictures.py
"""

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
PORT = 18_440
URL = f"http://127.0.0.1:{PORT}"


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        home = ["--home", f"{folder}/home"]
        penstock = [sys.executable, "-m", "penstock.cli.main"]
        subprocess.run([*penstock, "ingest", str(ROOT / "docs"), *home], check=True, stdout=subprocess.DEVNULL)
        with subprocess.Popen([*penstock, "serve", "--port", str(PORT), *home]) as server:
            try:
                _wait()
                _draw(chromium)
            finally:
                server.terminate()


def _wait() -> None:
    for _ in range(200):
        with suppress(OSError), urllib.request.urlopen(f"{URL}/healthz", timeout=5):
            return
        time.sleep(0.1)
    sys.exit("the server does not answer")


def _draw(chromium: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 640})
        page.goto(URL)
        page.locator("#live-mark", has_text="live").wait_for()
        page.screenshot(path=ROOT / "docs" / "dashboard.png")
        browser.close()


if __name__ == "__main__":
    main()
