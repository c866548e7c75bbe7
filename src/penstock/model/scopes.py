"""What a key may do. The command line imports this, so it imports nothing that takes time."""

from enum import StrEnum


class KeyScope(StrEnum):
    SEARCH = "search"
    """Search, and read the passages that are found."""
    READ = "read"
    """See documents, their text and their status."""
    INGEST = "ingest"
    """Submit documents."""
    WRITE = "write"
    """Change documents: metadata, delete, retry, cancel, re-index."""
    OPS = "ops"
    """Operate the engine: locks, workers, checks, maintenance, webhooks."""
    ADMIN = "admin"
    """Manage keys, and act for other owners. Includes all other scopes."""
