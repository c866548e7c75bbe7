"""The least that a word processor opens: styled paragraphs, tables. No times in it: its bytes are always the same."""

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

Style = Literal["Normal", "Title", "Heading1", "Heading2", "ListBullet"]

NAMES: dict[Style, str] = {
    "Normal": "Normal",
    "Title": "Title",
    "Heading1": "heading 1",
    "Heading2": "heading 2",
    "ListBullet": "List Bullet",
}
XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
MEDIA = "application/vnd.openxmlformats-officedocument.wordprocessingml"

CONTENT_TYPES = (
    f'{XML}<Types xmlns="{PACKAGE}/content-types">'
    f'<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/word/document.xml" ContentType="{MEDIA}.document.main+xml"/>'
    f'<Override PartName="/word/styles.xml" ContentType="{MEDIA}.styles+xml"/>'
    f'<Override PartName="/word/numbering.xml" ContentType="{MEDIA}.numbering+xml"/></Types>'
)
BULLETS = (
    f'{XML}<w:numbering xmlns:w="{WORD}"><w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:start w:val="1"/>'
    '<w:numFmt w:val="bullet"/><w:lvlText w:val="•"/></w:lvl></w:abstractNum>'
    '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
)
IN_LIST = '<w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>'


def write_docx(path: Path, parts: Iterable[str]) -> None:
    """`parts` come from `paragraph` and `table`."""
    styles = "".join(
        f'<w:style w:type="paragraph" w:styleId="{style}"><w:name w:val="{name}"/></w:style>'
        for style, name in NAMES.items()
    )
    files = {
        "[Content_Types].xml": CONTENT_TYPES,
        "_rels/.rels": _relations(officeDocument="word/document.xml"),
        "word/document.xml": f'{XML}<w:document xmlns:w="{WORD}"><w:body>{"".join(parts)}</w:body></w:document>',
        "word/styles.xml": f'{XML}<w:styles xmlns:w="{WORD}">{styles}</w:styles>',
        "word/numbering.xml": BULLETS,
        "word/_rels/document.xml.rels": _relations(styles="styles.xml", numbering="numbering.xml"),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)


def paragraph(text: str, style: Style = "Normal") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/>{IN_LIST if style == "ListBullet" else ""}</w:pPr>'
    return f'<w:p>{properties}<w:r><w:t xml:space="preserve">{escape(text)}</w:t></w:r></w:p>'


def table(rows: Sequence[Sequence[str]]) -> str:
    grid = "<w:gridCol/>" * len(rows[0])
    lines = ("".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) for row in rows)
    body = "".join(f"<w:tr>{line}</w:tr>" for line in lines)
    return f"<w:tbl><w:tblPr/><w:tblGrid>{grid}</w:tblGrid>{body}</w:tbl>"


def _relations(**targets: str) -> str:
    relations = "".join(
        f'<Relationship Id="rId{i}" Type="{OFFICE}/{kind}" Target="{target}"/>'
        for i, (kind, target) in enumerate(targets.items(), 1)
    )
    return f'{XML}<Relationships xmlns="{PACKAGE}/relationships">{relations}</Relationships>'
