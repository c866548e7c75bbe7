"""One process to fork from, and homes on both kinds of ledger, for all crash tests."""

import os
from collections.abc import Callable, Iterator

import pytest
from tests.crash.harness import Place, Player, playing
from tests.kit.postgres import create_database

MakeDatabase = Callable[[str, str | None], str]


@pytest.fixture(scope="session")
def player() -> Iterator[Player]:
    with playing() as player:
        yield player


@pytest.fixture(scope="session")
def databases(postgres_server: str) -> MakeDatabase:
    """Makes a database, as a copy of another where one is named; returns its URL. Other processes use this server too:
    their names begin otherwise."""
    first = f"crash_{os.getpid()}"

    def make(name: str, template: str | None) -> str:
        return create_database(postgres_server, f"{first}_{name}", template=f"{first}_{template}" if template else "")

    return make


@pytest.fixture(scope="session")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory, player: Player) -> Place:
    return Place(tmp_path_factory.mktemp("sqlite"), player)


@pytest.fixture(scope="session")
def on_postgres(tmp_path_factory: pytest.TempPathFactory, player: Player, databases: MakeDatabase) -> Place:
    return Place(tmp_path_factory.mktemp("homes"), player, databases)
