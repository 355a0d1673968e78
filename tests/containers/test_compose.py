"""docker-compose.yml: valid, in agreement with the Dockerfile and the README, its commands run by hand."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml
from image import FOLDER, PORT, VERSION
from listening_postgres import ListeningPostgres

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
EXAMPLE = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))


def interpolated(text: str, values: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name, operator, rest = found.groups()
        if values.get(name):
            return values[name]
        assert operator == "-", f"{name}: {rest}"
        return rest

    return VARIABLE.sub(value, text)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    filled = {name: value or "login0secret" for name, value in EXAMPLE.items()}
    return yaml.safe_load(interpolated(TEXT, filled))["services"]


def test_it_is_a_compose_file() -> None:
    filled = interpolated(TEXT, {name: value or "secret" for name, value in EXAMPLE.items()})
    assert compose_spec.PyCompose.from_yaml(filled).services is not None


def test_what_it_asks_for_is_in_the_example_and_secrets_have_no_default() -> None:
    assert {found[0] for found in VARIABLE.findall(TEXT)} == set(EXAMPLE)
    for name, value in EXAMPLE.items():
        if "PASSWORD" in name:
            assert value == ""
            assert all(operator == "?" for found, operator, _ in VARIABLE.findall(TEXT) if found == name)


def test_files_and_volumes_that_it_names_exist(services: dict[str, Any]) -> None:
    named = set(yaml.safe_load(TEXT)["volumes"])
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in named or (ROOT / source).is_file(), volume
        assert set(service.get("depends_on", {})) <= set(services)
        for dependency in service.get("depends_on", {}):
            assert "healthcheck" in services[dependency]


def test_it_agrees_with_the_image(services: dict[str, Any]) -> None:
    turnkeep = services["turnkeep"]
    assert turnkeep["image"] == f"turnkeep:{VERSION}"
    host, _, port = turnkeep["ports"][0].split(":")
    assert host == "127.0.0.1", "there is no TLS: nothing but this machine"
    assert port == PORT
    assert turnkeep["volumes"] == [f"data:{FOLDER}"]
    assert "POSTGRES_PASSWORD" not in str(turnkeep), "the service never sees the superuser's password"


def test_the_script_for_a_new_volume_does_what_the_reference_lists_for_an_administrator() -> None:
    page = (ROOT / "docs/reference/database.md").read_text()
    block = re.search(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    script = (ROOT / "deploy/postgres-init.sql").read_text().replace(" to turnkeep;", " to the_login;")
    for statement in block[1].strip().splitlines():
        assert statement in script


@pytest.fixture(scope="module")
def prepared(
    services: dict[str, Any], listening_postgres: ListeningPostgres, tmp_path_factory: Any
) -> ListeningPostgres:
    """The database as it is once the service has started first: its own login has brought the schema up."""
    listening_postgres.prepare()
    url = listening_postgres.url(services["turnkeep"]["environment"]["TURNKEEP_DATABASE_URL"])
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TURNKEEP_", "DATABASE_URL"))}
    environment |= {"TURNKEEP_DATABASE_URL": url, "TURNKEEP_DATA_DIR": str(tmp_path_factory.mktemp("data"))}
    migrated = subprocess.run(
        [sys.executable, "-m", "app.cli", "migrate"], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert migrated.returncode == 0, migrated.stderr
    return listening_postgres


@pytest.mark.slow
def test_its_commands_work_by_hand(services: dict[str, Any], prepared: ListeningPostgres) -> None:
    check = services["postgres"]["healthcheck"]["test"]
    assert check[0] == "CMD"
    assert prepared.run(*check[1:]).returncode == 0
    asked = prepared.psql("-c", "select rolsuper or rolbypassrls from pg_roles where rolname = 'turnkeep'")
    assert asked.stdout.strip() == "f"
    refused = prepared.run("psql", "-X", "-h", "127.0.0.1", "-U", "turnkeep", "turnkeep", PGPASSWORD="wrong")
    assert "authentication failed" in refused.stderr


@pytest.mark.slow
def test_the_guides_dump_and_restore_bring_back_what_was_there(prepared: ListeningPostgres) -> None:
    guide = (ROOT / "docs/guides/backup.md").read_text()
    dump, restore = re.findall(r"postgres (pg_(?:dump|restore) .*?) [<>] turnkeep.dump", guide)
    secret = prepared.psql("-d", "turnkeep", "-c", "select secret from installation").stdout
    assert secret
    here, file = ("-h", "127.0.0.1"), "dump"
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o777)
        dumped = prepared.run(*dump.split(), *here, "-f", f"{made}/{file}")
        assert dumped.returncode == 0, dumped.stderr
        assert prepared.psql("-d", "turnkeep", "-c", "delete from installation").returncode == 0
        restored = prepared.run(*restore.split(), *here, f"{made}/{file}")
        assert restored.returncode == 0, restored.stderr
    assert prepared.psql("-d", "turnkeep", "-c", "select secret from installation").stdout == secret
    as_owner = prepared.run("pg_dump", *here, "-U", "turnkeep", "turnkeep", PGPASSWORD=prepared.login_password)
    assert "row-level security" in as_owner.stderr
