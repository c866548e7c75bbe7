import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.stages import run_stage

from penstock.extractors.formats import PDF, PLAIN
from penstock.extractors.markdown import State, scan
from penstock.model.items import Block, CleanPage, Heading, Page
from penstock.stages.clean import CLEAN
from penstock.stages.cleaning import CLEAN_VERSION, clean_page, original_end, original_offset
from penstock.stages.furniture import BLOCK

NASTY = (
    "ab zé-\u2010\u00ad\x02\x00\x85\r\n\t\u00a0\u200b\ufeffe\u0301\u0327\u1100\u1161\u11a8\u0958\U0001d160Å\u212b*1.) A"
)
texts = st.text(st.sampled_from(NASTY), max_size=40) | st.text(st.characters(codec="utf-8"), max_size=40)


def clean(text: str) -> str:
    return clean_page(Page(1, text)).text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("one\r\ntwo\rthree\n", "one\ntwo\nthree"),
        ("  one   two\t\tthree\u00a0four  \n five ", "one two three four\nfive"),
        ("one\n\n\n\ntwo\n \t \n \nthree", "one\n\ntwo\n\nthree"),
        ("inter-\nnational, inter- \n  national", "international, international"),
        ("soft\u00ad\nly, hard\u2010\nly, pdf\x02\nium, mid\u00addle", "softly, hardly, pdfium, middle"),
        ("North-\nSouth 1990-\n2000 a -\nb --\nc", "North-\nSouth 1990-\n2000 a -\nb --\nc"),
        ("a\x00b\x07c\x7fd\x9fe\u200bf\ufeffg", "abcdefg"),
        ("line\x0bbreak\x85s", "line\nbreak\ns"),
        ("Cafe\u0301 \u212b \u1112\u1161\u11ab", "Café Å 한"),
        ("cafe\u0301-\nteria e\u00ad\u0301", "caféteria é"),
        ("- a\n  - b\n    plain\n  1. c", "- a\n  - b\nplain\n  1. c"),
        ("\n \n", ""),
        ("", ""),
    ],
)
def test_cleaning(text: str, wanted: str) -> None:
    assert clean(text) == wanted


def test_code_keeps_its_shape() -> None:
    text = "Some   text\n\n\n\n```\nif  x:\r\n\n\n\n    y-\nz  \n```\n\n\n\nmore   text"
    page = clean_page(Page(1, text, blocks=scan(text, State(), first=True)[0]))
    assert page.text == "Some text\n\n```\nif  x:\n\n\n\n    y-\nz  \n```\n\nmore text"
    indented = "    code  here\n\ntext"
    assert clean_page(Page(1, indented, blocks=scan(indented, State(), first=True)[0])).text == indented


def test_headings_are_carried_to_their_clean_place() -> None:
    text = "\n\nIntro\u200b   text\n\n\n\n  ##  The\u00a0 Way \n\ntext"
    page = clean_page(Page(3, text, "iii", scan(text, State(), first=True)[0], ("Top\u200b",)))
    assert page == CleanPage(
        3, "Intro text\n\n## The Way\n\ntext", page.offsets, len(text), "iii", (Heading(12, 2, "The Way"),), ("Top",)
    )
    assert page.text[12:].startswith("## The Way")


def test_the_end_leads_past_what_was_composed() -> None:
    text = "Cafe\u0301\n\n"
    page = clean_page(Page(1, text))
    assert (original_offset(page, 3), original_end(page, 4)) == (3, 5)
    assert text[original_offset(page, 0) : original_end(page, len(page.text))] == "Cafe\u0301"


@given(st.text("abc ,.Zé日\n", max_size=60).map(lambda text: " ".join(text.split())))
def test_a_clean_text_keeps_its_offsets(text: str) -> None:
    page = clean_page(Page(1, text))
    assert (page.text, page.offsets) == (text, ((0, 0),))
    assert [original_offset(page, i) for i in range(len(text))] == list(range(len(text)))
    assert original_end(page, len(text)) == min(len(text), page.length)


