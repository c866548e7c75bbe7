"""Errors of code that is not ours, read without harm."""

import pytest

from penstock import user_code
from penstock.errors import Permanent
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.store import Ledger

_ECHO = Statement("SELECT :one || ''")
_ROWS = Statement("SELECT r.one || '' FROM {rows}", rows="one text")


@pytest.mark.parametrize(
    ("text", "taken"), [("a\0b", r"a\x00b"), ("caf\udce9", r"caf\udce9"), ("plain é 😀 \\x00", "plain é 😀 \\x00")]
)
async def test_a_database_is_given_only_text_that_it_takes(ledger: Ledger, text: str, taken: str) -> None:
    assert user_code.clean(text) == taken
    if ledger.database.dialect == "sqlite" and "\0" in text:
        # It takes NUL, and errors are cleaned before.
        return
    assert await ledger.read(lambda c: c.run(_ECHO, one=text)) == [(taken,)]
    assert await ledger.read(lambda c: c.run(_ROWS, [("x",), (text,)])) == [("x",), (taken,)]


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    said = user_code.sentence(ValueError("begin " + "x" * 10**6 + " end"))
    assert len(said) < 2100
    assert said.startswith("ValueError: begin")
    assert said.endswith("end")


def test_what_was_raised_on_purpose_has_no_traceback() -> None:
    assert user_code.trace(Permanent("no", reason="no")) is None
    assert "ZeroDivisionError" in (user_code.trace(ZeroDivisionError()) or "")
    assert user_code.sentence(Permanent("", reason="no")) == "Permanent"
