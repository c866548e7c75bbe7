"""The table of media types: the names of each format, how it is detected, and which module reads it.

A new format needs one row here and the module that reads it. Detection (`media.py`), the choice of extractors, the
parser processes, versions and docs/reference/formats.md use this table. Parser processes import this module before they
are isolated, so it imports no heavy modules.
"""

import re
from typing import TYPE_CHECKING, Any

from penstock.extractors.format import Format as Format
from penstock.extractors.format import Magic as Magic
from penstock.extractors.format import Mark as Mark
from penstock.extractors.format import Named as Named
from penstock.extractors.format import Office as Office
from penstock.extractors.format import Ole as Ole
from penstock.extractors.format import Parts as Parts
from penstock.extractors.format import Reader as Reader
from penstock.extractors.format import Text as Text

if TYPE_CHECKING:
    from penstock.extractors.base import Extractor

PLAIN = "text/plain"
MARKDOWN = "text/markdown"
HTML = "text/html"
PDF = "application/pdf"
_OOXML = "application/vnd.openxmlformats-officedocument."
DOCX = _OOXML + "wordprocessingml.document"
PPTX = _OOXML + "presentationml.presentation"
XLSX = _OOXML + "spreadsheetml.sheet"
_ODF = "application/vnd.oasis.opendocument."
ODT, ODS, ODP = _ODF + "text", _ODF + "spreadsheet", _ODF + "presentation"
EPUB = "application/epub+zip"
RTF = "application/rtf"
DOC, XLS = "application/msword", "application/vnd.ms-excel"
EML, MSG = "message/rfc822", "application/vnd.ms-outlook"
CSV, TSV, RST = "text/csv", "text/tab-separated-values", "text/x-rst"
JSON, JSON_LINES, NOTEBOOK, XML = (
    "application/json",
    "application/x-ndjson",
    "application/x-ipynb+json",
    "application/xml",
)
ZIP, TAR, SEVEN_ZIP = "application/zip", "application/x-tar", "application/x-7z-compressed"
GZIP, BZIP2, XZ = "application/gzip", "application/x-bzip2", "application/x-xz"

DETECTOR = "charset-normalizer"
"""The library that detects legacy encodings."""


# Markdown and plain text may begin with other tags, or contain these later.
_HTML = re.compile(
    r"(?:\s|<\?xml[^>]*>|<!--.*?-->)*+<(?:!doctype\s+html\b|(?:html|head|body)[\s>])", re.IGNORECASE | re.DOTALL
)

# Checked after the pattern of HTML, which may begin with the same declaration.
_XML = re.compile(r"\s*+<\?xml\s")

# A message begins with headers. Two of these together are not the beginning of another text.
_MESSAGE = re.compile(
    r"(?:From [^\n]+\n)?(?=(?:[!-9;-~]+:[^\n]*\n(?:[ \t][^\n]*\n)*)*?(?:From|Received|Return-Path|Message-ID):)"
    r"(?=(?:[!-9;-~]+:[^\n]*\n(?:[ \t][^\n]*\n)*)*?(?:MIME-Version|Subject|Date|To):)",
    re.IGNORECASE,
)

_OFFICE = Reader(
    "office",
    "penstock.extractors.office",
    late=(*(f"penstock.extractors.{name}" for name in ("docx", "pptx", "opendocument", "epub")), "charset_normalizer"),
)
_SHEETS = Reader("sheets", "penstock.extractors.sheets", late=("python_calamine", "olefile"))
_ARCHIVE = Reader(
    "archive",
    "penstock.extractors.archive",
    late=("penstock.extractors.tar", "penstock.extractors.seven_zip", "py7zr"),
)
_ATTACHMENTS = Reader("attachments", "penstock.extractors.attachments", late=("olefile",))
_MAIL = Reader("mail", "penstock.extractors.mail", late=("olefile", "striprtf.striprtf", "charset_normalizer"))

_IMAGE = Reader(
    "image",
    "penstock.extractors.image_pages",
    late=(
        "PIL.Image",
        "PIL.ImageOps",
        *(f"PIL.{kind}ImagePlugin" for kind in ("Bmp", "Gif", "Jpeg", "Png", "Ppm", "Tiff", "WebP")),
    ),
)

