"""The glossary names files, tables and names that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
ROWS = [
    row.split(" | ")
    for row in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    if row.startswith("| ") and not row.startswith("| term |")
]
SCHEMA = (SOURCE / "ledger" / "database" / "schema.sql").read_text(encoding="utf-8")


def test_every_term_is_defined_once() -> None:
    terms = [row[0].removeprefix("| ") for row in ROWS]
    assert len(terms) > 80
    assert [term for term in set(terms) if terms.count(term) > 1] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0].removeprefix("| ")))
def test_the_place_of_a_term_exists(row: list[str]) -> None:
    place = row[-1]
    for path in re.findall(r"`([\w/]+(?:\.py|/))`", place):
        assert (SOURCE / path).exists(), path
    for names, path in re.findall(r"((?:`[\w.]+`(?:, )?)+) in `([\w/]+\.py)`", place):
        text = (SOURCE / path).read_text(encoding="utf-8")
        for name in re.findall(r"[\w.]+", names):
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", text), f"{name} is not in {path}"
    for table in re.findall(r"\btable `(\w+)`", place):
        assert re.search(rf'CREATE TABLE "?{table}\b', SCHEMA), table
    for table, column in re.findall(r"`(\w+)\.(\w+)`", place):
        created = re.search(rf'CREATE TABLE "?{table}\b.*?;\n', SCHEMA, re.S)
        assert created is None or re.search(rf"\b{column}\b", created[0]), f"{table}.{column}"
