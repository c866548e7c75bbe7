from pathlib import Path

import pytest

from penstock.extractors import html as reader
from penstock.extractors.charsets import decoded
from penstock.extractors.html import markdown
from penstock.extractors.html_tokens import attributes, tokens
from penstock.extractors.text import WINDOW
from penstock.model.items import Page

CORPUS = Path(__file__).parents[2] / ".." / "shared" / "corpus"
FRENCH = "Le café était fermé à l’époque où les élèves étudiaient."
JAPANESE = "吾輩は猫である。名前はまだ無い。"


def read(path: Path) -> list[Page]:
    with path.open("rb") as document:
        return reader.read(document, "text/html").pages


def pages(data: bytes, folder: Path) -> list[Page]:
    path = folder / "a.html"
    path.write_bytes(data)
    return read(path)


def test_headings_paragraphs_and_entities() -> None:
    html = """<!DOCTYPE html><html><head><title>Site &ndash; page</title></head><body>
    <h1>Salt &amp; <em>pepper</em></h1><p>AT&amp;T has 3&nbsp;&euro; &lt;left&gt;,
    snake_case and 2*3*4</p>loose<h2>Mills<br>and <a href="x">jars</a> ¶</h2>"""
    assert markdown(html) == (
        "# Salt & pepper\n\nAT&T has 3 € <left>, snake_case and 2*3*4\n\nloose\n\n## Mills and jars"
    )


def test_the_title_is_the_heading_where_the_page_has_none() -> None:
    assert markdown("<title>A\n title</title><p>text<h2>two</h2>") == "# A title\n\ntext\n\n## two"
    assert markdown("<title>A title</title><body><div id=root></div>") == ""


def test_links_images_and_emphasis_are_their_words() -> None:
    html = """<p><a href="javascript:go()">click</a> <b>bo</b>ld <a href="data:text/html;base64,AAAA">here</a>
    <img src="data:image/png;base64,BBBB" alt="A  red fox"><img src=x.png></p>"""
    assert markdown(html) == "click bold here A red fox"


def test_what_nobody_reads_is_left_out() -> None:
    html = """<nav><ul><li><a href=/>Home</a></ul></nav><script>var a = "<p>one</p>";</script><style>p { }</style>
    <p hidden>two<p>seen</p><div style="color: red; Display : none"><div>three</div>four</div>
    <svg><text>five</text></svg><noscript>six</noscript><template><p>seven</p></template>
    <span aria-hidden="true">eight <b>nine</b></span>
    <div role=navigation>ten</div><select><option>eleven</select><!-- twelve <p>thirteen</p> -->
    <button>fourteen</button>"""
    assert markdown(html) == "seen"


def test_a_hidden_item_ends_where_the_next_begins() -> None:
    assert markdown("<ul><li hidden>a<li>b<li style='display:none'>c</ul><p>d") == "- b\n\nd"
    assert markdown("<table><tr hidden><td>a<tr><td>b<tr><td>c</table>") == "b\n\nc"


def test_the_heading_of_a_folded_part_may_be_a_button() -> None:
    assert markdown("<h2><button>How much?</button></h2><p>A lot.<button>Close</button>") == "## How much?\n\nA lot."


def test_nothing_vanishes_behind_navigation_that_never_ends() -> None:
    assert markdown("<nav><a>Home</a><p>The whole text.") == "Home\n\nThe whole text."
    assert markdown("<p>Before<nav>Home<p>The whole text.") == "Before\n\nHome\n\nThe whole text."
    assert markdown("<svg><p>The whole text.") == "The whole text."
    assert markdown("<nav>Home</nav><p>text<script>never ended") == "text"


def test_a_page_of_links_alone_is_kept() -> None:
    assert markdown("<body><nav><a href=1>Chapter one</a></nav>") == "Chapter one"
    assert markdown("<noscript>Switch scripts on</noscript><div id=app></div>") == ""


def test_lists_nest_and_count() -> None:
    html = """<ul><li>one<ul><li>inner<li><p>second</p><p>more</p></ul></li><li>two</ul><p>between</p>
    <ol start=5><li>five<li>six<ul><li>deep</ul>tail</ol>"""
    assert markdown(html) == (
        "- one\n  - inner\n  - second\n    more\n- two\n\nbetween\n\n5. five\n6. six\n  - deep\n  tail"
    )


def test_a_list_right_inside_a_list_is_nested() -> None:
    assert markdown("<ul><li>one<ul><li>two</ul></ul>") == markdown("<ul><li>one</li><ul><li>two</li></ul></ul>")


def test_terms_stand_with_their_definitions() -> None:
    assert markdown("<dl><dt>Sluice<dd>A gate.<dt>Weir<dd>A dam.</dl>") == "- Sluice\n  A gate.\n- Weir\n  A dam."


def test_headings_in_lists_stay_headings() -> None:
    assert markdown("<ul><li><h3>Card</h3><p>Text</p></ul>") == "### Card\n\nText"


