from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.items import Block, Page
from penstock.stages.furniture import BLOCK, DEPTH, Sheet, furniture, sheet

CORPUS = Path(__file__).parents[2] / ".." / "shared" / "corpus"
BODY = "\n".join(f"line {i} of the text goes on" for i in range(8))


def gone(pages: list[Page]) -> list[list[str]]:
    """For each page, the lines that go."""
    lines = []
    before: list[Sheet] = []
    for start in range(0, len(pages), BLOCK):
        sheets = [sheet(page) for page in pages[start : start + BLOCK]]
        for page, spans in zip(sheets, furniture(before, sheets), strict=True):
            lines.append([page.text[first:last].strip() for first, last in spans])
        before = sheets
    return lines


def book(*heads: str, foot: bool = False, first: int = 1) -> list[Page]:
    """Pages with a text of their own, each below or above one of these."""
    pages = []
    for number, head in enumerate(heads, first):
        body = BODY.replace("line", f"{number}th")
        pages.append(Page(number, f"{body}\n{head}" if foot else f"{head}\n{body}"))
    return pages


@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "- {} -",
        "[{}]",
        "Page {}",
        "Page {} of 90",
        "p. {}",
        "Seite {} von 90",
        "{} / 90",
        "| {}",
        "第{}页",
        "A-{}",
        "4-{}",
    ],
)
@pytest.mark.parametrize("foot", [True, False])
def test_page_numbers_go_in_every_form(form: str, foot: bool) -> None:
    numbers = [form.format(number) for number in range(17, 22)]
    assert gone(book(*numbers, foot=foot)) == [[number] for number in numbers]


def test_roman_page_numbers_go() -> None:
    numbers = ["iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii"]
    assert gone(book(*numbers, foot=True, first=5)) == [[number] for number in numbers]
    wrong = ["iii", "iiii", "iiiii", "vi"]
    assert gone(book(*wrong, foot=True)) == [[]] * 4


def test_a_long_book_has_pages_with_numbers_like_years() -> None:
    assert gone(book("1999", "2000", "2001", first=2001)) == [["1999"], ["2000"], ["2001"]]


@pytest.mark.parametrize(
    "heads",
    [
        ["3", "4"],
        ["3", "5", "9", "11"],
        ["2019", "2020", "2021", "2022"],
        ["1.", "2.", "3.", "4."],
        ["(1)", "(2)", "(3)", "(4)"],
        ["1.7", "1.8", "1.9", "1.10"],
        ["Exercise 1", "Exercise 2", "Exercise 3", "Exercise 4"],
        ["Figure 1 of 9", "Figure 2 of 9", "Figure 3 of 9", "Figure 4 of 9"],
        ["Accounts of the company 2019", "Accounts of the company 2020", "Accounts of the company 2021"],
        ["The same head", "The same head"],
        ["n", "n", "n", "n"],
        ["12 13", "12 13", "12 13", "12 13"],
    ],
)
def test_what_may_be_text_stays(heads: list[str]) -> None:
    assert gone(book(*heads)) == [[]] * len(heads)


def test_a_running_head_goes_but_for_the_first() -> None:
    heads = ["A Study of Weirs", "A  study of weirs ", "A\xa0STUDY OF WEIRS"]
    assert gone(book(*heads)) == [[], ["A  study of weirs"], ["A\xa0STUDY OF WEIRS"]]


def test_rules_and_ornaments_are_furniture_too() -> None:
    pages = [Page(page.number, page.text.replace("\n", "\n\n")) for page in book(*["❚❘❙❚❘❙ ❚❘❙"] * 4)]
    assert gone(pages) == [[], *[["❚❘❙❚❘❙ ❚❘❙"]] * 3]


def test_left_and_right_pages_have_heads_of_their_own() -> None:
    heads = ["12 A Study of Weirs", "Weirs 13", "14 A Study of Weirs", "Weirs 15", "16 A Study of Weirs", "Weirs 17"]
    assert gone(book(*heads)) == [[], [], *([head] for head in heads[2:])]


