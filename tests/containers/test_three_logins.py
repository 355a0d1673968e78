"""The three logins of the reference: its statements make them, and Turnkeep runs with them on another server."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from listening_postgres import ListeningPostgres

from tests.support.api import open_service
from tests.support.postgres import TestDatabase

ROOT = Path(__file__).parents[2]


def section_of_reference() -> str:
    page = (ROOT / "docs/reference/database.md").read_text()
    return page[page.index("### Three logins") :]


def settings_of_reference() -> dict[str, tuple[str, str]]:
    """The login and its password of each setting, as the page has them."""
    section = section_of_reference()
    passwords = dict(re.findall(r"create role (\w+) login password '(.*)';", section))
    settings = re.findall(r"\| `(TURNKEEP_\w+)` \| `(\w+)` \|", section)
    return {setting: (login, passwords[login]) for setting, login in settings}


@pytest.fixture
def environment(listening_postgres: ListeningPostgres, tmp_path: Path) -> dict[str, str]:
    """The settings of the page, in a database that its statements have prepared."""
    block = re.search(r"^```sql\n(.*?)^```", section_of_reference(), re.MULTILINE | re.DOTALL)
    assert block is not None
    assert listening_postgres.psql("-c", "create database turnkeep").returncode == 0
    done = listening_postgres.psql("-d", "turnkeep", "-v", "ON_ERROR_STOP=1", "-c", block[1])
    assert (done.returncode, done.stderr) == (0, "")
    logins = settings_of_reference()
    assert set(logins) == {"TURNKEEP_DATABASE_URL", "TURNKEEP_OPS_DATABASE_URL", "TURNKEEP_OWNER_DATABASE_URL"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "DATABASE_URL"))}
    return kept | {"TURNKEEP_DATA_DIR": str(tmp_path)} | {
        setting: f"postgresql://{login}:{password.replace(' ', '%20')}@127.0.0.1:{listening_postgres.port}/turnkeep"
        for setting, (login, password) in logins.items()
    }  # fmt: skip


@pytest.mark.slow
def test_with_the_logins_of_the_reference_everything_works_and_no_login_has_the_rights_of_another(
    environment: dict[str, str], listening_postgres: ListeningPostgres
) -> None:
    def turnkeep(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "app.cli", *words], cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=100, check=False,
        )  # fmt: skip

    migrated = turnkeep("migrate")
    assert migrated.returncode == 0, migrated.stderr
    checks = {one["name"]: one for one in json.loads(turnkeep("doctor", "--json").stdout)["checks"]}
    assert (checks["separate logins"]["level"], checks["separate logins"]["found"]) == ("ok", "memory_app")
    assert {one["level"] for name, one in checks.items() if "row security" in name} == {"ok"}
    asyncio.run(_logins_are_separate(environment))
    asyncio.run(_requests_are_served(environment, listening_postgres))


async def _logins_are_separate(environment: dict[str, str]) -> None:
    for setting, refused in {
        "TURNKEEP_DATABASE_URL": ("turnkeep_ops", "memory_owner", "turnkeep_search"),
        "TURNKEEP_OPS_DATABASE_URL": ("turnkeep_app", "memory_owner", "turnkeep_search"),
    }.items():
        connection = await asyncpg.connect(environment[setting])
        try:
            for role in refused:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(f"set role {role}")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("alter table turns disable row level security")
        finally:
            await connection.close()


async def _requests_are_served(environment: dict[str, str], server: ListeningPostgres) -> None:
    database = TestDatabase(
        superuser=f"postgresql://postgres:{server.superuser_password}@127.0.0.1:{server.port}/turnkeep",
        app=environment["TURNKEEP_DATABASE_URL"], ops=environment["TURNKEEP_OPS_DATABASE_URL"],
        owner=environment["TURNKEEP_OWNER_DATABASE_URL"],
    )  # fmt: skip
    folder = Path(environment["TURNKEEP_DATA_DIR"])
    async with open_service(database, folder, embedder="none") as service, await service.new_tenant() as client:
        conversation = await client.conversation()
        await client.append(conversation, "the parrot sings", "it was yesterday")
        await service.run_jobs()
        assert [hit["text"] for hit in await client.recall(None, "parrot")] == ["the parrot sings"]
        assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
        assert (await client.post("/v1/admin/audit/verify", json={})).json()["valid"]
