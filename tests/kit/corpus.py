"""The real documents beside the checkout, and what is known of each."""

import hashlib
import random
from pathlib import Path
from typing import NamedTuple

from penstock.app import App

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
LIST = Path(__file__).parents[1] / "acceptance" / "corpus.tsv"


class End(NamedTuple):
    """How a file ends: its status, the reason if it failed, its pages, and the number of characters on them."""

    name: str
    status: str
    reason: str
    pages: int
    characters: int


def files() -> list[Path]:
    return sorted(path for path in CORPUS.glob("*/*") if path.is_file())


async def ends(app: App) -> list[End]:
    """How the documents of an app ended, by their name in the corpus."""
    found = []
    letters = {letter.document_id: letter.reason for letter in (await app.list_dead_letters(limit=1000)).letters}
    for document in await app.list_documents(limit=10_000):
        if "!/" in document.source:
            continue
        path = Path(document.source)
        pages = [page async for page in app.show(document.id, "pages")] if document.pages else []
        characters = sum(len(page.text.strip()) for page in pages)
        name = f"{path.parent.name}/{path.name}"
        found.append(End(name, str(document.status), letters.get(document.id, ""), document.pages or 0, characters))
    return sorted(found)


def expected() -> dict[str, End]:
    rows = (line.split("\t") for line in LIST.read_text(encoding="utf-8").splitlines()[1:])
    return {name: End(name, status, reason, int(pages), int(least)) for name, status, reason, pages, least in rows}


def mutated(data: bytes, seed: str) -> bytes:
    """A copy of a file with random damage, the same for the same seed."""
    random_ = random.Random(hashlib.sha256(seed.encode()).digest())
    changed = bytearray(data)
    match random_.randrange(5):
        case 0:
            for _ in range(1 + len(changed) // 2000):
                changed[random_.randrange(len(changed))] = random_.randrange(256)
        case 1:
            del changed[random_.randrange(len(changed)) :]
        case 2:
            begin = random_.randrange(len(changed))
            del changed[begin : begin + random_.randrange(1, 4096)]
        case 3:
            begin, at = random_.randrange(len(changed)), random_.randrange(len(changed))
            changed[at:at] = changed[begin : begin + random_.randrange(1, 4096)]
        case _:
            begin = random_.randrange(len(changed))
            changed[begin : begin + 64] = random_.choice([bytes(64), b"\xff" * 64, b"9" * 64, b"<" * 64])
    return bytes(changed)
