"""Answers that were bought from providers, by owner and content. Several answers share a segment. An operation is a
call whose answer the provider keeps ready under an id."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    number = {"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "postgres": "BIGSERIAL PRIMARY KEY"}[dialect]
    return [
        f"""CREATE TABLE answer_segments (
  id {number},
  owner TEXT NOT NULL,
  key TEXT NOT NULL UNIQUE,
  sha256 TEXT NOT NULL,
  size BIGINT NOT NULL,
  used_at {real} NOT NULL
)""",
        "CREATE INDEX answer_segments_used ON answer_segments (used_at, id)",
        """CREATE TABLE answers (
  owner TEXT NOT NULL,
  digest TEXT NOT NULL,
  segment_id BIGINT NOT NULL,
  position BIGINT NOT NULL,
  size BIGINT NOT NULL,
  PRIMARY KEY (owner, digest)
)""",
        "CREATE INDEX answers_segment ON answers (segment_id)",
        f"""CREATE TABLE operations (
  owner TEXT NOT NULL,
  digest TEXT NOT NULL,
  operation TEXT NOT NULL,
  started_at {real} NOT NULL,
  PRIMARY KEY (owner, digest)
)""",
        "CREATE INDEX operations_started ON operations (started_at)",
    ]
