"""PDFs of one page that are made to break readers, with the end of each: its chunks, or the reason why it has none."""

import random
import zlib
from collections.abc import Mapping

End = int | str

FONT = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
WORDS = b"BT /F1 12 Tf 72 720 Td (Hello words of the turbine) Tj ET"
SCAN = b"q 612 0 0 792 0 0 cm /I Do Q"
FORM = b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]"
CATALOG, PAGES, PAGE, CONTENT, FIRST_FONT, MORE = range(1, 7)


def stream(data: bytes, entries: bytes = b"", *, packed: bool = False) -> bytes:
    if packed:
        data, entries = zlib.compress(data), entries + b"/Filter/FlateDecode"
    return b"<<%b/Length %d>>stream\n%b\nendstream" % (entries, len(data), data)


def build(
    content: bytes = WORDS,
    *,
    page: bytes = b"",
    resources: bytes = b"/Font<</F1 5 0 R>>",
    catalog: bytes = b"",
    trailer: bytes = b"",
    objects: Mapping[int, bytes] | None = None,
    root: int = CATALOG,
    start: int | None = None,
) -> bytes:
    """`objects` replaces and adds objects. `start`: a wrong place of the cross-reference table."""
    bodies = {
        CATALOG: b"<</Type/Catalog/Pages 2 0 R%b>>" % catalog,
        PAGES: b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        PAGE: b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<<%b>>%b>>" % (resources, page),
        CONTENT: content if content.startswith(b"<<") else stream(content),
        FIRST_FONT: FONT,
    } | dict(objects or {})
    out, places = bytearray(b"%PDF-1.7\n"), {}
    for number, body in bodies.items():
        places[number] = len(out)
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table, size = len(out), max(bodies) + 1
    out += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        out += b"%010d 00000 n \n" % places[number] if number in places else b"0000000000 65535 f \n"
    ends = size, root, trailer, table if start is None else start
    return bytes(out) + b"trailer\n<</Size %d/Root %d 0 R%b>>\nstartxref\n%d\n%%%%EOF\n" % ends