SOURCE_CODE = (
    "asm", "bash", "bat", "c", "cc", "clj", "cljs", "cmake", "cpp", "cs", "css", "cxx", "dart", "diff", "el", "elm",
    "erl", "ex", "exs", "f90", "fs", "go", "gradle", "graphql", "groovy", "h", "hpp", "hs", "java", "jl", "js", "jsx",
    "kt", "kts", "less", "lisp", "lua", "m", "make", "ml", "mm", "nim", "pas", "patch", "php", "pl", "pm", "proto",
    "ps1", "py", "pyi", "r", "rb", "rs", "sass", "scala", "scm", "scss", "sh", "sol", "sql", "swift", "tcl", "tf",
    "ts", "tsx", "v", "vb", "vhdl", "vim", "vue", "zig", "zsh",
)  # fmt: skip
"""Suffixes of source files."""


def _text(
    media_type: str, label: str, *suffixes: str, version: str = "text-2", markdown: bool = False, reads: str = "as text"
) -> Format:
    """A format that is read as text, in windows."""
    return Format(
        media_type=media_type,
        label=label,
        suffixes=suffixes,
        sign=Text(),
        adapter="penstock.extractors.text:make",
        version=version,
        libraries=(DETECTOR,),
        markdown=markdown,
        reads=reads,
    )


def _tree(media_type: str, label: str, *suffixes: str, reads: str, pattern: re.Pattern[str] | None = None) -> Format:
    """A format that is read as a whole if it is small enough, and else as text."""
    return Format(
        media_type=media_type,
        label=label,
        suffixes=suffixes,
        sign=Text(pattern),
        adapter="penstock.extractors.trees:make",
        reader=Reader("trees", "penstock.extractors.tree_pages", late=("charset_normalizer",)),
        version="trees-1",
        libraries=(DETECTOR, "webencodings"),
        markdown=True,
        reads=f"{reads}; above 16 MB, and if it is damaged, as text",
    )


def _audio(media_type: str, label: str, *suffixes: str, sign: Magic) -> Format:
    return Format(
        media_type=media_type,
        label=label,
        suffixes=suffixes,
        sign=sign,
        adapter="penstock.extractors.audio:make",
        reader=Reader("audio", "penstock.extractors.audio_samples"),
        version="audio-1",
        libraries=("av",),
        reads="speech, in pages of half a minute whose label is the time; the default model knows only English",
    )


def _archive(media_type: str, label: str, *suffixes: str, sign: Magic | None = None, library: str = "") -> Format:
    """A format that contains other files and has no text of its own."""
    return Format(
        media_type=media_type,
        label=label,
        suffixes=suffixes,
        sign=sign,
        reads="every file inside, as a document of its own",
        adapter="penstock.extractors.container:make",
        members=_ARCHIVE,
        version="archive-1",
        libraries=(library,) if library else (),
    )


