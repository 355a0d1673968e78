"""The Dockerfile agrees with the lock, the Makefile, the package and the API."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from dockerfile import context_files, parse

from app.settings import setting_fields

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
STAGES = parse(TEXT)
BUILD, FINAL = STAGES[0], STAGES[-1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SETTINGS = {f"TURNKEEP_{name.upper()}" for name in setting_fields()}


def healthcheck() -> list[str]:
    return json.loads(FINAL.last("HEALTHCHECK").rest.removeprefix("CMD").strip())


def test_the_linter_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: put the program from https://github.com/hadolint/hadolint on PATH")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_file_that_is_copied_exists_and_is_let_through() -> None:
    allowed = context_files(ROOT)
    for stage in STAGES:
        for step in stage.all("COPY"):
            if "from" in step.flags:
                assert step.flags["from"] in {other.name for other in STAGES}
                continue
            for source in step.words()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(name == source or name.startswith(f"{source}/") for name in allowed), source


def test_nothing_but_what_is_copied_goes_to_the_builder() -> None:
    copied = [source for step in BUILD.all("COPY") for source in step.words()[:-1]]
    allowed = context_files(ROOT)
    extra = [name for name in allowed if not any(name == source or name.startswith(f"{source}/") for source in copied)]
    assert [name for name in extra if not name.startswith("scripts/")] == []
    assert not any(name.endswith((".onnx", "tokenizer.json", ".pyc")) for name in allowed), "fetched inside"


def test_versions_are_those_of_the_makefile_the_package_and_this_python() -> None:
    makefile = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makefile is not None
    assert re.findall(r"uv==(\S+)", TEXT) == [makefile[1]]
    labels = FINAL.last("LABEL").pairs()
    assert labels["org.opencontainers.image.version"] == PROJECT["version"]
    assert labels["org.opencontainers.image.licenses"] == PROJECT["license"]
    assert labels["org.opencontainers.image.description"] == PROJECT["description"]
    assert {stage.image for stage in STAGES} == {"python:3.11-slim"}, "one Python builds and runs"
    assert PROJECT["requires-python"] == ">=3.11"


def test_a_release_names_the_digest_of_the_base_image_once_for_both_stages() -> None:
    pinned = f"python:3.11-slim@sha256:{'0' * 64}"
    given = re.sub(r"^ARG BASE=.*$", f"ARG BASE={pinned}", TEXT, flags=re.MULTILINE)
    assert [stage.image for stage in parse(given)] == [pinned, pinned]
    assert re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE) == ["${BASE}", "${BASE}"]


def test_it_installs_what_is_locked_without_the_tools_of_development() -> None:
    syncs = [step.rest for step in BUILD.all("RUN") if "uv sync" in step.rest]
    assert len(syncs) == 2
    assert all("--frozen" in sync and "--no-default-groups" in sync for sync in syncs)
    assert all("--extra otel" in sync for sync in syncs)  # the standard variables of OpenTelemetry work in the image
    assert "--no-install-workspace" in syncs[0]
    assert "--no-build" in syncs[0]
    assert "--no-editable" in syncs[1]
    assert "turnkeep_minilm.wrong_files()" in syncs[1]


def test_it_runs_as_a_fixed_user_that_is_not_root() -> None:
    user = FINAL.last("USER").rest
    assert re.fullmatch(r"[1-9]\d{4}:[1-9]\d{4}", user)
    uid, gid = user.split(":")
    made = FINAL.all("RUN")[0].rest
    assert f"groupadd --gid {gid} turnkeep" in made
    assert f"useradd --uid {uid} --gid {gid}" in made
    last_user = max(n for n, step in enumerate(FINAL.instructions) if step.name == "USER")
    assert not any(step.name in {"RUN", "COPY"} for step in FINAL.instructions[last_user:])


def test_its_settings_exist_and_it_listens_where_it_says() -> None:
    environment = FINAL.environment()
    assert {name for name in environment if name.startswith("TURNKEEP_")} <= SETTINGS
    assert environment["TURNKEEP_HOST"] == "0.0.0.0"  # noqa: S104 - what it is for
    assert environment["TURNKEEP_PORT"] == FINAL.last("EXPOSE").rest == str(setting_fields()["port"].default)
    assert environment["TURNKEEP_DATA_DIR"] == FINAL.last("VOLUME").rest == FINAL.last("WORKDIR").rest


def test_the_health_check_is_python_alone_and_asks_a_path_of_the_api() -> None:
    program, option, code = healthcheck()
    assert (program, option) == ("python3", "-c")
    tree = ast.parse(code)
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported <= {"http.client", "os", "sys"}
    asked = re.search(r"'GET', '([^']+)'", code)
    assert asked is not None
    document = json.loads((ROOT / "openapi/openapi.json").read_text())
    assert document["paths"][asked[1]]["get"]["security"] == [], "no key needed"


def test_the_entry_point_is_our_command_in_exec_form() -> None:
    assert FINAL.last("ENTRYPOINT").exec_form() == list(PROJECT["scripts"])
    assert FINAL.last("CMD").exec_form() == ["serve"]


def test_shell_in_it_parses() -> None:
    shell = shutil.which("dash") or "/bin/sh"
    for stage in STAGES:
        for step in stage.all("RUN"):
            done = subprocess.run([shell, "-n"], input=step.rest, text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr
