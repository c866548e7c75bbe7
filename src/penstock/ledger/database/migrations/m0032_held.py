"""Documents may be HELD: accepted, but not started. SQLite cannot change a CHECK: the columns are made anew."""

from penstock.ledger.database.migrations.m0016_unsupported import DOCUMENT_TRANSITIONS as FORMER

_STATUSES = (
    "PENDING", "EXTRACTING", "CHUNKING", "EMBEDDING", "INDEXING", "COMPLETED", "NOT_INDEXABLE", "UNSUPPORTED",
    "FAILED", "CANCELLED",
)  # fmt: skip
DOCUMENT_TRANSITIONS = [*FORMER, *(f"{status}>HELD" for status in _STATUSES), "HELD>PENDING", "HELD>CANCELLED"]

_OF_DOCUMENTS = ", ".join(f"'{status}'" for status in (*_STATUSES, "HELD"))
_OF_RUNS = "'OPEN', 'HELD', 'COMPLETED', 'FAILED', 'CANCELLED'"
_LIST = ", ".join(f"'{pair}'" for pair in DOCUMENT_TRANSITIONS)
_GUARD = f"OLD.status <> NEW.status AND (OLD.status || '>' || NEW.status) NOT IN ({_LIST})"
_TRIGGER = "CREATE TRIGGER documents_transition BEFORE UPDATE OF status ON documents FOR EACH ROW WHEN "


def statements(dialect: str) -> list[str]:
    if dialect == "postgres":
        return [
            "ALTER TABLE documents DROP CONSTRAINT documents_status_check",
            f"ALTER TABLE documents ADD CONSTRAINT documents_status_check CHECK (status IN ({_OF_DOCUMENTS}))",
            "DROP TRIGGER documents_transition ON documents",
            f"{_TRIGGER}({_GUARD}) EXECUTE FUNCTION refuse_transition()",
            "ALTER TABLE runs DROP CONSTRAINT runs_status_check",
            f"ALTER TABLE runs ADD CONSTRAINT runs_status_check CHECK (status IN ({_OF_RUNS}))",
        ]
    return [
        "DROP TRIGGER documents_transition",
        "DROP INDEX documents_status",
        *_anew("documents", "PENDING", _OF_DOCUMENTS),
        "CREATE INDEX documents_status ON documents (owner, status, id) WHERE deleted_at IS NULL",
        f"{_TRIGGER}{_GUARD} BEGIN SELECT RAISE(ABORT, 'illegal transition of documents'); END",
        "DROP INDEX runs_open",
        "DROP INDEX runs_group",
        *_anew("runs", "OPEN", _OF_RUNS),
        "CREATE UNIQUE INDEX runs_open ON runs (document_id) WHERE status = 'OPEN'",
        "CREATE INDEX runs_group ON runs (group_id, status) WHERE group_id IS NOT NULL",
    ]


def _anew(table: str, default: str, statuses: str) -> list[str]:
    return [
        f"ALTER TABLE {table} RENAME COLUMN status TO old_status",
        f"ALTER TABLE {table} ADD COLUMN status TEXT NOT NULL DEFAULT '{default}' CHECK (status IN ({statuses}))",
        f"UPDATE {table} SET status = old_status",
        f"ALTER TABLE {table} DROP COLUMN old_status",
    ]
