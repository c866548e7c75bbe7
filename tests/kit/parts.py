"""Presentations, spreadsheets, OpenDocument files, books and messages for tests."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from email.message import EmailMessage

OOXML = "http://schemas.openxmlformats.org"
_TYPES = f'<Types xmlns="{OOXML}/package/2006/content-types"><Override PartName="/{{}}" ContentType="{{}}"/></Types>'
_RELATED = f'<Relationships xmlns="{OOXML}/package/2006/relationships">{{}}</Relationships>'
_RELATION = f'<Relationship Id="r{{}}" Type="{OOXML}/officeDocument/2006/relationships/{{}}" Target="{{}}"/>'
_R = f'xmlns:r="{OOXML}/officeDocument/2006/relationships"'
_SPACES = f'xmlns:a="{OOXML}/drawingml/2006/main" xmlns:p="{OOXML}/presentationml/2006/main" {_R}'
_KIND = "application/vnd.openxmlformats-officedocument."


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            stored = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            archive.writestr(name, content, stored)
    return data.getvalue()


def related(*relations: tuple[str, str]) -> str:
    return _RELATED.format("".join(_RELATION.format(n, kind, target) for n, (kind, target) in enumerate(relations, 1)))


def paragraph(text: str, level: int = 0) -> str:
    return f'<a:p><a:pPr lvl="{level}"/><a:r><a:t>{text}</a:t></a:r></a:p>'


def shape(content: str, holder: str | None = None) -> str:
    kind = "" if holder is None else f'<p:ph type="{holder}"/>' if holder else "<p:ph/>"
    return f"<p:sp><p:nvSpPr><p:nvPr>{kind}</p:nvPr></p:nvSpPr><p:txBody>{content}</p:txBody></p:sp>"


def pptx(slides: Sequence[str], notes: Mapping[int, str] | None = None, more: Mapping[str, str] | None = None) -> bytes:
    """A presentation whose slides have these shapes."""
    main = "".join(f'<p:sldId id="{255 + n}" r:id="r{n}"/>' for n in range(1, len(slides) + 1))
    members: dict[str, str | bytes] = {
        "[Content_Types].xml": _TYPES.format("ppt/presentation.xml", _KIND + "presentationml.presentation.main+xml"),
        "_rels/.rels": related(("officeDocument", "ppt/presentation.xml")),
        "ppt/presentation.xml": f"<p:presentation {_SPACES}><p:sldIdLst>{main}</p:sldIdLst></p:presentation>",
        # The names count down: the order of the slides is in the presentation, not in the names.
        "ppt/_rels/presentation.xml.rels": related(
            *(("slide", f"slides/slide{99 - n}.xml") for n in range(len(slides)))
        ),
    }
    for n, shapes in enumerate(slides):
        members[f"ppt/slides/slide{99 - n}.xml"] = _tree("sld", shapes)
    for n, text in (notes or {}).items():
        members[f"ppt/slides/_rels/slide{99 - n}.xml.rels"] = related(("notesSlide", f"../notesSlides/n{n}.xml"))
        members[f"ppt/notesSlides/n{n}.xml"] = _tree("notes", shape(paragraph(text), "body") + shape("7", "sldNum"))
    return zipped({**members, **(more or {})})


def _tree(name: str, shapes: str) -> str:
    return f"<p:{name} {_SPACES}><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:{name}>"


_SHEET = f'xmlns="{OOXML}/spreadsheetml/2006/main"'


def xlsx(sheets: Mapping[str, Sequence[Sequence[object]]]) -> bytes:
    listed = "".join(f'<sheet name="{name}" sheetId="{n}" r:id="r{n}"/>' for n, name in enumerate(sheets, 1))
    members = {
        "[Content_Types].xml": _TYPES.format("xl/workbook.xml", _KIND + "spreadsheetml.sheet.main+xml"),
        "_rels/.rels": related(("officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": f"<workbook {_SHEET} {_R}><sheets>{listed}</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": related(
            *(("worksheet", f"worksheets/s{n}.xml") for n in range(1, len(sheets) + 1))
        ),
    }
    for n, rows in enumerate(sheets.values(), 1):
        body = "".join(
            f'<row r="{y}">{"".join(_cell(c, x, y) for x, c in enumerate(row))}</row>' for y, row in enumerate(rows, 1)
        )
        members[f"xl/worksheets/s{n}.xml"] = f"<worksheet {_SHEET}><sheetData>{body}</sheetData></worksheet>"
    return zipped(members)


def _cell(content: object, x: int, y: int) -> str:
    place = f"{chr(65 + x)}{y}"
    if content is None:
        return ""
    if isinstance(content, bool):
        return f'<c r="{place}" t="b"><v>{int(content)}</v></c>'
    if isinstance(content, (int, float)):
        return f'<c r="{place}"><v>{content}</v></c>'
    return f'<c r="{place}" t="inlineStr"><is><t>{content}</t></is></c>'


_ODF = "urn:oasis:names:tc:opendocument:xmlns:"
_NAMES = (
    " ".join(f'xmlns:{name}="{_ODF}{name}:1.0"' for name in ("office", "text", "table", "presentation", "style"))
    + f' xmlns:draw="{_ODF}drawing:1.0"'
)


def opendocument(kind: str, body: str, more: Mapping[str, str] | None = None) -> bytes:
    """`kind` is text, spreadsheet or presentation."""
    inner = f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    content = f"<office:document-content {_NAMES}>{inner}</office:document-content>"
    members = {
        "mimetype": f"application/vnd.oasis.opendocument.{kind}",
        "content.xml": content,
        "META-INF/manifest.xml": "<manifest/>",
    }
    return zipped({**members, **(more or {})})


def epub(chapters: Mapping[str, str], more: Mapping[str, str] | None = None) -> bytes:
    """A book. The spine is in the order of the chapters; the manifest is not."""
    items = "".join(
        f'<item id="{name}" href="{name}.xhtml" media-type="application/xhtml+xml"/>'
        for name in reversed(list(chapters))
    )
    spine = "".join(f'<itemref idref="{name}"/>' for name in chapters)
    members = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfile full-path="OEBPS/book.opf"/></container>',
        "OEBPS/book.opf": f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>",
    }
    return zipped({**members, **{f"OEBPS/{name}.xhtml": text for name, text in chapters.items()}, **(more or {})})


def message(subject: str, body: str, html: str | None = None) -> EmailMessage:
    made = EmailMessage()
    made["From"] = "Ann Otter <ann@example.org>"
    made["To"] = "ben@example.org"
    made["Subject"] = subject
    made["Date"] = "Mon, 10 Oct 2022 05:14:09 -0700"
    made.set_content(body)
    if html is not None:
        made.add_alternative(html, subtype="html")
    return made
