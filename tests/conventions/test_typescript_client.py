"""A TypeScript client, generated from the OpenAPI document with the defaults of the generator, compiles a chat."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "tests/openapi"
BIN = PROJECT / "node_modules/.bin"
SOURCES = ("chat.ts", "narrow.ts", "tsconfig.json")


@pytest.mark.skipif(not (BIN / "tsc").exists(), reason="no TypeScript compiler: make openapi-lint installs it")
@pytest.mark.slow
def test_a_chat_compiles_against_the_generated_client_and_wrong_lines_do_not(tmp_path: Path) -> None:
    for name in SOURCES:
        shutil.copy(PROJECT / name, tmp_path)
    run(str(BIN / "openapi-ts"), "-i", str(ROOT / "openapi/openapi.json"), "-o", str(tmp_path / "client"), cwd=PROJECT)
    run(str(BIN / "tsc"), "-p", ".", cwd=tmp_path)


def test_the_chat_is_short_and_has_no_cast() -> None:
    lines = (PROJECT / "chat.ts").read_text().splitlines()
    assert len(lines) <= 36
    code = "\n".join(line for line in lines if not line.startswith("//"))
    assert not re.search(r"\bas\b|\bany\b|\bunknown\b|<\w+>\w|\w!|@ts-", code.replace("!==", ""))


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
