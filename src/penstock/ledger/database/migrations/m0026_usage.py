"""What was bought from providers and what was not bought again, by owner, model and day, and by run."""


def statements(dialect: str) -> list[str]:
    counts = """texts BIGINT NOT NULL,
  characters BIGINT NOT NULL,
  tokens BIGINT NOT NULL,
  cost BIGINT NOT NULL,
  unpriced BIGINT NOT NULL"""
    kinds = "kind TEXT NOT NULL CHECK (kind IN ('bought', 'query', 'cached', 'resumed'))"
    return [
        f"""CREATE TABLE usage (
  owner TEXT NOT NULL,
  model TEXT NOT NULL,
  day TEXT NOT NULL,
  {kinds},
  {counts},
  PRIMARY KEY (owner, model, day, kind)
)""",
        f"""CREATE TABLE run_usage (
  run_id TEXT NOT NULL,
  model TEXT NOT NULL,
  {kinds},
  owner TEXT NOT NULL,
  {counts},
  PRIMARY KEY (run_id, model, kind)
)""",
        "ALTER TABLE answers ADD COLUMN tokens BIGINT NOT NULL DEFAULT 0",
    ]
