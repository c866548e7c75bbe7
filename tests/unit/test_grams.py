import random

import pytest

from penstock.indexes.grams import distinct_grams, grams


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Water", "_wat wate ater ter_"),
        ("of it", "_of_ _it_"),
        ("a", "_a_"),
        ("", ""),
        ("?!", ""),
        ("snake_case", "_sna snak nake ake_ _cas case ase_"),
        ("C3PO", "_c3p c3po 3po_"),
        ("Flüsse", "_flu flus luss usse sse_"),
        ("Straße", "_str stra tras rass asse sse_"),
        ("Москвой", "_мос моск оскв скво квой вой_"),
        ("東京都", "東京 京都"),
        ("京", "京"),
        ("한국어", "한국 국어"),
    ],
)
def test_a_text_is_cut_into_grams(text: str, expected: str) -> None:
    assert grams(text) == expected


def test_hindi_words_are_not_cut_at_their_vowel_signs() -> None:
    assert grams("हिन्दी में").split()[0] == "_हिन"
    assert grams("में") == "_में में_"


def test_scripts_without_spaces_end_where_another_begins() -> None:
    assert grams("東京tower") == "東京 _tow towe ower wer_"


def test_accents_do_not_matter_however_they_are_written() -> None:
    assert grams("caf\u00e9") == grams("cafe\u0301") == grams("CAFE")


def test_a_query_has_each_gram_once() -> None:
    assert distinct_grams("water Water") == "_wat wate ater ter_"


def test_ascii_text_is_cut_as_other_text_is() -> None:
    chance = random.Random(7)
    for _ in range(500):
        text = "".join(chr(chance.randrange(128)) for _ in range(40))
        assert f"{grams(text)} _e_".strip() == grams(f"{text} é")
