"""Dead letters of messages from streams. SQLite cannot change a CHECK: the table is made anew. Nothing refers to it."""

_FORMER = (
    "id, owner, document_id, run_id, step, kind, reason, error, traceback, page, attempts, state, created_at, "
    "closed_at, event_id, handler"
)
_ONE = (
    "CHECK ((run_id IS NOT NULL AND event_id IS NULL AND place IS NULL) "
    "OR (run_id IS NULL AND event_id IS NOT NULL AND place IS NULL) "
    "OR (run_id IS NULL AND event_id IS NULL AND place IS NOT NULL))"
)
_OF_MESSAGE = "CREATE UNIQUE INDEX dead_letters_place ON dead_letters (owner, place) WHERE place IS NOT NULL"


def statements(dialect: str) -> list[str]:
    if dialect == "postgres":
        return [
            "ALTER TABLE dead_letters ADD COLUMN place TEXT",
            "ALTER TABLE dead_letters ADD COLUMN body TEXT",
            "ALTER TABLE dead_letters DROP CONSTRAINT dead_letters_check",
            f"ALTER TABLE dead_letters ADD CONSTRAINT dead_letters_check {_ONE}",
            _OF_MESSAGE,
        ]
    return [
        f"""CREATE TABLE letters (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  document_id TEXT REFERENCES documents (id),
  run_id TEXT REFERENCES runs (id),
  step TEXT NOT NULL,
  kind TEXT NOT NULL,
  reason TEXT NOT NULL,
  error TEXT NOT NULL,
  traceback TEXT,
  page INTEGER,
  attempts INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('OPEN', 'REPLAYED', 'DISCARDED')),
  created_at REAL NOT NULL,
  closed_at REAL,
  event_id BIGINT REFERENCES events (id),
  handler INTEGER,
  place TEXT,
  body TEXT,
  {_ONE}
)""",
        f"INSERT INTO letters ({_FORMER}) SELECT {_FORMER} FROM dead_letters",
        "DROP TABLE dead_letters",
        "ALTER TABLE letters RENAME TO dead_letters",
        "CREATE UNIQUE INDEX dead_letters_open ON dead_letters (run_id) WHERE state = 'OPEN'",
        "CREATE INDEX dead_letters_owner ON dead_letters (owner, id) WHERE state = 'OPEN'",
        "CREATE INDEX dead_letters_event ON dead_letters (event_id) WHERE event_id IS NOT NULL",
        "CREATE UNIQUE INDEX dead_letters_open_event ON dead_letters (event_id, handler) "
        "WHERE state = 'OPEN' AND event_id IS NOT NULL",
        "CREATE INDEX dead_letters_run ON dead_letters (run_id)",
        "CREATE INDEX dead_letters_closed ON dead_letters (id) WHERE state <> 'OPEN'",
        "CREATE INDEX dead_letters_document ON dead_letters (document_id)",
        _OF_MESSAGE,
    ]
