from importlib.metadata import version
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from semantic_text_splitter import TextSplitter
from tests.kit.stages import run_stage

from penstock.errors import ConfigError
from penstock.extractors.markdown import State, scan
from penstock.model.items import CleanPage, Page
from penstock.stages import chunking
from penstock.stages.chunk import CHUNK, WINDOW
from penstock.stages.chunking import PIECE, ChunkSettings, Window, chunk_window
from penstock.stages.cleaning import clean_page

SENTENCE = "The penstock carries water from the reservoir down to the turbine, whatever the weather. "
MARKDOWN = "text/markdown"


def markdown_pages(*texts: str) -> list[CleanPage]:
    state, found = State(), []
    for number, text in enumerate(texts, 1):
        blocks, after = scan(text, state, first=number == 1)
        found.append(clean_page(Page(number, text, None, blocks, state.path)))
        state = after
    return found


def plain_pages(*texts: str) -> list[CleanPage]:
    return [clean_page(Page(number, text)) for number, text in enumerate(texts, 1)]


def test_defaults() -> None:
    assert ChunkSettings() == ChunkSettings("characters", 1000, 200)
    assert ChunkSettings(unit="tokens") == ChunkSettings("tokens", 512, 50)
    assert ChunkSettings(size=100).overlap == 20
    assert msgspec.convert({"unit": "tokens", "size": 100}, ChunkSettings) == ChunkSettings("tokens", 100, 20)


@pytest.mark.parametrize("wrong", [{"size": 100, "overlap": 100}, {"size": 0}, {"overlap": -2}, {"unit": "words"}])
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match=r"chunk|Invalid"):
        msgspec.convert(wrong, ChunkSettings)


def test_a_window_without_text_has_no_chunks() -> None:
    assert chunk_window([], 0, ChunkSettings()) == []
    assert chunk_window(plain_pages("", " \n ", "\u200b"), 0, ChunkSettings()) == []


def test_ordinals_go_on_from_the_first() -> None:
    chunks = chunk_window(plain_pages(SENTENCE * 40), 7, ChunkSettings())
    assert [chunk.ordinal for chunk in chunks] == list(range(7, 7 + len(chunks)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab cdé日.\n  "), max_size=400), max_size=5),
    st.sampled_from([ChunkSettings(size=40), ChunkSettings(size=90, overlap=0), ChunkSettings("tokens", 20)]),
    st.sampled_from(["text/plain", MARKDOWN]),
)
def test_a_chunk_is_a_slice_of_the_clean_window_and_within_its_size(
    texts: list[str], settings: ChunkSettings, media_type: str
) -> None:
    pages = plain_pages(*texts)
    window = "\n\n".join(page.text for page in pages if page.text)
    at = 0
    for chunk in chunk_window(pages, 0, settings, media_type):
        at = window.index(chunk.text, at)
        assert chunk.text.strip()
        assert len(chunk.text) <= settings.size or settings.unit == "tokens"
        first, last = texts[chunk.page - 1], texts[chunk.page_end - 1]
        assert first[chunk.start] == chunk.text[0] or chunk.text[0].isspace()
        assert last[chunk.end - 1] == chunk.text[-1]
        assert 0 <= chunk.start < len(first)
        assert 0 < chunk.end <= len(last)


def test_no_word_is_lost() -> None:
    words = [f"word{i}" for i in range(30_000)]
    chunks = chunk_window(plain_pages(" ".join(words)), 0, ChunkSettings())
    assert {word for chunk in chunks for word in chunk.text.split()} == set(words)


def test_offsets_lead_to_the_page_text() -> None:
    text = (SENTENCE * 3).strip() + "\n\n" + (SENTENCE * 9).strip()
    for chunk in chunk_window(plain_pages(text), 0, ChunkSettings(size=300)):
        assert text[chunk.start : chunk.end] == chunk.text
    spaced = text.replace(" ", "   ").replace("\n\n", "\r\n\r\n\r\n")
    for chunk in chunk_window(plain_pages(spaced), 0, ChunkSettings(size=300)):
        assert spaced[chunk.start : chunk.end].split() == chunk.text.split()


def test_a_chunk_over_a_page_break_says_so() -> None:
    [chunk] = chunk_window(plain_pages("  First page.", "Second page.  "), 0, ChunkSettings())
    assert chunk.text == "First page.\n\nSecond page."
    assert (chunk.page, chunk.start, chunk.page_end, chunk.end) == (1, 2, 2, 12)


@pytest.mark.parametrize("media_type", ["text/plain", MARKDOWN])
def test_sections_change_nothing(media_type: str) -> None:
    text = "\n\n".join(f"Paragraph {i}. {SENTENCE * (i % 7 + 1)}".strip() for i in range(700))
    [page] = plain_pages(text)
    whole = TextSplitter(1000, 200).chunk_indices(page.text)
    chunks = chunk_window([page], 0, ChunkSettings(), media_type)
    assert len(page.text) > 3 * 64 * 1024
    if media_type == "text/plain":
        assert [(chunk.start, chunk.text) for chunk in chunks] == whole
    assert abs(len(chunks) - len(whole)) < 10


def test_a_size_larger_than_a_section() -> None:
    text = SENTENCE * 5000
    chunks = chunk_window(plain_pages(text), 0, ChunkSettings(size=100_000, overlap=0))
    assert max(len(chunk.text) for chunk in chunks) > 90_000
    assert sum(len(chunk.text) for chunk in chunks) > len(text) - 100


def test_the_headings_open_at_its_start_belong_to_a_chunk() -> None:
    body = SENTENCE * 4
    pages = markdown_pages(f"# A\n\n{body}\n\n### C\n\n{body}\n\n## B\n\n{body}", f"{body}\n\n# D\n\n{body}")
    chunks = chunk_window(pages, 0, ChunkSettings(size=400, overlap=0), MARKDOWN)
    found = [chunk.headings for chunk in chunks]
    assert list(dict.fromkeys(found)) == [("A",), ("A", "C"), ("A", "B"), ("D",)]
    assert {chunk.page for chunk in chunks if chunk.headings == ("A", "B")} == {1, 2}


def test_tokens_are_counted_offline() -> None:
    tiktoken = TextSplitter.from_tiktoken_model("text-embedding-3-small", 64, 0)
    chunks = chunk_window(plain_pages(SENTENCE * 60), 0, ChunkSettings("tokens", 64, 8))
    assert len(chunks) > 10
    assert all(len(tiktoken.chunks(chunk.text)) == 1 for chunk in chunks)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 3 * WINDOW + 3),
    st.lists(st.integers(1, 2 * WINDOW), min_size=1, max_size=4),
    st.sets(st.integers(1, 4)),
)
def test_i12_segments_and_interruptions_change_no_chunk(count: int, sizes: list[int], stops: set[int]) -> None:
    """Chunks that run on over page breaks: where a window ends shows."""
    pages = plain_pages(*(f"Of page {number} there is little. " * 3 for number in range(count)))
    params = {"size": 250, "overlap": 20}
    whole, _, _ = run_stage(CHUNK, pages, media_type="text/plain", params=params)
    chunks, cursors, result = run_stage(CHUNK, pages, media_type="text/plain", sizes=sizes, stops=stops, params=params)
    assert chunks == whole
    assert result.meta == {"chunks": len(whole)}
    assert [cursor["pages"] for cursor in cursors] == [*range(WINDOW, count, WINDOW), count][: len(cursors)]


