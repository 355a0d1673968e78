"""docker-compose.yml: valid, in agreement with the Dockerfile and the README, its commands run by hand."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml
from conftest import ListeningPostgres
from dockerfile import parse

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
    stage = parse((ROOT / "Dockerfile").read_text())[-1]
    turnkeep = services["turnkeep"]
    assert turnkeep["image"] == f"turnkeep:{stage.last('LABEL').pairs()['org.opencontainers.image.version']}"
    host, _, port = turnkeep["ports"][0].split(":")
    assert host == "127.0.0.1", "there is no TLS: nothing but this machine"
    assert port == stage.last("EXPOSE").rest
    assert turnkeep["volumes"] == [f"data:{stage.last('VOLUME').rest}"]
    assert "POSTGRES_PASSWORD" not in str(turnkeep), "the service never sees the superuser's password"


def test_the_script_for_a_new_volume_does_what_the_readme_tells_an_administrator() -> None:
    block = re.search(r"^```sql\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    script = (ROOT / "deploy/postgres-init.sql").read_text().replace(" to turnkeep;", " to the_login;")
    for statement in block[1].strip().splitlines():
        assert statement in script


def test_its_commands_work_by_hand(
    services: dict[str, Any], listening_postgres: ListeningPostgres, tmp_path: Path
) -> None:
    """The first start of the database, its health check, and the service's own login bringing the schema up."""
    check = services["postgres"]["healthcheck"]["test"]
    assert check[0] == "CMD"
    assert listening_postgres.run(*check[1:]).returncode == 0
    psql = ("psql", "-X", "-q", "-h", "127.0.0.1", "-U", "postgres")
    made = listening_postgres.run(*psql, "-c", "create database turnkeep")
    assert made.returncode == 0, made.stderr
    script = tmp_path / "script.sql"
    script.write_text((ROOT / "deploy/postgres-init.sql").read_text())
    first_start = subprocess.run(
        [*psql, "-d", "turnkeep", "-f", script], env=listening_postgres.environment(), cwd="/",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (first_start.returncode, first_start.stderr) == (0, "")
    url = listening_postgres.url(services["turnkeep"]["environment"]["TURNKEEP_DATABASE_URL"])
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TURNKEEP_", "DATABASE_URL"))}
    migrated = subprocess.run(
        [sys.executable, "-m", "app.cli", "migrate"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        env=environment | {"TURNKEEP_DATABASE_URL": url, "TURNKEEP_DATA_DIR": str(tmp_path)},
    )  # fmt: skip
    assert migrated.returncode == 0, migrated.stderr
    asked = listening_postgres.run(
        *psql, "-d", "turnkeep", "-At", "-c", "select rolsuper or rolbypassrls from pg_roles where rolname = 'turnkeep'"
    )
    assert asked.stdout.strip() == "f"
    refused = listening_postgres.run("psql", "-X", "-h", "127.0.0.1", "-U", "turnkeep", "turnkeep", PGPASSWORD="wrong")
    assert "authentication failed" in refused.stderr
