"""Write src/penstock/ledger/database/schema.sql, what the migrations add up to: `python scripts/schema.py`."""

import sqlite3
from pathlib import Path

from penstock.ledger.database.migrations import MIGRATIONS

FILE = Path(__file__).parents[1] / "src" / "penstock" / "ledger" / "database" / "schema.sql"

HEAD = """\
-- What the migrations add up to, on SQLite; PostgreSQL differs only in the types of ids and times. For readers: nothing
-- runs it. Written by `python scripts/schema.py`; a test compares it with a ledger that was just made.
"""


def schema() -> str:
    with sqlite3.connect(":memory:") as connection:
        for statements in MIGRATIONS:
            for text in statements("sqlite"):
                connection.execute(text)
        return HEAD + dump(connection)


def dump(connection: sqlite3.Connection) -> str:
    """Every statement of a database, in the order in which they were run."""
    rows = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
        "AND name <> 'schema_versions' ORDER BY rowid"
    )
    return "".join(f"\n{row[0]};\n" for row in rows)


if __name__ == "__main__":
    FILE.write_text(schema(), encoding="utf-8")
