"""Ordered migrations: module m0001 is version 1. `ledger/database/schema.sql` shows what they add up to."""

from collections.abc import Callable

from penstock.ledger.database.migrations import (
    m0001_initial,
    m0002_password,
    m0003_lock_audit,
    m0004_groups,
    m0005_timeouts,
    m0006_checksums,
    m0007_retention,
    m0008_histories,
    m0009_forget_passwords,
    m0010_pauses,
    m0011_flat_reads,
    m0012_targets,
    m0013_forgiven,
    m0014_placements,
    m0015_metadata,
    m0016_unsupported,
    m0017_limits,
    m0018_small_blobs,
    m0019_collections,
    m0020_answers,
    m0021_refused,
    m0022_revisions,
)

MIGRATIONS: tuple[Callable[[str], list[str]], ...] = (
    m0001_initial.statements,
    m0002_password.statements,
    m0003_lock_audit.statements,
    m0004_groups.statements,
    m0005_timeouts.statements,
    m0006_checksums.statements,
    m0007_retention.statements,
    m0008_histories.statements,
    m0009_forget_passwords.statements,
    m0010_pauses.statements,
    m0011_flat_reads.statements,
    m0012_targets.statements,
    m0013_forgiven.statements,
    m0014_placements.statements,
    m0015_metadata.statements,
    m0016_unsupported.statements,
    m0017_limits.statements,
    m0018_small_blobs.statements,
    m0019_collections.statements,
    m0020_answers.statements,
    m0021_refused.statements,
    m0022_revisions.statements,
)
LATEST = len(MIGRATIONS)
