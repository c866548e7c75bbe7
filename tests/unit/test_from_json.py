"""Structs that come back from JSON as they were."""

import json
from typing import Any

import msgspec
import pytest

from penstock.model.items import Block, Page, Skip
from penstock.model.nouns import DocumentId, StepView
from penstock.model.states import DocumentStatus, StepStatus
from penstock.search.results import Hit, Passage, ScoreParts
from penstock.verbs.as_json import as_data, encode
from penstock.verbs.from_json import restored
from penstock.verbs.usage import Sum, Usage
from penstock.verbs.views import DocumentDetails, DocumentProgress

STEP = StepView("extract", "extract", StepStatus.RUNNING, 1, None, 1.5, None, {"created_at": "2020-01-01"}, 2.25)
DETAILS = DocumentDetails(
    id=DocumentId("01M7GZQJXCK1BXB2ZYP1YTP0G8"), name="a.txt", source="/a.txt", collection="default",
    status=DocumentStatus.FAILED, media_type=None, size=3, pages=None, chunks=2, searchable=False, stale=True,
    error="e", created_at=1795063502.125, metadata={"created_at": "2020-01-01T00:00:00Z", "year": 2020}, parent=None,
    attempts=2, retry_count=1, artifacts_dropped_at=None,
    progress=DocumentProgress(DocumentStatus.EXTRACTING, 1, None, 2, None, 0, 0, 1795063502.0), steps=[STEP],
    usage=Usage(Sum(1, 2, 0.5), Sum(), Sum(), Sum()),
)  # fmt: skip
VALUES = [
    STEP,
    DETAILS,
    Page(1, "text", None, (Block("heading", 0, 4, 1, "Dam"),), ("Dam",), Skip("bad_page", "why"), 87.5),
    Hit(
        0.5, "D", "n", 1, 2, 0, 4, "text", {"a": [1]}, ("Dam",), "/n", highlights=((0, 2), (3, 4)),
        before=(Passage(0, 1, 1, 0, 4, "x", ()),), explain=ScoreParts(None, 1.0, None, 0.5, 0.25), pages_skipped=(3,),
    ),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda one: type(one).__name__)
def test_a_struct_comes_back_as_it_was(value: msgspec.Struct) -> None:
    assert restored(json.loads(encode(as_data(value))), type(value)) == value


def test_times_in_metadata_stay_texts() -> None:
    back = restored(json.loads(encode(as_data(DETAILS))), DocumentDetails)
    assert back.metadata["created_at"] == "2020-01-01T00:00:00Z"
    assert back.created_at == DETAILS.created_at


def test_fields_of_a_newer_server_are_ignored_and_those_of_an_older_one_have_their_defaults() -> None:
    data = json.loads(encode(as_data(STEP)))
    assert restored({**data, "new": 1}, StepView) == STEP
    del data["retry_at"]
    assert restored(data, StepView) == STEP


@pytest.mark.parametrize("data", [None, 3, [], "x", {}, {"name": "x"}, [[]], {"steps": 3}])
def test_what_does_not_fit_is_an_error(data: Any) -> None:
    with pytest.raises(ValueError, match="this is no DocumentDetails"):
        restored(data, DocumentDetails)
