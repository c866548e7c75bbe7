"""`penstock key` and `penstock audit`."""

from scripts.reference import SHAPES
from tests.acceptance.test_json import fits
from tests.kit.cli import Cli


def test_keys_by_the_command_line(cli: Cli) -> None:
    made = cli("key", "create", "--owner", "anna", "--scope", "admin", "--expires", "30d", "--name", "boss", "--json")
    assert made.json["key"].startswith(f"pk_{made.json['id']}_")
    assert made.json["owner"] == "anna"
    assert [one["name"] for one in cli("key", "list", "--owner", "anna", "--json").json["keys"]] == ["boss"]
    assert cli("key", "list").out == "no keys\n"
    assert cli("key", "revoke", made.json["id"]).code == 2
    done = cli("key", "revoke", made.json["id"], "--owner", "anna", "--json").json
    assert fits(SHAPES["key revoke"][""], done)
    assert done["revoked"][0]["revoked_at"] is not None
    assert "revoked" in cli("key", "list", "--owner", "anna").out
    assert cli("key", "create", "--scope", "all").code == 2
    assert cli("key", "create", "--collection", "../x").code == 2
    assert cli("key", "create", "--expires", "soon").code == 2
    shown = cli("key", "create", "--name", "\x1b[31mred")
    assert "\x1b" not in shown.out
