"""deploy/compose-replicas.yml: valid, and in agreement with the image, the settings and docker-compose.yml."""

import re
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml
from image import PORT, VERSION

from app.settings import setting_fields

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy/compose-replicas.yml").read_text()
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(VARIABLE.sub("login0secret", TEXT))["services"]


def test_it_is_a_compose_file_whose_variables_have_no_default() -> None:
    resolved = yaml.safe_dump(yaml.safe_load(VARIABLE.sub("secret", TEXT)))  # the parser knows no merge keys
    assert compose_spec.PyCompose.from_yaml(resolved).services is not None
    assert {operator for _, operator, _ in VARIABLE.findall(TEXT)} == {"?"}
    described = set(re.findall(r"^(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    described |= set(re.findall(r"\b[A-Z]+_[A-Z]+\b", TEXT.partition("\nname:")[0]))
    assert {name for name, _, _ in VARIABLE.findall(TEXT)} <= described


def test_it_runs_the_image_of_this_release_with_settings_that_exist(services: dict[str, Any]) -> None:
    known = {f"TURNKEEP_{name.upper()}" for name in setting_fields()}
    ours = [services[name] for name in ("turnkeep-1", "turnkeep-2", "worker")]
    for service in ours:
        assert service["image"] == f"turnkeep:{VERSION}"
        assert service["environment"].keys() <= known
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert {f"turnkeep-1:{PORT}", f"turnkeep-2:{PORT}"} <= set(services["caddy"]["command"])


def test_only_the_proxy_is_reachable_and_the_database_is_that_of_the_other_file(services: dict[str, Any]) -> None:
    assert [name for name, service in services.items() if "ports" in service] == ["caddy"]
    other = yaml.safe_load(VARIABLE.sub("login0secret", (ROOT / "docker-compose.yml").read_text()))["services"]
    assert services["postgres"] == other["postgres"]