def test_tables_become_tables() -> None:
    html = """<table><caption>Prices</caption><thead><tr><th>Name|Id<th>Price</thead>
    <tbody><tr><td>a<br>b<td><p>1</p><p>2</p><tr><td colspan=2>both<tr><td rowspan=2>x<td>y<tr><td>z</table>after"""
    assert markdown(html) == (
        "Prices\n\n| Name\\|Id | Price |\n| --- | --- |\n| a b | 1 2 |\n| both |  |\n| x | y |\n|  | z |\n\nafter"
    )


def test_tables_that_only_arrange_the_page_are_taken_apart() -> None:
    html = "<table><tr><td><img src=a><td><table><tr><td>One.<br><br>Two.</table></table>"
    assert markdown(html) == "One.\n\nTwo."
    html = "<table><tr><td>Menu<td><h1>Title</h1>Text<table><tr><td>a<td>b</table></table>"
    assert markdown(html) == "Menu\n\n# Title\n\nText\n\n| a | b |\n| --- | --- |"
    assert markdown(f"<table><tr><td>a<td>{'long ' * 500}</table>").startswith("a\n\nlong")


def test_code_keeps_its_lines() -> None:
    html = "<pre><code class='hljs language-python'>\ndef f(a_b):\n\n    return <b>a</b> &lt; 1 # no\n</code></pre><p>x"
    assert markdown(html) == "```python\ndef f(a_b):\n\n    return a < 1 # no\n```\n\nx"
    assert markdown("<pre>a<br>b<div>c</div>d</pre>") == "```\na\nb\nc\nd\n```"
    assert markdown("<pre>```\na\n```</pre>") == "````\n```\na\n```\n````"


def test_text_that_looks_like_markup_stays_text(tmp_path: Path) -> None:
    (page,) = pages(b"<h1>Real</h1><p># comment<p>``` fence<p>last", tmp_path)
    assert page.text == "# Real\n\n\\# comment\n\n\\``` fence\n\nlast"
    assert [block.kind for block in page.blocks] == ["heading", "paragraph", "paragraph", "paragraph"]


def test_quotes_checkboxes_and_equations() -> None:
    html = """<blockquote><p>one</p><p>two</p></blockquote><ul><li><input type=checkbox checked>done</ul>
    <math><mi>x</mi><mo>=</mo><mn>2</mn><annotation encoding="application/x-tex">x=2</annotation></math>"""
    assert markdown(html) == "> one\n\n> two\n\n- ☒ done\n\nx=2"


def test_broken_markup_loses_nothing() -> None:
    assert markdown("<p>a <b>bold<p>next</i> word</div></section>tail") == "a bold\n\nnext word\n\ntail"
    assert markdown("<div><table><tr><td>a</div><td>b</table>c") == "| a | b |\n| --- | --- |\n\nc"
    assert markdown('<a title="5" wide">one</a> <a href="x">two</a>') == "one two"
    assert markdown("a <![weird]> b < c & d <3 <!-- e <p>f") == "a b < c & d <3 f"
    assert markdown("one</body></html> two") == "one two"
    assert markdown("x <y") == "x <y"
    assert markdown("<script src=a.js /><p>text") == "text"
    assert markdown("<h1>Title<p>" + "long " * 200).startswith("# Title\n\nlong")
    assert markdown("<![CDATA[a < b]]>") == "a < b"


def test_deep_nesting_loses_nothing() -> None:
    assert markdown("<div>" * 20_000 + "deep") == "deep"
    assert markdown("<p><font color=red>word " * 3000).count("word") == 3000
    assert markdown("<ul><li>x" * 500).count("- x") == 500
    assert len(markdown("<ul><li>x" * 500)) < 15_000


@pytest.mark.parametrize("hole", ["<a ", "<!-- ", "<!-- >a", "< ", "</a", "<a href='"])
def test_holes_do_not_slow_the_reading_down(hole: str) -> None:
    # A second look at the whole rest from each of them would take minutes.
    assert len(markdown("<p>" + hole * 300_000)) > 0


def test_tags_and_attributes() -> None:
    found = [
        tuple(token) for token in tokens("""<P Class="a>b" id='c' x=1 checked/>t&amp;<br/><script>a</b></script>""")
    ]
    assert found == [
        ("start", "p", """ Class="a>b" id='c' x=1 checked/"""),
        ("end", "p", ""),
        ("text", "t&", ""),
        ("start", "br", "/"),
        ("end", "br", ""),
        ("start", "script", ""),
        ("end", "script", ""),
    ]
    assert attributes(found[0][2]) == {"class": "a>b", "id": "c", "x": "1", "checked": ""}
    assert attributes('alt="a &amp; b" alt="c"') == {"alt": "a & b"}


