"""Where the passages of a page are on its picture."""

import io
from pathlib import Path

import pytest
from PIL import Image
from tests.kit.pdfs import page, pdf

from penstock.errors import Permanent
from penstock.extractors import pdf_pages, pdf_view

LINES = ("The penstock feeds the turbine.", "The dam holds the water back.", "The grid takes the current.")


def viewed(path: Path, data: bytes, text: str, spans: list[tuple[int, int]], **more: int) -> dict[str, object]:
    path.write_bytes(data)
    try:
        with path.open("rb") as file:
            given = {"index": 0, "width": 600, "most": 1_000_000} | more
            return pdf_view.read(file, None, text=text, spans=spans, **given)
    finally:
        while pdf_pages._documents:
            pdf_pages._documents.popitem()[1].close()


def darkest(grey: Image.Image) -> int:
    return next(level for level, count in enumerate(grey.histogram()) if count)


def test_each_line_of_a_passage_has_its_place_on_the_picture(tmp_path: Path) -> None:
    text = "\n".join(LINES)
    second = (text.index("The dam"), text.index("The grid"))
    found = viewed(tmp_path / "a.pdf", pdf(page(*LINES)), text, [(0, len(text)), second, (0, 0)])
    assert [len(places) for places in found["places"]] == [3, 1, 0]  # type: ignore[attr-defined]
    [(left, top, right, bottom)] = found["places"][1]  # type: ignore[index]
    picture = Image.open(io.BytesIO(found["image"])).convert("L")  # type: ignore[arg-type]
    assert picture.size == (found["width"], found["height"])
    box = [
        round(n * side / pdf_view.UNIT) for n, side in zip((left, top, right, bottom), 2 * picture.size, strict=True)
    ]
    inside = picture.crop((box[0], box[1], box[2], box[3]))
    assert darkest(inside) < 100, "there is ink in it"
    beside = picture.crop((box[2] + 8, box[1], picture.width, box[3]))
    assert darkest(beside) > 200, "and none beside it"


def test_the_picture_has_no_more_pixels_than_allowed(tmp_path: Path) -> None:
    found = viewed(tmp_path / "a.pdf", pdf(page("x")), "", [], width=50_000, most=90_000)
    assert found["width"] * found["height"] <= 91_000  # type: ignore[operator]


def test_a_page_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="has 1 pages"):
        viewed(tmp_path / "a.pdf", pdf(page("one")), "", [], index=1)


@pytest.mark.parametrize(
    ("text", "layer", "expected"),
    [
        ("a b\nc", "a b\r\nc", "abc"),
        ("trans-\nport", "trans\x02port", "transport"),
        ("abcdef", "xxabcdxxef", "abcdef"),
        ("## Title\n\nabcd efgh", "Titleabcdefgh", "Titleabcdefgh"),
        ("quite other words", "1234567890", ""),
        ("", "abc", ""),
    ],
)
def test_text_is_compared_by_letters_and_digits(text: str, layer: str, expected: str) -> None:
    found = pdf_view.aligned(text, [ord(c) for c in layer])
    assert "".join(layer[i] for i in found if i is not None) == expected
    assert all(i is None or layer[i] == text[n] for n, i in enumerate(found))


def test_pieces_of_a_line_become_one_rectangle() -> None:
    assert pdf_view.lines([(0, 0, 100, 50), (150, 5, 300, 55), (0, 60, 100, 110), (2_000, 60, 2_100, 110)]) == [
        (0, 0, 300, 55),
        (0, 60, 100, 110),
        (2_000, 60, 2_100, 110),
    ]
