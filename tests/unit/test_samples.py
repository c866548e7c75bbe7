"""The sample documents, and the writers that make them: read back by readers that are not ours."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pypdfium2 as pdfium
import pytest

from penstock.demo.handbook import FRONT, TITLE, Sheet, stations
from penstock.demo.pdf import Bookmark, Label, PdfPage, Text, write_pdf
from penstock.demo.samples import HANDBOOK, HANDBOOK_PAGES, change, question, write_samples

STATIONS = stations()
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("samples")
    write_samples(base)
    return base


@pytest.fixture(scope="module")
def handbook(folder: Path) -> Iterator[Any]:
    with pdfium.PdfDocument(folder / HANDBOOK) as document:
        yield document


@pytest.fixture(scope="module")
def texts(handbook: Any) -> list[str]:
    return [page.get_textpage().get_text_range().replace("\r\n", "\n") for page in handbook]


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_samples_are_the_same_whenever_they_are_written(folder: Path, tmp_path: Path) -> None:
    again = write_samples(tmp_path)
    assert len(again) == 7
    assert {path.suffix for path in again} == {".pdf", ".docx", ".html", ".md", ".txt"}
    for path in again:
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_the_handbook_has_200_labelled_pages(handbook: Any) -> None:
    assert len(handbook) == HANDBOOK_PAGES
    labels = [handbook.get_page_label(i) for i in range(HANDBOOK_PAGES)]
    assert labels == ["i", "ii", "iii", "iv", "v", "vi", *map(str, range(1, 195))]
    assert handbook.get_metadata_dict()["Title"] == TITLE


def test_every_page_of_the_handbook_has_its_running_head_and_number(texts: list[str]) -> None:
    for i, text in enumerate(texts[FRONT:], 1):
        first, *_, last = text.splitlines()
        assert first.startswith(f"{TITLE} · ")
        assert last == str(i)


def test_the_pages_of_the_handbook_are_full_and_no_two_are_alike(texts: list[str]) -> None:
    pages = texts[FRONT : FRONT + 8 * len(STATIONS)]
    assert all(2000 < len(page) < 4000 for page in pages)
    lines = [{line for line in page.splitlines() if len(line) > 40} for page in pages]
    most = max(len(a & b) / len(a) for i, a in enumerate(lines) for b in lines[:i])
    assert most < 0.5


def test_the_outline_of_the_handbook_leads_to_its_headings(handbook: Any, texts: list[str]) -> None:
    entries = [(entry.level, entry.get_title(), entry.get_dest().get_index()) for entry in handbook.get_toc()]
    assert [level for level, _, _ in entries] == [*([0] + 8 * [1]) * len(STATIONS), 0]
    assert entries[0] == (0, "1 Aldermoor", FRONT)
    for _, title, page in entries:
        assert title in texts[page].splitlines(), title


def test_the_question_has_one_right_page(texts: list[str]) -> None:
    asked = question()
    right = [i for i, text in enumerate(texts, 1) if asked.answer in words(text) and "Tarnhead" in text]
    assert right == [asked.page]


def test_a_change_adds_an_answer_that_was_not_there(tmp_path: Path) -> None:
    write_samples(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    asked = change(tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert [name for name in after if after[name] != before[name]] == [asked.document]
    assert asked.answer.encode() in after[asked.document]
    assert asked.answer.encode() not in before[asked.document]


def test_the_word_file_has_headings_a_list_and_a_table(folder: Path) -> None:
    with zipfile.ZipFile(folder / "outage-plan.docx") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        parts = {name: ElementTree.fromstring(archive.read(name)) for name in archive.namelist()}
    document, styles = parts["word/document.xml"], parts["word/styles.xml"]
    used = {style.get(f"{{{WORD}}}val") for style in document.iter(f"{{{WORD}}}pStyle")}
    assert {"Title", "Heading1", "ListBullet"} <= used
    assert used <= {style.get(f"{{{WORD}}}styleId") for style in styles}
    assert [len(row) for row in document.iter(f"{{{WORD}}}tr")] == 6 * [3]


def read_back(path: Path) -> list[str]:
    with pdfium.PdfDocument(path) as document:
        return [page.get_textpage().get_text_range() for page in document]


def test_text_survives_with_the_letters_that_the_fonts_have(tmp_path: Path) -> None:
    text = r"(brackets) \ and “quotes”, 5 € – naïve, 漢 \) end"
    write_pdf(tmp_path / "a.pdf", [PdfPage([Text(50, 700, text)])])
    assert read_back(tmp_path / "a.pdf") == [text.replace("漢", "?")]


def test_titles_and_labels_may_have_any_letters(tmp_path: Path) -> None:
    outline = [Bookmark("Über 漢字", 0), Bookmark("(part)", 1, 2), Bookmark("Ende", 2)]
    labels = [Label(0, "A", "§ "), Label(1, "D", first=7)]
    write_pdf(tmp_path / "a.pdf", 3 * [PdfPage()], title="Größe 漢", outline=outline, labels=labels)
    with pdfium.PdfDocument(tmp_path / "a.pdf") as document:
        assert document.get_metadata_dict()["Title"] == "Größe 漢"
        assert [document.get_page_label(i) for i in range(3)] == ["§ A", "7", "8"]
        entries = [(entry.get_title(), entry.level, entry.get_dest().get_index()) for entry in document.get_toc()]
    assert entries == [("Über 漢字", 0, 0), ("(part)", 1, 1), ("Ende", 0, 2)]


def test_a_bookmark_without_a_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'deep' has level 3"):
        write_pdf(tmp_path / "a.pdf", [PdfPage()], outline=[Bookmark("top", 0), Bookmark("deep", 0, 3)])


def test_every_object_stands_where_the_table_says(folder: Path) -> None:
    """A reader that finds it otherwise mends the file in silence."""
    data = (folder / HANDBOOK).read_bytes()
    start = int(data.rsplit(b"startxref\n", 1)[1].split()[0])
    head, count, free, *entries = data[start:].split(b"trailer")[0].splitlines()
    assert (head, count, free) == (b"xref", b"0 %d" % (len(entries) + 1), b"0000000000 65535 f ")
    for number, entry in enumerate(entries, 1):
        assert len(entry) == 19
        place = int(entry[:10])
        assert data[place : place + 20].startswith(b"%d 0 obj\n" % number)


def test_a_page_has_the_size_and_the_drawing_it_was_given(tmp_path: Path) -> None:
    write_pdf(tmp_path / "a.pdf", [PdfPage(drawing=b"1 0 0 rg 0 0 50 20 re f", size=(200, 40))])
    with pdfium.PdfDocument(tmp_path / "a.pdf") as document:
        assert document[0].get_size() == (200, 40)
        bitmap = document[0].render(rev_byteorder=True).to_numpy()
    assert bitmap[30, 25, :3].tolist() == [255, 0, 0]
    assert bitmap[30, 150, :3].tolist() == [255, 255, 255]


def test_a_long_pdf_is_written_page_by_page(tmp_path: Path) -> None:
    path = tmp_path / "long.pdf"

    def pages() -> Iterator[PdfPage]:
        for i in range(2_000):
            yield PdfPage([Text(50, 800, f"page {i}")])
        # What is not in the file by now is held in memory.
        assert path.stat().st_size > 300_000

    assert write_pdf(path, pages()) == 2_000
    with pdfium.PdfDocument(path) as document:
        assert len(document) == 2_000
        assert [document[i].get_textpage().get_text_range() for i in (0, 99, 100, 1_999)] == [
            *("page 0", "page 99", "page 100", "page 1999"),
        ]


def test_a_page_that_is_over_full_is_refused() -> None:
    sheet = Sheet("head", "1")
    for _ in range(80):
        sheet.line("one more")
    with pytest.raises(ValueError, match="over-full"):
        sheet.page()
