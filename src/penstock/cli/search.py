"""`search`: the passages that answer a question."""

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import completion
from penstock.cli.call import Call, body
from penstock.cli.output import Answer, table, visible, width

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.search.results import Hit, Passage, SearchResult

MOST_SKIPPED = 10
"""Skipped pages that are named with a hit."""
INDENT = "    "
WIDTH_MOST = 100
_SPACES = re.compile(r"\s+")
_SPACES_IN_LINE = re.compile(r"[^\S\n]+")


@click.command()
@click.argument("query", metavar="QUERY")
@click.option("-k", metavar="N", type=click.IntRange(1, 10_000), default=5, help="Number of hits.", show_default=True)
@click.option(
    "--collection",
    metavar="NAME",
    multiple=True,
    shell_complete=completion.collections,
    help="The collection to search. Can be given repeatedly.",
)
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "vector", "text"]),
    default="hybrid",
    help="Use keywords and vectors, vectors only, or keywords only.",
    show_default=True,
)
@click.option("--filter", "filters", metavar="FILTER", multiple=True, help="Only matching documents: 'year>=2020'.")
@click.option("--full", is_flag=True, help="Print the whole text of each hit.")
@click.option("--context", metavar="N", type=click.IntRange(0, 20), default=0, help="Chunks to add around each hit.")
@click.option("--group", type=click.Choice(["document"]), help="Print only the best hit of each document.")
@click.option("--min-score", metavar="X", type=click.FloatRange(0, 1), help="The least relevance of a hit, 0 to 1.")
@click.option("--after", metavar="CURSOR", help="The next page: the `next` of the page before.")
@click.option("--rerank", metavar="NAME", help="A model that reorders the ten best hits: see `penstock model add`.")
@click.option("--explain", is_flag=True, help="Print the parts of each score.")
@body
async def search(
    call: Call, query: str, k: int, collection: tuple[str, ...], filters: tuple[str, ...], full: bool, **options: Any
) -> Answer:
    """Find the passages that answer a question.

    Each hit shows its relevance (0 to 1), path, page and position, and the sentences that match best.
    """
    import msgspec

    from penstock.errors import UsageError
    from penstock.search.filters import parsed

    if not query.strip():
        raise UsageError("the QUERY is empty")
    where = parsed(filters)
    async with call.scope() as scope:
        result = await scope.search(query, k, collection=collection or None, filter=where, **options)
    if call.json:
        return Answer(
            {
                "hits": [msgspec.to_builtins(hit) for hit in result],
                "next": result.next,
                "explain": msgspec.to_builtins(result.explain),
            }
        )
    lines = hit_lines(result, full=full or options["context"] > 0)
    if options["explain"]:
        lines += explain_lines(result)
    hints = [f"more hits: --after {result.next}"] if result.next is not None and sys.stdout.isatty() else []
    return Answer({}, "\n".join(line.plain for line in lines).rstrip() or "nothing found", hints=hints, styled=lines)


def hit_lines(hits: "Sequence[Hit]", *, full: bool = False) -> "list[Text]":
    """The hits for a terminal, with the matched words in bold."""
    from rich.text import Text

    lines: list[Text] = []
    several = len({hit.collection for hit in hits}) > 1
    for rank, hit in enumerate(hits, 1):
        lines.append(Text(_header(rank, hit, several)))
        headings = " › ".join(visible(heading) for heading in hit.headings if heading)
        if headings:
            lines += _wrapped(Text(headings))
        if full:
            lines += _passages(hit)
        else:
            lines += _wrapped(_snippet(hit))
        if hit.pages_skipped:
            lines += _wrapped(Text(_skipped(hit.pages_skipped), "dim"))
        lines += [Text(f"{INDENT}{hit.document_id}"), Text("")]
    return lines


def _skipped(pages: "Sequence[int]") -> str:
    named = ", ".join(map(str, pages[:MOST_SKIPPED])) + (" …" if len(pages) > MOST_SKIPPED else "")
    return f"{'page' if len(pages) == 1 else 'pages'} {named} of this document could not be read"


def _header(rank: int, hit: "Hit", several: bool) -> str:
    number = hit.score if hit.relevance is None else hit.relevance
    before = f"{rank:>2}. {number:.3f}  "
    pages = f"p. {hit.page}" if hit.page == hit.page_end else f"p. {hit.page}–{hit.page_end}"
    after = f"  {pages}  [{hit.start}–{hit.end}]"
    if several:
        after += f"  in {hit.collection}"
    if hit.more:
        after += f"  +{hit.more} more"
    return before + _path(hit, max(20, _room() + len(INDENT) - len(before) - len(after))) + after


