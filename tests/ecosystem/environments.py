"""The environment of a framework: made once from its lock, and used again as long as the lock stays the same."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".venv" / "ecosystem"


def python_of(framework: str) -> Path:
    """The Python that has the packages of a framework, as its lock pins them."""
    lock = HERE / "locks" / f"{framework}.txt"
    digest = hashlib.sha256(sys.version.encode() + lock.read_bytes()).hexdigest()[:12]
    folder = FOLDER / f"{framework}-{digest}"
    python, is_whole = folder / "bin" / "python", folder / ".installed"
    if not is_whole.exists():
        run_uv("venv", "--clear", "--python", sys.executable, str(folder))
        run_uv("pip", "install", "--python", str(python), "--requirements", str(lock))
        is_whole.touch()
    return python


def run_uv(*arguments: str) -> None:
    """Run the project's uv, which takes its package index from its own settings."""
    environment = {name: value for name, value in os.environ.items() if name != "UV_PYTHON"}
    uv = [str(ROOT / ".venv" / "bin" / "uv"), "--quiet"]
    done = subprocess.run(
        [*uv, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
