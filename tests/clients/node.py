"""Runs programs of the TypeScript client with node: the package is built once, and found by its name."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "openapi/clients/typescript"
TSC = PACKAGE / "node_modules/.bin/tsc"
PROGRAMS = Path(__file__).parent / "programs"

needs_typescript = pytest.mark.skipif(
    not TSC.exists() or shutil.which("node") is None, reason="no TypeScript compiler: make clients installs it"
)


def build(folder: Path) -> Path:
    """Build the package into the `node_modules` of a folder, as npm would install it."""
    installed = folder / "node_modules/@turnkeep/client"
    installed.mkdir(parents=True)
    subprocess.run([TSC, "-p", PACKAGE, "--outDir", installed / "dist"], check=True, timeout=200)
    shutil.copy(PACKAGE / "package.json", installed)
    for name in ("ai", "zod"):  # as the user of the chat route has them
        (folder / "node_modules" / name).symlink_to(PACKAGE / "node_modules" / name)
    return folder


async def run_node(
    program: Path, url: str, key: str, *arguments: str, on_kill: Callable[[], Awaitable[None]] | None = None
) -> str:
    """What a program printed. It asks for `on_kill` by a line on standard error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    running = await asyncio.create_subprocess_exec(
        # Node 20 has WebSockets behind this option, later releases without it
        "node", "--experimental-websocket", "--no-warnings", str(program), *arguments,
        env=kept | {"TURNKEEP_URL": url, "TURNKEEP_API_KEY": key, "NO_PROXY": "127.0.0.1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stderr is not None
    printing = asyncio.create_task(running.stdout.read())
    said: list[str] = []
    try:
        async with asyncio.timeout(120):
            async for line in running.stderr:
                said.append(line.decode())
                if said[-1] == "kill\n" and on_kill is not None:
                    await on_kill()
            assert await running.wait() == 0, "".join(said)
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    return (await printing).decode()


async def scenario(folder: Path, url: str, key: str, name: str, *, program: str = "scenarios.mjs", **given: Any) -> Any:
    """The result of a scenario of a program in `programs`."""
    on_kill = given.pop("on_kill", None)
    copied = Path(shutil.copy(PROGRAMS / program, folder))
    return json.loads(await run_node(copied, url, key, name, json.dumps(given), on_kill=on_kill))
