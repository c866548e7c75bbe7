"""Penstock: durable document ingestion. Accepted is safe. Done is kept. Half-done is never seen."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import App, RestoreReport, open_app, restore
    from penstock.config import (
        ChunkConfig,
        CollectionConfig,
        Config,
        LimitsConfig,
        ParsersConfig,
        RetentionConfig,
        WebhookConfig,
        WorkerConfig,
        load_config,
    )
    from penstock.errors import (
        Away,
        ConfigError,
        LeaseLost,
        LedgerAway,
        LedgerTooNew,
        LockHeld,
        NotFound,
        PenstockError,
        Permanent,
        QuotaSpent,
        RateLimited,
        StorageError,
        Transient,
        Unauthorized,
        UsageError,
    )
    from penstock.evaluation.report import Evaluation
    from penstock.events.context import HandlerContext
    from penstock.intake_items import Receipt
    from penstock.ledger.engine.dead_letters import DeadLetter
    from penstock.metrics.base import Metrics
    from penstock.metrics.prometheus import PrometheusMetrics
    from penstock.model.events import Event, EventKind, LifecycleEvent
    from penstock.model.items import Block, Chunk, Page
    from penstock.model.states import DocumentStatus
    from penstock.search.results import Hit, SearchResult
    from penstock.stages.base import StepContext, StepResult
    from penstock.upkeep.backup import BackupReport
    from penstock.upkeep.prune import Pruned
    from penstock.upkeep.report import CheckEntry, CheckReport
    from penstock.upkeep.vacuum import VacuumReport
    from penstock.verbs.collections import CollectionView, Dropped
    from penstock.verbs.dead_letters import DeadLetters
    from penstock.verbs.documents import Deletion
    from penstock.verbs.estimate import Estimate
    from penstock.verbs.ingest_plan import IngestPlan
    from penstock.verbs.jobs import Progress, Summary
    from penstock.verbs.maintenance import Locks
    from penstock.verbs.owner import OwnerScope
    from penstock.verbs.replays import Discard, Replay
    from penstock.verbs.usage import UsageReport
    from penstock.verbs.views import Counts, DocumentDetails, DocumentView, WorkerView

__version__ = "0.1.0"

__all__ = [
    "App",
    "Away",
    "BackupReport",
    "Block",
    "CheckEntry",
    "CheckReport",
    "Chunk",
    "ChunkConfig",
    "CollectionConfig",
    "CollectionView",
    "Config",
    "ConfigError",
    "Counts",
    "DeadLetter",
    "DeadLetters",
    "Deletion",
    "Discard",
    "DocumentDetails",
    "DocumentStatus",
    "DocumentView",
    "Dropped",
    "Estimate",
    "Evaluation",
    "Event",
    "EventKind",
    "HandlerContext",
    "Hit",
    "IngestPlan",
    "LeaseLost",
    "LedgerAway",
    "LedgerTooNew",
    "LifecycleEvent",
    "LimitsConfig",
    "LockHeld",
    "Locks",
    "Metrics",
    "NotFound",
    "OwnerScope",
    "Page",
    "ParsersConfig",
    "PenstockError",
    "Permanent",
    "Progress",
    "PrometheusMetrics",
    "Pruned",
    "QuotaSpent",
    "RateLimited",
    "Receipt",
    "Replay",
    "RestoreReport",
    "RetentionConfig",
    "SearchResult",
    "StepContext",
    "StepResult",
    "StorageError",
    "Summary",
    "Transient",
    "Unauthorized",
    "UsageError",
    "UsageReport",
    "VacuumReport",
    "WebhookConfig",
    "WorkerConfig",
    "WorkerView",
    "load_config",
    "open_app",
    "restore",
]

_HOMES = {
    "app": ("App", "RestoreReport", "open_app", "restore"),
    "config": (
        *("ChunkConfig", "CollectionConfig", "Config", "LimitsConfig", "ParsersConfig", "RetentionConfig"),
        *("WebhookConfig", "WorkerConfig", "load_config"),
    ),
    "errors": (
        *("Away", "ConfigError", "LeaseLost", "LedgerAway", "LedgerTooNew", "LockHeld", "NotFound", "PenstockError"),
        *("Permanent", "QuotaSpent", "RateLimited", "StorageError", "Transient", "Unauthorized", "UsageError"),
    ),
    "evaluation.report": ("Evaluation",),
    "events.context": ("HandlerContext",),
    "stages.base": ("StepContext", "StepResult"),
    "intake": ("Receipt",),
    "ledger.engine.dead_letters": ("DeadLetter",),
    "metrics.base": ("Metrics",),
    "metrics.prometheus": ("PrometheusMetrics",),
    "model.events": ("Event", "EventKind", "LifecycleEvent"),
    "model.items": ("Block", "Chunk", "Page"),
    "model.states": ("DocumentStatus",),
    "search.results": ("Hit", "SearchResult"),
    "upkeep.backup": ("BackupReport",),
    "upkeep.prune": ("Pruned",),
    "upkeep.report": ("CheckEntry", "CheckReport"),
    "upkeep.vacuum": ("VacuumReport",),
    "verbs.collections": ("CollectionView", "Dropped"),
    "verbs.dead_letters": ("DeadLetters",),
    "verbs.documents": ("Deletion",),
    "verbs.estimate": ("Estimate",),
    "verbs.ingest_plan": ("IngestPlan",),
    "verbs.usage": ("UsageReport",),
    "verbs.jobs": ("Progress", "Summary"),
    "verbs.maintenance": ("Locks",),
    "verbs.owner": ("OwnerScope",),
    "verbs.replays": ("Discard", "Replay"),
    "verbs.views": ("Counts", "DocumentDetails", "DocumentView", "WorkerView"),
}


def __getattr__(name: str) -> Any:
    """Nothing is loaded before it is used."""
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"penstock.{home}"), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
