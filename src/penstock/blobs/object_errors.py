"""What errors of a bucket with blobs mean."""

from types import TracebackType

from penstock.blobs.base import TARGET
from penstock.errors import Away, BlobMissing, PenstockError, RateLimited, StorageError, Unauthorized
from penstock.net.buckets import Bucket, Kind


class Cut(Away):
    """The connection was cut before the answer was complete."""


class Errors:
    """A context that turns errors of the library into ours."""

    def __init__(self, bucket: Bucket, target: str) -> None:
        self._bucket = bucket
        self.target = target

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, PenstockError | StopAsyncIteration):
            # The library also raises built-in errors, and errors that it does not name.
            raise self.meaning(error) from None

    def meaning(self, error: Exception) -> PenstockError:
        kind, message = self._bucket.trouble(error)
        said = f"{self.target.removeprefix(TARGET)}: {message}"
        if kind is Kind.MISSING:
            return BlobMissing(
                f"{self._bucket!r}: {self._bucket.shown(str(error)).partition(' not found')[0]} is not there"
            )
        if kind is Kind.DENIED:
            return Unauthorized(said, setting=self._bucket.credentials, target=self.target)
        if kind is Kind.LIMITED:
            return RateLimited(said, target=self.target)
        if kind is Kind.CUT:
            return Cut(said, target=self.target)
        if kind in (Kind.AWAY, Kind.NO_BUCKET):
            return Away(said, target=self.target)
        return StorageError(said)
