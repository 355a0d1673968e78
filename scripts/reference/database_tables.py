"""Writes the list of tables: each with the text that stands under it in its module."""

import ast
import inspect
from typing import Final

from app.core.database import metadata
from app.tables import DESCRIBED

_REVISION: Final = "The revision of the schema. A build does not start on a schema that it does not know."


def database_tables() -> str:
    """Return the tables in Markdown, by module. Raises ValueError for a table without a text under it."""
    rows = [("alembic_version", _REVISION)]
    for module in (*DESCRIBED, metadata):
        rows += described_tables(inspect.getsource(module), module.__name__)
    lines = [f"| `{name}` | {' '.join(text.split())} |" for name, text in sorted(rows)]
    return "\n".join(["| table | contains |", "|---|---|", *lines])


def described_tables(source: str, module: str) -> list[tuple[str, str]]:
    """Return the tables of a module with the string literal that follows each."""
    statements = ast.parse(source).body
    tables: list[tuple[str, str]] = []
    for statement, following in zip(statements, [*statements[1:], None], strict=True):
        name = _table_name(statement)
        if name is None:
            continue
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))):
                tables.append((name, text))
            case _:
                raise ValueError(f"{module}: {name} has no text under it that says what it contains")
    return tables


def _table_name(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(value=ast.Call(func=ast.Name(id="Table"), args=[ast.Constant(value=str(name)), *_])):
            return name
        case _:
            return None