def test_a_head_that_is_missing_where_chapters_begin_goes_from_the_others() -> None:
    seldom = ["A Study of Weirs" if number in (1, 4, 7) else f"other words for page {number}x" for number in range(30)]
    assert gone(book(*seldom)) == [[]] * 30
    often = ["A Study of Weirs" if number % 4 < 2 else f"other words for page {number}x" for number in range(30)]
    assert sum(map(len, gone(book(*often)))) == 15


def test_chapter_heads_change_on_the_way() -> None:
    heads = [f"{n} 1.{2 if n < 14 else 3}. METRISCHE RÄUME" for n in range(10, 18)]
    pages = book(*heads)
    pages[0] = Page(1, f"{pages[0].text}\n1.2 Metrische Räume\nthe text\nof it\nmore\nand more")
    assert gone(pages) == [[head] if n != 4 else [] for n, head in enumerate(heads)]


def test_a_page_number_beside_words_of_one_page_goes_where_pages_are_numbered_in_this_way() -> None:
    heads = ["7 Sluices", "8 Sluices", "9 Sluices", "10 Gates", "11 Gates", "12", "13 Gates"]
    assert gone(book(*heads)) == [[], ["8 Sluices"], ["9 Sluices"], [], ["11 Gates"], ["12"], ["13 Gates"]]


def test_a_numbered_thing_is_not_a_numbered_page() -> None:
    heads = ["Exercise 40", "2", "3", "4", "5", "6", "Exercise 7", "8", "9"]
    assert gone(book(*heads)) == [[], *([str(number)] for number in range(2, 7)), [], ["8"], ["9"]]


def test_a_page_has_one_number() -> None:
    heads = ["1\n1 Introduction", "2 The Introduction", "3 The Introduction", "4 The Introduction", "5\n5 Introduction"]
    assert gone(book(*heads)) == [["1"], [], ["3 The Introduction"], ["4 The Introduction"], ["5"]]


def test_numbers_may_leave_pages_out_beside_long_words() -> None:
    heads = [f"{n} Access Control Support in Databases" for n in (2, 4, 10, 11, 30, 29)]
    assert gone(book(*heads)) == [[], *([head] for head in heads[1:5]), []]
    short = [f"{n} Access Control" for n in (2, 4, 10, 11, 30)]
    assert gone(book(*short)) == [[]] * 5


@pytest.mark.parametrize("kind", ["table", "code"])
def test_a_heading_stays_where_it_stands_and_so_do_tables_and_code(kind: str) -> None:
    pages = book(*["Weirs and Sluices"] * 6)
    pages[2] = Page(3, pages[2].text, blocks=(Block("heading", 0, 17, 1, "Weirs and Sluices"),))
    pages[3] = Page(4, pages[3].text, blocks=(Block(kind, 0, 60),))
    assert gone(pages) == [[], ["Weirs and Sluices"], [], [], ["Weirs and Sluices"], ["Weirs and Sluices"]]


def test_a_head_has_at_most_three_lines() -> None:
    head = ["A Study of Weirs", "Institute of Rivers", "Draft, do not share", "Name of the applicant:"]
    assert gone(book(*["\n".join(head[:3])] * 4)) == [[], *[head[:3]] * 3]
    assert gone(book(*["\n".join(head)] * 4)) == [[]] * 4
    numbered = ["\n".join([str(number), *head]) for number in range(1, 5)]
    assert gone(book(*numbered)) == [[str(number)] for number in range(1, 5)]


def test_only_lines_from_the_edge_on_go() -> None:
    heads = [f"a first line of page {number}x\nA Study of Weirs" for number in range(5)]
    assert gone(book(*heads)) == [[]] * 5


