"""Literal SQL names only tables and columns that are described; statements built from the tables cannot name others."""

import importlib
from pathlib import Path

import asyncpg
import pytest

from app.conversations.stores import stream_store
from tests.support.api import Service
from tests.support.literal_sql import Postgres, holds_sql, literals, unknown_names

APP = Path(__file__).parents[2] / "app"


@pytest.fixture
async def postgres(service: Service) -> Postgres:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        words = [
            frozenset(row[0] for row in await connection.fetch(sql))
            for sql in (
                """
                select word from pg_get_keywords()
                union select unnest(proargnames) from pg_proc where pronamespace = 'public'::regnamespace
                """,
                "select proname from pg_proc",
                "select relname from pg_class where relnamespace = 'pg_catalog'::regnamespace",
                """
                select attname from pg_attribute a join pg_class c on c.oid = a.attrelid
                where c.relnamespace = 'pg_catalog'::regnamespace
                """,
            )
        ]
    finally:
        await connection.close()
    return Postgres(*words)


def test_literal_sql_names_described_tables_and_columns_only(postgres: Postgres) -> None:
    count = 0
    # that there is no SQL in other modules is another test; the server of these tests does not have the names of Citus
    for path in (path for path in APP.rglob("*.py") if holds_sql(path) and path.name != "distribution.py"):
        module = importlib.import_module(".".join(path.relative_to(APP.parent).with_suffix("").parts))
        count += len(list(literals(path.read_text(), vars(module))))
        assert unknown_names(path.read_text(), vars(module), postgres) == [], path
    assert count > 100, "the literals were found"


PLANTED = {
    "a column": ("await tx.fetch('select id, titel from conversations where tenant_id = $1')", ["1: titel"]),
    "a column of another table": ("SQL = 'select t.title from turns t where t.tenant_id = $1'", ["1: t.title"]),
    "a table": ("SQL = 'delete from turn where tenant_id = $1'", ["1: there is no table turn"]),
    "a column to insert": ("SQL = 'insert into tenants (tenant_id, nam) values ($1, $2)'", ["1: nam"]),
    "a column to set": ("SQL = 'update turns set revision = $2 where tenant_id = $1'", ["1: revision"]),
    "a part of a statement": ("WHERE = f'{CLOCK} and h.deleted_at is null'", ["1: h.deleted_at"]),
    "a constant": ("SQL = f'select {COLUMNS} from turns where tenant_id = $1'", ["1: made"]),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_name_is_found(planted: str, postgres: Postgres) -> None:
    source, expected = PLANTED[planted]
    assert unknown_names(source, {"COLUMNS": "id, made", "CLOCK": "t.created_at < now()"}, postgres) == expected


@pytest.mark.parametrize("column", ["epoch", "renewed_at", "holder"])
def test_a_renamed_column_is_found_in_a_store(column: str, postgres: Postgres) -> None:
    path = APP / "conversations/stores/stream_store.py"
    source = path.read_text().replace(f"s.{column}", f"s.{column}_")
    assert unknown_names(source, vars(stream_store), postgres) != []
