"""Snippets: the part of a chunk that answers, and the places of the matched words."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.search.highlight import LENGTH, Terms, fold, same_word, snippet

FILLER = "The station was painted last spring and nobody complained about it at all in the village. "


def marked(query: str, text: str) -> list[str]:
    return [text[start:end] for start, end in snippet(Terms(query), text).highlights]


def shown(query: str, text: str, length: int = LENGTH) -> str:
    found = snippet(Terms(query), text, length)
    return text[found.start : found.end]


TEXTS = st.text(max_size=600) | st.lists(
    st.sampled_from(
        [
            "dam",
            "Dämme",
            "running",
            "水",
            "水坝很高。",
            "ไทย",
            "한국어",
            ".",
            "! ",
            "\n",
            "\n\n",
            "x" * 150,
            " ",
            "1999",
        ]
    )
).map("".join)


@given(TEXTS, TEXTS, st.integers(1, 400))
@example("dam", "dam " * 200, 320)
@example("", "00 0", 3)
@example("水坝", "水坝" * 300, 320)
@example("ß ﬁ İ", "STRASSE ﬁne İstanbul ß", 5)
def test_a_snippet_is_a_part_of_its_text_and_highlights_are_words_within_it(query: str, text: str, length: int) -> None:
    found = snippet(Terms(query), text, length)
    assert 0 <= found.start <= found.end <= len(text)
    assert found.end - found.start <= length
    assert text[found.start : found.end].strip() == text[found.start : found.end]
    last = -1
    for start, end in found.highlights:
        assert last < start < end <= len(text), "in order, without overlaps"
        assert not text[start:end].isspace()
        last = end
    assert bool(text.strip()) == (found.end > found.start), "only of an empty text there is nothing to show"


@given(
    st.lists(st.sampled_from(["dam", "wall", "river", "stone", "gate", "turbine", "Müller"]), min_size=1),
    st.integers(0, 40),
)
def test_a_word_of_the_query_that_is_in_the_text_is_always_in_the_snippet(words: list[str], before: int) -> None:
    text = FILLER * before + "Here it says " + " ".join(words) + " and ends. " + FILLER * 5
    assert words[0] in shown(words[0], text)


def test_the_snippet_is_the_sentence_that_answers_not_the_beginning() -> None:
    text = FILLER * 6 + "The wall of the dam is 41 metres high. " + FILLER * 6
    assert "41 metres" in shown("How high is the dam wall?", text)
    assert not shown("How high is the dam wall?", text).startswith(
        "The station was painted last spring and nobody " * 2
    )


def test_the_sentence_with_most_words_is_better_than_many_with_one() -> None:
    text = "The dam. The dam again. The dam once more. " * 8 + "In 1932 the engineer Muir built the dam. " + FILLER * 4
    assert "1932" in shown("when did engineer Muir build the dam", text)


def test_a_snippet_begins_and_ends_with_a_sentence_where_it_can() -> None:
    text = FILLER * 3 + "Gates are opened by hand. It takes an hour. " + FILLER * 5
    part = shown("who opens the gates by hand", text)
    assert part.endswith(".")
    assert part[0] == "T"


def test_a_text_without_sentences_is_cut_between_words() -> None:
    text = (
        " ".join(f"row{i}" for i in range(300)) + " turbine speed 375 rpm " + " ".join(f"cell{i}" for i in range(300))
    )
    part = shown("turbine speed", text)
    assert "turbine speed 375" in part
    assert all(word.startswith(("row", "cell", "turbine", "speed", "375", "rpm")) for word in part.split())


def test_without_any_match_the_snippet_is_the_beginning() -> None:
    found = snippet(Terms("zebra"), FILLER * 9)
    assert found.start == 0
    assert found.highlights == ()
    assert found.end > LENGTH / 2


@pytest.mark.parametrize(
    ("query", "text", "words"),
    [
        ("ferry", "The ferries ran. A ferry sank.", ["ferries", "ferry"]),
        ("running", "He runs, she ran a run.", ["runs", "run"]),
        ("inspection", "It is inspected by inspectors.", ["inspected", "inspectors"]),
        ("bake bread", "Baking breads", ["Baking", "breads"]),
        ("resume", "Her résumé says RESUMÉ.", ["résumé", "RESUMÉ"]),
        ("Größe", "die groesse, die GRÖSSE, die Grösse", ["GRÖSSE", "Grösse"]),
        ("année", "dans les annees 1990 et l'année", ["annees", "année"]),
        ("плотина", "Высота плотины 41 метр", ["плотины"]),
        ("水坝高度", "这座水坝的高度是四十一米。", ["水坝", "高度"]),
        ("ダムの高さ", "このダムの高さは41メートル", ["ダムの高さ"]),
        ("댐의 높이", "이 댐의 높이는 41미터", ["댐의", "높이"]),
        ("水", "山と水と空", ["水"]),
        ("बाँध की ऊँचाई", "इस बाँध की ऊँचाई ४१ मीटर है", ["बाँध", "की", "ऊँचाई"]),
        ("ارتفاع السد", "يبلغ ارتفاعُ السدِّ", ["ارتفاعُ", "السدِّ"]),
        ("in 1999", "1998 1999 19990", ["1999"]),
        ("E-42 error", "error E-42", ["error", "42"]),
        ("what is it", "What it is, is it.", ["What", "it", "is", "is", "it"]),
        ("the dam", "the dam and the river", ["dam"]),
    ],
)  # fmt: skip
def test_words_match_in_every_form_and_script(query: str, text: str, words: list[str]) -> None:
    assert marked(query, text) == words


@pytest.mark.parametrize(
    ("one", "other"), [("wall", "walk"), ("turn", "turbine"), ("cat", "car"), ("is", "it"), ("a1", "a2")]
)
def test_words_that_only_look_alike_do_not_match(one: str, other: str) -> None:
    assert not same_word(one, other)
    assert not same_word(other, one)


def test_folding_keeps_the_vowel_signs_of_hindi() -> None:
    assert fold("की") != fold("का")
    assert fold("Ångström") == "angstrom"


def test_a_huge_query_on_a_large_text_is_fast_enough() -> None:
    """It would take minutes if every word of one were compared with every word of the other."""
    text = " ".join(f"word{i} other{i}x. " for i in range(20_000))
    found = snippet(Terms(" ".join(f"thing{i}y" for i in range(20_000))), text)
    assert found.end <= LENGTH
