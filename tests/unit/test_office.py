import tracemalloc
import zipfile
from pathlib import Path

import pytest
from tests.kit.office import BREAK, PARTS, RENDERED, W, item, make, par, run, styled, tbl

from penstock.errors import Permanent
from penstock.extractors import docx, office
from penstock.extractors.formats import DOCX
from penstock.extractors.text import WINDOW
from penstock.model.items import Page

CORPUS = Path(__file__).parents[2] / ".." / "shared" / "corpus"


def read(path: str | Path, media_type: str) -> list[Page]:
    with open(path, "rb") as document:
        return office.read(document, media_type).pages


def texts(folder: Path, *blocks: str) -> list[str]:
    return [page.text for page in read(str(make(folder / "a.docx", "".join(blocks))), DOCX)]


def test_headings_are_known_by_style_and_outline_level(tmp_path: Path) -> None:
    outline = '<w:outlineLvl w:val="2"/>'
    blocks = [styled("The report", "Title"), styled("One", "Heading1"), styled("Zwei", "berschrift2")]
    blocks += [
        styled("Own", "Clause"),
        par("By level", outline),
        styled("Contents", "TOCHeading"),
        styled("x", "Round"),
    ]
    assert texts(tmp_path, *blocks) == ["# The report\n\n# One\n\n## Zwei\n\n## Own\n\n### By level\n\nContents\n\nx"]


def test_a_document_without_styles_has_headings_too(tmp_path: Path) -> None:
    path = make(tmp_path / "a.docx", styled("One", "Heading1") + par("Text"), {})
    assert read(path, DOCX)[0].text == "# One\n\nText"


def test_every_character_arrives(tmp_path: Path) -> None:
    signs = "<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:noBreakHyphen/><w:t>d</w:t></w:r>"
    symbol = '<w:r><w:sym w:font="Wingdings" w:char="F0FC"/><w:sym w:font="Arial" w:char="00E9"/></w:r>'
    assert texts(
        tmp_path, par("AT&amp;T &lt;R&amp;D&gt; &quot;&#233;&quot; 2*3*4 snake_case"), par(signs), par(symbol)
    ) == ['AT&T <R&D> "é" 2*3*4 snake_case\n\na b\nc-d\n\n✓é']


def test_formatting_and_links_are_their_words(tmp_path: Path) -> None:
    link = f'<w:hyperlink r:id="rId1">{run("link", "<w:u/>")}</w:hyperlink>'
    field = '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> PAGE </w:instrText></w:r>'
    assert texts(tmp_path, par(run("bo", "<w:b/>") + run("ld ") + link + field + run(" 7"))) == ["bold link 7"]


def test_what_was_deleted_or_hidden_is_left_out(tmp_path: Path) -> None:
    deleted = '<w:del w:id="1"><w:r><w:delText>gone</w:delText></w:r></w:del>'
    moved = f"<w:moveFrom>{run('away')}</w:moveFrom><w:moveTo>{run('here ')}</w:moveTo>"
    hidden = run("hidden", "<w:vanish/>") + run("shown", '<w:vanish w:val="0"/>')
    assert texts(tmp_path, par(f"<w:ins>{run('new ')}</w:ins>{deleted}{moved}{hidden}")) == ["new here shown"]


def test_lists_nest_and_are_numbered_as_in_word(tmp_path: Path) -> None:
    blocks = [item("one", 0), item("a", 1), item("dot", 2), item("b", 1), item("two", 0), par("between")]
    blocks += [item("c", 1), item("three", 0), item("seven", 0, 3), item("eight", 0, 3)]
    assert texts(tmp_path, *blocks) == [
        "1. one\n  - (a) a\n    - dot\n  - (b) b\n2. two\n\nbetween\n\n- (a) c\n3. three\n7. seven\n8. eight"
    ]


def test_headings_carry_the_number_that_word_shows(tmp_path: Path) -> None:
    blocks = [item("Part", 0, 2), styled("First", "Numbered"), styled("Second", "Numbered")]
    assert texts(tmp_path, *blocks) == ["- I. Part\n\n# I.1 First\n\n# I.2 Second"]


def test_tables_become_tables(tmp_path: Path) -> None:
    wide = f'<w:tcPr><w:gridSpan w:val="2"/></w:tcPr>{par("wide")}'
    merged = f"<w:tcPr><w:vMerge/></w:tcPr>{par('')}"
    rows = [["A|B", "C", "D"], [par("x") + par("y"), "1", "2"], [wide, "3"], [merged, "4", "5"]]
    assert texts(tmp_path, tbl(*rows), par("after")) == [
        "| A\\|B | C | D |\n| --- | --- | --- |\n| x y | 1 | 2 |\n| wide |  | 3 |\n|  | 4 | 5 |\n\nafter"
    ]


def test_a_box_around_text_is_no_table(tmp_path: Path) -> None:
    assert texts(tmp_path, tbl([styled("In a box", "Heading1") + par("text")])) == ["# In a box\n\ntext"]


