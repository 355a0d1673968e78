"""Finds names in literal SQL that no table description has.

A qualified column must be one of its table. Any other word must be a keyword of Postgres, a function, a name that the
SQL itself defines, or a column of a table that the literal names. Names of the catalog of Postgres are taken from it.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.tables import METADATA

_VERSION = frozenset({"version_num"})
TABLES: Mapping[str, frozenset[str]] = {
    **{name: frozenset(column.name for column in table.c) for name, table in METADATA.tables.items()},
    "alembic_version": _VERSION,
}
COLUMNS = frozenset[str]().union(*TABLES.values())
_OF_EVERY_TABLE = {"xmin", "ctid", "tableoid"}
_SQL = re.compile(
    r"\b(select|insert into|update|delete from)\b.*\b(from|set|values|select|limit|where)\b|\$[1-9]|\bfrom \w+ \w\b"
    r"|\b[a-z]\w*\.[a-z]\w* (=|<|>|is|in|as|~)|\b(desc|asc)$|\bis (not )?null\b",
    re.DOTALL,
)
_OTHER = re.compile(r"e?'(?:[^']|'')*'|--[^\n]*|\bdistinct from\b|\bset local \S+", re.IGNORECASE)
_NAMED = re.compile(
    r"\b(?:from|join|into|update|using)\s+(?:only\s+)?(\w+)"
    r"(?:\s+(?:as\s+)?(?!(?:join|left|cross|inner|where|order|on|set|limit|group|union|for)\b)([a-z]\w*))?"
)
_DEFINED = (
    re.compile(r"\bas\s+(\w+)"),
    re.compile(r"(\w+)(?:\s*\([\w, ]+\))?\s+as\s+(?:materialized\s+)?\("),
    re.compile(r"\)\s+(?:as\s+)?(\w+)"),
    re.compile(r"(?:\$0|\bordinality)\s+(\w+)"),
)
_LISTS = re.compile(r"(?:\)|\bordinality)\s+(?:as\s+)?\w+\s*\(([\w, \n]+)\)")  # unnest(…) as u (a, b)
_WORD = re.compile(r"(?<![\w$:.\[])([a-z_]\w*)(?!\w|\s*=>)(?:\.(\w+|\*))?(\s*\()?")


_HOLD_SQL = {
    "store.py",
    "search_statement.py",
    "ann_search.py",
    "transactions.py",
    "reader.py",
    "backups.py",
    "schema.py",
    "distribution.py",
    "jobs.py",
    "notify.py",
}


def holds_sql(path: Path) -> bool:
    """Return whether a module of `app` may have SQL: stores, and some of the database, search, jobs and the bus."""
    return path.name in _HOLD_SQL or path.name.endswith("_store.py")


@dataclass(frozen=True)
class Postgres:
    """Words of Postgres: keywords and arguments of functions, functions, relations of its catalog, their columns."""

    keywords: frozenset[str]
    functions: frozenset[str]
    relations: frozenset[str]
    columns: frozenset[str]


def literals(source: str, constants: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Yield the literal SQL of a module with its lines; the module's constants are put in, `$0` for other values."""
    tree = ast.parse(source)
    inside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    inside |= {id(node) for error in ast.walk(tree) if isinstance(error, ast.Raise) for node in ast.walk(error)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(child) for child in ast.walk(node) if child is not node)
            text = "".join(_text_of(part, constants) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if id(node) not in inside and _SQL.search(text):
            yield node.lineno, _OTHER.sub(" '' ", text)


def _text_of(part: ast.expr, constants: Mapping[str, object]) -> str:
    match part:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=ast.Name(id=name)) if isinstance(constants.get(name), str):
            return str(constants[name])
        case _:
            return " $0 "


def unknown_names(source: str, constants: Mapping[str, object], postgres: Postgres) -> list[str]:
    """Return what the literal SQL of a module names and nothing describes, each with its line."""
    found = list(literals(source, constants))
    defined = set(_defined(text for _, text in found))
    return [f"{line}: {name}" for line, text in found for name in _unknown(text, defined, postgres)]


def _unknown(text: str, defined: set[str], postgres: Postgres) -> Iterator[str]:
    of_catalog = postgres.columns if "pg_" in text else frozenset[str]()
    any_column = COLUMNS | defined | of_catalog | _OF_EVERY_TABLE
    columns: dict[str, frozenset[str]] = {}
    named: list[frozenset[str]] = []
    for relation, alias in _NAMED.findall(text):
        if relation not in {*TABLES, *defined, *postgres.relations, *postgres.keywords} and f"{relation}(" not in text:
            yield f"there is no table {relation}"
        of_relation = TABLES.get(relation, any_column)
        named += [of_relation] if relation in TABLES else []
        for name in {relation, alias} - postgres.keywords:
            columns[name] = columns.get(name, frozenset()) | of_relation | _OF_EVERY_TABLE
    plain = postgres.keywords.union(defined, columns, of_catalog, postgres.relations, *(named or [COLUMNS]))
    for word, column, call in _WORD.findall(text):
        if column:
            known = any_column if word in defined else columns.get(word, any_column)
            if column != "*" and column not in known:
                yield f"{word}.{column}"
        elif word not in plain and not (call and word in postgres.functions):
            yield word


def _defined(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for pattern in _DEFINED:
            yield from pattern.findall(text)
        for names in _LISTS.findall(text):
            yield from re.split(r",\s*", names)
