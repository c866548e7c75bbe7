"""What happened in each interval of time, for the plots of the dashboard: steps by kind, and how long the queue was."""


def statements(dialect: str) -> list[str]:
    return [
        """CREATE TABLE step_samples (
  owner TEXT NOT NULL,
  width INTEGER NOT NULL,
  slot BIGINT NOT NULL,
  kind TEXT NOT NULL,
  completed BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  items BIGINT NOT NULL,
  seconds REAL NOT NULL,
  slowest REAL NOT NULL,
  PRIMARY KEY (owner, width, slot, kind)
)""",
        """CREATE TABLE queue_samples (
  owner TEXT NOT NULL,
  width INTEGER NOT NULL,
  slot BIGINT NOT NULL,
  waiting BIGINT NOT NULL,
  working BIGINT NOT NULL,
  most BIGINT NOT NULL,
  spent BIGINT NOT NULL,
  saved BIGINT NOT NULL,
  PRIMARY KEY (owner, width, slot)
)""",
    ]
