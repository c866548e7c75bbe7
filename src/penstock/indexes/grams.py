"""Character grams of a text, for an index that finds parts of words: other endings, compounds, typing errors, and words
of languages without a stemmer.

A word becomes overlapping pieces of four characters, with its ends marked: `water` gives `_wat`, `wate`, `ater` and
`ter_`. A short word stays whole. Scripts without spaces become pairs of characters.
"""

import re
import unicodedata
from functools import cache, lru_cache

_SIZE = 4
_CACHED_WORDS = 100_000
_PLAIN_WORDS = re.compile(r"[^\W_]+")
_ASCII_WORDS = str.maketrans({letter: " " for letter in map(chr, range(128)) if not letter.isalnum()})
_LATIN_ACCENTS = re.compile("([a-z])[\u0300-\u036f]+")
# Thai, Lao, Myanmar, Khmer, kana, Chinese characters, Hangul.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)


def grams(text: str) -> str:
    """The grams of all words, separated by spaces."""
    folded = text.casefold()
    if folded.isascii():
        # A third of the time of the pattern.
        return " ".join(map(_grams, folded.translate(_ASCII_WORDS).split()))
    words = _words() if _special().search(folded) else _PLAIN_WORDS
    return " ".join(map(_grams, words.findall(folded)))


def distinct_grams(text: str) -> str:
    """Each gram once, in order."""
    return " ".join(dict.fromkeys(grams(text).split()))


@cache
def _marks() -> str:
    marks = (chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    return re.escape("".join(marks))


@cache
def _special() -> re.Pattern[str]:
    """A character that the simple pattern for words does not cover. Most texts have none; looking first takes a third
    of the time."""
    return re.compile(f"[{UNSPACED}{_marks()}]")


@cache
def _words() -> re.Pattern[str]:
    """A word is letters, digits and combining marks. Python's `\\w` excludes the marks, and would cut Hindi words at
    their vowel signs."""
    return re.compile(f"(?:[{UNSPACED}][{_marks()}]*)+|(?:(?![{UNSPACED}])(?:[^\\W_]|[{_marks()}]))+")


@lru_cache(_CACHED_WORDS)
def _grams(word: str) -> str:
    if _unspaced().match(word):
        return " ".join(word[at : at + 2] for at in range(len(word) - 1)) or word
    if not word.isascii():
        folded = _LATIN_ACCENTS.sub(r"\1", unicodedata.normalize("NFD", word))
        word = unicodedata.normalize("NFC", folded)
    marked = f"_{word}_"
    return " ".join(marked[at : at + _SIZE] for at in range(max(1, len(marked) - _SIZE + 1)))


@cache
def _unspaced() -> re.Pattern[str]:
    return re.compile(f"[{UNSPACED}]")