_DOCUMENTS = (
    Format(
        media_type=PLAIN,
        label="plain text",
        reads="text in any encoding, in windows of 256 KB; form feeds divide pages",
        suffixes=("txt", "text", "log"),
        sign=Text(),
        adapter="penstock.extractors.text:make",
        version="text-2",
        libraries=(DETECTOR,),
    ),
    Format(
        media_type=MARKDOWN,
        label="Markdown",
        reads="headings, tables, lists, code; front matter is kept as text",
        suffixes=("md", "markdown", "mdown"),
        sign=Text(),
        adapter="penstock.extractors.text:make",
        version="text-2",
        libraries=(DETECTOR,),
        markdown=True,
    ),
    Format(
        media_type=HTML,
        label="HTML",
        reads="headings, lists, tables, code, quotes; not scripts, navigation and hidden elements; nothing is fetched",
        suffixes=("html", "htm", "xhtml", "xht"),
        sign=Text(_HTML),
        adapter="penstock.extractors.whole:make",
        reader=Reader("html", "penstock.extractors.html", late=("charset_normalizer",)),
        version="html-3",
        libraries=(DETECTOR, "webencodings"),
        markdown=True,
    ),
    Format(
        media_type=PDF,
        label="PDF",
        reads="the text layer in reading order, headings by size, page labels; no figures",
        suffixes=("pdf",),
        sign=Mark(b"%PDF-", anywhere=True),
        adapter="penstock.extractors.pdf:make",
        reader=Reader("pdf", "penstock.extractors.pdf_pages"),
        version="pdf-2",
        libraries=("pypdfium2",),
        printed=True,
    ),
    Format(
        media_type=DOCX,
        label="Word (DOCX)",
        reads="headings, lists, tables, notes, formulas, text boxes; not comments and deleted text",
        suffixes=("docx",),
        sign=Office(b"wordprocessingml.", b"word"),
        adapter="penstock.extractors.whole:make",
        reader=_OFFICE,
        version="office-2",
        markdown=True,
    ),
    _text(CSV, "CSV", "csv", version="rows-1", markdown=True, reads="tables of 500 rows, each with the header"),
    _text(TSV, "TSV", "tsv", "tab", version="rows-1", markdown=True, reads="as CSV"),
    _tree(JSON, "JSON", "json", "geojson", reads="lines of names and values"),
    _tree(NOTEBOOK, "Jupyter notebook", "ipynb", reads="text cells, code and printed results"),
    _text(JSON_LINES, "JSON lines", "jsonl", "ndjson", version="records-1", reads="one paragraph for each record"),
    _text("application/yaml", "YAML", "yaml", "yml"),
    _text("application/toml", "TOML", "toml"),
    _tree(
        XML,
        "XML",
        "xml",
        "xsd",
        "xsl",
        "xslt",
        "rss",
        "atom",
        pattern=_XML,
        reads="paragraphs, titles, names and values; entities are not expanded",
    ),
    _text(RST, "reStructuredText", "rst", version="rst-1", reads="text and headings"),
    _text("text/x-ini", "settings", "ini", "cfg", "conf", "properties", "env"),
    _text("text/x-source", "source code", *SOURCE_CODE),
    Format(
        media_type=RTF,
        label="RTF",
        reads="the text; not tables and pictures",
        suffixes=("rtf",),
        sign=Mark(b"{\\rtf"),
        adapter="penstock.extractors.whole:make",
        reader=Reader("rtf", "penstock.extractors.rtf", late=("striprtf.striprtf",)),
        version="rtf-2",
        libraries=("striprtf",),
        markdown=True,
    ),
    Format(media_type="application/postscript", label="PostScript", suffixes=("ps",), sign=Mark(b"%!PS-Adobe")),
    Format(
        media_type=PPTX,
        label="PowerPoint (PPTX)",
        reads="each slide is a page: titles, text, tables, notes; not pictures and charts",
        suffixes=("pptx",),
        sign=Office(b"presentationml.", b"ppt"),
        adapter="penstock.extractors.whole:make",
        reader=_OFFICE,
        version="pptx-2",
        markdown=True,
    ),
    Format(
        media_type=XLSX,
        label="Excel (XLSX)",
        reads="each sheet is a page, or several: the shown values as tables; not charts and comments",
        suffixes=("xlsx", "xlsm"),
        sign=Office(b"spreadsheetml.", b"xl"),
        adapter="penstock.extractors.whole:make",
        reader=_SHEETS,
        version="sheets-2",
        libraries=("python-calamine",),
        markdown=True,
    ),
    Format(
        media_type=XLS,
        label="Excel of the old format (XLS)",
        reads="as XLSX",
        suffixes=("xls",),
        sign=Ole(),
        adapter="penstock.extractors.whole:make",
        reader=_SHEETS,
        version="sheets-2",
        libraries=("python-calamine",),
        markdown=True,
    ),
    Format(
        media_type=ODS,
        label="OpenDocument spreadsheet (ODS)",
        reads="as XLSX",
        suffixes=("ods",),
        sign=Named(),
        adapter="penstock.extractors.whole:make",
        reader=_SHEETS,
        version="sheets-2",
        libraries=("python-calamine",),
        markdown=True,
    ),
    Format(
        media_type=ODT,
        label="OpenDocument text (ODT)",
        reads="headings, lists, tables, notes",
        suffixes=("odt",),
        sign=Named(),
        adapter="penstock.extractors.whole:make",
        reader=_OFFICE,
        version="odf-2",
        markdown=True,
    ),
    Format(
        media_type=ODP,
        label="OpenDocument presentation (ODP)",
        reads="each slide is a page: text, tables, notes",
        suffixes=("odp",),
        sign=Named(),
        adapter="penstock.extractors.whole:make",
        reader=_OFFICE,
        version="odf-2",
        markdown=True,
    ),
    Format(
        media_type=EPUB,
        label="e-book (EPUB)",
        reads="each chapter is a page, or several, as HTML",
        suffixes=("epub",),
        sign=Named(),
        adapter="penstock.extractors.whole:make",
        reader=_OFFICE,
        version="epub-2",
        libraries=(DETECTOR, "webencodings"),
        markdown=True,
    ),
    Format(
        media_type=EML,
        label="e-mail (EML)",
        reads="sender, receivers, date, subject and the text, preferring HTML; enclosed messages are pages, and "
        "attachments are documents of their own",
        suffixes=("eml",),
        sign=Text(_MESSAGE),
        adapter="penstock.extractors.container:make",
        reader=_MAIL,
        members=_ATTACHMENTS,
        version="mail-2",
        libraries=(DETECTOR, "webencodings"),
        markdown=True,
    ),
    Format(
        media_type=MSG,
        label="Outlook message (MSG)",
        reads="as EML",
        suffixes=("msg",),
        sign=Ole(),
        adapter="penstock.extractors.container:make",
        reader=_MAIL,
        members=_ATTACHMENTS,
        version="mail-2",
        libraries=(DETECTOR, "webencodings", "olefile", "striprtf"),
        markdown=True,
    ),
    Format(
        media_type=DOC,
        label="Word of the old format (DOC)",
        reads="the text and its tables; not headings",
        suffixes=("doc",),
        sign=Ole(),
        adapter="penstock.extractors.whole:make",
        reader=Reader("doc", "penstock.extractors.doc", late=("olefile",)),
        version="doc-2",
        libraries=("olefile",),
        markdown=True,
    ),
    Format(
        media_type="application/vnd.ms-powerpoint",
        label="PowerPoint of the old format (PPT)",
        suffixes=("ppt",),
        sign=Ole(),
    ),
    _audio("audio/wav", "sound (WAV)", "wav", sign=Magic((b"WAVE",), 8)),
    _audio("audio/mpeg", "sound (MP3)", "mp3", sign=Magic((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"))),
    _audio("audio/flac", "sound (FLAC)", "flac", sign=Magic((b"fLaC",))),
    _audio("audio/mp4", "sound (M4A)", "m4a", "m4b", sign=Magic((b"ftypM4A", b"ftypM4B"), 4)),
    _audio("audio/ogg", "sound (OGG, Opus)", "ogg", "oga", "opus", sign=Magic((b"OggS",))),
    _archive(ZIP, "ZIP", "zip"),
    _archive(TAR, "TAR", "tar", sign=Magic((b"ustar",), 257)),
    _archive(GZIP, "GZIP", "gz", "tgz", sign=Magic((b"\x1f\x8b\x08",))),
    _archive(BZIP2, "BZIP2", "bz2", "tbz", "tbz2", sign=Magic((b"BZh",))),
    _archive(XZ, "XZ", "xz", "txz", sign=Magic((b"\xfd7zXZ\0",))),
    _archive(SEVEN_ZIP, "7Z", "7z", sign=Magic((b"7z\xbc\xaf\x27\x1c",)), library="py7zr"),
)

_IMAGES = tuple(
    Format(
        media_type=media_type,
        label=f"image ({label})",
        suffixes=suffixes,
        sign=sign,
        adapter="penstock.extractors.image:make",
        reader=_IMAGE,
        version="image-1",
        libraries=("pillow",),
        printed=True,
        reads="text by OCR, if Tesseract is installed; of a TIFF file all images, of an animation the first",
    )
    for media_type, label, suffixes, sign in (
        ("image/png", "PNG", ("png",), Magic((b"\x89PNG\r\n\x1a\n",))),
        ("image/jpeg", "JPEG", ("jpg", "jpeg", "jpe", "jfif"), Magic((b"\xff\xd8\xff",))),
        ("image/tiff", "TIFF", ("tif", "tiff"), Magic((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"))),
        ("image/webp", "WEBP", ("webp",), Magic((b"WEBP",), 8)),
        ("image/gif", "GIF", ("gif",), Magic((b"GIF87a", b"GIF89a"))),
    )
)

FORMATS: tuple[Format, ...] = (*_DOCUMENTS, *_IMAGES)

_BY_MEDIA_TYPE = {row.media_type: row for row in FORMATS}

READERS = {reader.name: reader for row in FORMATS for reader in (row.reader, row.members) if reader is not None} | {
    "pdf_image": Reader("pdf_image", "penstock.extractors.pdf_images"),
    "pdf_part": Reader("pdf_part", "penstock.extractors.pdf_part", ("PIL.Image", "PIL.JpegImagePlugin")),
    "pdf_view": Reader("pdf_view", "penstock.extractors.pdf_view", ("PIL.Image", "PIL.JpegImagePlugin")),
}
"""The readers that parser processes can run, by name."""

PARSED = tuple(f".{suffix}" for row in FORMATS if row.reader or row.members for suffix in row.suffixes)
"""Suffixes of file names that probably need a parser process."""


def of(media_type: str | None) -> Format:
    """The row of a media type; an empty row for an unknown media type."""
    name = media_type or PLAIN
    return _BY_MEDIA_TYPE.get(name) or Format(media_type=name, label=name)


def make_extractors(parts: Parts) -> "dict[str, Extractor]":
    """Create the extractors of all formats that can be read, by media type. This imports their modules."""
    return {row.media_type: _factory(row.adapter)(row, parts) for row in FORMATS if row.adapter is not None}


def _factory(path: str) -> Any:
    from importlib import import_module

    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
