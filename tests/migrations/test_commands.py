"""Alembic's own commands, as `alembic` on the command line runs them with DATABASE_URL."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from app.core.database import schema
from app.core.database.revisions import head_revision, known_revisions, migrations_path
from tests.support.process import ROOT, Process

ALEMBIC = (sys.executable, "-m", "alembic.config")


def alembic(*words: str, url: str | None, code: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "DATABASE_URL"))}
    given = {} if url is None else {"DATABASE_URL": url}
    return subprocess.run(
        [*ALEMBIC, *words], cwd=code, env=kept | given, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The code of this build, with migrations to which new ones can be added."""
    shutil.copytree(migrations_path(), tmp_path / "alembic")
    (tmp_path / "app").symlink_to(ROOT / "app")
    shutil.copy(ROOT / "alembic.ini", tmp_path)
    return tmp_path


@pytest.mark.slow
async def test_upgrade_makes_a_database_that_is_like_the_tables(url: str) -> None:
    done = alembic("upgrade", "head", url=url)
    assert done.returncode == 0, done.stderr
    assert f"revision={head_revision()}" in done.stderr or f'"revision": "{head_revision()}"' in done.stderr
    assert await schema.recorded_revision(url) == head_revision()
    connection = await asyncpg.connect(url)
    space = await connection.fetchval(
        "insert into embedding_spaces (provider, model, dimensions) values ('p', 'm', 3) returning id"
    )
    await connection.close()
    await schema.ensure_vector_index(url, space_id=space, dimensions=3)

    checked = alembic("check", url=url)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert head_revision() in alembic("current", url=url).stdout


@pytest.mark.slow
async def test_a_difference_becomes_the_next_migration(url: str, copied: Path) -> None:
    await schema.migrate(url)
    said = alembic("revision", "--autogenerate", "-m", "nothing new", url=url, code=copied)
    assert said.returncode == 0, said.stderr
    assert "no migration is made" in said.stdout
    connection = await asyncpg.connect(url)
    await connection.execute("alter table turns drop column model; alter table vectors drop column embedding")
    await connection.close()

    made = alembic("revision", "--autogenerate", "-m", "model of a turn", url=url, code=copied)
    assert made.returncode == 0, made.stderr
    number = f"{int(known_revisions()[-1]) + 1:04}"
    assert [file.name for file in (copied / "alembic/versions").glob(f"{number}_*.py")] == [
        f"{number}_model_of_a_turn.py"
    ]
    upgraded = alembic("upgrade", "head", url=url, code=copied)
    assert upgraded.returncode == 0, upgraded.stderr
    assert alembic("check", url=url, code=copied).returncode == 0


@pytest.mark.slow
def test_what_is_missing_is_one_sentence() -> None:
    for url, expected in (
        (None, "Set DATABASE_URL."),
        ("postgresql://x@127.0.0.1:1/x", "The database does not answer"),
    ):
        for words in (("upgrade", "head"), ("current",)):
            failed = alembic(*words, url=url)
            assert failed.returncode != 0
            said = failed.stdout + failed.stderr
            assert expected in said
            assert "Traceback" not in said


@pytest.mark.slow
async def test_the_database_of_another_build_is_refused_in_one_line(url: str, tmp_path: Path) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("create table schema_version as select '0044' as version_num")
    await connection.close()
    refused = alembic("upgrade", "head", url=url)
    assert refused.returncode != 0
    assert "schema_version 0044 of another build of Turnkeep" in (refused.stdout + refused.stderr).splitlines()[-1]
    process = Process(tmp_path, database_url=url)
    for words in (("migrate",), ("serve",)):
        refused = process.command(*words)
        assert refused.returncode == 1
        last = refused.stderr.splitlines()[-1]
        assert "schema_version 0044 of another build of Turnkeep: export its data with that build" in last
        assert "Traceback" not in refused.stderr
