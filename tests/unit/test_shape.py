"""The size of modules and functions, and the direction of imports between modules.

The lists below name what is too large today. They may only shrink: an entry that is no longer needed fails the test."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
MODULE_LINES, FUNCTION_LINES = 450, 60

LARGE_MODULES: set[str] = set()
LARGE_FUNCTIONS: set[str] = set()


def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """Every function with its number of lines, decorators included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield f"{prefix}.{node.name}", (node.end_lineno or first) - first + 1
        inner = f"{prefix}.{node.name}" if isinstance(node, ast.ClassDef) else prefix
        yield from functions(node, inner)


def imports(name: str, tree: ast.AST) -> set[str]:
    """The modules of ours that a module imports, also inside functions; not those for type checkers only."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` needs the module, `from module import name` the module before it.
            found |= {full if full in MODULES else node.module for full in inner}
        waiting.extend(ast.iter_child_nodes(node))
    return {other for other in found if other in MODULES and other != name}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return groups


def test_no_module_is_too_long_but_those_listed() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name for name, count in lines.items() if count > MODULE_LINES} == LARGE_MODULES


def test_no_function_is_too_long_but_those_listed() -> None:
    lines = dict(found for name, tree in trees().items() for found in functions(tree, name))
    assert {name for name, count in lines.items() if count > FUNCTION_LINES} == LARGE_FUNCTIONS


def test_no_modules_import_each_other() -> None:
    assert cycles({name: imports(name, tree) for name, tree in trees().items()}) == []


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}}, [["d", "e"], ["a", "b", "c"]]),
    ],
)
def test_a_cycle_is_found(graph: dict[str, set[str]], found: list[list[str]]) -> None:
    assert cycles(graph) == found