def test_a_refrain_stays() -> None:
    pages = book(*["Quoth the raven: never"] * 5, foot=True)
    assert [len(lines) for lines in gone(pages)] == [0, 1, 1, 1, 1]
    pages[1:3] = [Page(page.number, f"{page.text}\n{page.text}") for page in pages[1:3]]
    assert gone(pages) == [[]] * 5


def test_a_page_keeps_its_text_if_nothing_else_would_be_left() -> None:
    pages = book(*["Weirs and Sluices"] * 4)
    pages.append(Page(5, "Weirs and Sluices\n"))
    pages.append(Page(6, ""))
    assert gone(pages) == [[], *[["Weirs and Sluices"]] * 3, [], []]
    numbered = [*book("1", "2", "3"), Page(4, "4\n")]
    assert gone(numbered)[-1] == ["4"]


def test_lines_that_nobody_can_read_stay() -> None:
    assert gone(book(*["\ue001\ue002\ue003 weirs"] * 5)) == [[]] * 5
    assert gone(book(*["\x0e\x03\x07\x03 weirs"] * 5)) == [[]] * 5


def test_the_last_pages_are_judged_by_the_block_before() -> None:
    heads = [f"{number} A Study of Weirs" for number in range(1, BLOCK + 2)]
    pages = book(*heads)
    pages[-1] = Page(BLOCK + 1, f"{pages[-1].text}\nInstitute of Rivers")
    assert gone(pages) == [[], *([head] for head in heads[1:])]


LINES = [
    "A Study of Weirs", "a study of  weirs", "A Study of Weirs.", "Weirs", "* * * *", "", " ", "{n}", "{n} Weirs",
    "Weirs {n}", "{n} A Study of Weirs", "A Study of Weirs {n}", "Page {n} of 9",
    "the text of page {n} goes on", "other text",
]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.lists(st.sampled_from(LINES), max_size=12), max_size=40))
def test_only_outer_lines_go_and_nothing_vanishes_but_numbers(templates: list[list[str]]) -> None:
    pages = [Page(n, "\n".join(lines).replace("{n}", str(n))) for n, lines in enumerate(templates, 1)]
    kept: list[str] = []
    lost: list[str] = []
    before: list[Sheet] = []
    for start in range(0, len(pages), BLOCK):
        sheets = [sheet(page) for page in pages[start : start + BLOCK]]
        for page, spans in zip(sheets, furniture(before, sheets), strict=True):
            assert spans == sorted(set(spans))
            lines = [line for line in page.text.splitlines(keepends=True) if line.strip()]
            outer = lines[:DEPTH] + lines[-DEPTH:]
            assert all(page.text[first:last] in outer for first, last in spans)
            assert len(spans) <= 2 * DEPTH
            lost += [page.text[first:last] for first, last in spans]
            starts = {first for first, _ in spans}
            at = 0
            for line in page.text.splitlines(keepends=True):
                if at not in starts:
                    kept.append(line)
                at += len(line)
        before = sheets
    words = {_words(line) for line in kept}
    assert {_words(line) for line in lost} - words <= {"", "pageof"}


def _words(line: str) -> str:
    return "".join(filter(str.isalpha, line.casefold()))


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.exists(), reason="needs ../shared")
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("docling/llncsdoc.pdf", 6),
        ("docling/redp5110_sampled.pdf", 7),
        ("docling/normal_4pages.pdf", 0),
        ("py-pdf/GeoTopo-komprimiert.pdf", 101),
        ("py-pdf/habibi-rotated.pdf", 0),
        ("py-pdf/pdflatex-4-pages.pdf", 4),
    ],
)
def test_the_heads_of_real_documents_go(name: str, lines: int) -> None:
    pdfium = pytest.importorskip("pypdfium2")
    with pdfium.PdfDocument(CORPUS / name) as document:
        texts = [page.get_textpage().get_text_bounded().replace("\r\n", "\n") for page in document]
    found = gone([Page(number, text) for number, text in enumerate(texts, 1)])
    assert sum(map(len, found)) == lines
    assert {line for page in found for line in page if not any(map(str.isdigit, line))} == set()