def test_notes_and_comments_follow_what_they_belong_to(tmp_path: Path) -> None:
    notes = '<w:r><w:footnoteReference w:id="2"/></w:r><w:r><w:endnoteReference w:id="2"/></w:r>'
    comment = '<w:r><w:commentReference w:id="0"/></w:r><w:r><w:commentReference w:id="9"/></w:r>'
    assert texts(tmp_path, par(run("Claim") + notes + comment), par("next")) == [
        "Claim[^1][^i]\n\n[^1]: See page 3.\n\n[^i]: At the end.\n\n> Comment by Ann: Is it?\n\nnext"
    ]


def test_text_boxes_come_once_and_after_their_paragraph(tmp_path: Path) -> None:
    box = f'<wp:docPr descr="Text box 1"/><w:txbxContent>{par("boxed")}</w:txbxContent>'
    both = f"<mc:Choice><w:drawing>{box}</w:drawing></mc:Choice><mc:Fallback><w:pict>{box}</w:pict></mc:Fallback>"
    picture = '<w:r><w:drawing><wp:docPr descr="A red&#10;fox"/></w:drawing></w:r>'
    boxed = f"<w:r><mc:AlternateContent>{both}</mc:AlternateContent></w:r>"
    assert texts(tmp_path, par(run("before") + boxed + run(" after")), par(picture)) == [
        "before after\n\nboxed\n\nA red fox"
    ]


def test_controls_checkboxes_and_ruby(tmp_path: Path) -> None:
    control = f"<w:sdt><w:sdtPr/><w:sdtContent>{par('inside')}</w:sdtContent></w:sdt>"
    legacy = '<w:r><w:fldChar><w:ffData><w:checkBox><w:default w:val="1"/></w:checkBox></w:ffData></w:fldChar></w:r>'
    ruby = f"<w:r><w:ruby><w:rt>{run('かん')}</w:rt><w:rubyBase>{run('漢')}</w:rubyBase></w:ruby></w:r>"
    assert texts(tmp_path, control, par(legacy + run(" done")), par(ruby)) == ["inside\n\n☒ done\n\n漢(かん)"]


def test_equations_are_lines_that_one_could_type(tmp_path: Path) -> None:
    def m(name: str, *parts: str) -> str:
        return f"<m:{name}>{''.join(parts)}</m:{name}>"

    def t(text: str) -> str:
        return m("r", m("t", text))

    square = m("sSup", m("e", m("d", m("e", t("x+1")))), m("sup", t("2")))
    fraction = m("f", m("num", t("a+b")), m("den", t("c")))
    total = m("nary", m("naryPr", '<m:chr m:val="∑"/>'), m("sub", t("n=1")), m("sup", t("∞")), m("e", t("n")))
    root = m("rad", m("deg"), m("e", t("x")))
    matrix = m("m", m("mr", m("e", t("1")), m("e", t("2"))), m("mr", m("e", t("3")), m("e", t("4"))))
    line = [m("oMath", part) for part in (square, fraction, total, root, matrix)]
    assert texts(tmp_path, par(run("With ") + "".join(line) + run("."))) == [
        "With (x+1)^2 (a+b)/c ∑_(n=1)^∞ n √x 1, 2; 3, 4."
    ]
    assert texts(tmp_path, m("oMathPara", m("oMath", t("a=b")))) == ["a=b"]


def test_code_and_quotes_are_known_by_their_style(tmp_path: Path) -> None:
    blocks = [
        styled("def f():", "Code"),
        styled("    # no heading", "Code"),
        styled("said", "Quote"),
        par("# no heading"),
    ]
    assert texts(tmp_path, *blocks) == ["```\ndef f():\n    # no heading\n```\n\n> said\n\n\\# no heading"]


def test_pages_end_where_word_ends_them(tmp_path: Path) -> None:
    blocks = [par(run("one") + BREAK), par(RENDERED + run("two")), par(run("half ") + RENDERED + run("whole"))]
    blocks += [par("three"), par("four", "<w:pageBreakBefore/>"), par(run("five") + BREAK + run("six"))]
    blocks += [par("end of part", "<w:sectPr/>"), par("next", '<w:sectPr><w:type w:val="continuous"/></w:sectPr>')]
    assert texts(tmp_path, *blocks, par("last"), par(BREAK)) == [
        "one",
        "two\n\nhalf whole",
        "three",
        "four\n\nfive",
        "six\n\nend of part",
        "next\n\nlast",
    ]


def test_a_table_over_a_page_break_repeats_its_first_row(tmp_path: Path) -> None:
    rows = [["A", "B"], ["1", "2"], [par(RENDERED + run("3")), "4"]]
    head = "| A | B |\n| --- | --- |\n"
    assert texts(tmp_path, tbl(*rows)) == [f"{head}| 1 | 2 |", f"{head}| 3 | 4 |"]


