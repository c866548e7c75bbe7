"""The default ranking finds at least as much as words alone, in languages for which Penstock has no dictionary."""

from pathlib import Path

import pytest
from tests.kit.languages import LANGUAGES

from penstock.app import open_app


@pytest.mark.parametrize("language", sorted(LANGUAGES))
async def test_the_default_finds_at_least_what_words_find(language: str, tmp_path: Path) -> None:
    files = tmp_path / "passages"
    files.mkdir()
    for number, (passage, _) in enumerate(LANGUAGES[language]):
        (files / f"{number}.txt").write_text(passage, encoding="utf-8")
    found = {}
    async with open_app(home=str(tmp_path / "home")) as app:
        assert (await app.ingest([files])).completed == len(LANGUAGES[language])
        for mode in ("text", "hybrid"):
            for k in (1, 3, 5):
                found[mode, k] = 0
                for number, (_, question) in enumerate(LANGUAGES[language]):
                    hits = await app.search(question, k, mode=mode)
                    found[mode, k] += f"{number}.txt" in {hit.name for hit in hits}
    assert all(found["hybrid", k] >= found["text", k] for k in (1, 3, 5)), found
    assert found["hybrid", 3] >= 0.8 * len(LANGUAGES[language]), found
