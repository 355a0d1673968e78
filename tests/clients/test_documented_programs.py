"""The programs that the README of each client and the TypeScript guide print: short, compiled and run as printed."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clients.node import PROGRAMS, TSC, needs_typescript, run_node
from tests.support.api import Client
from tests.support.fake_chat import FakeChat, open_fake_chat, says

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "openapi/clients"
MAX_LINES = 8


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found


def own_lines(program: str) -> int:
    return len([line for line in program.splitlines() if line.strip()])


@pytest.fixture
async def model() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as fake:
        fake.reply = lambda _: says("In Alfama, without peanuts.")
        yield fake


@pytest.mark.slow
async def test_the_program_of_the_python_readme_has_eight_lines_and_stores_the_chat(
    model: FakeChat, url: str, tenant: Client, tmp_path: Path
) -> None:
    (program,) = blocks(CLIENTS / "python/README.md", "python")
    assert own_lines(program) <= MAX_LINES
    (tmp_path / "program.py").write_text(program)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "OPENAI_"))} | {
        "TURNKEEP_URL": url, "TURNKEEP_API_KEY": tenant.key, "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "sk-x",
        "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "In Alfama, without peanuts.\n"), done.stderr
    await check_stored(tenant)


@pytest.mark.slow
@needs_typescript
async def test_the_program_of_the_typescript_readme_has_eight_lines_and_stores_the_chat(
    model: FakeChat, url: str, tenant: Client, package: Path
) -> None:
    (program,) = blocks(CLIENTS / "typescript/README.md", "ts")
    assert own_lines(program) <= MAX_LINES
    (compiled,) = compile_programs(package / "readme", [program.replace("http://127.0.0.1:11434/v1", model.url)])
    assert await run_node(compiled, url, tenant.key) == "In Alfama, without peanuts.\n"
    await check_stored(tenant)


@pytest.mark.slow
@needs_typescript
async def test_the_programs_of_the_typescript_guide_work_as_printed(url: str, tenant: Client, package: Path) -> None:
    for program in compile_programs(package / "guide", blocks(ROOT / "docs/guides/typescript.md", "ts")):
        assert await run_node(program, url, tenant.key)


@pytest.mark.slow
@needs_typescript
async def test_the_chat_route_of_the_guide_answers_and_its_page_compiles(
    url: str, tenant: Client, package: Path
) -> None:
    route, _ = compile_programs(package / "route", blocks(ROOT / "docs/guides/integrations.md", "ts"))
    assert await run_node(Path(shutil.copy(PROGRAMS / "route.mjs", route.parent)), url, tenant.key) == (
        "You said: I eat no peanuts.\nYou said: What may I cook?\n204\n"
    )
    (listed,) = (await tenant.get("/v1/conversations")).json()["data"]
    assert (listed["external_id"], listed["owner"], listed["turn_count"]) == ("mia/trip", "mia", 4)


def compile_programs(folder: Path, programs: list[str]) -> list[Path]:
    """Compile programs strictly against the package that is installed above the folder."""
    folder.mkdir()
    (folder / "package.json").write_text('{"type": "module"}')
    for number, program in enumerate(programs):
        (folder / f"{number}.ts").write_text(program)
    options = [
        "--strict",
        "--target",
        "es2022",
        "--module",
        "nodenext",
        "--lib",
        "es2022,dom,dom.iterable,dom.asynciterable",
        "--skipLibCheck",
    ]
    sources = [str(folder / f"{number}.ts") for number in range(len(programs))]
    done = subprocess.run(
        [TSC, *options, *sources], cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout
    return [folder / f"{number}.js" for number in range(len(programs))]


async def check_stored(tenant: Client) -> None:
    (listed,) = (await tenant.get("/v1/conversations")).json()["data"]
    assert (listed["external_id"], listed["owner"]) == ("trip", "mia")
    assert [turn["content"] for turn in await tenant.history(listed["id"])] == [
        "I am allergic to peanuts. Where can we have dinner?", "In Alfama, without peanuts.",
    ]  # fmt: skip
