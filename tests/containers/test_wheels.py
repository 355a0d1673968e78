"""The wheels of Turnkeep and of its embedding model: built, installed into an empty environment, and started."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from turnkeep_minilm import FOLDER, PINNED

from tests.soak.crash import say
from tests.support.process import ROOT, Process, process_folder

UV = Path(sys.executable).parent / "uv"
PACKAGE = ROOT / "packages/turnkeep-minilm"

pytestmark = [
    pytest.mark.skipif(not UV.exists(), reason="uv is not installed in the environment: make dev"),
]


def uv(*words: str | Path, cwd: Path = ROOT, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run uv with the packages in its cache; those that it lacks come from the package index."""
    env = {**os.environ, "UV_PYTHON": sys.executable, "UV_NO_PROGRESS": "1", **more}
    for offline in ("1", "0"):
        done = subprocess.run(
            [UV, *words], cwd=cwd, env=env | {"UV_OFFLINE": offline}, capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        if done.returncode == 0:
            break
    return done


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    built = uv("build", "--wheel", "--all-packages", "--out-dir", folder)
    assert built.returncode == 0, built.stderr
    return folder


def contents(wheel: Path) -> Mapping[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist()}


@pytest.mark.slow
def test_the_wheel_of_the_model_has_the_pinned_files_and_their_licence(wheels: Path) -> None:
    (model,) = wheels.glob("turnkeep_minilm-*.whl")
    (turnkeep,) = wheels.glob("turnkeep-*.whl")
    files = contents(model)
    assert {f"turnkeep_minilm/{name}": (FOLDER / name).stat().st_size for name in PINNED}.items() <= files.items()
    assert any(name.endswith("licenses/LICENSE-Apache-2.0") for name in files)
    assert not any(name.endswith((".onnx", "tokenizer.json")) for name in contents(turnkeep))
    assert {"app/migrations/env.py", "app/dashboard/home.html"} <= set(contents(turnkeep))


@pytest.mark.parametrize(("kind", "damage"), [("--wheel", "missing"), ("--sdist", "another file")])
@pytest.mark.slow
def test_without_the_pinned_files_the_build_fails_and_says_why(tmp_path: Path, kind: str, damage: str) -> None:
    package = tmp_path / "turnkeep-minilm"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("model_quantized.onnx", "__pycache__"))
    if damage == "another file":
        (package / "turnkeep_minilm/model_quantized.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    built = uv("build", kind, "--out-dir", tmp_path / "dist", cwd=package)
    assert built.returncode != 0
    assert "model_quantized.onnx in turnkeep_minilm is missing or not the pinned file" in built.stderr
    assert "Run `make assets`" in built.stderr
    assert not list((tmp_path / "dist").glob("turnkeep*"))


def serves(program: Path, folder: Path) -> None:
    """Start the installed program in an empty folder, and find a turn by its meaning."""
    folder.mkdir()
    process = Process(folder / "data", begun_by=[str(program)], code=folder).start().wait()
    _, conversation = process.call("POST", "/v1/conversations", {}, key=process.key)
    path = f"/v1/conversations/{conversation['id']}"
    turns = [{"role": "user", "content": text} for text in ("I am allergic to peanuts.", "We met in Lisbon.")]
    assert process.call("POST", f"{path}/turns", {"turns": turns}, key=process.key)[0] == 201
    status, found = process.call("POST", f"{path}/recall", {"query": "dangerous food", "k": 1}, key=process.key)
    assert (status, found["degraded"]) == (200, [])
    assert found["data"][0]["text"] == "I am allergic to peanuts."
    models = {
        check["name"]: check["level"] for check in json.loads(process.command("doctor", "--json").stdout)["checks"]
    }
    assert models["embedding model"] == "ok"
    process.stop()


@pytest.mark.slow
def test_installed_from_a_folder_of_wheels_it_serves(wheels: Path) -> None:
    with process_folder() as place:
        environment = place / "venv"
        assert uv("venv", environment).returncode == 0
        # what it depends on, as locked, so that the package index is not needed
        locked = uv(
            *("sync", "--frozen", "--no-default-groups", "--no-install-workspace"),
            UV_PROJECT_ENVIRONMENT=str(environment),
        )
        assert locked.returncode == 0, locked.stderr
        installed = uv("pip", "install", "--python", environment, "--no-index", "--find-links", wheels, "turnkeep")
        assert installed.returncode == 0, installed.stderr
        assert "+ turnkeep-minilm==" in installed.stderr
        serves(environment / "bin/turnkeep", place / "first")


def interpreter(version: str) -> str:
    """The path of a Python that is installed on this machine; the test is skipped without one."""
    found = uv("python", "find", "--system", "--no-python-downloads", version, UV_PYTHON="")
    if found.returncode != 0:
        pytest.skip(f"Python {version} is not on the PATH: install it")
    return found.stdout.strip()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_installed_by_pip_alone_it_serves(wheels: Path, version: str) -> None:
    """All that it depends on comes from the package index, in the newest versions that it accepts."""
    python = interpreter(version)
    with process_folder() as place:
        environment = place / "venv"
        subprocess.run([python, "-m", "venv", environment], check=True)
        installed = subprocess.run(
            [environment / "bin/pip", "install", "--quiet", "--find-links", wheels, "turnkeep"], cwd=place,
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert installed.returncode == 0, installed.stderr
        serves(environment / "bin/turnkeep", place / "first")
        used = sum(path.stat().st_size for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
        say(f"Python {version}: {used / 2**20:.0f} MiB installed")


@pytest.mark.slow
def test_the_wheel_of_turnkeep_is_small(wheels: Path) -> None:
    (turnkeep,) = wheels.glob("turnkeep-*.whl")
    assert turnkeep.stat().st_size < 20_000_000