@settings(max_examples=600)
@given(texts)
@example("\u0958\U0001d160\U0001d160a")
@example("a\u00ad\u0301-\u00ad\nb")
@example("1\r\t- ")
@example("1\n\t- \nb")
def test_cleaning_is_idempotent_and_leaves_nothing_unwanted(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert cleaned == cleaned.strip(" \t\n\u00a0")
    for sign in ("\r", "\u200b", "\ufeff", "\u00ad", "\x00", "\x85", "\u00a0", " \n", "\n\n\n"):
        assert sign not in cleaned
    cleaned.encode()


@settings(max_examples=600)
@given(texts)
@example("\U0001d160a\u0958\U0001d160")
def test_offsets_lead_back_in_order(text: str) -> None:
    page = clean_page(Page(1, text))
    starts = [original_offset(page, i) for i in range(len(page.text) + 1)]
    ends = [original_end(page, i) for i in range(len(page.text) + 1)]
    assert starts == sorted(starts)
    assert ends[1:] == sorted(ends[1:])
    assert all(0 <= offset <= len(text) for offset in starts + ends)
    assert all(start < end for start, end in zip(starts, ends[1:], strict=False))
    assert [pair[0] for pair in page.offsets] == sorted({pair[0] for pair in page.offsets})


@settings(max_examples=600)
@given(st.text("abé日Z-1 .\t\r\n\u00a0\u200b\x07\u00ad", max_size=60))
def test_a_character_that_was_kept_stands_where_its_offset_says(text: str) -> None:
    page = clean_page(Page(1, text))
    for i, char in enumerate(page.text):
        if char not in " \t\n-":
            assert text[original_offset(page, i)] == char
            dropped = text[original_offset(page, i) + 1 : original_end(page, i + 1)]
            assert not dropped.strip("\u200b\x07\u00ad-\r\n\t \u00a0")


@given(texts, texts)
def test_a_word_between_leads_back_to_itself(before: str, after: str) -> None:
    text = f"{before}\n\nQwxyk\n\n{after}"
    page = clean_page(Page(1, text))
    at = page.text.index("Qwxyk")
    assert text[original_offset(page, at) : original_end(page, at + 5)] == "Qwxyk"


def test_furniture_goes_and_the_rest_leads_back() -> None:
    text = "12 A Head\n\nThe  Way\n\nHe went inter-\nnational.\n\nA Foot\n 12 "
    at = text.index("The")
    foot = text.index("A Foot")
    blocks = (Block("heading", at, at + 8, 1, "The Way"),)
    page = clean_page(Page(12, text, None, blocks), [(0, 10), (foot, foot + 7), (foot + 7, len(text))])
    assert page.text == "The Way\n\nHe went international."
    assert page.headings == (Heading(0, 1, "The Way"),)
    for word in ("The", "Way", "He", "went"):
        start = page.text.index(word)
        found = text[original_offset(page, start) : original_end(page, start + len(word))]
        assert found == word
    end = original_end(page, len(page.text))
    assert text[original_offset(page, 0) : end] == "The  Way\n\nHe went inter-\nnational."


@settings(max_examples=300)
@given(st.lists(st.tuples(st.text("ab é-\u00ad\x02\t\n", max_size=8), st.booleans()), max_size=8))
def test_without_furniture_a_page_is_as_if_it_had_never_been_there(lines: list[tuple[str, bool]]) -> None:
    text, rest = "", ""
    spans: list[tuple[int, int]] = []
    places: list[int] = []
    for line, goes in lines:
        if goes:
            spans.append((len(text), len(text) + len(line) + 1))
        else:
            places += range(len(text), len(text) + len(line) + 1)
            rest += line + "\n"
        text += line + "\n"
    page, wanted = clean_page(Page(1, text), spans), clean_page(Page(1, rest))
    assert page.text == wanted.text
    for i, char in enumerate(page.text):
        if char in "abé":
            assert original_offset(page, i) == places[original_offset(wanted, i)]
            assert original_end(page, i + 1) > original_offset(page, i)


def bench(pages: list[Page], sizes: list[int], media_type: str, stops: set[int]) -> tuple[list[CleanPage], list[int]]:
    """The clean pages, and how many there were at each checkpoint."""
    cleaned, cursors, result = run_stage(CLEAN, pages, media_type=media_type, sizes=sizes, stops=stops)
    assert result.meta == {"pages": len(pages)}
    return cleaned, [cursor["pages"] for cursor in cursors]


def _document(count: int, head: int, chapter: int) -> list[Page]:
    """Pages with a running head that changes every `chapter` pages, left out on every `head`th."""
    pages = []
    for number in range(1, count + 1):
        top = f"{number} The Weirs of Part {number // chapter}\n" if number % head else ""
        body = "".join(f"The  text of page {number}{letter} goes on\n" for letter in "abcdefgh")
        pages.append(Page(number, f"{top}{body}- {number} -"))
    return pages


@settings(max_examples=40, deadline=None)
@given(
    st.builds(_document, st.integers(0, 3 * BLOCK + 4), st.integers(2, 40), st.integers(1, 40)),
    st.lists(st.integers(1, 50), min_size=1, max_size=4),
    st.sets(st.integers(1, 5)),
)
def test_i12_segments_and_interruptions_change_nothing_in_a_pdf(
    pages: list[Page], sizes: list[int], stops: set[int]
) -> None:
    whole, _ = bench(pages, [1000], PDF, set())
    cleaned, cursors = bench(pages, sizes, PDF, stops)
    assert cleaned == whole
    assert cursors == sorted({min(BLOCK * (i + 1), len(pages)) for i in range((len(pages) + BLOCK - 1) // BLOCK)})
    assert [page.number for page in cleaned] == [page.number for page in pages]
    if len(pages) >= 3:
        assert not any(f"- {page.number} -" in page.text for page in cleaned)


def test_i12_a_pdf_resumed_in_its_last_pages_knows_the_running_head() -> None:
    pages = _document(BLOCK + 1, 1000, 1000)
    whole, _ = bench(pages, [1000], PDF, set())
    resumed, _ = bench(pages, [7], PDF, {1})
    assert resumed == whole
    assert [page.number for page in resumed if "Weirs" in page.text] == [1]


def test_a_text_keeps_its_lines_and_its_fingerprint() -> None:
    pages = _document(40, 1000, 1000)
    cleaned, _ = bench(pages, [1000], PLAIN, {1})
    assert cleaned == [clean_page(page) for page in pages]
    assert all("Weirs" in page.text for page in cleaned)
    ports: Any = None
    assert CLEAN.version(ports, {}, PLAIN) == CLEAN_VERSION
    assert CLEAN.version(ports, {}, PDF) == CLEAN.version(ports, {}, None) != CLEAN_VERSION
