"""Hits as the command line shows them."""

from penstock.cli.search import hit_lines
from penstock.search.highlight import Terms, snippet
from penstock.search.results import Hit

SENTENCES = [f"Sentence {number} is about gravel, sand and clay." for number in range(30)]


def test_the_text_shows_the_snippet_and_nothing_after_it() -> None:
    """Matches before and after the snippet do not widen it, and no part comes twice."""
    several = [*SENTENCES, "The layout of the dam and its spillway is old.", *SENTENCES, "A layout.", *SENTENCES]
    text = " ".join(["A layout.", *several])
    found = snippet(Terms("layout dam spillway"), text)
    assert any(start > found.end for start, _ in found.highlights)
    shown = Hit(
        1.0, "ID", "a.txt", 1, 1, 0, len(text), text, {}, (), "/x/a.txt",
        snippet=text[found.start : found.end], snippet_start=found.start, highlights=found.highlights,
    )  # fmt: skip
    lines = [line.plain.strip() for line in hit_lines([shown])][1:-2]
    assert " ".join(lines) == f"… {text[found.start : found.end]} …"


def shown_lines(text: str, *headings: str) -> list[str]:
    hit = Hit(
        1.0, "ID", "a.md", 1, 1, 0, len(text), text, {}, headings, "/x/a.md",
        snippet=text, snippet_start=0, highlights=((text.index("inspected"), text.index("inspected") + 9),),
    )  # fmt: skip
    [before, *lines] = [line.plain.strip() for line in hit_lines([hit])][1:-2]
    assert before == " › ".join(headings)
    return lines


def test_headings_above_the_snippet_are_not_repeated_in_it() -> None:
    assert shown_lines("# Dam\n\nThe dam is inspected.", "Dam") == ["The dam is inspected."]
    assert shown_lines("# River\n\n## Dam\n\nIt is inspected.", "River", "Dam") == ["It is inspected."]
    assert shown_lines("Damage\n\nis inspected.", "Dam") == ["Damage is inspected."]
    # Nothing but headings: they are the text.
    assert shown_lines("# Dam inspected", "Dam inspected") == ["# Dam inspected"]
