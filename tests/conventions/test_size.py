"""The house's sizes, and what it does not allow in code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("app", "bench", "packages", "scripts") for path in ROOT.glob(f"{folder}/**/*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_modules_and_functions_stay_readable(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= 500
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{node.name} has {length} lines"


def test_nothing_but_constants_is_assigned_at_module_level_with_a_call_that_does_work() -> None:
    """No globals: what is made at import is a constant, a type, a table, a router or the command line itself."""
    allowed_calls = {
        "APIRouter", "Typer", "frozenset", "compile", "maketrans", "bytes", "getLogger", "TypeVar", "NewType", "Table",
        "MetaData", "ParamSpec", "DateTime", "tuple", "join", "Path", "now", "text", "HTTPBearer", "APIKeyHeader",
        "add_typer", "EmbeddingSpaceName", "translate", "fields", "dict", "cast", "range", "field", "float", "len",
        "replace", "int", "sorted", "set", "ContextVar", "namedtuple", "timedelta", "MappingProxyType", "lower",
        "split", "encode",
        # parts of statements
        "and_", "bindparam", "case", "coalesce", "column_valued", "columns", "correlate", "cte", "equals", "is_",
        "is_any", "label", "lateral", "later", "milliseconds", "not_deleting", "or_", "order_by", "outerjoin",
        "prefix_with", "render_derived", "scalar_subquery", "seconds", "select", "starts_with", "statement_timestamp",
        "subquery", "timezone", "where",
    }  # fmt: skip
    for path in ROOT.glob("app/**/*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
                function = node.value.func
                name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "?")
                assert name in allowed_calls or name[0].isupper(), f"{path}:{node.lineno} calls {name} at import"


def test_no_folder_has_more_than_twelve_modules_and_each_says_what_lives_there() -> None:
    for init in (ROOT / "app").rglob("__init__.py"):
        modules = [path for path in init.parent.glob("*.py") if path != init]
        assert len(modules) <= 12, init.parent
        assert ast.get_docstring(ast.parse(init.read_text())), init
