"""Parts of a file (pages, slides, sheets, images) that cannot be read: each is tried again once, and then skipped."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.errors import ParserBreach, Permanent, StepError
from penstock.model.items import Page, Skip

T = TypeVar("T")

LONGEST = 300
"""Characters of the sentence that is kept for each skipped page."""
_REASONS = {"parser_crash", "parser_timeout", "parser_memory", "parser_error"}


def is_of_a_part(error: StepError) -> bool:
    """Whether the error may be of one part of the file alone, so that the other parts may be readable."""
    return error.page is not None or isinstance(error, ParserBreach) or error.reason in _REASONS


async def twice(call: Callable[[], Awaitable[T]]) -> T:
    """The result of a call for one part. A crash, an excess of time or memory or an unexpected error is tried again
    once; if it happens again, it is Permanent."""
    try:
        return await call()
    except StepError as error:
        if isinstance(error, Permanent) or not is_of_a_part(error):
            raise
    try:
        return await call()
    except StepError as error:
        if isinstance(error, Permanent) or not is_of_a_part(error):
            raise
        raise Permanent(str(error), reason=error.reason, page=error.page) from error


def skipped(number: int, error: StepError, label: str | None = None) -> Page:
    """The page that stands for one that could not be read."""
    sentence = str(error) if error.page is not None else f"{label or f'page {number}'}: {error}"
    return Page(number, "", label, skipped=Skip(error.reason, sentence[:LONGEST]))
