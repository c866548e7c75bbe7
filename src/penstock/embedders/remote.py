"""What all embedders that call a server share: batches, limits, checks of the answer, errors that say what to set."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.embedders.base import Answered, Model, unit
from penstock.embedders.known import Known
from penstock.embedders.probed import Probed
from penstock.errors import Away, OutOfQuota, Permanent, Transient, Unauthorized
from penstock.model.items import Vector, Vectors
from penstock.net.headers import StatedLimits, stated_limits
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.net.client import Client, Reply

WAIT_S, TOTAL_S = 60.0, 180.0
SHORTEST = 64
"""A text that is too long for the model is halved until it fits, or until it has fewer characters than this."""
NUMBER_BYTES = 40
"""At most this many bytes of an answer stand for one number of a vector: OpenAI writes each on a line of its own."""
ANSWER_BYTES = 64 << 20
MOST_PROBE_BYTES = 8 << 20
_EXCERPT = 300
_NOT_UNDERSTOOD = (
    msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
_LATER = (409, 425, 499)
"""Refusals that concern the moment only."""
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
        self,
        api: Api,
        known: Known,
        runtime: Runtime,
        *,
        dimensions: int | None = None,
        price: float | None = None,
        probed: Probed | None = None,
    ) -> None:
        self._api, self._known, self._runtime = api, known, runtime
        self._asked = dimensions
        self._kept = probed
        self._paid = not api.free if price is None else price > 0
        self._price = price if price is not None else known.price if api.published else None
        self._client: Client | None = None
        self._accepted = False
        """Whether the server has accepted a text."""
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
        return self._model(self._asked or self._known.dimensions or self._found())

    @property
    def _name(self) -> str:
        return f"{self._api.provider}:{self._api.host}:{self._api.model}"

    def _found(self) -> int:
        """The dimensions that the server was asked for, now or before."""
        if self._kept is None:
            return self._probed()
        if (before := self._kept.find(self._name)) is not None:
            return before
        count = self._probed()
        self._kept.keep(self._name, count)
        return count

    @property
    def outline(self) -> Model:
        return self.model if "model" in vars(self) else self._model(self._asked or self._known.dimensions or 0)

    def _model(self, dimensions: int) -> Model:
        prefixes = self._known.document_prefix + "\0" + self._known.query_prefix
        mark = hashlib.sha256(prefixes.encode()).hexdigest()[:4]
        return Model(
            f"{self._name}:{dimensions}:{mark}",
            dimensions,
            max_texts=max(1, min(self._api.max_texts, ANSWER_BYTES // (NUMBER_BYTES * max(1, dimensions)))),
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
        """As `embed_counted`. If the server refuses a call, the call is divided, to find the text that it refuses."""
        import numpy as np

        try:
            return (await self.embed_counted(texts)).vectors
        except Permanent:
            if len(texts) < 2:
                raise
        half = len(texts) // 2
        joined: Vectors = np.concatenate([await self.embed_documents(part) for part in (texts[:half], texts[half:])])
        return joined

    async def embed_counted(self, texts: Sequence[str], *, query: bool = False) -> Answered:
        """One call. A text that is too long is cut only if it is alone in the call."""
        import numpy as np

        found = np.zeros((len(texts), self.model.dimensions), dtype=np.float32)
        prefix = self._known.query_prefix if query else self._known.document_prefix
        # Servers refuse empty texts. Their vector is zero.
        filled = [at for at, text in enumerate(texts) if query or text.strip()]
        if not filled:
            return Answered(found, 0)
        answer = await self._cut([prefix + texts[at] for at in filled], query=query)
        found[filled] = answer.vectors
        return Answered(found, answer.tokens)

    async def _cut(self, texts: Sequence[str], *, query: bool) -> Answered:
        """Embed texts. One that is alone and too long is halved until it fits."""
        while True:
            try:
                answer = await self._call(texts, query=query)
                self._accepted = True
                return answer
            except Permanent as error:
                too_long = error.reason == "text_too_long"
                if not too_long and not self._accepted:
                    await self._prove(error)
                if not too_long or len(texts) > 1 or len(texts[0]) < SHORTEST:
                    raise
            texts = [texts[0][: len(texts[0]) // 2]]

    async def _prove(self, refusal: Permanent) -> None:
        """Raise Unauthorized if the server refuses a harmless text too: then a setting is wrong, and no document."""
        try:
            await self._call(["water"], query=False)
        except Permanent:
            raise Unauthorized(
                f"{str(refusal).rstrip('.')}. It refuses every text. Correct `embedder`",
                setting="embedder",
                target=self.target,
            ) from None
        self._accepted = True

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
            limits=Limits(wait_s=WAIT_S, total_s=TOTAL_S, max_bytes=2 * ANSWER_BYTES),
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
        except _NOT_UNDERSTOOD as error:
            raise Transient(f"{who}: the answer is not understood ({error})", reason="bad_answer") from error
        if found.ndim != 2 or found.shape[0] != count:
            raise Transient(f"{who}: {count} texts were sent, and {found.shape} numbers came back", reason="bad_answer")
        if found.shape[1] != self.model.dimensions:
            if self._kept is not None:
                self._kept.keep(self._name, None)
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
        if reply.status == 402:
            raise OutOfQuota(f"{who} wants to be paid: {said}", target=self.target, retry_after=reply.retry_after)
        if reply.status in _LATER:
            raise Away(f"{who} answered {reply.status}", target=self.target, retry_after=reply.retry_after)
        if reply.status < 500 and reply.status not in (401, 403, 408, 429):
            raise Unauthorized(
                f"{who} answered {reply.status} at its address: {said}. Correct `embedder` or the address",
                setting="embedder",
                target=self.target,
            )
        check(reply, who, setting=self._api.key_setting, target=self.target)

    def _probed(self) -> int:
        """Ask the server for one vector and count its numbers."""
        request = self._api.request(["dimensions"], query=False, dimensions=None)
        reply = self._post(request)
        self._check(reply, request.url)
        try:
            found = self._api.vectors(msgspec.json.decode(reply.body))
            count = len(found[0])
            if count == 0 or not all(math.isfinite(value) for value in found[0]):
                raise ValueError("the vector is empty or has values that are not numbers")
            return count
        except _NOT_UNDERSTOOD as error:
            raise Unauthorized(
                f"embedder {self._api.provider!r}: the answer is not understood ({error}). Correct `embedder` or its "
                "address",
                setting="embedder",
                target=self.target,
            ) from error

    def _post(self, request: Request) -> "Reply":
        """One call that blocks. Raises Away if the answer is too late or too large."""
        import httpx2

        from penstock.net.client import Reply

        end, body = self._runtime.clock() + TOTAL_S, b""
        failed = f"embedder {self._api.provider!r}: no answer"
        try:
            with (
                httpx2.Client(trust_env=False, timeout=WAIT_S, headers={"Accept-Encoding": "identity"}) as client,
                client.stream("POST", request.url, json=dict(request.body), headers=dict(request.headers)) as answer,
            ):
                for piece in answer.iter_raw():
                    body += piece
                    if self._runtime.clock() > end or len(body) > MOST_PROBE_BYTES:
                        raise Away(f"{failed} that ends within {TOTAL_S:g} s", target=self.target)
        except httpx2.HTTPError as error:
            raise Away(f"{failed} ({type(error).__name__})", target=self.target) from None
        return Reply(answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, body)