def structures() -> dict[str, tuple[bytes, End]]:
    """Page trees, tables and files that contradict themselves."""
    good = build()
    nested = {10 + i: b"<</Type/Pages/Kids[%d 0 R]/Count 1>>" % (11 + i) for i in range(3000)}
    deep = {MORE: b"[" * 100_000 + b"]" * 100_000}
    return {
        "kids of itself": (build(objects={PAGES: b"<</Type/Pages/Kids[2 0 R]/Count 5>>"}), "damaged"),
        "more pages than there are": (build(objects={PAGES: b"<</Type/Pages/Kids[3 0 R]/Count 2147483647>>"}), 1),
        "a negative count": (build(objects={PAGES: b"<</Type/Pages/Kids[3 0 R]/Count -5>>"}), 1),
        "nested": (build(objects={PAGES: b"<</Type/Pages/Kids[10 0 R]/Count 1>>"} | nested), "damaged"),
        "table elsewhere": (build(start=7), 1),
        "table behind the end": (build(start=10**12), 1),
        "table before itself": (build(trailer=b"/Prev %d" % good.rindex(b"xref\n0")), 1),
        "many objects": (good.replace(b"xref\n0 6", b"xref\n-5 600000000"), 1),
        "half": (good[: len(good) // 2], "damaged"),
        "head": (b"%PDF-1.7\n", "damaged"),
        "zeros": (b"%PDF-1.7\n" + bytes(100_000), "damaged"),
        "comments": (b"%PDF-1.4\n" + b"%x\n" * 500_000, "damaged"),
        "no root": (build(root=99), "damaged"),
        "root is a stream": (build(objects={CATALOG: stream(b"abc")}), "damaged"),
        "something before": (b"x" * 900 + good, 1),
        "arrays": (build(objects=deep, trailer=b"/Info 6 0 R"), 1),
        "linearized": (build(objects={9: b"<</Linearized 1/L 1/H[1 1]/O 999/E 1/N 99999/T 1>>"}), 1),
        "object stream": (build(objects={MORE: stream(b"1 0 2 9 ", b"/Type/ObjStm/N 999999999/First 99999")}), 1),
    }


def contents() -> dict[str, tuple[bytes, End]]:
    laughs = {
        10 + i: stream(b"/X Do " * 10, FORM + b"/Resources<</XObject<</X %d 0 R>>>>" % (11 + i)) for i in range(9)
    }
    itself = {MORE: stream(b"/X Do", FORM + b"/Resources<</XObject<</X 6 0 R>>>>")}
    return {
        "a form of itself": (build(b"/X Do", resources=b"/XObject<</X 6 0 R>>", objects=itself), "no_text"),
        "forms": (build(b"/X Do", resources=b"/XObject<</X 10 0 R>>", objects=laughs), "parser_memory"),
        "compressed spaces": (build(stream(WORDS + b" " * 50_000_000, packed=True)), 1),
        "filters": (build(b"<</Filter[%b]/Length 4>>stream\nabcd\nendstream" % (b"/ASCIIHexDecode" * 1000)), "no_text"),
        "wrong length": (build(b"<</Length 2147483647>>stream\n%b\nendstream" % WORDS), 1),
        "negative length": (build(b"<</Length -1>>stream\n%b\nendstream" % WORDS), 1),
        "its own length": (build(b"<</Length 4 0 R>>stream\n%b\nendstream" % WORDS), 1),
        "states": (build(b"q " * 300_000 + WORDS), 1),
        "an open image": (build(b"BI /W 100000 /H 100000 /BPC 8 /CS /RGB ID xxxx"), "no_text"),
        "many contents": (
            build(objects={PAGE: b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents[%b]>>" % (b"4 0 R " * 10_000)}),
            "no_text",
        ),
        "one place": (build(b"BT /F1 12 Tf 72 72 Td " + b"(abc) Tj " * 50_000 + b"ET"), 1),
        "half characters": (build(b"BT /F1 12 Tf 72 72 Td <FEFFD800D800DC00> Tj (\xed\xa0\x80 a word) Tj ET"), 1),
        "a huge page": (build(page=b"/MediaBox[-1e30 -1e30 1e30 1e30]"), 1),
        "a page of nothing": (build(page=b"/MediaBox[(a) null <<>> 7]/UserUnit 1e9/Rotate 37"), 1),
    }


def parts() -> dict[str, tuple[bytes, End]]:
    """Fonts, images, outlines, and what else a file may carry."""
    chance = random.Random(3)
    descriptor = b"<</Type/FontDescriptor/FontName/X/FontFile2 7 0 R>>"
    truetype = b"<</Type/Font/Subtype/TrueType/BaseFont/X/FontDescriptor 6 0 R>>"
    garbage = {FIRST_FONT: truetype, MORE: descriptor, 7: stream(chance.randbytes(20_000), b"/Length1 20000")}
    loop = b"<</Title(loop)/Parent 6 0 R/Next 7 0 R/First 7 0 R/Dest[3 0 R/Fit]>>"
    chain = {7 + i: b"<</Title(%d)/Parent %d 0 R/First %d 0 R>>" % (i, 6 + i, 8 + i) for i in range(5000)}
    first = b"<</Type/Outlines/First 7 0 R/Last 7 0 R/Count 1>>"
    odd = b"<</Filter/Standard/V 99/R 99/O(x)/U(x)/P -1>>"
    image = b"/Type/XObject/Subtype/Image/Width %d/Height %d/BitsPerComponent 8/ColorSpace/DeviceGray"
    pages: dict[str, tuple[bytes, End]] = {
        "no font": (build(objects={FIRST_FONT: b"null"}), 1),
        "a font of nothing": (build(objects={FIRST_FONT: b"<</Type/Font/Subtype/TrueType>>"}), 1),
        "a broken font": (build(objects=garbage), 1),
        "an outline that loops": (build(catalog=b"/Outlines 6 0 R", objects={MORE: first, 7: loop}), 1),
        "a deep outline": (build(catalog=b"/Outlines 6 0 R", objects={MORE: first} | chain), 1),
        "unknown encryption": (build(objects={MORE: odd}, trailer=b"/Encrypt 6 0 R/ID[(a)(a)]"), "encrypted"),
        "a name tree that loops": (
            build(catalog=b"/Names<</EmbeddedFiles 6 0 R>>", objects={MORE: b"<</Kids[6 0 R]>>"}),
            1,
        ),
        "a script": (build(catalog=b"/OpenAction<</S/JavaScript/JS(while\\(1\\){})>>"), 1),
        "a long title": (build(objects={MORE: b"<</Title(%b)>>" % (b"A" * 2_000_000)}, trailer=b"/Info 6 0 R"), 1),
    }
    images: dict[str, tuple[bytes, End]] = {
        f"image {name}": (
            _scan(stream(chance.randbytes(5000), image % (2000, 2000) + b"/Filter/" + name.encode())),
            "no_text",
        )
        for name in ("JBIG2Decode", "JPXDecode", "DCTDecode", "CCITTFaxDecode", "LZWDecode", "Crypt", "Nonsense")
    }
    odd_images: dict[str, tuple[bytes, End]] = {
        "image 65500": (_scan(stream(b"\xff" * 100, image % (65_500, 65_500))), "no_text"),
        "image -5": (_scan(stream(b"\xff" * 100, image % (-5, 99_999_999_999))), "no_text"),
        "image of its own mask": (_scan(stream(b"\xff" * 100, image % (10, 10) + b"/SMask 6 0 R")), "no_text"),
    }
    return pages | images | odd_images


def _scan(image: bytes) -> bytes:
    return build(SCAN, resources=b"/XObject<</I 6 0 R>>", objects={MORE: image})


def hostile() -> dict[str, tuple[bytes, End]]:
    return structures() | contents() | parts()
