"""Offers: hashes instead of bytes, for clients that send the same folder again and again."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer, described
from penstock.api.callers import Ingests
from penstock.api.routes.uploads import Ordered
from penstock.verbs.accepting import named
from penstock.verbs.offering import Offered, offer
from penstock.verbs.receipts import UploadReceipt

router = APIRouter(prefix="/documents", tags=["uploads"])

MOST = 1_000


class OfferedDocument(BaseModel):
    """A document that the client could send."""

    model_config = ConfigDict(extra="forbid")

    source: str = Field(min_length=1, examples=["notes/turbine.txt"])
    name: str | None = Field(None, examples=["turbine.txt"])
    sha256: str = Field(pattern="^[0-9a-f]{64}$", examples=["0" * 64])
    size: int = Field(ge=0, le=1 << 50, examples=[65])
    metadata: dict[str, Any] = {}


class Offer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    documents: list[OfferedDocument] = Field(min_length=1, max_length=MOST)


@router.post("/offer", operation_id="offer_documents", responses=described({"receipts": [UploadReceipt]}))
async def offer_documents(
    access: Ingests,
    order: Ordered,
    offered: Offer,
    dry_run: Annotated[bool, Query(description="Only compare, and write nothing.")] = False,
) -> Response:
    """Submit documents by their hashes. If the server has the bytes under this source URI, the receipt is that of an
    upload; otherwise it is `needed`: upload the document. There is one receipt for each, in the same order."""
    given = [(one, named(one.source, one.name, one.metadata)) for one in offered.documents]
    documents = [Offered(n.source, n.name, n.metadata, sha256=one.sha256, size=one.size) for one, n in given]
    return answer({"receipts": await offer(access.scope, order, documents, dry_run=dry_run)})
