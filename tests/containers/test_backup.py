"""`turnkeep backup` and `restore`: a restored folder has what was there, and a failed restore changes nothing."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from app.core.embedded_postgres.server import EmbeddedPostgres
from tests.support.process import ROOT


def turnkeep(folder: Path, *words: str | Path, **more: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "DATABASE_URL"))}
    settings = {"TURNKEEP_DATA_DIR": str(folder), "TURNKEEP_EMBEDDED_SHARED_BUFFERS_MB": "16"}
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env=kept | settings | more,
    )  # fmt: skip


@contextmanager
def running(folder: Path) -> Iterator[Callable[..., list[tuple[object, ...]]]]:
    """A query as superuser, on a server that runs until the end: commands use it, and need not start it."""
    server = EmbeddedPostgres(folder / "postgres", shared_buffers_mb=16)
    server.start()

    async def run(statement: str, database: str) -> list[tuple[object, ...]]:
        connection = await asyncpg.connect(server.url("postgres", database))
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    try:
        yield lambda statement, database="turnkeep": asyncio.run(run(statement, database))
    finally:
        server.close()


CONTENT = (
    "select encode(secret, 'hex'), (select count(*) from pg_policies), (select min(v::text) from alembic_version v)"
    " from installation"
)
ACCESS = (
    "select rolname from pg_roles where rolname like 'turnkeep%' and has_database_privilege(oid, 'turnkeep', 'connect')"
)


@pytest.mark.soak
def test_a_backup_restores_into_an_empty_folder_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    first, second, dump = tmp_path / "first", tmp_path / "second", tmp_path / "turnkeep.dump"
    tmp_path.chmod(0o755)
    with running(first) as query:
        migrated = turnkeep(first, "migrate")
        assert migrated.returncode == 0, migrated.stderr
        done = turnkeep(first, "backup", dump)
        assert done.returncode == 0, done.stderr
        assert dump.stat().st_mode & 0o777 == 0o600
        kept, access = query(CONTENT), query(ACCESS)
        assert kept[0][1]
    with running(second) as query:
        assert turnkeep(second, "restore", dump).returncode == 0
        assert (query(CONTENT), query(ACCESS)) == (kept, access)
        assert query("select 1 from pg_database where datname = 'turnkeep_restored'", "postgres") == []
        query("create table public.mine as select 1 as one")
        refused = turnkeep(second, "restore", dump)
        assert (refused.returncode, "--replace" in refused.stderr) == (1, True)
        damaged = tmp_path / "damaged.dump"
        damaged.write_bytes(dump.read_bytes()[: dump.stat().st_size // 2])
        failed = turnkeep(second, "restore", damaged, "--replace")
        assert (failed.returncode, "pg_restore failed" in failed.stderr) == (1, True)
        assert query("select one from public.mine") == [(1,)], "the old database is unchanged"
        for leftover in ("turnkeep_restored", "turnkeep_replaced"):  # of a restore that was killed
            query(f"create database {leftover}", "postgres")
        again = turnkeep(second, "backup", dump)
        assert (again.returncode, "File exists" in again.stderr) == (1, True)
        assert turnkeep(second, "restore", dump, "--replace").returncode == 0
        assert query("select to_regclass('public.mine')") == [(None,)]
        assert query(CONTENT) == kept
        assert query("select datname from pg_database where datname like 'turnkeep%'", "postgres") == [("turnkeep",)]


@pytest.mark.slow
def test_commands_for_the_embedded_server_name_the_way_for_an_own_one(tmp_path: Path) -> None:
    for words in (("backup", "x.dump"), ("restore", "x.dump")):
        done = turnkeep(tmp_path, *words, DATABASE_URL="postgresql://x@127.0.0.1:1/x")
        assert done.returncode == 1
        assert f"Use pg_{'dump' if words[0] == 'backup' else 'restore'}" in done.stderr
    assert "There is no Turnkeep data" in turnkeep(tmp_path, "backup", tmp_path / "x.dump").stderr
    assert list(tmp_path.iterdir()) == []
