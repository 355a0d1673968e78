"""deploy/compose-citus.yml: valid, and in agreement with its files, the image, and the tests on a Citus."""

import re
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml
from image import PORT, VERSION

from app.settings import setting_fields

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy/compose-citus.yml").read_text()
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
NODES = ("coordinator", "worker-1", "worker-2")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load(VARIABLE.sub("8765", TEXT))


def test_it_is_a_compose_file_and_its_secrets_have_no_default(compose: dict[str, Any]) -> None:
    plain = {name: part for name, part in compose.items() if not name.startswith("x-")}
    assert compose_spec.PyCompose.from_yaml(yaml.safe_dump(plain)).services is not None  # it knows no merge keys
    described = set(re.findall(r"^(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    for name, operator, _ in VARIABLE.findall(TEXT):
        assert name in described
        assert operator == ("?" if "PASSWORD" in name else "-")


def test_files_and_volumes_that_it_names_exist_and_each_node_has_its_own_volume(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (ROOT / source).is_file(), volume
        for dependency, condition in service.get("depends_on", {}).items():
            assert ("test" in compose["services"][dependency]["healthcheck"]) == (
                condition["condition"] == "service_healthy"
            )
        if name in NODES:
            assert f"{name}:/var/lib/postgresql" in service["volumes"]


def test_it_runs_the_image_of_this_release_after_the_tables_were_distributed(compose: dict[str, Any]) -> None:
    known = {f"TURNKEEP_{name.upper()}" for name in setting_fields()}
    migrate, turnkeep = compose["services"]["migrate"], compose["services"]["turnkeep"]
    for service in (migrate, turnkeep):
        assert service["image"] == f"turnkeep:{VERSION}"
        assert service["environment"].keys() <= known
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert "POSTGRES_PASSWORD" not in str(service), "the service never sees the superuser's password"
    assert migrate["command"] == ["migrate", "--citus"]
    assert turnkeep["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert turnkeep["ports"] == [f"127.0.0.1:8765:{PORT}"]
    assert [name for name, service in compose["services"].items() if "ports" in service] == ["turnkeep"]


def test_the_network_without_passwords_has_nodes_only(compose: dict[str, Any]) -> None:
    on_it = {name for name, service in compose["services"].items() if "nodes" in service.get("networks", {})}
    assert on_it == {*NODES, "nodes"}
    network = compose["networks"]["nodes"]
    (place,) = network["ipam"]["config"]
    assert network["internal"]
    lines = (ROOT / "deploy/citus/pg_hba.conf").read_text().splitlines()
    rules = [line.split() for line in lines if not line.startswith("#")]
    hosts = [(rule[3], rule[4]) for rule in rules if rule[0] == "host"]
    # the first rule that matches holds; the address of the machine on the network is not a node
    assert hosts == [
        ("127.0.0.1/32", "trust"),
        (f"{place['gateway']}/32", "reject"),
        (place["subnet"], "trust"),
        ("all", "scram-sha-256"),
    ]
    assert ip_address(place["gateway"]) in ip_network(place["subnet"])


def test_the_nodes_have_the_settings_of_the_guide_and_the_names_of_the_script(compose: dict[str, Any]) -> None:
    guide = (ROOT / "docs/guides/scaling-out.md").read_text()
    asked = re.search(r"^```text\n(shared_preload_libraries.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert asked is not None
    script = (ROOT / "deploy/citus/nodes.sql").read_text()
    for name in NODES:
        node = compose["services"][name]
        given = dict(word.removeprefix("-c").split("=", 1) for word in node["command"][1:])
        assert given["hba_file"] in [volume.split(":")[1] for volume in node["volumes"]]
        for line in asked[1].splitlines():
            setting, value = line.split(" = ")
            assert given[setting] == value.strip("'")
        (alias,) = node["networks"]["nodes"]["aliases"]
        assert f"('{alias}', 5432);" in script
    assert (ROOT / compose["services"]["coordinator"]["build"] / "Dockerfile").is_file()
