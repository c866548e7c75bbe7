"""What all embedders that call a server share: batches, limits, checks of the answer, errors that say what to set."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.embedders.base import Answered, Model, unit
from penstock.embedders.known import Known
from penstock.errors import Away, OutOfQuota, Permanent, Transient, Unauthorized
from penstock.model.items import Vector, Vectors
from penstock.net.headers import StatedLimits, stated_limits
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.net.client import Client, Reply

WAIT_S, TOTAL_S = 60.0, 180.0
SHORTEST = 64
"""A text that is too long for the model is halved until it fits, or until it has fewer characters than this."""
_EXCERPT = 300
_TOO_LONG = ("maximum context", "too long", "too many tokens", "context length", "maximum input", "exceeds")


class Request(msgspec.Struct, frozen=True):
    url: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


class Api(Protocol):
    """The words of one provider. Everything else is the same for all."""

    provider: str
    model: str
    host: str
    """Host and port of the server."""
    key: str | None
    key_setting: str
    """The variable that a person corrects if the key is rejected."""
    max_texts: int
    max_tokens: int
    """Of all texts of a call."""
    free: bool
    published: bool
    """Whether the published prices of the maker of the model hold for this server."""

    def request(self, texts: Sequence[str], *, query: bool, dimensions: int | None) -> Request: ...

    def vectors(self, answer: Any) -> Sequence[Sequence[float]]:
        """The vectors of an answer, in the order of the texts. May raise LookupError, TypeError or ValueError."""

    def tokens(self, answer: Any) -> Any:
        """How many tokens the answer says were used. May raise LookupError, TypeError or ValueError."""


class RemoteEmbedder:
    """`dimensions`: what the user asked for, if the model can shorten its vectors. `price`: that of the settings. A
    server on this machine costs nothing unless a price is set for it: it may pass the calls on."""

    def __init__(
        self, api: Api, known: Known, runtime: Runtime, *, dimensions: int | None = None, price: float | None = None
    ) -> None:
        self._api, self._known, self._runtime = api, known, runtime
        self._asked = dimensions
        self._paid = not api.free if price is None else price > 0
        self._price = price if price is not None else known.price if api.published else None
        self._client: Client | None = None
        self.stated: StatedLimits | None = None
        """The limits that the last answer stated."""

    @property
    def target(self) -> str:
        """The same server with the same key, whatever the model."""
        key = hashlib.sha256((self._api.key or "").encode()).hexdigest()[:8]
        return f"{self._api.provider}:{self._api.host}:{key}"

    @cached_property
    def model(self) -> Model:
        """The model. If its number of dimensions is not known, the server is asked once, which blocks."""
        return self._model(self._asked or self._known.dimensions or self._probed())

    @property
    def outline(self) -> Model:
        return self.model if "model" in vars(self) else self._model(self._asked or self._known.dimensions or 0)

    def _model(self, dimensions: int) -> Model:
        prefixes = self._known.document_prefix + "\0" + self._known.query_prefix
        mark = hashlib.sha256(prefixes.encode()).hexdigest()[:4]
        return Model(
            f"{self._api.provider}:{self._api.host}:{self._api.model}:{dimensions}:{mark}",
            dimensions,
            max_texts=self._api.max_texts,
            max_tokens=self._api.max_tokens,
            remote=True,
            paid=self._paid,
            price=self._price if self._paid else 0.0,
            name=f"{self._api.provider}:{self._api.model}",
        )

    async def warm_up(self) -> None:
        """Nothing: a call costs money, and the first batch finds out what is wrong."""

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def embed_query(self, text: str) -> Vector:
        vector: Vector = (await self.embed_counted([text], query=True)).vectors[0]
        return vector

    async def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return (await self.embed_counted(texts)).vectors

    async def embed_counted(self, texts: Sequence[str], *, query: bool = False) -> Answered:
        import numpy as np

        found = np.zeros((len(texts), self.model.dimensions), dtype=np.float32)
        prefix = self._known.query_prefix if query else self._known.document_prefix
        # Servers refuse empty texts. Their vector is zero.
        filled = [at for at, text in enumerate(texts) if query or text.strip()]
        if not filled:
            return Answered(found, 0)
        answer = await self._embed([prefix + texts[at] for at in filled], query=query)
        found[filled] = answer.vectors
        return Answered(found, answer.tokens)

    async def _embed(self, texts: Sequence[str], *, query: bool) -> Answered:
        """Embed texts. If the server refuses them, find the text that it refuses: it may be too long."""
        import numpy as np

        try:
            return await self._call(texts, query=query)
        except Permanent as error:
            if len(texts) > 1:
                half = len(texts) // 2
                parts = [await self._embed(part, query=query) for part in (texts[:half], texts[half:])]
                counts = [part.tokens for part in parts if part.tokens is not None]
                joined: Vectors = np.concatenate([part.vectors for part in parts])
                return Answered(joined, sum(counts) if len(counts) == len(parts) else None)
            if error.reason != "text_too_long" or len(texts[0]) < SHORTEST:
                raise
        return await self._embed([texts[0][: len(texts[0]) // 2]], query=query)

    async def _call(self, texts: Sequence[str], *, query: bool) -> Answered:
        from penstock.net.client import Client, Limits

        if self._client is None:
            self._client = Client(self._runtime, allow_private=True)
        request = self._api.request(texts, query=query, dimensions=self._asked)
        reply = await self._client.request(
            "POST",
            request.url,
            headers={"Content-Type": "application/json", **request.headers},
            content=msgspec.json.encode(request.body),
            limits=Limits(wait_s=WAIT_S, total_s=TOTAL_S),
        )
        self.stated = stated_limits(reply.headers)
        self._check(reply, request.url)
        return self._read(reply, len(texts))

    def _read(self, reply: "Reply", count: int) -> Answered:
        import numpy as np

        who = f"embedder {self._api.provider!r}"
        try:
            answer = msgspec.json.decode(reply.body)
            found = np.asarray(self._api.vectors(answer), dtype=np.float32)
        except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Transient(f"{who}: the answer is not understood ({error})", reason="bad_answer") from error
        if found.ndim != 2 or found.shape[0] != count:
            raise Transient(f"{who}: {count} texts were sent, and {found.shape} numbers came back", reason="bad_answer")
        if found.shape[1] != self.model.dimensions:
            raise Unauthorized(
                f"{who}: its vectors have {found.shape[1]} dimensions, and {self.model.dimensions} were expected. "
                f"Set `embedder: {self._api.provider}:{self._api.model}?dimensions={found.shape[1]}`",
                setting="embedder",
                target=self.target,
            )
        if not np.isfinite(found).all():
            raise Transient(f"{who}: a vector has values that are not numbers", reason="bad_answer")
        return Answered(unit(found), self._tokens(answer))

    def _tokens(self, answer: Any) -> int | None:
        try:
            tokens = self._api.tokens(answer)
        except (LookupError, TypeError, ValueError, AttributeError):
            return None
        return tokens if isinstance(tokens, int) and 0 < tokens < 2**40 else None

    def _check(self, reply: "Reply", url: str) -> None:
        """Raise the error of a bad status. Bad keys, models and quotas concern all documents, other refusals only
        those in the call."""
        from penstock.net.client import check

        if reply.ok:
            return
        who, said = f"embedder {self._api.provider!r}", reply.excerpt(url, _EXCERPT)
        lower = said.lower()
        if reply.status == 429 and ("insufficient_quota" in lower or "billing" in lower):
            raise OutOfQuota(
                f"{who}: the quota is used up. Buy more, or raise its limit at the provider; the work then continues "
                f"by itself: {said}",
                target=self.target,
                retry_after=reply.retry_after,
            )
        if reply.status == 404 or (reply.status == 400 and "model" in lower and "not" in lower and "found" in lower):
            raise Unauthorized(
                f"{who} does not know the model {self._api.model!r}: {said}. Correct `embedder`",
                setting="embedder",
                target=self.target,
            )
        if reply.status in (400, 413, 422):
            if reply.status == 413 or any(words in lower for words in _TOO_LONG):
                raise Permanent(f"{who} refuses a text as too long: {said}", reason="text_too_long")
            raise Permanent(f"{who} refuses a text: {said}", reason="text_rejected")
        check(reply, who, setting=self._api.key_setting, target=self.target)

    def _probed(self) -> int:
        """Ask the server for one vector and count its numbers."""
        import httpx2

        request = self._api.request(["dimensions"], query=False, dimensions=None)
        who = f"embedder {self._api.provider!r}"
        try:
            with httpx2.Client(trust_env=False, timeout=WAIT_S, headers={"Accept-Encoding": "identity"}) as client:
                answer = client.post(request.url, json=dict(request.body), headers=dict(request.headers))
        except httpx2.HTTPError as error:
            raise Away(f"{who}: no answer ({type(error).__name__})", target=self.target) from None
        from penstock.net.client import Reply

        self._check(
            Reply(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, answer.content), request.url
        )
        try:
            found = self._api.vectors(msgspec.json.decode(answer.content))
            count = len(found[0])
            if count == 0 or not all(math.isfinite(value) for value in found[0]):
                raise ValueError("the vector is empty or has values that are not numbers")
            return count
        except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise Unauthorized(
                f"{who}: the answer is not understood ({error}). Correct `embedder` or its address",
                setting="embedder",
                target=self.target,
            ) from error
