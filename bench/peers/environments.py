"""Environments of peers: a venv per peer, filled from PyPI by name."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

BENCH: Final = Path(__file__).parents[1]
ROOT: Final = BENCH.parent
_UV: Final = Path(sys.executable).with_name("uv")


class EnvironmentFailedError(Exception):
    """The environment of a peer could not be made."""


async def make_environment(folder: Path, requirements: Sequence[str]) -> Path:
    """Make a venv in `folder`, or take the one that is there, install the requirements, and return its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        await run_command(str(_UV), "venv", "--quiet", "--python", sys.executable, str(folder))
    await run_command(str(_UV), "pip", "install", "--quiet", "--python", str(python), *requirements)
    return python


async def installed_version(python: Path, package: str) -> str:
    """Return the version of a package in an environment."""
    asked = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return (await run_command(str(python), "-c", asked)).strip()


def environment_of_peer() -> dict[str, str]:
    """Return the variables of a peer's process, which can import the bench and Turnkeep's embedder."""
    path = os.pathsep.join(str(one) for one in (BENCH, ROOT, ROOT / "packages" / "turnkeep-minilm"))
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


async def run_command(*command: str, environment: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a command and return its output."""
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise EnvironmentFailedError(f"{Path(command[0]).name} {command[1]}: {errors.decode().strip()[-500:]}")
    return output.decode()
