"""Write src/penstock/ledger/database/schema.sql, what the migrations add up to: `python scripts/schema.py`."""

import sqlite3
from pathlib import Path

from penstock.ledger.database.migrations import MIGRATIONS

FILE = Path(__file__).parents[1] / "src" / "penstock" / "ledger" / "database" / "schema.sql"

HEAD = """\
-- What the migrations add up to, on SQLite; PostgreSQL differs only in the types of ids and times. These statements
-- make a new ledger on SQLite. Written by `python scripts/schema.py`; a test compares them with the migrations.
"""


def schema() -> str:
    with sqlite3.connect(":memory:") as connection:
        for statements in MIGRATIONS:
            for text in statements("sqlite"):
                connection.execute(text)
        return HEAD + dump(connection)


def dump(connection: sqlite3.Connection) -> str:
    """Every statement that makes this database, in the order in which they were run, and its rows."""
    rows = connection.execute(
        "SELECT sql, type, name FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
        "AND name <> 'schema_versions' ORDER BY rowid"
    ).fetchall()
    texts = [text for text, _, _ in rows]
    for table in [name for _, kind, name in rows if kind == "table"]:
        for values in connection.execute(f"SELECT * FROM {table}"):
            texts.append(f"INSERT INTO {table} VALUES ({', '.join(map(repr, values))})")
    return "".join(f"\n{text};\n" for text in texts)


if __name__ == "__main__":
    FILE.write_text(schema(), encoding="utf-8")
