"""The settings of a run: which differences concern a document of some media type."""

import pytest

from penstock.model.settings import join, same

OLD = join("whole-1", "base-1", {"text/html": "html-1", "application/pdf": "pdf-1"})
NEW_HTML = join("whole-2", "base-1", {"text/html": "html-2", "application/pdf": "pdf-1"})
NEW_BASE = join("whole-3", "base-2", {"text/html": "html-1", "application/pdf": "pdf-1"})
WITHOUT_PDF = join("whole-4", "base-1", {"text/html": "html-1"})


@pytest.mark.parametrize(
    ("new", "media_type", "expected"),
    [
        (OLD, None, True),
        (OLD, "text/html", True),
        (NEW_HTML, "text/html", False),
        (NEW_HTML, "application/pdf", True),
        (NEW_HTML, "image/png", True),
        (NEW_HTML, None, False),
        (NEW_BASE, "text/html", False),
        (NEW_BASE, "image/png", False),
        (WITHOUT_PDF, "application/pdf", False),
        (WITHOUT_PDF, "text/html", True),
    ],
)
def test_only_the_version_of_its_own_format_counts(new: str, media_type: str | None, expected: bool) -> None:
    assert same(OLD, new, media_type) is expected
    assert same(new, OLD, media_type) is expected


@pytest.mark.parametrize("media_type", [None, "text/html", "application/pdf"])
def test_a_value_of_an_earlier_release_is_compared_as_a_whole(media_type: str | None) -> None:
    assert same("whole-1", OLD, media_type)
    assert not same("whole-1", NEW_HTML, media_type)
    assert same("today", "today", media_type)
    assert not same("today", "tomorrow", media_type)


def test_the_order_of_formats_does_not_matter() -> None:
    assert join("whole-1", "base-1", {"application/pdf": "pdf-1", "text/html": "html-1"}) == OLD
