"""The linters of the API documents, as `make openapi-lint` and `asyncapi-lint` run them, fail on a planted fault."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LINTERS = ROOT / "tests/openapi"
PARSER = ROOT / "tests/asyncapi"
PATH = "/v1/conversations/{conversation_id}"

pytestmark = pytest.mark.slow


def needs(folder: Path, target: str) -> pytest.MarkDecorator:
    installed = (folder / "node_modules/.stamp").exists()
    return pytest.mark.skipif(not installed, reason=f"the linters are not installed: make {target}")


def document(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "openapi" / name).read_text())


def run(folder: Path, command: list[str], given: str = "") -> tuple[int, str]:
    """The exit code of a linter, and what it says."""
    done = subprocess.run(
        command, cwd=folder, input=given, capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | {"REDOCLY_SUPPRESS_UPDATE_NOTICE": "true", "NO_COLOR": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@needs(LINTERS, "openapi-lint")
@pytest.mark.parametrize(
    ("command", "rule"),
    [
        (["node_modules/.bin/redocly", "lint"], "path-parameters-defined"),
        (["node_modules/.bin/spectral", "lint", "--fail-severity", "hint"], "path-params"),
    ],
    ids=["redocly", "spectral"],
)
def test_a_linter_finds_a_path_parameter_that_is_not_declared(tmp_path: Path, command: list[str], rule: str) -> None:
    planted = document("openapi.json")
    operation = planted["paths"][PATH]["get"]
    operation["parameters"] = [one for one in operation["parameters"] if one["in"] != "path"]
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(planted))
    code, said = run(LINTERS, [*command, str(file)])
    assert code != 0
    assert rule in said


@needs(PARSER, "asyncapi-lint")
def test_the_parser_of_asyncapi_finds_a_reference_to_nothing() -> None:
    text = (ROOT / "openapi/asyncapi.json").read_text()
    assert run(PARSER, ["node", "validate.mjs"], text)[0] == 0
    code, _ = run(PARSER, ["node", "validate.mjs"], text.replace("#/components/schemas/", "#/components/schemes/", 1))
    assert code != 0
