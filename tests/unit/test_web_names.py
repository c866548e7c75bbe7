import pytest

from penstock.sources.robots import parse
from penstock.sources.web_names import name_of, resume_condition, revision_of, source_uri

DAY = 86_400.0
OLD = "Wed, 01 Jan 2020 00:00:00 GMT"


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("https://Example.com/A.pdf?b=1&a=2#page=3", "https://example.com/A.pdf?b=1&a=2"),
        ("https://user:sesame@example.com/a", "https://example.com/a"),
        ("https://sesame@example.com:8443/a", "https://example.com:8443/a"),
        ("https://b.s3.amazonaws.com/a?X-Amz-Signature=sesame&X-Amz-Date=2020&v=1", "https://b.s3.amazonaws.com/a?v=1"),
        ("https://x.blob.core.windows.net/c/a?sv=2020&se=2021&sig=sesame", "https://x.blob.core.windows.net/c/a"),
        ("https://example.com/a?se=1&sv=2", "https://example.com/a?se=1&sv=2"),
    ],
)
def test_a_source_uri_has_no_secret_and_is_the_same_for_a_url_that_is_signed_anew(url: str, uri: str) -> None:
    assert source_uri(url) == uri


def test_documents_that_differ_only_in_a_secret_stay_different() -> None:
    one, other = (source_uri(f"https://example.com/share?token={token}&x=1") for token in ("sesame", "mustard"))
    assert one != other
    assert "sesame" not in one
    assert one == source_uri("https://example.com/share?token=sesame&x=1")


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('attachment; filename="report.pdf"', "report.pdf"),
        ("attachment; filename*=UTF-8''%e2%82%ac%20rates.pdf", "€ rates.pdf"),
        ('attachment; filename="../../etc/passwd"', "passwd"),
        (r'attachment; filename="C:\\docs\\a.txt"', "a.txt"),
        ('attachment; filename="a\x1b[31m\u202etxt.exe"', "a[31mtxt.exe"),
        ('attachment; filename="' + "x" * 500 + '.pdf"', "x" * 196 + ".pdf"),
        ('attachment; filename=".."', "page.html"),
        ("inline", "page.html"),
    ],
)
def test_the_name_of_a_header_is_only_a_name(disposition: str, name: str) -> None:
    assert name_of("https://e.com/x/page.html", {"content-disposition": disposition}) == name


@pytest.mark.parametrize(
    ("url", "kind", "final", "name"),
    [
        ("https://e.com/a%20b.pdf?x=1", "", None, "a b.pdf"),
        ("https://e.com/download?id=5", "application/pdf", None, "download.pdf"),
        ("https://e.com/download?id=5", "", "https://cdn.e.com/report.docx?sig=1", "report.docx"),
        ("https://docs.e.com/", "text/html; charset=utf-8", None, "docs-e-com.html"),
        ("https://e.com/a%2F..%2Fb", "", None, "b"),
    ],
)
def test_the_name_of_a_url(url: str, kind: str, final: str | None, name: str) -> None:
    assert name_of(url, {"content-type": kind}, final) == name


def test_only_what_proves_equal_bytes_is_a_revision() -> None:
    assert revision_of({"etag": 'W/"1"', "last-modified": OLD}, 0) == 'etag W/"1"'
    assert revision_of({"last-modified": OLD, "content-length": "7"}, 2e9) == f"modified {OLD} 7"
    assert revision_of({"last-modified": OLD, "date": OLD}, 2e9) == "", "it may change again within this second"
    assert revision_of({"last-modified": "yesterday"}, 2e9) == revision_of({}, 2e9) == ""
    assert resume_condition({"etag": '"1"'}, 0) == '"1"'
    assert resume_condition({"etag": 'W/"1"'}, 0) is None, "a weak ETag allows other bytes"
    assert resume_condition({"last-modified": OLD}, 2e9) == OLD
    assert resume_condition({"last-modified": OLD, "date": OLD}, 2e9) is None


ROBOTS = """\
# a comment
User-agent: other
Disallow: /

User-agent: Penstock
User-agent: helper
Disallow: /private/     # not here
Allow: /private/open
Disallow: /*.zip$
Disallow: /x*y*z
Crawl-delay: 2

User-agent: *
Disallow: /
"""


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", True),
        ("/private/a", False),
        ("/privat%65/a", False),
        ("/private/open/a", True),
        ("/a.zip", False),
        ("/a.zip?x=1", True),
        ("/x/y/z", False),
        ("/xz", True),
    ],
)
def test_the_longest_rule_of_the_own_group_decides(path: str, allowed: bool) -> None:
    assert parse(ROBOTS).allow(f"https://example.com{path}") is allowed


def test_robots_of_all_kinds() -> None:
    assert parse(ROBOTS).delay_s == 2
    assert not parse("User-agent: *\nDisallow: /").allow("https://example.com/a")
    assert parse("User-agent: *\nDisallow:").allow("https://example.com/a")
    assert parse("<html>not found</html>").allow("https://example.com/a")
    assert parse("User-agent: penstock\nAllow: /\nUser-agent: *\nDisallow: /").allow("https://example.com/a")
    assert parse("User-agent: *\nCrawl-delay: 1e9").delay_s == 60
    hostile = parse("User-agent: *\nDisallow: /" + "*a" * 5000 + "$")
    assert hostile.allow("https://example.com/" + "a" * 4000)
