"""openai-agents on the Responses API with a memory: each way in which it continues a conversation, in two sessions.

The framework is in an environment of its own. In the first session the user says something, which the agent stores as a
memory by a tool of `/mcp`; in the second one, a process and a conversation of their own, the agent recalls it.
"""

import asyncio
import json
import os
import subprocess
from typing import Any

import pytest

from tests.ecosystem.checks import TURNS, Line, check_memories, line_of
from tests.ecosystem.environments import HERE, ROOT, python_of
from tests.ecosystem.model import SESSIONS, script
from tests.support.fake_chat import FakeChat
from tests.support.process import Process

CLIENT = HERE / "clients" / "openai_agents_responses.py"
WAYS = ["session", "conversation", "previous", "history"]
"""The ways to continue a conversation."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


def run_client(server: Process, key: str, *arguments: str) -> Any:
    names = ("PATH", "HOME", "LANG", "TMPDIR")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= {"TURNKEEP_URL": f"http://127.0.0.1:{server.port}", "TURNKEEP_API_KEY": key}
    done = subprocess.run(
        [str(python_of("openai-agents")), str(CLIENT), *arguments], env=environment, cwd=ROOT,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def get(server: Process, path: str, key: str) -> Any:
    status, body = server.call("GET", path, key=key)
    assert status == 200, body
    return body


def new_tenant(server: Process) -> str:
    """A key of a tenant of its own: the conversations of OpenAI's API are all in one project."""
    status, made = server.call("POST", "/v1/admin/tenants", {"name": "agents"}, key=server.key)
    assert status == 201, made
    return str(made["first_key"]["key"])


def one_call_each(lines: list[Line]) -> list[Line]:
    """Lines with a line for each tool call: some clients store each call as an item of its own."""
    return [(role, part) for role, text in lines for part in (text.split() if "recall_memory" in text else [text])]


def in_order(lines: list[Line]) -> list[Line]:
    """Lines with the calls of one answer before their results, in whichever order each is stored."""
    calls = [line for line in lines if line[0] == "assistant" and line[1] in {"recall_memory", "recall"}]
    results = [line for line in lines if line[0] == "tool"]
    rest = [line for line in lines if line not in calls and line not in results]
    return [*calls, *results, *rest] if len(calls) > 1 else lines


@pytest.mark.parametrize("mode", ["plain", "streamed"])
@pytest.mark.parametrize("how", WAYS)
async def test_an_agent_recalls_what_it_stored_in_each_way_to_continue(
    how: str, mode: str, server: Process, fake: FakeChat
) -> None:
    key, fake.reply = new_tenant(server), script("default")
    known: set[str] = set()
    for session, exchanges in SESSIONS.items():
        fake.chats.clear()
        said = [message for message, _ in exchanges]
        answers = await asyncio.to_thread(run_client, server, key, how, mode, session, *said)
        assert answers == [answer for _, answer in exchanges]
        listed = get(server, "/v1/conversations", key)["data"]
        [fresh] = [one["id"] for one in listed if one["id"] not in known]
        known.add(fresh)
        turns = get(server, f"/v1/conversations/{fresh}/turns", key)["data"]
        assert in_order(one_call_each([line_of(turn) for turn in turns])) == in_order(one_call_each(TURNS[session]))
        assert {turn["status"] for turn in turns} == {"committed"}
        for number, chat in enumerate(fake.chats):
            sent = [line_of(one) for one in chat["messages"] if one["role"] != "system"]
            answers_at = [at for at, turn in enumerate(TURNS[session]) if turn[0] == "assistant"]
            assert in_order(one_call_each(sent)) == in_order(one_call_each(TURNS[session][: answers_at[number]]))
    check_memories(get(server, "/v1/memories", key)["data"], "default")


async def test_a_session_of_many_items_is_read_taken_back_and_cleared(server: Process) -> None:
    key = new_tenant(server)
    assert await asyncio.to_thread(run_client, server, key, "keep") == ["n 44", "n 41", "n 42", "n 43", 44, 0]
    assert [one["turn_count"] for one in get(server, "/v1/conversations", key)["data"]] == [0]
