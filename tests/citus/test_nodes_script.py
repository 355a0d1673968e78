"""deploy/citus/nodes.sql makes of empty nodes what Turnkeep needs, and its login distributes the tables then."""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.citus import CitusNodes, required_programs
from tests.support.command import ROOT, TURNKEEP

ROLES = """
    select rolname, rolcanlogin, rolsuper or rolbypassrls as is_mighty from pg_roles where rolname like 'turnkeep%'
    order by 1
"""
ENTRANCE = """
    select r.rolname from pg_roles r
    where r.rolname like 'turnkeep%' and has_database_privilege(r.oid, current_database(), 'connect')
    union all select 'public' from pg_database d cross join aclexplode(d.datacl) a
    where d.datname = current_database() and a.grantee = 0
    order by 1
"""


@pytest.fixture(scope="module")
def new_nodes() -> Iterator[CitusNodes]:
    """Nodes as their image starts them: a database with the extension on each one, and no role but the superuser."""
    started = CitusNodes(required_programs())
    try:
        started.start()
        asyncio.run(prepare(started))
        yield started
    finally:
        started.stop()


async def prepare(nodes: CitusNodes) -> None:
    for place in range(len(nodes.ports)):
        for database, statement in (("postgres", "create database turnkeep"), ("turnkeep", "create extension citus")):
            await fetch(nodes.url(place, "postgres", database), statement)


async def fetch(url: str, sql: str) -> "list[asyncpg.Record]":
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()


def run_script(nodes: CitusNodes) -> None:
    """What deploy/compose-citus.yml runs, with the addresses of these nodes in the place of its names."""
    script = (ROOT / "deploy/citus/nodes.sql").read_text()
    for name, port in zip(("coordinator", "worker-1", "worker-2"), nodes.ports, strict=True):
        script, found = re.subn(rf"'{name}\.nodes', 5432", f"'127.0.0.1', {port}", script)
        assert found == 1, name
    done = subprocess.run(
        [required_programs() / "psql", "--no-psqlrc", "--quiet", nodes.url(0, "postgres", "turnkeep")],
        env=os.environ | {"DATABASE_PASSWORD": "login0secret"}, input=script, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


async def test_the_script_prepares_all_nodes_and_its_login_distributes_the_tables(
    new_nodes: CitusNodes, tmp_path: Path
) -> None:
    for _ in range(2):  # the second time it changes nothing
        await asyncio.to_thread(run_script, new_nodes)
    for place in range(3):
        url = new_nodes.url(place, "postgres", "turnkeep")
        logins = [(name, True, False) for name in ("turnkeep", "turnkeep_app", "turnkeep_ops", "turnkeep_search")]
        assert [tuple(row) for row in await fetch(url, ROLES)] == logins
        assert [row["rolname"] for row in await fetch(url, ENTRANCE)] == [name for name, *_ in logins], place
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "DATABASE_URL"))}
    migrated = await asyncio.to_thread(
        subprocess.run,
        [*TURNKEEP, "migrate", "--citus"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env=kept
        | {"TURNKEEP_DATABASE_URL": new_nodes.url(0, "turnkeep", "turnkeep"), "TURNKEEP_DATA_DIR": str(tmp_path)},
    )  # fmt: skip
    assert migrated.returncode == 0, migrated.stderr
    assert re.search(r"Distributed \d\d tables\.", migrated.stderr)
