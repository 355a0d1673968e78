"""Migrations since release 0.1.0 only add to the schema, or name the oldest release that can still run."""

import io
import re
from collections.abc import Mapping

import pytest

from alembic import command
from app.core.database import schema
from app.core.database.revisions import FIRST_RELEASE, known_revisions, oldest_replica

REMOVES = re.compile(
    r"\bdrop (table|column|view|function|type|policy)\b|\brename\b|\brevoke\b|\btruncate\b"
    r"|\balter column \w+ (set not null|type|set data type|drop default)"
    r"|\badd column (?:if not exists )?\w+ (?![^,]*default)[^,]*not null"
    r"|\badd (constraint \w+ )?(check|unique|foreign key|exclude)|\bcreate unique index\b|\bcreate trigger\b",
    re.IGNORECASE,
)
HARMLESS: Mapping[str, str] = {
    "0039": "its check is of a column that it adds, which no release before writes",
    "0035": "the index that is renamed takes the place of one that is dropped; no release names an index",
    "0023": "its triggers stamp what any release writes, and record what it deletes, with its own rights",
    "0021": "the right that is revoked was granted in it; 0.1.0 finds facts by owner, and keeps the project of a row",
    "0019": "0.1.0 updates only the columns that stay granted, and deletes expired records as ops",
}
"""Revisions whose statements look as if they removed something, and why an older release runs on."""


def statements(start: str, end: str) -> dict[str, list[str]]:
    """The SQL of each migration after `start`, by revision."""
    written = io.StringIO()
    config = schema.alembic_config()
    config.output_buffer = written
    command.upgrade(config, f"{start}:{end}", sql=True)
    _, *parts = re.split(r"^-- Running upgrade \w+ -> (\w+)$", written.getvalue(), flags=re.MULTILINE)
    return {
        revision: [" ".join(statement.split()) for statement in sql.split(";\n") if statement.strip()]
        for revision, sql in zip(parts[::2], parts[1::2], strict=True)
    }


def removing(sql: list[str]) -> list[str]:
    """The statements that can break an older release; a migration may do anything to tables that it makes."""
    made = {match[1] for one in sql if (match := re.search(r"\bcreate table (?:if not exists )?(\w+)", one))}
    old = [one for one in sql if not any(re.search(rf"\b(table|on) (only )?{name}\b", one) for name in made)]
    return [one for one in old if REMOVES.search(one)]


def test_each_migration_since_the_first_release_leaves_older_releases_running_or_says_that_it_does_not() -> None:
    known = known_revisions()
    found = statements(FIRST_RELEASE, known[-1]) if known[-1] != FIRST_RELEASE else {}
    assert set(found) == set(known[known.index(FIRST_RELEASE) + 1 :])
    for revision, sql in found.items():
        left_behind = oldest_replica(revision) == revision
        assert left_behind or revision in HARMLESS or removing(sql) == [], (
            f"{revision}: releases before it stop working; expand only, or set oldest_replica = {revision!r}"
        )


@pytest.mark.parametrize(
    ("sql", "removes"),
    [
        ("alter table turns drop column model", True),
        ("alter table turns rename column model to name", True),
        ("alter table turns alter column model set not null", True),
        ("alter table turns add column weight integer not null", True),
        ("alter table turns add column note text, add column weight integer not null", True),
        ("alter table turns add constraint turns_x_check check (x)", True),
        ("create unique index x on turns (model)", True),
        ("alter table turns add column weight integer not null default 1, add column note text", False),
        ("alter table turns alter column note set statistics 0", False),
        ("create index x on turns (model)", False),
        ("drop index x", False),
    ],
)
def test_statements_that_remove_are_distinguished_from_those_that_add(sql: str, *, removes: bool) -> None:
    assert bool(removing([sql])) is removes


def test_a_migration_may_do_anything_to_the_tables_that_it_makes() -> None:
    assert removing(["create table notes (a int)", "create unique index x on notes (a)"]) == []
