"""The integrations of the Python client with the real frameworks, each in an environment of its own.

The example of each carries memory over two sessions, which are two processes; the guide prints the same files. Its
check compares the integration with a memory of the framework. Its types are checked where the framework is installed.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.environments import HERE, ROOT, python_of
from tests.ecosystem.model import NOTED, QUESTION, RECALLED, STATEMENT
from tests.support.fake_chat import FakeChat, Reply, says
from tests.support.process import Process

CLIENT = ROOT / "openapi/clients/python/src"
INTEGRATIONS = {  # with their framework, and its lock
    "openai_agents": "openai-agents",
    "langgraph": "langchain",
    "langchain": "langchain",
    "pydantic_ai": "pydantic-ai",
    "llama_index": "llama-index",
    "autogen": "autogen",
}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


def carried(request: dict[str, Any]) -> Reply:
    """The model of the examples: knows of the second session only what it is sent."""
    asked = str([message["content"] for message in request["messages"] if message["role"] == "user"][-1])
    if QUESTION not in asked:
        return says(NOTED)
    return says(RECALLED if STATEMENT in json.dumps(request["messages"]) else "Nobody told me.")


def run(integration: str, server: Process, program: Path, *arguments: str) -> str:
    """What a program prints in the environment of a framework."""
    names = ("PATH", "HOME", "LANG", "TMPDIR")
    url = f"http://127.0.0.1:{server.port}"
    environment = {name: os.environ[name] for name in names if name in os.environ} | {
        "TURNKEEP_URL": url, "TURNKEEP_API_KEY": server.key,
        "OPENAI_BASE_URL": f"{url}/openai/v1", "OPENAI_API_BASE": f"{url}/openai/v1", "OPENAI_API_KEY": server.key,
        "OPENAI_AGENTS_DISABLE_TRACING": "1", "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(CLIENT),
    }  # fmt: skip
    done = subprocess.run(
        [str(python_of(INTEGRATIONS[integration])), str(program), *arguments], env=environment, cwd=ROOT,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("integration", INTEGRATIONS)
async def test_an_example_remembers_in_a_second_session_what_was_said_in_the_first(
    integration: str, server: Process, fake: FakeChat
) -> None:
    fake.reply = carried
    [example] = (HERE / "clients").glob(f"*_{integration}.py")
    assert await asyncio.to_thread(run, integration, server, example, STATEMENT) == NOTED
    assert await asyncio.to_thread(run, integration, server, example, QUESTION) == RECALLED


@pytest.mark.parametrize("integration", INTEGRATIONS)
async def test_an_integration_behaves_like_a_memory_of_the_framework(integration: str, server: Process) -> None:
    check = HERE / "integrations" / f"check_{integration}.py"
    assert await asyncio.to_thread(run, integration, server, check) == ""


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_an_integration_has_the_types_of_the_framework(integration: str, tmp_path: Path) -> None:
    module = CLIENT / "turnkeep_client/integrations" / f"{integration}.py"
    settings = {
        "include": [str(module)], "extraPaths": [str(CLIENT)], "typeCheckingMode": "strict", "pythonVersion": "3.11",
    }  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    checker = [str(ROOT / ".venv/bin/basedpyright"), "--project", str(tmp_path / "pyrightconfig.json")]
    python = ["--pythonpath", str(python_of(INTEGRATIONS[integration]))]
    done = subprocess.run([*checker, *python], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout
