import os
from random import Random

import pytest
from semantic_text_splitter import MarkdownSplitter
from tests.kit.stages import run_stage
from tests.kit.texts import SCREEN_DUMP, flags, screen_dump
from tests.unit.test_chunk import MARKDOWN, markdown_pages

from penstock.stages import splitting
from penstock.stages.chunk import CHUNK
from penstock.stages.chunking import ChunkSettings, chunk_window
from penstock.stages.splitting import Piece, Splitter, Unit, plain_cut

LONG = bool(os.environ.get("PENSTOCK_LONG"))
SEEDS = range(20_000 if LONG else 60)
SIZES = [(1000, 200), (100, 20), (40, 8), (7, 6), (1000, 0)]


def texts(seed: int) -> list[str]:
    random = Random(seed)
    return [screen_dump(random), flags(random)]


def hold(text: str, pieces: list[Piece]) -> None:
    """Each is a slice, none is blank, and nothing but white space is left out."""
    covered = 0
    for start, piece in pieces:
        assert text[start : start + len(piece)] == piece
        assert piece.strip()
        assert not text[covered:start].strip()
        assert start + len(piece) > covered
        covered = start + len(piece)
    assert not text[covered:].strip()


@pytest.fixture
def panicking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The splitter as it comes, which trims by itself."""
    monkeypatch.setattr(splitting, "_engine", lambda unit, size, overlap, markdown: MarkdownSplitter(size, overlap))


def test_no_text_makes_the_splitter_panic(capfd: pytest.CaptureFixture[str]) -> None:
    for seed in SEEDS:
        for text in texts(seed):
            size, overlap = SIZES[seed % len(SIZES)]
            for markdown in (True, False):
                pieces = Splitter("characters", size, overlap, markdown=markdown).split(text)
                hold(text, pieces)
                assert all(len(piece) <= size for _, piece in pieces)
    hold(SCREEN_DUMP, Splitter("characters", 1000, 200, markdown=True).split(SCREEN_DUMP))
    assert capfd.readouterr().err == "", "a panic prints what it is"


def test_text_that_the_splitter_panics_at_is_cut_plainly(panicking: None) -> None:
    with pytest.raises(BaseException, match="Invalid byte sequence") as panic:
        MarkdownSplitter(1000, 200).chunk_indices(SCREEN_DUMP)
    assert not isinstance(panic.value, Exception)
    pieces = Splitter("characters", 1000, 200, markdown=True).split(SCREEN_DUMP)
    assert pieces == plain_cut(SCREEN_DUMP, 1000, 200, "characters")
    hold(SCREEN_DUMP, pieces)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_that_is_not_due_to_the_text_is_raised(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(splitting, "_engine", fail)
    with pytest.raises(error):
        Splitter("characters", 1000, 200, markdown=True).split("words")


@pytest.mark.parametrize("unit", ["characters", "tokens"])
def test_a_plain_cut_keeps_to_size_and_loses_nothing(unit: Unit) -> None:
    for seed in SEEDS:
        size, overlap = SIZES[seed % len(SIZES)]
        for text in texts(seed):
            pieces = plain_cut(text, size, overlap, unit)
            hold(text, pieces)
            starts = [start for start, _ in pieces]
            assert starts == sorted(set(starts))
            for (start, piece), following in zip(pieces, starts[1:], strict=False):
                assert start + len(piece) - following <= overlap
            if unit == "characters":
                assert all(len(piece) <= size for _, piece in pieces)
            else:
                assert all(len(piece.encode()) <= size or len(piece) == 1 for _, piece in pieces)


def test_a_plain_cut_falls_between_lines_words_and_letters() -> None:
    lines = "".join(f"line number {i}\n" for i in range(40))
    assert all(piece.endswith(tuple("0123456789")) for _, piece in plain_cut(lines, 100, 0, "characters"))
    assert all(lines[start - 1].isspace() for start, _ in plain_cut(lines, 100, 20, "characters")[1:])
    assert {piece for _, piece in plain_cut("🇩🇪" * 50, 7, 0, "characters")} == {"🇩🇪" * 3, "🇩🇪" * 2}
    assert {piece for _, piece in plain_cut("e\u0301" * 50, 7, 0, "characters")} == {"e\u0301" * 3, "e\u0301" * 2}
    assert [piece for _, piece in plain_cut("abcdef", 4, 2, "characters")] == ["abcd", "cdef"]


def test_i12_a_plain_cut_does_not_depend_on_interruptions(panicking: None) -> None:
    pages = markdown_pages(*(screen_dump(Random(seed)) + SCREEN_DUMP for seed in range(40)))
    whole, _, _ = run_stage(CHUNK, pages, media_type=MARKDOWN)
    chunks, _, _ = run_stage(CHUNK, pages, media_type=MARKDOWN, sizes=[3, 7], stops={1, 2})
    assert chunks == whole
    assert len(whole) > 40


def test_offsets_of_a_screen_dump_lead_to_the_page_text() -> None:
    for seed in range(50):
        text = screen_dump(Random(seed))
        for chunk in chunk_window(markdown_pages(text), 0, ChunkSettings(size=100), MARKDOWN):
            assert text[chunk.start : chunk.end].split() == chunk.text.split()
