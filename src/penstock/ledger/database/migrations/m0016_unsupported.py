"""Documents may end as UNSUPPORTED. SQLite cannot change a CHECK: the column is made anew."""

from penstock.ledger.database.migrations.m0001_initial import DOCUMENT_TRANSITIONS as FIRST

_WORKING = ("PENDING", "EXTRACTING", "CHUNKING", "EMBEDDING", "INDEXING")
DOCUMENT_TRANSITIONS = [*FIRST, *(f"{status}>UNSUPPORTED" for status in _WORKING), "UNSUPPORTED>PENDING"]

_STATUSES = (
    "'PENDING', 'EXTRACTING', 'CHUNKING', 'EMBEDDING', 'INDEXING', 'COMPLETED', 'NOT_INDEXABLE', 'UNSUPPORTED', "
    "'FAILED', 'CANCELLED'"
)
_LIST = ", ".join(f"'{pair}'" for pair in DOCUMENT_TRANSITIONS)
_GUARD = f"OLD.status <> NEW.status AND (OLD.status || '>' || NEW.status) NOT IN ({_LIST})"
_TRIGGER = "CREATE TRIGGER documents_transition BEFORE UPDATE OF status ON documents FOR EACH ROW WHEN "


def statements(dialect: str) -> list[str]:
    if dialect == "postgres":
        return [
            "ALTER TABLE documents DROP CONSTRAINT documents_status_check",
            f"ALTER TABLE documents ADD CONSTRAINT documents_status_check CHECK (status IN ({_STATUSES}))",
            "DROP TRIGGER documents_transition ON documents",
            f"{_TRIGGER}({_GUARD}) EXECUTE FUNCTION refuse_transition()",
        ]
    return [
        "DROP TRIGGER documents_transition",
        "DROP INDEX documents_status",
        "ALTER TABLE documents RENAME COLUMN status TO old_status",
        f"ALTER TABLE documents ADD COLUMN status TEXT NOT NULL DEFAULT 'PENDING' CHECK (status IN ({_STATUSES}))",
        "UPDATE documents SET status = old_status",
        "ALTER TABLE documents DROP COLUMN old_status",
        "CREATE INDEX documents_status ON documents (owner, status, id) WHERE deleted_at IS NULL",
        f"{_TRIGGER}{_GUARD} BEGIN SELECT RAISE(ABORT, 'illegal transition of documents'); END",
    ]