@pytest.mark.parametrize(
    ("text", "encoding", "head"),
    [
        (FRENCH, "utf-8", ""),
        (FRENCH, "utf-8-sig", "<meta charset=latin1>"),
        (FRENCH, "utf-8", "<meta charset='iso-8859-1'>"),
        (FRENCH, "utf-16", ""),
        (FRENCH, "utf-16-le", "<meta charset=utf-16>"),
        (FRENCH, "cp1252", "<meta charset=ISO-8859-1>"),
        (FRENCH, "cp1252", "<meta charset=utf-8>"),
        ("Žluťoučký kůň", "cp1250", '<META http-equiv="Content-Type" content="text/html; charset=windows-1250">'),
        (JAPANESE, "cp932", '<meta http-equiv=Content-Type content="text/html; charset=Shift_JIS">'),
        (JAPANESE, "euc_jp", "<?xml version='1.0' encoding='EUC-JP'?>"),
        (JAPANESE, "iso2022_jp", "<meta charset=iso-2022-jp>"),
        (FRENCH * 9, "cp1252", "<meta charset=nonsense>"),
        ("中华人民共和国", "gb18030", "<meta charset=gb2312>"),
        ("Съешь же ещё этих мягких", "koi8-r", "<meta charset=koi8-r>"),
    ],
)
def test_legacy_encodings_come_out_right(text: str, encoding: str, head: str, tmp_path: Path) -> None:
    data = f"{head}<html><body><p>{text}".encode(encoding)
    assert pages(data, tmp_path)[0].text == text


def test_a_byte_order_mark_decides(tmp_path: Path) -> None:
    assert pages(b"\xef\xbb\xbf<p>caf\xc3\xa9 \xff", tmp_path)[0].text == "café \ufffd"


def test_long_pages_are_cut_and_keep_their_path(tmp_path: Path) -> None:
    words = "<p>" + "some words " * 50
    found = pages(f"<h1>Top</h1><h2>Part</h2>{words * 1200}<h2>Last</h2>x".encode(), tmp_path)
    assert len(found) == 3
    assert all(len(page.text.encode()) <= WINDOW for page in found)
    assert [page.path for page in found] == [(), ("Top", "Part"), ("Top", "Part")]
    assert "".join(page.text for page in found).count("some words") == 60_000
    block = found[-1].blocks[-2]
    assert found[-1].text[block.start : block.end] == "## Last"


def test_a_page_without_text_is_one_empty_page(tmp_path: Path) -> None:
    for data in (b"<html><body></body></html>", b"<script>x</script>", b" \n"):
        assert pages(data, tmp_path) == [Page(1, "")]


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.exists(), reason="needs ../shared")
def test_real_pages_read_like_their_expected_text() -> None:
    for path in sorted(CORPUS.rglob("*.html")):
        (page,) = read(path)
        assert page.text.strip()
        assert "base64" not in page.text
        assert "](" not in page.text
        expected = path.with_name(f"{path.name}.md")
        if expected.exists():
            wanted = [word for word in expected.read_text("utf-8").split() if any(map(str.isalnum, word))]
            assert [word for word in page.text.split() if any(map(str.isalnum, word))] == wanted
    essay = read(CORPUS / "unstructured" / "ideas-page.html")[0]
    assert [block.kind for block in essay.blocks] == ["heading"] + ["paragraph"] * 5


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("latin1", "cp1252"),
        ("ISO-8859-1", "cp1252"),
        ("us-ascii", "cp1252"),
        ("iso8859-9", "cp1254"),
        ("tis-620", "cp874"),
        ("x-sjis", "cp932"),
        ("gb2312", "gb18030"),
        ("x-gbk", "gb18030"),
        ("big5", "big5hkscs"),
        ("ks_c_5601-1987", "cp949"),
        ("macintosh", "mac-roman"),
        ("koi8-r", "koi8-r"),
        ("cp1251", "cp1251"),
        ("windows-1256", "cp1256"),
        ("csisolatin2", "iso8859-2"),
        ("x-mac-cyrillic", "mac-cyrillic"),
    ],
)
def test_a_named_encoding_is_read_as_browsers_read_it(label: str, codec: str) -> None:
    high = bytes(byte for byte in range(0xA1, 0x100))
    text = {"cp932": "吾輩は猫である", "gb18030": "话说天下大势", "big5hkscs": "話說天下", "cp949": "한국어는"}
    body = text[codec].encode(codec) if codec in text else high
    expected = body.decode(codec, "replace")
    assert expected in decoded(f'<meta charset="{label}"><p>'.encode() + body)


@pytest.mark.parametrize("label", ["utf-8", "utf-16", "x-user-defined", "replacement", "iso-2022-jp", "no-such-thing"])
def test_a_name_that_the_bytes_contradict_is_not_believed(label: str) -> None:
    body = "Le café était fermé à l'époque où les élèves étudiaient.\n" * 5
    assert "café était fermé" in decoded(f'<meta charset="{label}"><p>{body}'.encode("cp1252"))
