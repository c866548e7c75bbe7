"""Snippets: the part of a chunk that most likely answers a query, and where the words of the query occur in the chunk.

Everything here works on text alone, without the index. Words match in their inflected forms and without their accents.
Text without spaces between words (Chinese, Japanese, Thai) and Korean match by pairs of characters."""

import math
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

LENGTH = 320
"""The maximum number of characters of a snippet."""
PIECE = 100
"""Longer sentences are divided into pieces of about this size if they do not fit into a snippet."""
PAIRS_MOST = 200
WORDS_MOST = 200
"""The numbers of different pairs and words of a query that are looked for."""

Span = tuple[int, int]

_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u0900-\u0963\u0971-\u0dff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
"""Combining marks, which belong to a word though `\\w` does not contain them."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3041-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
)
"""Scripts that are matched by pairs of characters."""
_RUN = re.compile("(?P<pairs>[" + _UNSPACED + "]+)|(?:(?![" + _UNSPACED + r"])(?:[^\W_]|[" + _MARKS + "]))+")
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670]")
_DIGIT = re.compile(r"\d")
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？؟।]+[」』”]?|\n\s*\n|\n(?=\s*(?:[-*•#|>]|\d+[.)]\s))|(?<=[:;|])\n")
_SPACE = re.compile(r"\s+")

_ENDINGS = """
s e d y n t es ed er en em et te ly al or 's ing ies ied ier ers ors est ion ions ings ment ning ation
"""
"""Endings that two forms of a short word may differ in."""
_COMMON = """
a about all also am an and any are as at be been being but by can could did do does for from had has have having he
her hers him his how i if in into is it its itself me my no nor not of on or our ours she should so some such than
that the their theirs them then there these they this those to was we were what when where which while who whom
whose why will with would you your yours tell give explain please der die das den dem des ein eine einer eines einem
einen und oder ist sind war waren wird werden wie wer wo wann warum welche welcher welches im von zu zum zur mit auf
für fur bei aus nach es er sie ich wir nicht le la les un une du de et ou est sont était etait qui que quoi quel
quelle quels quelles quand comment pourquoi dans sur pour par avec ce cette ces il elle el los las una unos unas y o
son era qué quién quien cuál cual cuándo cuando cómo como dónde donde por para con en del al lo gli che chi come
quando dove per non di da os um uma e é são foi quem onde het een van op voor met te zijn hoe wat waar wanneer welke
"""
"""Words that say nothing about the subject, in some languages of Europe."""
ENDINGS = frozenset(("", *_ENDINGS.split()))
COMMON = frozenset(_COMMON.split())


class Snippet(NamedTuple):
    """`start` and `end` delimit the snippet in the text. `highlights` are the places of matched words, anywhere in the
    text, in order and without overlaps."""

    start: int
    end: int
    highlights: tuple[Span, ...]


class Terms:
    """The words of a query, prepared for many texts."""

    def __init__(self, query: str) -> None:
        words: dict[str, None] = {}
        pairs: dict[str, None] = {}
        for run in _RUN.finditer(query):
            if run["pairs"] is None:
                words[fold(run[0])] = None
            else:
                pairs |= dict.fromkeys(_pairs(run[0]))
        telling = [word for word in words if word and word not in COMMON]
        self._words = (telling or [word for word in words if word] if not pairs else telling)[:WORDS_MOST]
        self._pairs = {pair: len(self._words) + at for at, pair in enumerate(list(pairs)[:PAIRS_MOST])}
        self._single = any(len(pair) == 1 for pair in self._pairs)
        # Forms of one word begin with the same three letters.
        self._heads: dict[str, list[int]] = {}
        for at, word in enumerate(self._words):
            self._heads.setdefault(word[:3], []).append(at)
        self._known: dict[str, int | None] = {}

    def places(self, text: str) -> list[tuple[int, int, int]]:
        """Where terms occur in the text: start, end and the number of the term, in order."""
        return list(self._places(text)) if self._words or self._pairs else []

    def _places(self, text: str) -> Iterator[tuple[int, int, int]]:
        for run in _RUN.finditer(text):
            if run["pairs"] is None:
                term = self._term(run[0])
                if term is not None:
                    yield run.start(), run.end(), term
            elif self._pairs:
                yield from self._pairs_in(run[0], run.start())

    def _pairs_in(self, run: str, start: int) -> Iterator[tuple[int, int, int]]:
        for at in range(len(run)):
            for pair in {run[at : at + 2], run[at]} if self._single else {run[at : at + 2]}:
                term = self._pairs.get(pair)
                if term is not None:
                    yield start + at, start + at + len(pair), term

    def _term(self, word: str) -> int | None:
        if word not in self._known:
            folded = fold(word)
            found = (at for at in self._heads.get(folded[:3], ()) if same_word(self._words[at], folded))
            self._known[word] = next(found, None)
        return self._known[word]


def fold(word: str) -> str:
    """The word in lower case, without accents."""
    if word.isascii():
        return word.lower()
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", word.casefold())))


def same_word(one: str, other: str) -> bool:
    """Whether two folded words are forms of one word, as far as their letters tell."""
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    if len(short) < 3 or _DIGIT.search(one) or _DIGIT.search(other):
        return False
    common = next((at for at, letter in enumerate(short) if letter != long[at]), len(short))
    rests = short[common:], long[common:]
    if common >= 5:
        return len(rests[0]) <= 3 and len(rests[1]) <= (5 if common >= 7 else 3)
    if common < 3 or len(rests[1]) > common + 1:
        return False
    # A doubled letter, as in "running", belongs to the ending.
    endings = (rest[1:] if rest[:1] == short[common - 1] and len(rest) > 1 else rest for rest in rests)
    return all(rest in ENDINGS or ending in ENDINGS for rest, ending in zip(rests, endings, strict=True))


def snippet(terms: Terms, text: str, length: int = LENGTH) -> Snippet:
    """The part of the text that has most of the terms, with whole sentences where they fit. Without any match it is
    the beginning of the text."""
    places = terms.places(text)
    units = _units(text, length)
    if not units:
        return Snippet(0, 0, ())
    first, last = _core(units, places, length) if places else (0, 0)
    start, end = _extended(text, units, first, last, length)
    return Snippet(start, end, tuple(_merged(places)))


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)] or [run]


def _units(text: str, length: int) -> list[Span]:
    """The sentences of a text, without the space around them. A sentence that is longer than a snippet is divided."""
    ends = [found.end() for found in _END.finditer(text)]
    units = []
    for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        if end - start <= length:
            units.append((start, end))
        else:
            units += _divided(text, start, end, max(1, min(PIECE, length)))
    return [unit for unit in units if unit[0] < unit[1]]


def _divided(text: str, start: int, end: int, size: int) -> Iterator[Span]:
    while end - start > size:
        cut = _word_end(text, start, start + size)
        yield start, cut
        start = cut + len(_SPACE.match(text, cut)[0]) if text[cut].isspace() else cut  # type: ignore[index]
    yield start, end


def _word_end(text: str, start: int, most: int) -> int:
    """The last place up to `most` that does not divide a word; `most` if there is none."""
    if most >= len(text) or text[most].isspace():
        return most
    spaces = [found.start() for found in _SPACE.finditer(text, start + 1, most)]
    return spaces[-1] if spaces else most


def _core(units: list[Span], places: list[tuple[int, int, int]], length: int) -> tuple[int, int]:
    """The first and last of the consecutive units that fit into the length and contain the most telling terms. A term
    tells more if it is in few units. Of equally good ones, the shortest and then the first is taken."""
    inside: list[set[int]] = [set() for _ in units]
    starts = [start for start, _ in units]
    for at, _, term in places:
        inside[bisect_right(starts, at) - 1].add(term)
    spread = Counter(term for terms in inside for term in terms)
    weights = {term: math.log(2 + len(units) / number) for term, number in spread.items()}
    best, choice = (-1.0, 0), (0, 0)
    for first in range(len(units)):
        seen: set[int] = set()
        again = together = 0.0
        for last in range(first, len(units)):
            size = units[last][1] - units[first][0]
            if last > first and size > length:
                break
            again += sum(0.1 * weights[term] for term in inside[last] if term in seen)
            seen |= inside[last]
            # Terms in one sentence tell more than the same terms in two.
            together = max(together, sum(weights[term] for term in inside[last]))
            score = sum(weights[term] for term in seen) + min(again, 1.0) + 0.3 * together
            if (round(score, 6), -size) > best:
                best, choice = (round(score, 6), -size), (first, last)
    return choice


def _extended(text: str, units: list[Span], first: int, last: int, length: int) -> Span:
    """The units, and what fits of those around them: the next ones first, since an answer often follows."""
    start, end = units[first][0], units[last][1]
    grown = True
    while grown:
        grown = False
        if last + 1 < len(units) and units[last + 1][1] - start <= length:
            last, grown = last + 1, True
            end = units[last][1]
        if first > 0 and end - units[first - 1][0] <= length:
            first, grown = first - 1, True
            start = units[first][0]
    if end - start < 0.7 * length and last + 1 < len(units):
        end = _word_end(text, units[last + 1][0], min(start + length, units[last + 1][1]))
    return start, max(start + len(text[start:end].rstrip()), units[last][1])


def _merged(places: list[tuple[int, int, int]]) -> Iterator[Span]:
    """The places, with those that touch or overlap as one."""
    current: Span | None = None
    for start, end, _ in places:
        if current is not None and start <= current[1]:
            current = current[0], max(end, current[1])
        else:
            if current is not None:
                yield current
            current = start, end
    if current is not None:
        yield current
