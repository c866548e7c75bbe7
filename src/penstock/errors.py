"""Every error that Penstock raises on purpose.

PenstockError
├── UsageError              the call or the configuration is wrong: exit code 2
│   ├── ConfigError         a setting is unknown, missing or of the wrong kind
│   │   └── NoDefinition    there is no workflow or parameter set of that name
│   ├── NotFound            no such document, dead letter, collection
│   │   └── Ambiguous       a name may mean several documents
│   ├── LedgerTooNew        the ledger was written by a newer Penstock
│   ├── WrongOffset         a part does not follow what an upload has received
│   ├── ChecksumDiffers     the bytes of an upload are not those that the client hashed
│   └── TooMuch             more than the owner may have at once
├── AccessError             a caller of the service may not do this
│   ├── NotAuthenticated    no key, or one that is not valid
│   └── Forbidden           the key lacks a scope, or may not use a collection
├── StepError               a step did not finish
│   ├── Permanent           trying again cannot help: a dead letter at once
│   │   ├── QuotaSpent      what was bought from a provider is used up
│   │   └── RowRefused      the index cannot store a row of one document
│   └── Transient           trying again may help
│       ├── BlobUnreadable  the blob store has a blob and cannot read it
│       └── ParserBreach    a parser process crashed, hung or ran out of memory
├── Away                    a target (provider, bucket, index, database) does not work: steps wait, none fails
│   ├── RateLimited         the target asks us to come back later
│   │   └── OutOfQuota      what was bought from a provider is used up, for now
│   ├── Unauthorized        the target refuses our key: a setting must change
│   ├── TableFailed         an index table cannot be opened or written
│   └── LedgerAway          the PostgreSQL server does not answer, or has closed the connection (also a StorageError)
├── LeaseLost               the step belongs to another worker now: write nothing, report nothing
├── LockHeld                another process holds the lock, and the time to wait for it is over
├── Cancelled               the run was cancelled
├── BudgetSpent             the time is up: flush, release, go on another time
│   └── CostSpent           the money is spent: the same
├── TornSegment             a segment is missing or does not match its hash: rewind its producer
├── BlobMissing             the blob store has no such blob
├── SourceError             a file that was to be submitted cannot be read
│   ├── SourceChanged       it changed while it was read: read it again
│   ├── SourceAway          its server does not answer, although we waited
│   └── SourceDenied        its server refuses our credentials
└── StorageError            disk full, no permission, database locked
    ├── IndexBroken         an index table is damaged: `penstock check --repair`
    ├── LedgerAway          see Away
    ├── LedgerDamaged       the file of the ledger is no database any more
    └── Refused             the ledger would not take this write: its values, not the disk, are to blame
"""

from collections.abc import Sequence


def is_panic(error: BaseException) -> bool:
    """Whether a library written in Rust has panicked. Each brings its own class for it, which is no Exception."""
    return type(error).__module__ == "pyo3_runtime"


class PenstockError(Exception):
    """The root: `except PenstockError` catches everything that we raise on purpose."""


class UsageError(PenstockError):
    """The call or the configuration is wrong."""


class ConfigError(UsageError):
    """A setting is unknown, missing or of the wrong kind. `problems`: a sentence for each, if there are several."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class NoDefinition(ConfigError):
    """There is no workflow or parameter set of that name."""


class NotFound(UsageError):
    """No such document, dead letter or collection."""


class Ambiguous(NotFound):
    """A name may mean several documents. `candidates`: one line for each."""

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message + "".join(f"\n  {line}" for line in candidates))
        self.message = message
        self.candidates = candidates


class LedgerTooNew(UsageError):
    """The ledger was written by a newer Penstock than this one."""


class WrongOffset(UsageError):
    """A part does not follow what an upload has received."""


class ChecksumDiffers(UsageError):
    """The bytes of an upload are not those that the client hashed."""


class TooMuch(UsageError):
    """More than the owner may have at once. It fits later."""


class NotSupported(UsageError):
    """The settings do not allow this at all."""


class IntakePaused(PenstockError):
    """The operator has paused the intake: new documents are not accepted now. `retry_after`: ask again after so many
    seconds."""

    def __init__(self, message: str, retry_after: float = 60.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QuotaExceeded(PenstockError):
    """The owner would have more documents or bytes than its quota allows."""


class AccessError(PenstockError):
    """A caller of the service may not do this."""


class NotAuthenticated(AccessError):
    """The caller has no key, or one that is not valid: it is unknown, revoked or expired. The message never says
    which."""


class Forbidden(AccessError):
    """The key of the caller does not allow this."""


class StepError(PenstockError):
    """A step did not finish. `reason` is the short word that dead letters are counted by."""

    def __init__(self, message: str, *, reason: str, page: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.page = page


class Permanent(StepError):
    """Trying again cannot help: the run ends as a dead letter at once."""


class Transient(StepError):
    """Trying again may help: the step is backed off."""

    def __init__(self, message: str, *, reason: str = "transient", page: int | None = None) -> None:
        super().__init__(message, reason=reason, page=page)


class RowRefused(Permanent):
    """The index cannot store a row of one document."""


class QuotaSpent(Permanent):
    """The quota at a provider is used up: waiting does not help, buying more does. Then replay the dead letters."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="provider_quota")


