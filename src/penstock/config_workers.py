"""Settings of workers and their parser processes."""

from typing import Annotated

import msgspec
from msgspec import Meta


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of each process that executes steps: `ingest`, `run` and `worker`."""

    slots: Annotated[int, Meta(ge=1, le=1_024)] = 8
    """Number of steps that run concurrently."""
    lease_s: Annotated[float, Meta(gt=0, le=86_400)] = 15.0
    """Seconds after which other workers take the steps of a worker that sends no heartbeats."""
    gather_s: Annotated[float, Meta(ge=0, le=600)] = 30.0
    """Maximum seconds for which a small document waits for others that are on their way, so that their texts share a
    call to an embedding provider; 0: no wait. It waits only while the worker reads such documents."""
    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """Port on which `penstock worker` serves its metrics, at /metrics; 0: any free port."""
    metrics_host: str = "127.0.0.1"
    """Address of that port. There is no access control."""


class ParsersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the parser processes, which read PDF, HTML and Office files."""

    children: Annotated[int, Meta(ge=1, le=1_024)] | None = None
    """Number of parser processes. Default: one per core."""
    memory_mb: Annotated[int, Meta(ge=0, le=10_000_000)] = 1024
    """Memory limit of each process, in addition to the memory of its libraries; 0: no limit."""
    timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """Time limit for one batch of pages, or for a file that is read as a whole."""
