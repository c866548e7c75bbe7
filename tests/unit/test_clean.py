import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.extractors.markdown import State, scan
from penstock.model.items import CleanPage, Heading, Page
from penstock.stages.cleaning import clean_page, original_end, original_offset

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
