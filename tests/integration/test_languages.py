"""The default ranking finds at least as much as words alone, in languages for which Penstock has no dictionary."""

from pathlib import Path

import pytest
from tests.kit.languages import LANGUAGES

from penstock.app import open_app
from penstock.search.ranking import Mode


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


@pytest.mark.parametrize("mode", ["text", "hybrid"])
async def test_a_document_is_found_by_its_title_or_its_file_name(tmp_path: Path, mode: Mode) -> None:
    for name, text in (("Jahresbericht-2024.txt", "Umsatz und Gewinn."), ("b.txt", "Gewinn und Umsatz.")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    html = "<title>Quartalsbericht</title><p>Umsatz ohne Gewinn.</p>"
    async with open_app(home=str(tmp_path / "home")) as app:
        await app.ingest([tmp_path / "b.txt", tmp_path / "Jahresbericht-2024.txt"], metadata={"title": ""})
        await app.ingest([tmp_path / "b.txt"], collection="titled", metadata={"title": "Geschäftsbericht"})
        await app.ingest(data=html.encode(), name="c.html", metadata={"title": "Vorgelegt"}, collection="titled")
        await app.ingest(data=html.encode(), name="d.html", collection="html")
        await app.ingest(data=b"Umsatz und Gewinn.", name="e.txt", collection="html")

        async def first(query: str, collection: str = "default") -> list[str]:
            return [hit.name for hit in await app.search(query, 1, collection=collection, mode=mode)]

        assert await first("Jahresbericht Umsatz") == ["Jahresbericht-2024.txt"]
        assert await first("Quartalsbericht Umsatz", "html") == ["d.html"]
        assert await first("Geschäftsbericht", "titled") == ["b.txt"]
        assert await first("Vorgelegt", "titled") == ["c.html"]
        [hit] = await app.search("Jahresbericht Umsatz", 1, mode=mode)
        assert hit.text == "Umsatz und Gewinn."
