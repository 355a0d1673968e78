"""The manifests in deploy/kubernetes: valid by the schemas of Kubernetes, in agreement with image and settings."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from image import PORT, USER, VERSION

from app.settings import Settings, setting_fields

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
OLDEST, NEWEST = "1.30", "1.37"
"""The oldest that the manifests are written for, and the newest whose schemas are installed."""
NO_SCHEMA = {"Kustomization", "PodMonitor"}
"""Kinds that are not Kubernetes' own."""

Manifest = dict[str, Any]


def manifests(path: Path) -> Iterator[Manifest]:
    return iter(yaml.safe_load_all(path.read_text()))


KUSTOMIZATION: Manifest = next(manifests(FOLDER / "kustomization.yaml"))
FILES = sorted(FOLDER.rglob("*.yaml"))
ALL = [(path, manifest) for path in FILES for manifest in manifests(path) if manifest["kind"] not in NO_SCHEMA]
APPLIED = [manifest for name in KUSTOMIZATION["resources"] for manifest in manifests(FOLDER / name)]


def of_kind(kind: str) -> list[Manifest]:
    return [manifest for manifest in APPLIED if manifest["kind"] == kind]


def pods() -> list[Manifest]:
    """The pod template of everything that runs."""
    return [manifest["spec"]["template"] for manifest in APPLIED if "template" in manifest.get("spec", {})]


def containers() -> list[Manifest]:
    return [container for pod in pods() for container in pod["spec"]["containers"]]


def config() -> dict[str, str]:
    """The settings that all processes get."""
    return dict(re.findall(r"^(\w+)=(.*)$", (FOLDER / "turnkeep.env").read_text(), re.MULTILINE))


@pytest.mark.parametrize("version", [NEWEST, pytest.param(OLDEST, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("path", "manifest"), ALL, ids=[f"{path.stem}-{one['kind']}" for path, one in ALL])
def test_each_manifest_is_valid_by_the_schema_of_its_kind(path: Path, manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)
    assert path.name in KUSTOMIZATION["resources"] or path.parent.name == "examples", "it is not applied"


def test_the_schemas_find_planted_faults() -> None:
    server = of_kind("Deployment")[0]
    for plant in ({"periodSecond": 2}, {"periodSeconds": "often"}):
        planted = copy.deepcopy(server)
        planted["spec"]["template"]["spec"]["containers"][0]["livenessProbe"].update(plant)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(planted, NEWEST, strict=True)


def test_the_image_is_the_one_of_this_release() -> None:
    (image,) = KUSTOMIZATION["images"]
    assert image["newTag"] == VERSION
    assert {container["image"] for container in containers()} == {image["name"]}
    assert {pod["spec"]["securityContext"]["runAsUser"] for pod in pods()} == {USER}


def test_settings_exist_and_have_values_that_the_service_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {variable["name"] for container in containers() for variable in container["env"]}
    known = {f"TURNKEEP_{name.upper()}" for name in setting_fields()}
    secrets = list(manifests(FOLDER / "examples/secret.yaml"))
    assert given | config().keys() | secrets[1]["stringData"].keys() <= known
    for name, value in config().items():
        monkeypatch.setenv(name, value)
    assert Settings().database.migrate_on_start is False


def test_secrets_that_the_pods_read_are_in_the_example_without_values() -> None:
    named, further = (manifest["stringData"] for manifest in manifests(FOLDER / "examples/secret.yaml"))
    read = {one["valueFrom"]["secretKeyRef"]["key"] for container in containers() for one in container["env"]}
    assert read == named.keys()
    assert {*named.values(), *further.values()} == {""}


def test_every_container_meets_the_strictest_standard_and_has_limits_of_memory() -> None:
    assert containers()
    for pod in pods():
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers():
        allowed = container["securityContext"]
        assert (allowed["allowPrivilegeEscalation"], allowed["readOnlyRootFilesystem"]) == (False, True)
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} == container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


def test_probes_and_ports_are_those_that_the_service_has() -> None:
    (server,) = (container for container in containers() if container["args"] == ["serve"])
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"http": int(PORT), "metrics": int(config()["TURNKEEP_METRICS_PORT"])}
    paths = {name: server[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    grace = server["lifecycle"]["preStop"]["sleep"]["seconds"] + Settings().server.graceful_shutdown_s
    server_pod = next(pod for pod in pods() if pod["spec"]["containers"] == [server])
    assert grace < server_pod["spec"]["terminationGracePeriodSeconds"]


def test_all_processes_together_need_fewer_connections_than_postgres_has() -> None:
    each = int(config()["TURNKEEP_DATABASE_POOL_SIZE"]) + 4
    (autoscaler,) = of_kind("HorizontalPodAutoscaler")
    replicas = autoscaler["spec"]["maxReplicas"] + sum(one["spec"].get("replicas", 0) for one in of_kind("Deployment"))
    surge, migration = 2, 1
    assert each * (replicas + surge) + migration < 100 - 3, "three are reserved for superusers"


def test_selectors_name_pods_and_targets_that_exist() -> None:
    labels = [pod["metadata"]["labels"] for pod in pods()]
    selectors = [one["spec"]["selector"] for one in of_kind("Service")]
    selectors += [
        one["spec"]["selector"]["matchLabels"] for one in [*of_kind("Deployment"), *of_kind("PodDisruptionBudget")]
    ]
    selectors += [one["spec"]["podSelector"]["matchLabels"] for one in of_kind("NetworkPolicy")]
    for selector in selectors:
        assert any(selector.items() <= label.items() for label in labels), selector
    (autoscaler,) = of_kind("HorizontalPodAutoscaler")
    assert autoscaler["spec"]["scaleTargetRef"]["name"] in {one["metadata"]["name"] for one in of_kind("Deployment")}
    budget = of_kind("PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"]
    assert sum(budget.items() <= label.items() for label in labels) == 1, "only the server answers requests"
