"""Compaction where it is easily got wrong: holes, unanswered calls, tombstones, a model that comes and goes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.test_compaction import compact, say, summaries
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat, says
from tests.support.postgres import TestDatabase

WRITTEN = says({"summary": "They paid Maria in Lisbon.", "abstract": "Payments."})
CALL = {"role": "assistant", "tool_calls": [{"id": "c", "name": "look", "arguments": "{}"}]}


@pytest.fixture
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = WRITTEN
        yield opened


@pytest.fixture
async def modelled(database: TestDatabase, tmp_path: Path, fake: FakeChat) -> AsyncIterator[Service]:
    """An app with a model."""
    async with open_service(
        database, tmp_path, embedder="none", llm_base_url=fake.url, llm_model=CHAT_MODEL, llm_timeout_ms=1500,
        llm_max_retries=0,
    ) as opened:  # fmt: skip
        yield opened


@pytest.fixture
async def user(modelled: Service) -> AsyncIterator[Client]:
    async with await modelled.new_tenant() as opened:
        yield opened


async def test_an_erased_turn_behind_a_hole_takes_its_summary_too(user: Client) -> None:
    conversation = await user.conversation(compaction={"strategy": "hierarchical", "trigger_turns": 100})
    await say(user, conversation, 12)
    turns = await user.history(conversation)
    for last in (3, 7, 10):
        await compact(user, conversation, "summaries", through=turns[last]["id"])
    revision = {"content": "never mind"}
    answer = await user.post(f"/v1/conversations/{conversation}/turns/{turns[5]['id']}/revisions", json=revision)
    assert answer.status_code == 201
    assert [one["from_position"] for one in await summaries(user, conversation)] == [1, 9]
    await user.delete(f"/v1/conversations/{conversation}/turns/{turns[9]['id']}")
    assert [one["from_position"] for one in await summaries(user, conversation)] == [1]


async def test_a_call_that_nobody_answered_is_summarised_like_all_else(user: Client) -> None:
    conversation = await user.conversation(compaction={"trigger_turns": 100})
    await user.append(conversation, "look", CALL, "never mind", "something else")
    turns = await user.history(conversation)
    made = await compact(user, conversation, "summaries", through=turns[1]["id"])
    assert made["summaries"][-1]["to_position"] == 2


async def test_a_call_without_an_answer_does_not_hold_up_an_agent_that_goes_on(client: Client) -> None:
    conversation = await client.conversation(compaction={"trigger_turns": 10})
    steps = [{"role": "assistant", "content": f"Step {number} took 3 hours."} for number in range(80)]
    await client.append(conversation, "go", CALL, *steps)
    made = await compact(client, conversation)
    assert made["remaining_turns"] <= 10
    assert (await compact(client, conversation))["summaries"] == []


async def test_a_call_of_a_moment_ago_waits_for_its_answer(client: Client) -> None:
    conversation = await client.conversation(compaction={"trigger_turns": 2})
    await client.append(conversation, "one", "two", "three", CALL, {"role": "assistant", "content": "one moment"})
    made = await compact(client, conversation)
    assert made["summaries"][-1]["to_position"] == 3
