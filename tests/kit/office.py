"""Word files for tests, from pieces of their XML."""

import zipfile
from pathlib import Path

OOXML = "http://schemas.openxmlformats.org"
W = (
    f'xmlns:w="{OOXML}/wordprocessingml/2006/main" xmlns:m="{OOXML}/officeDocument/2006/math" '
    f'xmlns:mc="{OOXML}/markup-compatibility/2006" xmlns:r="{OOXML}/officeDocument/2006/relationships" '
    'xmlns:wp="urn:wp" xmlns:v="urn:v" xmlns:w14="urn:w14"'
)
BREAK = '<w:r><w:br w:type="page"/></w:r>'
RENDERED = "<w:r><w:lastRenderedPageBreak/></w:r>"


def run(text: str, settings: str = "") -> str:
    return f'<w:r><w:rPr>{settings}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def par(content: str, settings: str = "") -> str:
    runs = content if content.startswith("<") or not content else run(content)
    return f"<w:p><w:pPr>{settings}</w:pPr>{runs}</w:p>"


def styled(text: str, style: str) -> str:
    return par(text, f'<w:pStyle w:val="{style}"/>')


def item(text: str, depth: int, number: int = 1) -> str:
    return par(text, f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="{number}"/></w:numPr>')


def tbl(*rows: list[str]) -> str:
    cells = ("".join(f"<w:tc>{cell if cell.startswith('<') else par(cell)}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl><w:tblPr/>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


def style(name: str, title: str, settings: str = "", based_on: str = "") -> str:
    base = f'<w:basedOn w:val="{based_on}"/>' if based_on else ""
    content = f'<w:name w:val="{title}"/>{base}<w:pPr>{settings}</w:pPr>'
    return f'<w:style w:type="paragraph" w:styleId="{name}">{content}</w:style>'


def level(depth: int, kind: str, text: str, linked: str = "") -> str:
    link = f'<w:pStyle w:val="{linked}"/>' if linked else ""
    content = f'<w:start w:val="1"/><w:numFmt w:val="{kind}"/>{link}<w:lvlText w:val="{text}"/>'
    return f'<w:lvl w:ilvl="{depth}">{content}</w:lvl>'


STYLES = "".join(
    [
        style("Heading1", "heading 1", '<w:outlineLvl w:val="0"/>'),
        style("berschrift2", "heading 2"),
        style("Clause", "Clause", based_on="berschrift2"),
        style("TOCHeading", "TOC Heading", '<w:outlineLvl w:val="9"/>', "Heading1"),
        style("Numbered", "Numbered", '<w:numPr><w:numId w:val="2"/></w:numPr>', "Heading1"),
        style("Title", "Title"),
        style("Code", "Source Code"),
        style("Quote", "Quote"),
        style("Round", "round", based_on="Round"),
    ]
)
NUMBERING = (
    f'<w:abstractNum w:abstractNumId="0">{level(0, "decimal", "%1.")}{level(1, "lowerLetter", "(%2)")}'
    f"{level(2, 'bullet', 'o')}</w:abstractNum>"
    f'<w:abstractNum w:abstractNumId="1">{level(0, "upperRoman", "%1.")}'
    f"{level(1, 'decimal', '%1.%2', 'Numbered')}</w:abstractNum>"
    '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num><w:num w:numId="2"><w:abstractNumId w:val="1"/></w:num>'
    '<w:num w:numId="3"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="7"/>'
    "</w:lvlOverride></w:num>"
)
PARTS = {
    "styles": f"<w:styles {W}>{STYLES}</w:styles>",
    "numbering": f"<w:numbering {W}>{NUMBERING}</w:numbering>",
    "footnotes": f'<w:footnotes {W}><w:footnote w:id="2">{par("See page 3.")}</w:footnote></w:footnotes>',
    "endnotes": f'<w:endnotes {W}><w:endnote w:id="2">{par("At the end.")}</w:endnote></w:endnotes>',
    "comments": f'<w:comments {W}><w:comment w:id="0" w:author="Ann">{par("Is it?")}</w:comment></w:comments>',
}


def make(
    path: Path, body: str, parts: dict[str, str] = PARTS, main: str = "word/document.xml", namespaces: str = W
) -> Path:
    relation = f"{OOXML}/officeDocument/2006/relationships"
    beside = "".join(f'<Relationship Id="{kind}" Type="{relation}/{kind}" Target="{kind}.xml"/>' for kind in parts)
    folder, _, name = main.rpartition("/")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        rels = (
            f'<Relationships><Relationship Id="1" Type="{relation}/officeDocument" Target="/{main}"/></Relationships>'
        )
        archive.writestr("_rels/.rels", rels)
        archive.writestr(f"{folder}/_rels/{name}.rels", f"<Relationships>{beside}</Relationships>")
        archive.writestr(main, f"<w:document {namespaces}><w:body>{body}<w:sectPr/></w:body></w:document>")
        for kind, part in parts.items():
            archive.writestr(f"{folder}/{kind}.xml", part)
    return path
