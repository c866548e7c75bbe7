"""Small notes of made words: 20,000 of them have 9.3 MB. Words follow Zipf's law, as in real text; the same every
time."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

NOTES = 20_000
_TYPES = 24_000
_ONSETS = "b c d f g h j k l m n p r s t v w br ch cl cr dr fl gr pl pr sh sl sp st str th tr wh".split()  # noqa: SIM905
_VOWELS = "a e i o u ai ea ee oa ou".split()  # noqa: SIM905
_ENDS = ["", "", "", "n", "r", "s", "t", "l", "d", "m", "ck", "ng", "nd", "st", "rt"]
_COMMON = (
    "the of and to a in is it that for on was with as be by at from this are or an not we have had but they".split()  # noqa: SIM905
)


def write(folder: Path, count: int = NOTES) -> int:
    """Write notes into folders of 500. Returns their bytes."""
    total = 0
    for number, text in enumerate(itertools.islice(_notes(), count)):
        place = folder / f"{number // 500:03}"
        if number % 500 == 0:
            place.mkdir(parents=True, exist_ok=True)
        total += (place / f"note-{number:05}.md").write_bytes(text.encode())
    return total


def _notes() -> Iterator[str]:
    chance = random.Random(17)
    words = _vocabulary(chance)
    weights = [*itertools.accumulate(1 / (rank + 2.7) for rank in range(len(words)))]
    while True:
        title = " ".join(chance.choices(words, cum_weights=weights, k=chance.randint(2, 6))).capitalize()
        sentences = []
        for _ in range(max(2, round(chance.lognormvariate(1.5, 0.35)))):
            picked = chance.choices(words, cum_weights=weights, k=chance.randint(6, 22))
            sentences.append(" ".join(picked).capitalize() + ".")
        yield f"# {title}\n\n{' '.join(sentences)}\n"


def _vocabulary(chance: random.Random) -> list[str]:
    """Common words first, then made ones; rare words are longer."""
    found = dict.fromkeys(_COMMON)
    while len(found) < _TYPES:
        syllables = 1 + (len(found) > 300) * chance.randint(0, 1) + (len(found) > 6000)
        parts = (chance.choice(_ONSETS) + chance.choice(_VOWELS) + chance.choice(_ENDS) for _ in range(syllables))
        found["".join(parts)] = None
    return [*found]
