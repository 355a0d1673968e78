"""Statements that are built from the tables with SQLAlchemy Core, and run on asyncpg.

A statement is compiled once, on first use. In its expression, `bindparam("tenant_id")` is an argument. Other values,
such as the one in `turns.c.status == "committed"`, are constants: they are written into the SQL, so that partial
indexes match. A list is one array argument (`is_any`). So the text of a statement never depends on values, and each
connection prepares it once.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache, cached_property
from typing import ParamSpec, TypeVar, TypeVarTuple, cast

import asyncpg
from sqlalchemy import (
    ARRAY,
    BigInteger,
    BindParameter,
    ClauseElement,
    ColumnElement,
    DateTime,
    Delete,
    FromClause,
    Interval,
    Select,
    SelectBase,
    Table,
    any_,
    bindparam,
    delete,
    func,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.postgresql.base import PGCompiler
from sqlalchemy.sql.compiler import SQLCompiler

from app.core.database.transactions import Transaction, field_names
from app.core.ids import TenantId

NOW: ColumnElement[datetime] = func.statement_timestamp(type_=DateTime(timezone=True))
"""The time at which the statement came. Nodes of Citus refuse functions in an update that have a value for each row."""
NOW_SQL = "date_trunc('milliseconds', statement_timestamp())"
"""The same for literal SQL, without the part of it that the API does not show."""

P = ParamSpec("P")
ValueT = TypeVar("ValueT")
Columns = TypeVarTuple("Columns")


class StatementCompiler(PGCompiler):
    """SQLAlchemy's compiler, with constants in the SQL instead of further arguments."""

    def visit_bindparam(self, bindparam: BindParameter[object], *args: bool, **options: bool) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return `$n` for an argument, and the literal for a constant."""
        if not bindparam.required:
            options["literal_binds"] = True
        return cast("str", super().visit_bindparam(bindparam, *args, **options))  # pyright: ignore[reportUnknownMemberType]


class StatementDialect(PGDialect_asyncpg):
    """SQLAlchemy's dialect for asyncpg, with this compiler."""

    statement_compiler = StatementCompiler
    supports_statement_cache = True


_DIALECT = StatementDialect(paramstyle="numeric_dollar")


class Query:
    """One statement with named arguments, compiled on first use."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement

    @cached_property
    def _compiled(self) -> tuple[str, tuple[str, ...]]:
        compiled = cast("SQLCompiler", self._statement.compile(dialect=_DIALECT))
        return str(compiled), tuple(compiled.positiontup or ())

    @property
    def sql(self) -> str:
        """Return the SQL, with `$1` for the first of `names`."""
        return self._compiled[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the arguments, in the order of their numbers."""
        return self._compiled[1]

    def bind(self, **values: object) -> list[object]:
        """Return the arguments in their order. Raises TypeError for a missing or an unknown name."""
        names = self.names
        try:
            args = [values[name] for name in names]
        except KeyError as error:
            raise TypeError(f"the argument {error} is missing") from None
        if len(values) != len(names):
            raise TypeError(f"unknown arguments: {sorted(values.keys() - names)}")
        return args

    def fetch(self, tx: Transaction, /, **values: object) -> "Awaitable[list[asyncpg.Record]]":
        """Return all rows."""
        return tx.fetch(self.sql, *self.bind(**values))

    def fetchrow(self, tx: Transaction, /, **values: object) -> "Awaitable[asyncpg.Record | None]":
        """Return the first row, or None."""
        return tx.fetchrow(self.sql, *self.bind(**values))

    def execute(self, tx: Transaction, /, **values: object) -> Awaitable[int]:
        """Run the statement; return the number of affected rows."""
        return tx.execute(self.sql, *self.bind(**values))


class InsertMany:
    """The insertion of rows of one tenant in one statement, with an array for the values of each column.

    With `skips_existing`, rows whose keys are used are left out; with `updates`, these columns of them are written.
    """

    def __init__(
        self, table: Table, names: Sequence[str], *, skips_existing: bool = False, updates: Sequence[str] = ()
    ) -> None:
        self._table = table
        self._names = names
        self._skips_existing = skips_existing
        self._updates = updates

    @cached_property
    def sql(self) -> str:
        """Return the SQL; `$1` is the tenant."""
        types = [self._table.c[name].type.compile(_DIALECT) for name in self._names]
        arrays = ", ".join(f"${number}::{type_}[]" for number, type_ in enumerate(types, start=2))
        on_conflict = " on conflict do nothing" if self._skips_existing else ""
        if self._updates:
            key = ", ".join(column.name for column in self._table.primary_key)
            changes = ", ".join(f"{name} = excluded.{name}" for name in self._updates)
            on_conflict = f" on conflict ({key}) do update set {changes}"
        # selected from the tenant, so that Citus sends the statement to one node
        return (
            f"insert into {self._table.name} (tenant_id, {', '.join(self._names)}) select o.tenant_id, u.*"  # noqa: S608
            f" from tenants o cross join unnest({arrays}) u where o.tenant_id = $1{on_conflict}"
        )

    async def execute(self, tx: Transaction, tenant_id: TenantId, rows: Sequence[Sequence[object]]) -> int:
        """Insert rows, whose values are in the order of the names; return the number of inserted ones."""
        return await tx.execute(self.sql, tenant_id, *map(list, zip(*rows, strict=True))) if rows else 0


