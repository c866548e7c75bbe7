"""What is read of a PDF: text, labels, headings; and what is said of one that cannot be read."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kit.pdfs import Entry, Lock, Pages, Pdf, numbered, page, pdf, string

from penstock.errors import Permanent, StepError
from penstock.extractors import pdf_pages
from penstock.model.items import Block, Page

Write = Callable[[bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    count = 0

    def write(data: bytes) -> str:
        nonlocal count
        count += 1
        path = tmp_path / f"{count}.pdf"
        path.write_bytes(data)
        return str(path)

    yield write
    while pdf_pages._documents:
        pdf_pages._documents.popitem()[1].close()


def read(path: str, password: str | None, first: int, count: int) -> tuple[int, list[Page]]:
    with open(path, "rb") as file:
        part = pdf_pages.read(file, password, first, count)
        return part.total, part.pages


def one(path: str) -> Page:
    _, [only] = read(path, None, 0, 8)
    return only


def refusal(path: str, password: str | None = None, first: int = 0) -> StepError:
    with pytest.raises(StepError) as refused:
        read(path, password, first, 8)
    return refused.value


def test_pages_are_read_from_anywhere_and_no_further_than_the_end(write: Write) -> None:
    path = write(pdf(*numbered(20)))
    total, pages = read(path, None, 17, 8)
    assert (total, [p.number for p in pages]) == (20, [18, 19, 20])
    assert pages[0].text == "Page 18 tells of subject18\nand of matter18 at some length."
    assert read(path, None, 20, 8) == (20, [])
    assert read(path, None, 0, 2)[1] == [p for i in range(2) for p in read(path, None, i, 1)[1]]


def test_labels_are_those_that_readers_show(write: Write) -> None:
    path = write(pdf(*numbered(5), labels=b"0 <</S /r>> 2 <</S /D /St 7 /P (A-)>> 4 <</S /A>>"))
    assert [p.label for p in read(path, None, 0, 8)[1]] == ["i", "ii", "A-7", "A-8", "A"]
    assert one(write(pdf(page("no labels")))).label is None


def test_a_label_or_a_title_that_is_no_text_costs_only_itself(write: Write) -> None:
    outline = [Entry("Before", 0), Entry("half a pair \ud800", 0), Entry("", 0), Entry("After", 0)]
    labels = b"0 <</P <feffd800> /S /D>> 1 <</S /D /St 2>>"
    _, pages = read(write(pdf(*numbered(2), labels=labels, outline=outline)), None, 0, 8)
    assert [p.label for p in pages] == [None, "2"]
    assert [block.title for block in pages[0].blocks] == ["Before", "After"]


def test_line_ends_and_marks_of_pdfium_become_text(write: Write) -> None:
    text = one(write(pdf(page("This is a won-", "derful end of", "a line - and", "an ex-king")))).text
    assert text == "This is a won-\nderful end of\na line - and\nan ex-king"


def headings(write: Write, lines: list[str], *titles: str) -> list[tuple[str, str]]:
    """(title, the text where it was found)."""
    found = one(write(pdf(page(*lines), outline=[Entry(title, 0) for title in titles])))
    assert all(block.kind == "heading" for block in found.blocks)
    return [(block.title, found.text[block.start : block.end]) for block in found.blocks]


def test_headings_stand_where_their_titles_do(write: Write) -> None:
    lines = ["Running head", "INTRODUCTION", "words", "2.1 Methods", "iv. Results", "more words of Findings",
             "A title that goes on", "over three", "lines", "Notes on this"]  # fmt: skip
    assert headings(
        write, lines, "Introduction", "Methods", "Results", "A title that goes on over three lines", "Notes", "Findings"
    ) == [
        ("Findings", ""),
        ("Introduction", "INTRODUCTION"),
        ("Methods", "2.1 Methods"),
        ("Results", "iv. Results"),
        ("A title that goes on over three lines", "A title that goes on\nover three\nlines"),
        ("Notes", "Notes on this"),
    ]


def test_a_line_of_its_own_goes_before_one_that_only_begins_so(write: Write) -> None:
    lines = ["Notes on this", "Notes", "Methods", "Notes"]
    found = one(write(pdf(page(*lines), outline=[Entry("Notes", 0), Entry("Methods", 0), Entry("Notes", 0)])))
    starts = [(block.title, found.text[: block.start].count("\n")) for block in found.blocks]
    assert starts == [("Notes", 1), ("Methods", 2), ("Notes", 3)], "each title after the one before it"


def test_an_outline_may_have_another_order_than_the_text(write: Write) -> None:
    assert headings(write, ["First", "Second"], "Second", "First") == [("First", "First"), ("Second", "Second")]
    outline = [Entry("Appendix", 2), Entry("Preface", 0), Entry("Body", 1)]
    _, pages = read(write(pdf(*numbered(3), outline=outline)), None, 0, 8)
    assert [[block.title for block in p.blocks] for p in pages] == [["Preface"], ["Body"], ["Appendix"]]
    assert [p.path for p in pages] == [(), ("Preface",), ("Body",)]


def test_a_title_that_is_broken_over_more_lines_than_headings_are_is_none(write: Write) -> None:
    assert headings(write, ["one", "two", "three", "four", "five"], "one two three four five") == [
        ("one two three four five", "")
    ]


def test_the_path_is_what_is_open_where_a_page_begins(write: Write) -> None:
    outline = [
        Entry("One", 0, [Entry("One a", 1), Entry("One b", 1, [Entry("deep", 2)])]),
        Entry("leads nowhere", None, [Entry("but its child does", 3)]),
        Entry("Two", 5),
    ]
    total, pages = read(write(pdf(*numbered(7), outline=outline)), None, 0, 8)
    assert total == 7
    assert [p.path for p in pages] == [
        (),
        ("One",),
        ("One", "One b"),
        ("One", "One b", "deep"),
        ("One", "but its child does"),
        ("One", "but its child does"),
        ("Two",),
    ]
    assert pages[1].blocks == (Block("heading", 0, 0, 2, "One a"), Block("heading", 0, 0, 2, "One b"))
    assert read(write(pdf(*numbered(7), outline=outline)), None, 5, 1)[1] == [pages[5]], "from the middle too"


def test_a_bookmark_may_lead_to_its_page_by_an_action(write: Write) -> None:
    made = Pages(contents=numbered(3))
    entry, root = made.reserve(), made.reserve()
    made.catalog = b"/Outlines %d 0 R" % root
    made.add(b"<</First %d 0 R /Last %d 0 R /Count 1>>" % (entry, entry), root)
    # `write` numbers catalog, tree and font next, and then each page before its content.
    second = root + 3 + 3
    action = b"<</S /GoTo /D [%d 0 R /Fit]>>" % second
    made.add(b"<</Title %b /Parent %d 0 R /A %b>>" % (string("Jump"), root, action), entry)
    assert [len(p.blocks) for p in read(write(made.write()), None, 0, 8)[1]] == [0, 1, 0]


def test_an_outline_that_loops_ends(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    made = Pages(contents=numbered(2))
    root, first, second = made.reserve(), made.reserve(), made.reserve()
    made.catalog = b"/Outlines %d 0 R" % root
    made.add(b"<</First %d 0 R /Last %d 0 R>>" % (first, second), root)
    page_one = second + 4
    made.add(b"<</Title (A) /Dest [%d 0 R /Fit] /Next %d 0 R /First %d 0 R>>" % (page_one, second, root), first)
    made.add(b"<</Title (B) /Dest [%d 0 R /Fit] /Next %d 0 R /First %d 0 R>>" % (page_one, first, first), second)
    _, pages = read(write(made.write()), None, 0, 8)
    assert {block.title for block in pages[0].blocks} == {"A", "B"}


def test_an_outline_without_end_is_cut(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_pages, "MOST_HEADINGS", 3)
    found = one(write(pdf(page("x"), outline=[Entry(f"title {'long ' * 100}{i}", 0) for i in range(9)])))
    assert [len(block.title) for block in found.blocks] == [pdf_pages.LONGEST_TITLE] * 3


@pytest.mark.parametrize("revision", [2, 3])
def test_passwords(write: Write, revision: int) -> None:
    locked = write(pdf(*numbered(2), lock=Lock(b"sesame", b"boss", revision)))
    missing, wrong = refusal(locked), refusal(locked, "barley")
    assert (missing.reason, wrong.reason) == ("encrypted", "encrypted")
    assert "it is locked by a password" in str(missing)
    assert "the password that was given does not open it" in str(wrong)
    assert "barley" not in str(wrong)
    plain = read(write(pdf(*numbered(2))), None, 0, 8)
    for password in ("sesame", "boss"):
        assert read(locked, password, 0, 8) == plain
    only_owner = write(pdf(*numbered(2), lock=Lock(b"", b"boss", revision)))
    assert read(only_owner, None, 0, 8) == plain
    umlauts = write(pdf(*numbered(2), lock=Lock("päß".encode("latin-1"), b"boss", revision)))
    assert read(umlauts, "päß", 0, 8) == plain


def test_a_lock_that_is_unknown_is_said_to_be_one(write: Write) -> None:
    data = pdf(*numbered(1), lock=Lock()).replace(b"/Filter /Standard", b"/Filter /Stranger")
    refused = refusal(write(data))
    assert (refused.reason, "without protection" in str(refused)) == ("encrypted", True)


WHOLE = pdf(*numbered(30))


@pytest.mark.parametrize(
    "data",
    [b"", b"%PDF-1.7\n", WHOLE[: len(WHOLE) // 2], b"%PDF-1.4\n" + bytes(range(256)) * 40, WHOLE[2000:4000]],
    ids=["empty", "header", "half", "noise", "middle"],
)
def test_what_is_no_pdf_any_more_is_damaged(write: Write, data: bytes) -> None:
    refused = refusal(write(data))
    assert isinstance(refused, Permanent)
    assert (refused.reason, refused.page) == ("damaged", None)
    assert "damaged beyond reading" in str(refused)


def test_a_file_without_pages_is_damaged_whatever_failed_before_it(write: Write) -> None:
    for _ in range(2):
        refused = refusal(write(pdf()))
        assert (refused.reason, "it has no pages" in str(refused)) == ("damaged", True)
        assert refusal(write(pdf(*numbered(1), lock=Lock(b"sesame")))).reason == "encrypted"


@pytest.mark.parametrize("page_object", [None, b"<</Type /Font>>", b"(a string)"], ids=["missing", "other", "string"])
def test_a_broken_page_is_named(write: Write, page_object: bytes | None) -> None:
    made = Pages(contents=[*numbered(2), None, *numbered(1)])
    made.stand_in = page_object
    path = write(made.write())
    refused = refusal(path)
    assert (refused.reason, refused.page) == ("damaged", 3)
    assert str(refused).startswith("page 3 of 4 cannot be read")
    assert [p.number for p in read(path, None, 0, 2)[1]] == [1, 2]
    assert [p.number for p in read(path, None, 3, 1)[1]] == [4]


def test_i12_a_missing_page_does_not_shift_the_pages_that_are_read_after_it(write: Write) -> None:
    """PDFium returned page 40 as page 4 when it was asked for pages in this order, after one that it could not load."""
    holes = {2, 19, 20, 38}
    path = write(pdf(*(None if index in holes else content for index, content in enumerate(numbered(40)))))
    order = list(range(40))
    for seed in range(8):
        random.Random(seed).shuffle(order)
        for index in order:
            if index in holes:
                with pytest.raises(Permanent, match=f"page {index + 1} of 40"):
                    read(path, None, index, 1)
            else:
                _, [found] = read(path, None, index, 1)
                assert found.text.startswith(f"Page {index + 1} "), (seed, index)


def test_a_page_tree_that_loops_or_lies_ends(write: Write) -> None:
    made = Pdf()
    catalog, root, inner = made.reserve(), made.reserve(), made.reserve()
    made.add(b"<</Type /Catalog /Pages %d 0 R>>" % root, catalog)
    made.add(b"<</Type /Pages /Count 4 /Kids [%d 0 R %d 0 R]>>" % (inner, root), root)
    made.add(b"<</Type /Pages /Count 2 /Parent %d 0 R /Kids [%d 0 R %d 0 R]>>" % (root, root, inner), inner)
    refused = refusal(write(made.close(catalog)))
    assert refused.reason == "damaged"
    assert refusal(write(pdf(*numbered(2), count=5))).page == 3


def test_a_missing_table_of_objects_is_made_again(write: Write) -> None:
    mended, sound = read(write(pdf(*numbered(9), table=False)), None, 0, 9), read(write(pdf(*numbered(9))), None, 0, 9)
    assert mended == sound


def test_a_scan_has_pages_without_text(write: Write) -> None:
    made = Pages(contents=[b"q 100 0 0 100 0 0 cm /I Do Q"] * 2)
    made.resources = b"/XObject <</I %d 0 R>>" % made.image()
    assert [p.text for p in read(write(made.write()), None, 0, 8)[1]] == ["", ""]


def test_few_documents_are_kept_open_and_a_long_one_is_opened_anew(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    open_one = pdf_pages._open

    def counting(content: pdf_pages._Bytes, password: str | None) -> object:
        opened.append(content.size)
        return open_one(content, password)

    monkeypatch.setattr(pdf_pages, "_open", counting)
    paths = [write(pdf(*numbered(2 + i))) for i in range(pdf_pages.OPEN_DOCUMENTS + 1)]
    sizes = [Path(path).stat().st_size for path in paths]
    for path in [*paths, paths[-1], paths[1], paths[0]]:
        read(path, None, 0, 2)
        assert len(pdf_pages._documents) <= pdf_pages.OPEN_DOCUMENTS
    assert opened == [*sizes, sizes[0]], "only the one that was not read for longest was closed"
    monkeypatch.setattr(pdf_pages, "REOPEN_PAGES", 4)
    long = write(pdf(*numbered(10)))
    opened.clear()
    assert [p.number for i in range(0, 10, 2) for p in read(long, None, i, 2)[1]] == list(range(1, 11))
    assert opened == [Path(long).stat().st_size] * 3
