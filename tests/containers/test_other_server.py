"""The tests themselves run on a server by URL, one that asks for passwords; without an engine they say what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from listening_postgres import ListeningPostgres

ROOT = Path(__file__).parents[2]
SLICE = ("tests/conventions/test_database.py",)
LONG_SLICE = (
    *SLICE,
    "tests/migrations",
    "tests/api/test_conversations.py",
    "tests/api/test_turns.py",
    "tests/api/test_isolation.py",
)


def pytest_run(*words: str, server: str, timeout_s: float = 100, **more: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words], cwd=ROOT, capture_output=True,
        text=True, timeout=timeout_s, check=False, env=kept | {"TURNKEEP_TEST_POSTGRES": server} | more,
    )  # fmt: skip


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(SLICE),
        pytest.param(LONG_SLICE, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
    ids=["short", "long"],
)
@pytest.mark.slow
def test_a_slice_of_the_suite_passes_on_a_server_by_url(
    listening_postgres: ListeningPostgres, files: tuple[str, ...]
) -> None:
    where = f"postgres:{listening_postgres.superuser_password}@127.0.0.1:{listening_postgres.port}"
    done = pytest_run(
        "-n", "2", *files, server=f"postgresql://{where}/postgres", timeout_s=280 if files is SLICE else 880
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    listed = listening_postgres.run(
        *("psql", "-X", "-At", "-h", "127.0.0.1", "-U", "postgres"),
        *("-c", "select datname from pg_database where datname like 'turnkeep_template%'"),
    )
    assert listed.stdout.count("turnkeep_template_") == 1, "it was this server that they ran on"


@pytest.mark.slow
def test_asked_for_a_container_where_there_is_no_engine_they_say_so_in_one_sentence() -> None:
    done = pytest_run(SLICE[0], server="container", DOCKER_HOST="tcp://127.0.0.1:1")
    assert done.returncode == 4, done.stdout
    said = done.stderr.strip()
    assert said.startswith("ERROR: TURNKEEP_TEST_POSTGRES=container needs")
    assert "\n" not in said