class ProviderRejects(Permanent):
    """A target fails for one document only: it answered other calls meanwhile."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message.rstrip('.')}. Other calls to the same target succeeded", reason="provider_rejects")


class ParserBreach(Transient):
    """A parser process crashed, hung or ran out of memory, and was replaced: `reason` says which."""


class BlobUnreadable(Transient):
    """The blob store has a blob and cannot read it: a bad sector, a file without permission."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="blob_unreadable")


class LeaseLost(PenstockError):
    """The step belongs to another worker now: write nothing more for it."""


class LockHeld(PenstockError):
    """Another process holds the lock, and the time to wait for it is over."""


class Cancelled(PenstockError):
    """The run was cancelled."""


class BudgetSpent(PenstockError):
    """The time is up: what was flushed is kept, the step is released."""


class CostSpent(BudgetSpent):
    """The next call would cost more than the caller allows. Nothing was called."""


class Away(PenstockError):
    """A target cannot be reached, answers 5xx or refuses everybody. No document is to blame: the step is released with
    its attempt given back, and waits until the target answers again.

    `target` names what does not work. None: what the stage of the step declares, or else the step's own function.
    `retry_after`: the seconds that the target asks us to wait."""

    reason = "away"

    def __init__(self, message: str, *, target: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.target = target
        self.retry_after = retry_after


class RateLimited(Away):
    """The target asks us to come back later."""

    reason = "rate_limited"


class OutOfQuota(RateLimited):
    """The quota at the target is used up. Steps wait until it is renewed or more is bought; after a day, they end as
    dead letters (`provider_quota`)."""

    reason = "provider_quota"


class Unauthorized(Away):
    """The target refuses our key (401, 403). `setting` is what a person has to change."""

    reason = "unauthorized"

    def __init__(self, message: str, *, setting: str, target: str | None = None) -> None:
        super().__init__(message, target=target)
        self.setting = setting


class TableFailed(Away):
    """An index table cannot be opened or written. Its target is the key of the table's lock."""


class TornSegment(PenstockError):
    """A segment is missing or does not match its hash: its producer is rewound to it."""

    def __init__(self, message: str, *, artifact_id: int, ordinal: int) -> None:
        super().__init__(message)
        self.artifact_id = artifact_id
        self.ordinal = ordinal


class BlobMissing(PenstockError):
    """The blob store works, and has no such blob."""


class SourceError(PenstockError):
    """A file that was to be submitted cannot be read: that file is refused, nothing else."""


class SourceChanged(SourceError):
    """The document changed while it was read: the bytes were not those of one moment."""


class SourceAway(SourceError):
    """The server of the document does not answer, although we waited for it. Another attempt may succeed later."""


class SourceDenied(SourceError):
    """The server refuses our credentials, or there are none."""


class StorageError(PenstockError):
    """The disk is full, a folder is not writable, the database is locked or gone."""


class DiskFull(StorageError):
    """The disk is full. What was accepted is kept."""


class ReadOnly(StorageError):
    """The home can only be read, and the call must write."""


class Refused(StorageError):
    """The ledger would not take a write because of what it holds: a number too large, a row that breaks a rule."""


class LedgerAway(Away, StorageError):
    """The PostgreSQL server does not answer, or has closed the connection. What was accepted and done is kept; a worker
    waits for it to come back."""


class LedgerDamaged(StorageError):
    """The file of the ledger is no database, or is damaged: waiting does not repair it."""


class IndexBroken(StorageError):
    """An index table is damaged, or is not one of ours. No document is to blame, and trying again does not help:
    `penstock check --repair` makes it again from what is kept."""
