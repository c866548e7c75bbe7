"""The lexemes of a text, for indexes in a server. Words are folded, cut and stemmed here, so that the result does not
depend on the locale and the dictionaries of the server."""

import importlib
import re
import unicodedata
from functools import cache, lru_cache
from typing import Any

from penstock.indexes.base import TextField
from penstock.indexes.grams import UNSPACED, distinct_grams, grams
from penstock.model.items import Chunk

LONGEST = 64
"""Characters of a lexeme. More are cut off."""

_LATIN_ACCENTS = re.compile("([a-z])[\u0300-\u036f]+")
_CACHED_WORDS = 100_000


@cache
def _words() -> re.Pattern[str]:
    return re.compile(f"[{UNSPACED}]+|[^\\W_{UNSPACED}]+")


@cache
def _unspaced() -> re.Pattern[str]:
    return re.compile(f"[{UNSPACED}]")


@cache
def _stemmer() -> Any:
    library: Any = importlib.import_module("snowballstemmer")
    return library.stemmer("english")


@lru_cache(_CACHED_WORDS)
def _stem(word: str) -> str:
    stemmed: str = _stemmer().stemWord(word)
    return stemmed[:LONGEST]


def _folded(text: str) -> str:
    folded = text.casefold()
    if folded.isascii():
        return folded
    plain = _LATIN_ACCENTS.sub(r"\1", unicodedata.normalize("NFKD", folded))
    return unicodedata.normalize("NFC", plain)


def words(text: str, *, query: bool = False) -> list[str]:
    """The lexemes of a text. Scripts without spaces become pairs of characters, and in a row also single ones."""
    found: list[str] = []
    for word in _words().findall(_folded(text)):
        if not _unspaced().match(word):
            found.append(_stem(word[:LONGEST]))
            continue
        pairs = [word[at : at + 2] for at in range(len(word) - 1)]
        found += pairs if query and pairs else [*word, *pairs]
    return found


def searched_text(title: str, chunk: Chunk) -> str:
    """What text search looks at: the title of the document, the headings of the chunk, and its text."""
    first = [title] if title and title not in chunk.headings else []
    return "\n".join([*first, *chunk.headings, chunk.text])


def lexemes(field: TextField, text: str) -> list[str]:
    """The lexemes of a row, in order."""
    return words(text) if field == "words" else [one[:LONGEST] for one in grams(text).split()]


def asked(field: TextField, text: str) -> list[str]:
    """The lexemes of a query, each once."""
    clean = text.encode("utf-8", "replace").decode()
    found = words(clean, query=True) if field == "words" else distinct_grams(clean).split()
    return list(dict.fromkeys(one[:LONGEST] for one in found))


def is_storable(text: str) -> bool:
    """Whether a server can store all characters of the text."""
    if text.isascii():
        return "\0" not in text
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def storable(text: str) -> str:
    """The text without the characters that a server cannot store."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
