"""The public names: what `from penstock import …` offers, and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

FILE = Path(penstock.__file__)


def announced() -> dict[str, str]:
    """The names that type checkers see, each with the module it comes from."""
    imports = [
        node for node in ast.walk(ast.parse(FILE.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    return {alias.name: str(node.module) for node in imports for alias in node.names if node.module != "typing"}


@pytest.mark.parametrize("name", penstock.__all__)
def test_a_public_name_is_what_type_checkers_take_it_for(name: str) -> None:
    home = announced()[name]
    module = __import__(home, fromlist=[name])
    assert getattr(penstock, name) is getattr(module, name)


def test_types_and_names_agree() -> None:
    announced_names = set(announced()) - {"import_module"}
    assert announced_names == set(penstock.__all__)
    assert penstock.__all__ == sorted(penstock.__all__)
    assert set(penstock.__all__) <= set(dir(penstock))
    assert FILE.with_name("py.typed").exists()


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Nothing'"):
        penstock.Nothing  # noqa: B018


def test_importing_penstock_loads_nothing_else() -> None:
    code = "import sys, penstock; print([m for m in sys.modules if m.startswith(('penstock.', 'msgspec', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
