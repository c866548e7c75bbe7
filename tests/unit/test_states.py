"""The two state machines: one table in the model, drawn in the docs, enforced by the ledger."""

import pytest
from scripts import states as drawing

from penstock.ledger.database.migrations import m0001_initial, m0032_held
from penstock.model.states import (
    DOCUMENT_TRANSITIONS,
    ENDS,
    SHOWN_AS,
    STEP_TRANSITIONS,
    WORKING,
    DocumentStatus,
    StepStatus,
)
from penstock.stages.registry import KINDS


def pairs(transitions: object) -> set[str]:
    assert isinstance(transitions, dict)
    return {f"{old}>{new}" for old, new in transitions}


def test_the_docs_are_what_the_tables_draw() -> None:
    assert drawing.PAGE.read_text(encoding="utf-8") == drawing.draw(), "run `python scripts/states.py`"


@pytest.mark.parametrize(
    ("listed", "table"),
    [
        (m0032_held.DOCUMENT_TRANSITIONS, DOCUMENT_TRANSITIONS),
        (m0001_initial.STEP_TRANSITIONS, STEP_TRANSITIONS),
    ],
    ids=["documents", "steps"],
)
def test_the_ledger_enforces_exactly_the_tables(listed: list[str], table: object) -> None:
    assert set(listed) == pairs(table)
    assert len(listed) == len(set(listed))


def test_the_page_names_every_state_and_every_transition() -> None:
    page = drawing.draw()
    for machine in (DOCUMENT_TRANSITIONS, STEP_TRANSITIONS):
        for (old, new), verb in machine.items():
            assert f"    {old} --> {new}: {verb}\n" in page


def test_every_status_can_be_reached_and_only_ends_are_ends() -> None:
    assert {new for _, new in DOCUMENT_TRANSITIONS} == set(DocumentStatus)
    assert {new for _, new in STEP_TRANSITIONS} == set(StepStatus)
    assert set(ENDS) | set(WORKING) | {DocumentStatus.PENDING, DocumentStatus.HELD} == set(DocumentStatus)
    for old, new in DOCUMENT_TRANSITIONS:
        assert old not in ENDS or new in (DocumentStatus.PENDING, DocumentStatus.HELD)
        assert new != DocumentStatus.PENDING or old in (*ENDS, DocumentStatus.HELD)


def test_every_kind_that_ships_shows_as_a_working_status() -> None:
    assert set(KINDS) <= set(SHOWN_AS)
    assert set(SHOWN_AS.values()) == set(WORKING)
