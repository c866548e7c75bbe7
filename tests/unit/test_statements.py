"""No text of a caller ever enters a statement: what is sent to a database, or to an index as a filter, is made of
constants of the code. Held against the source itself, so that a new statement is held to it too."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

SOURCE = Path(penstock.__file__).parent
LEDGER = sorted(
    path for path in (SOURCE / "ledger").rglob("*.py") if path.name not in ("statements.py", "sqlite.py", "postgres.py")
)
INDEXES = sorted((SOURCE / "indexes").rglob("*.py")) + sorted((SOURCE / "search").rglob("*.py"))
NUMBERED = ("bool", "int")
"""What a function may take that puts a statement together while the app runs: neither carries a text."""
SCRIPTS = {
    # Tables and columns of a backup, whose names `_plain` has looked at, and numbers.
    "backup_tables.py": {
        "_NAMED",
        "f'SELECT count(*) FROM ({_NAMED})'",
        "f\"SELECT raw_key FROM generations WHERE state <> 'PURGED' AND raw_key IN ({places}) "
        "UNION SELECT key FROM segments WHERE key IN ({places}) "
        'UNION SELECT key FROM answer_segments WHERE key IN ({places})"',
        "f'DECLARE copied NO SCROLL CURSOR FOR SELECT {columns} FROM {name}'",
        "f'FETCH {PAGE} FROM copied'",
        "f'SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {table}_id_seq'",
        "f\"TRUNCATE {', '.join(wanted)} RESTART IDENTITY CASCADE\"",
        "f'SELECT {columns} FROM {name}'",
        "f\"SELECT setval('{name}_id_seq', {max(1, seq)}, {('true' if seq else 'false')})\"",
    },
    "histories.py": {
        "f'ALTER SEQUENCE {name}_id_seq CACHE 1'",
        "f'SELECT last_value FROM {name}_id_seq'",
        "f'ALTER SEQUENCE {name}_id_seq RESTART WITH {last + 1:d}'",
    },
    "versions.py": {"_TABLES[connection.dialect]", "text"},
    "notifier.py": {"_DATA_VERSION", "_LISTEN"},
    "writer.py": {"NOTIFY"},
}
"""Scripts besides plain constants: those of the migrations, names of constants, and tables that we name ourselves."""
COMPARES = re.compile(r"\b(IN|NOT IN|BETWEEN|LIKE|IS|AND|OR)\b|[<>=]")
QUOTES = re.compile(r"\b(SELECT|INSERT INTO|UPDATE \w+ SET|DELETE FROM|VALUES \(|CREATE (TABLE|INDEX)|DROP )\b")


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _functions(tree: ast.Module) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def _makes(function: Function) -> bool:
    """It says that it makes a statement: its calls are looked at, not what it does."""
    returns = None if isinstance(function, ast.Lambda) else function.returns
    return returns is not None and ast.unparse(returns) == "Statement"


def _is_numbered(function: Function) -> bool:
    """One that is kept, by numbers, is as good as a constant."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    plain = all(one.annotation is not None and ast.unparse(one.annotation) in NUMBERED for one in named)
    cached = any(ast.unparse(one) == "cache" for one in getattr(function, "decorator_list", []))
    return cached and plain and given.vararg is None and given.kwarg is None


def offences(sources: dict[Path, str]) -> list[str]:
    trees = {path: ast.parse(text) for path, text in sources.items()}
    functions = {path: _functions(tree) for path, tree in trees.items()}
    makers = [one for found in functions.values() for one in found if _makes(one) and not _is_numbered(one)]
    at_import = {"Statement", *(getattr(maker, "name", "") for maker in makers)}
    found = []
    for path, tree in trees.items():
        for node in [node for one in functions[path] if not _makes(one) for node in ast.walk(one)]:
            if isinstance(node, ast.Call) and _called(node) in at_import:
                found.append(f"{path.name}:{node.lineno}: a statement is made while the app runs")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _called(node) in ("script", "execute"):
                given = ast.unparse(node.args[0])
                if not _is_constant(node.args[0]) and given not in SCRIPTS.get(path.name, ()):
                    found.append(f"{path.name}:{node.lineno}: {given} is run as it is")
    return found


def _is_constant(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.BinOp(left, ast.Add(), right):
            return _is_constant(left) and _is_constant(right)
        case ast.IfExp(_, one, other):
            return _is_constant(one) and _is_constant(other)
    return False


def test_i10_statements_are_made_of_constants() -> None:
    assert offences({path: path.read_text() for path in LEDGER}) == []


@pytest.mark.parametrize(
    "code",
    [
        "def look(c, s):\n    return c.run(Statement(f'SELECT {s}'))",
        "look = lambda c, s: c.run(Statement(s))",
        "@cache\ndef _of(s: str) -> Statement:\n    return Statement(s)\ndef look(c, s):\n    c.run(_of(s))",
        "def _of(s) -> Statement:\n    return Statement(s)\ndef _more(s):\n    return _of(s)",
        "@cache\ndef _of(*n: int) -> Statement:\n    return Statement(str(n))\ndef look(c, s):\n    c.run(_of(s))",
        "def look(c, name):\n    c.script(f'DROP TABLE {name}')",
        "def look(c, name):\n    c.script('DROP TABLE ' + name)",
    ],
)
def test_a_statement_that_is_made_of_arguments_is_seen(code: str) -> None:
    assert offences({Path("new.py"): code})


@pytest.mark.parametrize(
    "code",
    [
        "_LOOK = {s: Statement(f'SELECT {s}') for s in 'ab'}\ndef look(c, s):\n    return c.run(_LOOK[s], name=s)",
        "def _of(only) -> Statement:\n    return Statement(only)\n_ALL = _of('SELECT 1')",
        "@cache\ndef _of(n: int) -> Statement:\n    return Statement('')\ndef look(c):\n    c.run(_of(1))",
    ],
)
def test_a_statement_of_constants_is_let_be(code: str) -> None:
    assert offences({Path("new.py"): code}) == []


def test_sql_stands_in_the_ledger_alone() -> None:
    others = [
        path
        for path in SOURCE.rglob("*.py")
        if not {"ledger", "bench"}.intersection(path.relative_to(SOURCE).parts) and path.name not in NAMES
    ]
    for path in others:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not QUOTES.search(node.value), f"{path}:{node.lineno}"


def filters(text: str) -> Iterator[str]:
    """What is put into a text that compares: into a filter."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            constants = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
            if COMPARES.search(constants):
                yield from (ast.unparse(part.value) for part in node.values if isinstance(part, ast.FormattedValue))


NAMES = {
    "milvus.py": {"json.dumps(owner)", "json.dumps(collection)", "_filter(place)", "any_of"},
    "pg_connections.py": set[str](),
    "pg_text.py": {"at", "table"},
    "pgvector.py": {"COLUMNS", "HIT", "SCAN", "SCANNED", "_condition(where)", "changed", "column", "half", "kind"}
    | {"name", "self._name", "self._named", "self.schema"},
}
"""What the index in a server puts into statements: constants, numbers, and names that it made or checked."""


@pytest.mark.parametrize("path", INDEXES, ids=lambda path: str(path.name))
def test_i10_a_filter_of_an_index_holds_nothing_but_numbers(path: Path) -> None:
    for put in filters(path.read_text()):
        if put not in NAMES.get(path.name, ()):
            assert re.match(r"(int|rows\.numbers|numbers)\(", put), f"{path.name}: {put} stands in a filter"


def test_a_text_in_a_filter_is_seen() -> None:
    assert list(filters("""f"collection = '{name}'\"""")) == ["name"]
