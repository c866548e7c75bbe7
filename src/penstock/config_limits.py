"""The limits for each document, and for each owner."""

from typing import Annotated

import msgspec
from msgspec import Meta

MOST = 10**9
"""The highest value of a limit."""


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for each document. A document that exceeds one fails; a retry with a higher limit continues it."""

    megabytes: Annotated[int, Meta(ge=1, le=MOST)] = 10_000
    """Maximum file size."""
    pages: Annotated[int, Meta(ge=1, le=MOST)] = 100_000
    """Maximum number of pages."""
    parser_s: Annotated[float, Meta(gt=0, le=MOST)] = 7200.0
    """Maximum total time of parser processes, over all attempts, in seconds."""
    office_megabytes: Annotated[int, Meta(ge=1, le=MOST)] = 500
    """Maximum size of an Office file, a spreadsheet or an e-book when it is unpacked, in megabytes."""
    unpacked_ratio: Annotated[int, Meta(ge=1, le=MOST)] = 300
    """How many times larger such a file, or a file in an archive, may become. Only large files are compared: those that
    unpack to more than 20 megabytes, or 16 megabytes in an archive."""
    megapixels: Annotated[int, Meta(ge=1, le=100_000)] = 200
    """Maximum size of an image, in millions of pixels. A larger one is not decoded. A page of a PDF is rendered smaller
    instead."""
    bad_pages: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """Maximum share of pages that cannot be read. They are skipped and recorded. One bad page of several is always
    skipped; 0: none may be bad."""
    nesting: Annotated[int, Meta(ge=0, le=100)] = 8
    """Maximum depth of documents inside documents: 1 for the files in an archive, 2 for those in an archive in it."""
    members: Annotated[int, Meta(ge=1, le=MOST)] = 100_000
    """Maximum number of documents inside a document, at all depths."""
    members_megabytes: Annotated[int, Meta(ge=1, le=MOST)] = 20_000
    """Maximum total size of the documents inside a document, at all depths."""


class QuotaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What each owner may have. `penstock quota set` gives an owner other limits."""

    documents: Annotated[int, Meta(ge=0, le=10**15)] | None = None
    """Maximum number of documents. Default: no limit."""
    megabytes: Annotated[int, Meta(ge=0, le=10**12)] | None = None
    """Maximum total size of the raw bytes of these documents, in megabytes. Default: no limit."""
