"""Databases of their own on one PostgreSQL server."""


def database(server: str, name: str) -> str:
    """The URL of one that was just made."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.replace("/postgres?", f"/{name}?", 1)
