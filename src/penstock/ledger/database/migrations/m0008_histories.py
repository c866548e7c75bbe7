"""Which history of a ledger this is: when ids began anew, and how many of a user's writes it holds."""


def statements(dialect: str) -> list[str]:
    real = {"sqlite": "REAL", "postgres": "DOUBLE PRECISION"}[dialect]
    return [
        f"""CREATE TABLE histories (
  first_generation BIGINT PRIMARY KEY,
  last_before BIGINT NOT NULL,
  reason TEXT NOT NULL CHECK (reason IN ('restored', 'set_back')),
  missing BIGINT NOT NULL DEFAULT 0,
  begun_at {real} NOT NULL,
  settled_at {real}
)""",
        # Counted on SQLite alone: on PostgreSQL every submit would wait for the one before it.
        "CREATE TABLE positions (position BIGINT NOT NULL)",
        "INSERT INTO positions (position) VALUES (0)",
    ]