def test_pages_carry_blocks_and_the_open_headings(tmp_path: Path) -> None:
    body = styled("One", "Heading1") + styled("Two", "berschrift2") + par(BREAK) + par("text") + item("x", 0)
    first, second = read(make(tmp_path / "a.docx", body), DOCX)
    assert [(block.kind, block.level, block.title) for block in first.blocks] == [
        ("heading", 1, "One"),
        ("heading", 2, "Two"),
    ]
    assert (second.number, second.path) == (2, ("One", "Two"))
    assert [(b.kind, second.text[b.start : b.end]) for b in second.blocks] == [("paragraph", "text"), ("list", "1. x")]


def test_long_documents_without_page_breaks_are_cut(tmp_path: Path) -> None:
    found = read(make(tmp_path / "a.docx", styled("Top", "Heading1") + par("some words " * 50) * 1200), DOCX)
    assert len(found) == 3
    assert all(len(page.text.encode()) <= WINDOW for page in found)
    assert found[2].path == ("Top",)
    assert sum(page.text.count("some words") for page in found) == 60_000


def test_long_documents_never_stand_in_memory_whole(tmp_path: Path) -> None:
    with zipfile.ZipFile(make(tmp_path / "a.docx", par("some words") * 4000)) as archive:
        tracemalloc.start()
        try:
            assert sum(1 for _ in docx.pieces(archive)) == 4000
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 1_000_000


def test_strict_documents_and_other_names_of_parts(tmp_path: Path) -> None:
    strict = 'xmlns:w="http://purl.oclc.org/ooxml/wordprocessingml/main"'
    body = styled("One", "Heading1") + par("text")
    path = make(tmp_path / "a.docx", body, {"styles": PARTS["styles"]}, "other/main.xml", strict)
    assert read(path, DOCX)[0].text == "# One\n\ntext"


def test_a_document_without_text_is_one_empty_page(tmp_path: Path) -> None:
    assert read(make(tmp_path / "a.docx", par("") + par(BREAK)), DOCX) == [Page(1, "")]


def test_damaged_documents_say_so(tmp_path: Path) -> None:
    whole = make(tmp_path / "a.docx", par("text " * 500)).read_bytes()
    with zipfile.ZipFile(tmp_path / "empty.docx", "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
    bomb = '<!DOCTYPE b [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">'.replace("a0;", "a;") for i in range(1, 12)
    )
    with zipfile.ZipFile(tmp_path / "bomb.docx", "w") as archive:
        archive.writestr("word/document.xml", f"{bomb}]><w:document {W}><w:body>&a11;</w:body></w:document>")
    (tmp_path / "cut.docx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "bits.docx").write_bytes(whole.replace(whole[600:640], bytes(40)))
    make(tmp_path / "deep.docx", "<w:sdt>" * 5000 + "</w:sdt>" * 5000)
    make(tmp_path / "open.docx", "<w:p>")
    for name in ("empty", "cut", "bits", "deep", "open", "bomb"):
        with pytest.raises(Permanent, match="save it as a new") as caught:
            read(tmp_path / f"{name}.docx", DOCX)
        assert caught.value.reason == "damaged"


def test_a_locked_document_says_so(tmp_path: Path) -> None:
    ole = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2000)
    path = tmp_path / "a.docx"
    path.write_bytes(ole + "EncryptedPackage".encode("utf-16-le"))
    with pytest.raises(Permanent, match="without a password") as caught:
        read(path, DOCX)
    assert caught.value.reason == "encrypted"
    path.write_bytes(ole)
    with pytest.raises(Permanent, match="old format") as caught:
        read(path, DOCX)
    assert caught.value.reason == "unsupported_type"


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.exists(), reason="needs ../shared")
def test_real_documents_are_read() -> None:
    for path in sorted(CORPUS.rglob("*.docx")):
        found = read(path, DOCX)
        assert all(page.text.strip() for page in found)
        assert [page.number for page in found] == list(range(1, len(found) + 1))
    lists = read(CORPUS / "docling" / "docx_lists.docx", DOCX)
    assert len(lists) == 3
    assert "- List item 2\n  - List item 1.1\n  - List item 1.2\n    - List item 1.2.1\n- List item 3" in lists[1].text
    assert "- 2.2 Kitchen Tasks\n3. WORKSHOP AND TOOL SHED" in lists[2].text
    equations = read(CORPUS / "docling" / "equations.docx", DOCX)
    assert "- Second item with equations: E=mc^2 and F=ma are physics formulas." in equations[0].text
    comments = read(CORPUS / "docling" / "docx_comments.docx", DOCX)
    assert "> Comment by John Reviewer: This is a sample reviewer comment" in comments[0].text
    numbered = read(CORPUS / "docling" / "unit_test_headers_numbered.docx", DOCX)
    assert "### 1.2.1. Section 1.2.3" in numbered[0].text
