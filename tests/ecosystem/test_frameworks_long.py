"""Agent frameworks with a memory, as their users would build it: `/openai/v1` and `/mcp` of one server together.

Each framework is in an environment of its own and runs a script in the manner of its documentation (`clients`). In the
first session the user says something, which the agent stores as a memory by a tool of `/mcp`. In the second session,
a process and a conversation of their own, the agent recalls it. The model behind the server is a scripted one.

With `TURNKEEP_TEST_RECORD` set, the requests of the mode `plain` are written to `recorded`, for the default suite.
"""

import asyncio
import json
import os
import subprocess
from typing import Any

import pytest

from tests.ecosystem.checks import check_chats, check_memories, check_turns
from tests.ecosystem.environments import HERE, ROOT, python_of
from tests.ecosystem.model import SESSIONS, script
from tests.ecosystem.recording import Recorder, recording, write
from tests.support.fake_chat import FakeChat
from tests.support.process import Process

FRAMEWORKS = {  # and their scripts
    "openai-agents": "openai_agents",
    "pydantic-ai": "pydantic_ai_agent",
    "langchain": "langchain_agent",
}

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


def run_client(framework: str, recorder: Recorder, key: str, *arguments: str) -> list[str]:
    """The answers that the script of a framework prints."""
    names = ("PATH", "HOME", "LANG", "TMPDIR")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= {"TURNKEEP_URL": f"http://127.0.0.1:{recorder.port}", "TURNKEEP_API_KEY": key}
    client = HERE / "clients" / f"{FRAMEWORKS[framework]}.py"
    done = subprocess.run(
        [str(python_of(framework)), str(client), *arguments], env=environment, cwd=ROOT,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def get(server: Process, path: str, key: str) -> Any:
    status, body = server.call("GET", path, key=key)
    assert status == 200, body
    return body


def new_key(server: Process, agent: str) -> str:
    """A key for one agent, so that each run has a long-term memory of its own."""
    body = {"name": agent, "scopes": ["read", "write"], "agent_id": agent}
    status, made = server.call("POST", "/v1/admin/keys", body, key=server.key)
    assert status == 201, made
    return str(made["key"])


@pytest.mark.parametrize("mode", ["plain", "streamed"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_agent_recalls_in_a_second_session_what_it_stored_in_the_first(
    framework: str, mode: str, server: Process, fake: FakeChat
) -> None:
    project = f"{framework}-{mode}"
    key, fake.reply = new_key(server, project), script(project)
    async with recording(server.port) as recorder:
        for session, exchanges in SESSIONS.items():
            fake.chats.clear()
            said = [message for message, _ in exchanges]
            answers = await asyncio.to_thread(run_client, framework, recorder, key, mode, project, session, *said)
            assert answers == [answer for _, answer in exchanges]
            check_chats(session, fake.chats)
            [conversation] = get(server, f"/v1/conversations?project={project}&external_id={session}", key)["data"]
            check_turns(session, get(server, f"/v1/conversations/{conversation['id']}/turns", key)["data"])
    check_memories(get(server, "/v1/memories", key)["data"], project)
    if os.environ.get("TURNKEEP_TEST_RECORD") and mode == "plain":
        write(framework, recorder.requests)
