"""What the tools return. Agents that know `search` and `fetch` tools expect the fields `results`, `id`, `title`, `text`
and `url`."""

from typing import Any

from pydantic import BaseModel, Field


class Result(BaseModel):
    id: str = Field(description="The id of the document, for fetch.")
    title: str
    url: str = Field(description="The page of the passage, as a resource of this server.")
    text: str = Field(description="The passage.")
    source: str = Field(description="Where the document came from.")
    collection: str
    page: int
    page_end: int
    headings: list[str]
    relevance: float | None = Field(
        description="How well the passage covers the query, 0 to 1. Below 0.58: often wrong."
    )
    metadata: dict[str, Any]


class Found(BaseModel):
    results: list[Result]
    next: str | None = Field(description="Pass it as `after` to get the next results. None: there are no more.")


class Text(BaseModel):
    id: str
    title: str
    url: str
    text: str
    source: str
    pages: int | None = Field(description="The number of pages of the document.")
    next_page: int | None = Field(description="Pass it as `page` to read on. None: the text ends here.")
    metadata: dict[str, Any]


class Document(BaseModel):
    id: str
    name: str
    source: str
    collection: str
    status: str
    searchable: bool
    pages: int | None
    error: str | None
    metadata: dict[str, Any]


class Documents(BaseModel):
    documents: list[Document]
    next: str | None = Field(description="Pass it as `after` to get older documents. None: there are no more.")


class Progress(Document):
    phase: str
    pages_done: int
    chunks: int
    attempts: int
    waiting_on: str | None = Field(description="What the current step waits for.")


class Submitted(BaseModel):
    id: str
    outcome: str = Field(description="submitted, changed, skipped (the same content is there already) or resumed.")
    status: str


class Retried(BaseModel):
    id: str
    retried: bool = Field(description="False: the document has not failed, so there is nothing to repeat.")
