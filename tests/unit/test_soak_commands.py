"""The long proofs can be run by the commands that their modules print, outside of a test run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_soak_runs_by_its_command() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "PYTEST_"))}
    # only where the migrated data is that this worker's other tests start from
    env |= {name: os.environ[name] for name in ("TURNKEEP_TEST_FOLDER", "PYTEST_XDIST_WORKER") if name in os.environ}
    command = [sys.executable, "-m", "tests.soak.lifecycle", "--calls", "4", "--sessions", "2", "--kills", "1"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stored" in done.stdout
