"""Limits of targets that all workers share: the pace of each target, and the slots that each worker has leased."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"""CREATE TABLE limits (
  name TEXT PRIMARY KEY,
  stated_requests {real},
  stated_tokens {real},
  next_at {real} NOT NULL DEFAULT 0,
  tokens_at {real} NOT NULL DEFAULT 0,
  held_until {real} NOT NULL DEFAULT 0,
  learnt {real},
  ceiling {real},
  throttles INTEGER NOT NULL DEFAULT 0,
  counted_from {real} NOT NULL DEFAULT 0,
  counted INTEGER NOT NULL DEFAULT 0,
  before_that INTEGER NOT NULL DEFAULT 0
)""",
        f"""CREATE TABLE limit_slots (
  name TEXT NOT NULL,
  worker_id TEXT NOT NULL,
  slots INTEGER NOT NULL,
  wanted INTEGER NOT NULL,
  since {real} NOT NULL,
  lease_until {real} NOT NULL,
  PRIMARY KEY (name, worker_id)
)""",
        "CREATE INDEX limit_slots_worker ON limit_slots (worker_id)",
    ]
