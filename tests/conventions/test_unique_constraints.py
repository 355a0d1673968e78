"""Every primary key and unique index of the database is listed with the error that its violation means."""

import asyncpg
import pytest

from app.core.database.connections import UNIQUE, raise_translated
from app.core.error_codes import ERROR_CODES
from app.core.errors import AppError
from tests.support.api import Service

_UNIQUE = """
    select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
    where i.indisunique and t.relnamespace = current_schema()::regnamespace
      and not starts_with(t.relname, 'schema_') and not starts_with(t.relname, 'alembic_')
      and not exists (select from pg_depend d where d.objid = t.oid and d.deptype = 'e')
"""


async def test_every_unique_constraint_is_listed_and_no_other(service: Service) -> None:
    connection = await asyncpg.connect(service.database.app)
    try:
        names = {row["relname"] for row in await connection.fetch(_UNIQUE)}
    finally:
        await connection.close()
    assert names - UNIQUE.keys() == set(), "list it in app/core/database/connections.py with the error that it means"
    assert UNIQUE.keys() - names == set(), "no table has these any more"
    assert {code for code in UNIQUE.values() if code is not None} <= ERROR_CODES.keys()


def violation(name: str) -> asyncpg.UniqueViolationError:
    error = asyncpg.UniqueViolationError("duplicate key")
    error.constraint_name = name
    return error


@pytest.mark.parametrize(
    ("name", "code", "retryable"),
    [
        ("turns_pkey", "turn_id_conflict", False),
        ("turns_pkey_102008", "turn_id_conflict", False),
        ("conversations_tenant_id_project_external_id_key", "conversation_conflict", False),
        ("jobs_waiting_key", "resource_busy", True),
        ("turns_tenant_id_conversation_id_seq_key_102031", "resource_busy", True),
    ],
)
def test_a_violation_means_what_its_constraint_says(name: str, code: str, *, retryable: bool) -> None:
    with pytest.raises(AppError) as raised:
        raise_translated(violation(name))
    assert (raised.value.code, raised.value.retryable) == (code, retryable)


def test_a_violation_of_an_unknown_constraint_is_not_reported_as_one_that_a_repetition_repairs() -> None:
    raise_translated(violation("notes_pkey"))
    raise_translated(asyncpg.UniqueViolationError("duplicate key"))