def compiled(build: Callable[P, ClauseElement]) -> Callable[P, Query]:
    """Return a function that builds a query once for each shape.

    The arguments are the shape: booleans and sets of names. They never contain a value of a caller.
    """

    @cache
    def query(*args: P.args, **options: P.kwargs) -> Query:
        for part in (*args, *options.values()):
            names = cast("frozenset[str]", part) if isinstance(part, frozenset) else frozenset[str]()
            if not isinstance(part, bool | frozenset) or not all(name.isidentifier() for name in names):
                raise TypeError(f"not a part of a shape: {part!r}")
        return Query(build(*args, **options))

    return cast("Callable[P, Query]", query)


def arguments(*names: str) -> dict[str, BindParameter[object]]:
    """Return arguments with the names of the columns that they set."""
    return {name: bindparam(name) for name in names}


def columns(
    table: FromClause, row_type: type[object], *, but: Collection[str] = ()
) -> tuple[ColumnElement[object], ...]:
    """Return the columns that the fields of a row type name. Raises KeyError for a field that is no column."""
    return tuple(table.c[name] for name in field_names(row_type) if name not in but)


def equals(table: FromClause, *names: str) -> list[ColumnElement[bool]]:
    """Return the conditions that columns equal the arguments of the same names."""
    return [table.c[name] == bindparam(name) for name in names]


def milliseconds(time: ColumnElement[datetime]) -> ColumnElement[datetime]:
    """Return a time without the part of it that the API does not show."""
    return func.date_trunc("milliseconds", time, type_=DateTime(timezone=True))


def later(time: ColumnElement[datetime], value: ColumnElement[timedelta]) -> ColumnElement[datetime]:
    """Return a time plus an interval of seconds; null for null.

    By way of UTC: the sum depends on the time zone of the session otherwise, and nodes of Citus refuse such a function
    of a column in an update.
    """
    return func.timezone("UTC", func.timezone("UTC", time) + value, type_=DateTime(timezone=True))


def seconds(value: ColumnElement[int]) -> ColumnElement[timedelta]:
    """Return the interval of so many seconds; null for null."""
    return func.make_interval(0, 0, 0, 0, 0, 0, value, type_=Interval)


def delete_some(
    table: Table, *conditions: ColumnElement[bool], of_tenant: bool = False, skip_locked: bool = False
) -> Delete:
    """Return the deletion of up to `limit` rows.

    With `of_tenant` rows of the tenant `tenant_id`: both parts of the statement name it, so that it goes to one node of
    Citus. With `skip_locked` rows that another transaction locks are left.
    """
    tenant = equals(table, "tenant_id") if of_tenant else []
    rows = select(*table.primary_key).where(*tenant, *conditions).limit(bindparam("limit"))
    chosen = (rows.with_for_update(skip_locked=True) if skip_locked else rows).subquery("chosen")
    return delete(table).where(*tenant, *(column == chosen.c[column.name] for column in table.primary_key))


def is_any(column: ColumnElement[ValueT], name: str) -> ColumnElement[bool]:
    """Return the condition that a column is one of a list, which is one array argument."""
    return column == any_(bindparam(name, type_=ARRAY(column.type)))


def page(
    statement: Select[*Columns], key: Sequence[ColumnElement[object]], *, newest_first: bool, after: bool
) -> Select[*Columns]:
    """Order a statement by `key` and limit it to `limit`; with `after` it continues after a row (`after_key`)."""
    if after:
        after_key = tuple_(*(bindparam(f"after_{number}", type_=column.type) for number, column in enumerate(key)))
        statement = statement.where(tuple_(*key) < after_key if newest_first else tuple_(*key) > after_key)
    order = [column.desc() if newest_first else column.asc() for column in key]
    return statement.order_by(*order).limit(bindparam("limit"))


def limit_bytes(
    statement: SelectBase,
    key: Sequence[str],
    *,
    newest_first: bool,
    size: Callable[[FromClause], ColumnElement[int]],
) -> ClauseElement:
    """Select the rows of an ordered statement until their sizes reach the argument `max_bytes`.

    `key` names the columns of its order. The first row is always selected. `is_cut` tells whether there are more.
    """

    def order(rows: FromClause) -> list[ColumnElement[object]]:
        return [rows.c[name].desc() if newest_first else rows.c[name].asc() for name in key]

    ordered = statement.subquery("o")
    bytes_before = func.sum(size(ordered)).over(order_by=order(ordered), rows=(None, -1)).label("bytes_before")
    measured = select(ordered, func.count().over().label("there"), bytes_before).subquery("m")
    return (
        select(*(column for column in measured.c if column.name != "bytes_before"))
        .where(func.coalesce(measured.c.bytes_before, 0) < bindparam("max_bytes", type_=BigInteger))
        .order_by(*order(measured))
    )


def is_cut(rows: "Sequence[asyncpg.Record]") -> bool:
    """Return whether `limit_bytes` left out rows."""
    return bool(rows) and rows[0]["there"] > len(rows)


def after_key(key: Iterable[object] | None) -> dict[str, object]:
    """Return the arguments of `page`: the sort key of the last row of the previous page."""
    return {f"after_{number}": value for number, value in enumerate(key or ())}


def given(**values: object) -> dict[str, object]:
    """Return the values that are not None: the filters of the request."""
    return {name: value for name, value in values.items() if value is not None}