HOSTILE = {
    "dots": "." * 300_000,
    "one word": "a" * 300_000,
    "Chinese": "的一是在不了有和人这" * 10_000,
    "lines": "x\n" * 100_000,
    "blanks": (" " * 9_999 + "x") * 20,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("unit", ["tokens", "characters"])
def test_a_long_text_is_chunked_in_small_pieces(name: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop or a cancel is heard between two of them; and within one the splitter never gets much at once: its time
    grows with the square."""
    given: list[int] = []
    section = chunking._section

    def noted(window: Any, splitter: Any, at: int, size: int) -> Any:
        found, after = section(window, splitter, at, size)
        given.append(after - at)
        return found, after

    monkeypatch.setattr(chunking, "_section", noted)
    text = HOSTILE[name][:100_000] if name == "Chinese" else HOSTILE[name]
    window = Window(plain_pages(text), msgspec.convert({"unit": unit}, ChunkSettings))
    at: int | None = 0
    chunks: list[Any] = []
    while at is not None:
        before = at
        made, at = window.take(at, len(chunks))
        chunks += made
        assert (at or before) - before <= PIECE + 32 * 1024
    assert max(given) <= 32 * 1024
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    assert {len(chunk.text) <= 32 * 1024 for chunk in chunks} == {True}
    covered = sum(len(chunk.text) for chunk in chunks)
    assert covered >= len("".join(text.split())), "nothing is lost"


def test_i12_a_stop_within_a_window_changes_no_chunk() -> None:
    pages = plain_pages(SENTENCE * 3000, SENTENCE * 700, SENTENCE * 1500)
    whole, _, _ = run_stage(CHUNK, pages, media_type="text/plain")
    assert whole == chunk_window(pages, 0, ChunkSettings())
    chunks, cursors, _ = run_stage(CHUNK, pages, media_type="text/plain", stops=range(1, 20))
    assert chunks == whole
    assert any("at" in cursor for cursor in cursors)


def test_the_splitter_s_version_is_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: Any = None
    now = CHUNK.version(ports, {}, MARKDOWN)
    assert f"semantic-text-splitter-{version('semantic-text-splitter')}" in now
    monkeypatch.setattr("penstock.stages.chunk.library", lambda name: f"{name}-99")
    assert CHUNK.version(ports, {}, MARKDOWN) != now


def test_a_bare_heading_begins_the_next_chunk() -> None:
    body = "Words of the body that fill a chunk nearly to its end. " * 5 + "It ends."
    text = f"# Title\n\n## First part\n\n{body}\n\n{body}\n\nUnderlined\n----------\n\n{body}\n\n# Last"
    chunks = chunk_window(markdown_pages(text), 0, ChunkSettings(size=340, overlap=0), MARKDOWN)
    assert chunks[0].text.startswith("# Title\n\n## First part\n\nWords of the body")
    assert [chunk.text for chunk in chunks[:-1] if len(chunk.text) < 40] == []
    assert chunks[0].start == 0
    assert chunks[0].headings == ("Title", "First part")
    assert all(text[chunk.start : chunk.end] == chunk.text for chunk in chunks)
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))


def test_no_heading_in_a_long_document_is_alone_wherever_its_sections_end() -> None:
    body = "Some words of a paragraph here. " * 9
    text = "\n\n".join(f"## Part {number}\n\n{body}" for number in range(400))
    chunks = chunk_window(markdown_pages(text), 0, ChunkSettings(size=290, overlap=0), MARKDOWN)
    assert [chunk.text for chunk in chunks if len(chunk.text) < 40] == []
    assert sum("## Part" in chunk.text for chunk in chunks) == 400