def _path(hit: "Hit", most: int) -> str:
    """Where the document came from: relative to the current folder if it is below it. A long path keeps its end."""
    is_place = hit.source.startswith("/") or "://" in hit.source
    path = hit.source.removeprefix(os.getcwd().rstrip("/") + "/") if is_place else hit.name
    path = visible(path)
    if len(path) <= most:
        return path
    tail = path[-(most - 2) :]
    return "…" + (tail[tail.index("/") :] if "/" in tail else visible(hit.name))


def _room() -> int:
    return min(width(), WIDTH_MOST) - len(INDENT)


def _wrapped(text: "Text") -> "list[Text]":
    from rich.console import Console
    from rich.text import Text

    lines = text.wrap(Console(width=_room(), file=sys.stdout), _room())
    return [Text(INDENT).append_text(line) for line in _stripped(lines)]


def _stripped(lines: "Any") -> "list[Text]":
    for line in lines:
        line.rstrip()
    return list(lines)


def _marked(hit: "Hit", start: int, end: int, spaces: re.Pattern[str] = _SPACES) -> "Text":
    """A part of the text, escaped, with the matched words in bold."""
    from rich.text import Text

    shown = Text()
    at = start
    for first, last in [*hit.highlights, (end, end)]:
        first, last = (min(max(place, start), end) for place in (first, last))
        if first > at:
            shown.append(_clean(hit.text[at:first], spaces))
        if last > max(first, at):
            shown.append(_clean(hit.text[max(first, at) : last], spaces), "bold")
        at = max(at, last)
    return shown


def _clean(text: str, spaces: re.Pattern[str]) -> str:
    return "\n".join(visible(line) for line in spaces.sub(" ", text).split("\n"))


def _snippet(hit: "Hit") -> "Text":
    from rich.text import Text

    end = hit.snippet_start + len(hit.snippet)
    before = "… " if hit.text[: hit.snippet_start].strip() else ""
    after = " …" if hit.text[end:].strip() else ""
    return Text(before).append_text(_marked(hit, hit.snippet_start + _headings_length(hit), end)).append(after)


def _headings_length(hit: "Hit") -> int:
    """The length of the headings that the snippet begins with. They are shown above it."""
    shown, length = {heading.strip() for heading in hit.headings if heading}, 0
    for line in hit.snippet.splitlines(keepends=True):
        if line.strip() and line.strip().lstrip("#").strip() not in shown:
            return length
        length += len(line)
    return 0


def _passages(hit: "Hit") -> "list[Text]":
    """The whole text of a hit, and the chunks around it without what they repeat."""
    from rich.text import Text

    lines: list[Text] = []
    for passage in hit.before:
        lines += _wrapped(Text(_clean(passage.text, _SPACES_IN_LINE), "dim"))
    cut = _repeated(hit.before[-1], hit) if hit.before else 0
    lines += _wrapped(_marked(hit, cut, len(hit.text), _SPACES_IN_LINE))
    last: Hit | Passage = hit
    for passage in hit.after:
        lines += _wrapped(Text(_clean(passage.text[_repeated(last, passage) :], _SPACES_IN_LINE), "dim"))
        last = passage
    return lines


def _repeated(before: "Hit | Passage", after: "Hit | Passage") -> int:
    """How many characters of the later chunk are already in the one before."""
    return max(0, before.end - after.start) if before.page_end == after.page == after.page_end else 0


def explain_lines(result: "SearchResult") -> "list[Text]":
    from rich.text import Text

    how = result.explain
    if how is None:
        return []
    shares = ", ".join(f"{part} {share:.2f}" for part, share in how.weights.items())
    filters = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in how.filters.items() if value is not None)
    columns = ["score", "relevance", "fused", "cosine", "words", "grams"]
    if any(hit.explain is not None and hit.explain.reranked is not None for hit in result):
        columns.append("reranked")
    rows: list[Sequence[object]] = [("HIT", *map(str.upper, columns), "NAME")]
    for rank, hit in enumerate(result, 1):
        if hit.explain is not None:
            numbers = [hit.score if name == "score" else getattr(hit.explain, name) for name in columns]
            rows.append((rank, *(None if number is None else f"{number:.3f}" for number in numbers), hit.name))
    gate = " (only text: an unknown script)" if how.gate else ""
    head = [f"mode {how.mode}{gate} · {how.ranked:,} ranked · filters: {filters}", f"weights: {shares}"]
    return [Text(line) for line in [*head, *table(rows)]]
