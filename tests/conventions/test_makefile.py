"""The Makefile names what it cannot use."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("script", "version"),
    [("case $1 in --version) echo Python 3.9.2;; *) exit 1;; esac", "Python 3.9.2"), ("exit 1", "no Python")],
)
def test_a_python_that_is_too_old_is_named(tmp_path: Path, script: str, version: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    old = tmp_path / "old-python"
    old.write_text(f"#!/bin/sh\n{script}\n")
    old.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "run", f"PYTHON={old}"],
        cwd=tmp_path,
        env=kept,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert f"PYTHON={old} is {version}. Turnkeep needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()
