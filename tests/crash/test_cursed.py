"""A document that kills its worker ends as a dead letter; those that were there when it did complete."""

import subprocess
import sys
from pathlib import Path

from tests.crash.harness import environment, open_home

CRASHES = 7
OTHERS = 30


def work(folder: Path, home: Path) -> int:
    command = [sys.executable, "-m", "tests.crash.cursed_worker", str(folder), str(home)]
    return subprocess.run(command, timeout=180, cwd=Path(__file__).parents[2], env=environment()).returncode


async def test_i7_a_document_that_kills_its_worker_ends_as_a_dead_letter_and_affects_no_other(tmp_path: Path) -> None:
    folder, home = tmp_path / "files", tmp_path / "home"
    folder.mkdir()
    (folder / "cursed.txt").write_text("the one that kills")
    for i in range(OTHERS):
        (folder / f"{i}.txt").write_text(f"innocent bystander number {i}\n" * 20)
    deaths = 0
    while (code := work(folder, home)) != 0:
        assert code == -9
        deaths += 1
        assert deaths <= CRASHES + 1, "the cursed document is never given up"
    assert deaths >= 3
    async with open_home(home) as app:
        status = await app.status()
        assert status.documents == {"COMPLETED": OTHERS, "FAILED": 1}
        letters = await app.list_dead_letters()
        assert letters.by_reason == {"crash_loop": 1}
        assert letters.letters[0].name == "cursed.txt"
        assert "cursed" not in {hit.name for hit in await app.search("bystander", 50)}
        assert (await app.check()).ok
