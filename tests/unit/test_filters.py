"""Filters: what they accept, what they refuse, and the form of the command line."""

import json
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.search.filters import Fields, compiled, parsed

META = {"author": "ann", "year": 2020, "tags": ["a", "b"], "draft": True, "none": None, "created": "2021-05-03"}


def fields(meta: dict[str, Any] | None = None, found: dict[str, Any] | None = None) -> Fields:
    origins = (json.dumps(META if meta is None else meta), json.dumps(found) if found else None)
    return Fields(
        "01ID", "default", "report.pdf", "/data/reports/report.pdf", "application/pdf", 10, "COMPLETED", 3, 0.0, origins
    )


@pytest.mark.parametrize(
    ("given", "matches"),
    [
        ({"author": "ann"}, True),
        ({"author": {"$ne": "ann"}}, False),
        ({"year": {"$gte": 2020, "$lt": 2021}}, True),
        ({"year": "2020"}, False),
        ({"year": 2020.0}, True),
        ({"draft": True}, True),
        ({"draft": 1}, False),
        ({"none": None}, True),
        ({"missing": None}, False),
        ({"tags": "b"}, True),
        ({"tags": ["a", "b"]}, True),
        ({"tags": {"$in": ["x", "b"]}}, True),
        ({"tags": {"$nin": ["a"]}}, False),
        ({"tags": {"$ne": "a"}}, False),
        ({"missing": {"$ne": 1}}, True),
        ({"missing": {"$nin": [1]}}, True),
        ({"missing": {"$exists": False}}, True),
        ({"missing": {"$not": {"$gt": 1}}}, True),
        ({"missing": {"$lt": 1}}, False),
        ({"year": {"$gt": "1999"}}, False),
        ({"created": {"$gte": "2021"}}, True),
        ({"$or": [{"author": "bob"}, {"year": 2020}]}, True),
        ({"$and": [{"author": "bob"}, {"year": 2020}]}, False),
        ({"$not": {"author": "bob"}}, True),
        ({"path": "*/reports/*"}, True),
        ({"path": "reports/*.pdf"}, True),
        ({"path": "ports/*.pdf"}, False),
        ({"name": {"$in": ["*.txt", "r?port.pdf"]}}, True),
        ({"type": "application/pdf", "id": "01ID", "collection": "default"}, True),
        ({"submitted": {"$lt": "1970-01-02"}}, True),
        ({"author": "a*"}, False),
        ({}, True),
    ],
)
def test_a_filter_compares_by_type(given: dict[str, Any], matches: bool) -> None:
    assert compiled(given)(fields()) is matches


def test_a_submitted_value_hides_the_one_that_was_found() -> None:
    one = fields({"title": "mine"}, {"title": "theirs", "pages": 3, "language": "en"})
    assert compiled({"title": "mine", "language": "en"})(one)
    assert not compiled({"title": "theirs"})(one)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("author=ann", {"author": {"$eq": "ann"}}),
        ("author = 'ann b'", {"author": {"$eq": "ann b"}}),
        ("year>=2020", {"year": {"$gte": 2020}}),
        ("year != 2020", {"year": {"$ne": 2020}}),
        ("id=007", {"id": {"$eq": "007"}}),
        ("code='42'", {"code": {"$eq": "42"}}),
        ("title=a, b (c)", {"title": {"$eq": "a, b (c)"}}),
        ("tag in (a, 'b, c', 3)", {"tag": {"$in": ["a", "b, c", 3]}}),
        ("tag not in (a)", {"tag": {"$nin": ["a"]}}),
        ("tag exists", {"tag": {"$exists": True}}),
        ("tag missing", {"tag": {"$exists": False}}),
        ("created>=2020", {"created": {"$gte": "2020"}}),
        ("draft=true", {"draft": {"$eq": True}}),
        ('{"$or": [{"a": 1}, {"b": 2}]}', {"$or": [{"a": 1}, {"b": 2}]}),
    ],
)
def test_the_command_line_has_a_short_form(text: str, means: dict[str, Any]) -> None:
    assert parsed([text]) == means


def test_several_filters_must_all_hold() -> None:
    assert parsed(["a=1", "b=2"]) == {"$and": [{"a": {"$eq": 1}}, {"b": {"$eq": 2}}]}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "character 1"),
        ("author", "character 7"),
        ("author=", "character 8"),
        ("tag in a", "character 8"),
        ("tag in (a", "character 10"),
        ("tag in (a) x", "character 11"),
        ("a exists b", "character 10"),
        ("'a' = 'b' c", "character 1"),
        ('{"a": ', "not JSON"),
    ],
)
def test_a_malformed_filter_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(UsageError, match=place):
        parsed([text])


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"a": {"$like": 1}}, r"filter\.a\.\$like"),
        ({"$or": []}, r"filter\.\$or"),
        ({"$or": [{"a": 1}, {"b": {"$gt": None}}]}, r"filter\.\$or\[1\]\.b\.\$gt"),
        ({"a": {"$in": "ab"}}, r"filter\.a\.\$in"),
        ({"a": {"$exists": 1}}, r"filter\.a\.\$exists"),
        ({"a": float("nan")}, r"filter\.a"),
        ({"a": {1, 2}}, r"filter\.a"),
        ({"$where": "1"}, r"filter\.\$where"),
        ({1: 2}, "name of a field"),
        ([], "expected a mapping"),
        ({"a": {"$in": list(range(2000))}}, "at most 1,000"),
    ],
)
def test_a_wrong_filter_is_refused_with_its_place(given: Any, place: str) -> None:
    with pytest.raises(UsageError, match=place):
        compiled(given)


def test_a_deeply_nested_filter_is_refused() -> None:
    given: dict[str, Any] = {"a": 1}
    for _ in range(5000):
        given = {"$not": given}
    with pytest.raises(UsageError, match="nested"):
        compiled(given)
