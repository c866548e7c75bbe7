"""Targets that do not work: providers, buckets, index tables. A row is there while the breaker of its target is open;
steps that wait for it name it in `waiting_on`. What locks knew of failing tables moves here."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"""CREATE TABLE targets (
  name TEXT PRIMARY KEY,
  state TEXT NOT NULL CHECK (state IN ('away', 'limited', 'unauthorized')),
  error TEXT NOT NULL,
  setting TEXT,
  owner TEXT,
  since {real} NOT NULL,
  failures INTEGER NOT NULL,
  held_until {real} NOT NULL,
  probe_token TEXT,
  probe_step BIGINT
)""",
        "CREATE INDEX steps_held ON steps (waiting_on, not_before) WHERE status = 'ERROR' AND waiting_on IS NOT NULL",
        "UPDATE locks SET paused_until = NULL",
        "ALTER TABLE locks DROP COLUMN failures",
        "ALTER TABLE locks DROP COLUMN error",
    ]
