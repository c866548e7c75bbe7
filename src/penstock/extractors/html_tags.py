"""Properties of HTML tags that the reader needs."""

from penstock.extractors.html_tokens import RAW


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VOID = _names("area base br col embed hr img input link meta param source track wbr")
UNSEEN = RAW | _names(
    "template noscript iframe object canvas audio video svg select textarea button datalist annotation annotation-xml"
)
HEADINGS = _names("h1 h2 h3 h4 h5 h6")
LISTS = _names("ul ol dl menu dir")
CELLS = _names("td th caption")
_ROWS = _names("tr thead tbody tfoot")
TABLES = CELLS | _ROWS | {"table"}
BLOCKS = (
    HEADINGS
    | LISTS
    | TABLES
    | _names(
        "address article aside blockquote body center dd details dialog div dt fieldset figcaption figure footer form "
        "header hgroup hr html legend li main nav p pre section summary title"
    )
)
SCOPES = CELLS | {"table"}
"""An end tag inside one of these does not close an element outside it."""

_Ends = tuple[frozenset[str], frozenset[str]]
_TABLE = frozenset(("table",))
_ENDS: dict[str, _Ends] = {
    "li": (_names("li"), LISTS | SCOPES),
    "dt": (_names("dt dd"), LISTS | SCOPES),
    "dd": (_names("dt dd"), LISTS | SCOPES),
    "tr": (CELLS | {"tr"}, _TABLE),
    **dict.fromkeys(_ROWS - {"tr"}, (CELLS | _ROWS, _TABLE)),
    **dict.fromkeys(CELLS, (CELLS, _TABLE | {"tr"})),
}
_PARAGRAPH = (_names("p"), BLOCKS - {"p"})


def ended_by(tag: str) -> _Ends:
    """The names of open elements that the start of this tag closes, and the names of elements at which the search for
    them stops."""
    return _ENDS.get(tag, _PARAGRAPH)
