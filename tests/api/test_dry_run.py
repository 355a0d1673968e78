"""Dry runs: they say what compaction, extraction and retention then do, and change nothing."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.context.compaction import dry_run as dry_runs
from tests.api.test_erase import dump
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat, says
from tests.support.postgres import TestDatabase

TEAS = " ".join(f"Tea number {number} is from garden {number}." for number in range(160))
WRITTEN = says({"summary": "They talked about tea.", "abstract": "About tea."})
PRICES = {"llm_price_prompt": 2.0, "llm_price_completion": 8.0}


@pytest.fixture
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = WRITTEN
        yield opened


@pytest.fixture
async def modelled(database: TestDatabase, tmp_path: Path, fake: FakeChat) -> AsyncIterator[Service]:
    """An app with a model that has a price."""
    async with open_service(
        database, tmp_path, embedder="none", llm_base_url=fake.url, llm_model=CHAT_MODEL, llm_max_retries=0, **PRICES
    ) as opened:
        yield opened


@pytest.fixture
async def user(modelled: Service) -> AsyncIterator[Client]:
    async with await modelled.new_tenant() as opened:
        yield opened


async def dry_run(client: Client, conversation: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/conversations/{conversation}/dry-run")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def say(client: Client, conversation: str, count: int) -> None:
    await client.append(conversation, *[f"I live in Berlin and like tea number {at}" for at in range(count)])


async def test_without_a_model_highlights_are_foreseen_as_compaction_makes_them(
    client: Client, service: Service
) -> None:
    conversation = await client.conversation(compaction={"trigger_turns": 10}, ttl_s=3600)
    await say(client, conversation, 9)
    before = await dump(service, client)
    few = await dry_run(client, conversation)
    assert few["compaction"] == {
        "kind": None, "turns": 0, "tokens": 0, "summaries": 0, "through": None, "continues": False, "cost": None,
    }  # fmt: skip
    assert (few["retention"]["policy"], few["retention"]["turns"]) == ("full", 0)
    assert few["retention"]["expires_at"] is not None
    assert (few["extraction"]["turns"], few["extraction"]["cost"]) == (9, None)
    assert await dump(service, client) == before
    await say(client, conversation, 9)
    found = (await dry_run(client, conversation))["compaction"]
    assert (found["kind"], found["summaries"], found["cost"]) == ("highlights", 1, None)
    done = (await client.post(f"/v1/conversations/{conversation}/compact", json={})).json()
    assert (done["summarized_through"], len(done["summaries"])) == (found["through"], 1)
    assert done["remaining_turns"] == 18 - found["turns"]


@pytest.mark.slow
async def test_with_a_model_its_calls_and_their_greatest_cost_are_foreseen_and_it_is_not_asked(
    user: Client, modelled: Service, fake: FakeChat
) -> None:
    conversation = await user.conversation(compaction={"trigger_turns": 10}, retention="ephemeral")
    await say(user, conversation, 30)
    before, asked = await dump(modelled, user), len(fake.chats)
    found = await dry_run(user, conversation)
    assert (await dump(modelled, user), len(fake.chats)) == (before, asked)
    compaction, cost = found["compaction"], found["compaction"]["cost"]
    assert (compaction["kind"], cost["model"], cost["calls"]) == ("summary", CHAT_MODEL, compaction["summaries"])
    assert cost["prompt_tokens"] > compaction["tokens"]
    assert cost["max_cost"] == pytest.approx((2 * cost["prompt_tokens"] + 8 * cost["max_completion_tokens"]) / 1e6)
    # for 20 turns and for 10, and as many that look for personal data
    assert found["extraction"]["cost"]["calls"] == 4
    no_erasure = {"turns": 0, "tokens": 0, "continues": False}
    assert found["retention"] == {"policy": "ephemeral", "expires_at": None} | no_erasure
    done = (await user.post(f"/v1/conversations/{conversation}/compact", json={})).json()
    assert (len(done["summaries"]), len(fake.chats) - asked) == (compaction["summaries"], cost["calls"])
    assert done["summarized_through"] == compaction["through"]
    due = (await dry_run(user, conversation))["retention"]
    assert (due["turns"], due["tokens"]) == (compaction["turns"], compaction["tokens"])
    await modelled.run_jobs()
    turns = await user.history(conversation)
    assert sum(turn["erased_at"] is not None for turn in turns) == due["turns"]
    assert (await dry_run(user, conversation))["retention"]["turns"] == 0


async def test_a_long_conversation_takes_as_many_summaries_as_are_foreseen(user: Client, fake: FakeChat) -> None:
    conversation = await user.conversation(compaction={"trigger_turns": 10})
    for _ in range(4):
        await user.append(conversation, *[TEAS for _ in range(8)])
    fake.reply = says({"summary": TEAS[:200], "abstract": "Kinds of tea."})
    asked = len(fake.chats)
    found = (await dry_run(user, conversation))["compaction"]
    assert found["summaries"] > 1
    done = (await user.post(f"/v1/conversations/{conversation}/compact", json={})).json()
    assert (len(done["summaries"]), done["summarized_through"]) == (found["summaries"], found["through"])
    assert len(fake.chats) - asked == found["cost"]["calls"]


async def test_what_was_not_looked_at_is_said_to_be_more_also_if_some_of_it_has_no_statements(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await client.conversation()
    await say(client, conversation, 6)
    first = (await client.history(conversation))[0]["id"]
    await client.delete(f"/v1/conversations/{conversation}/turns/{first}")
    assert [(await dry_run(client, conversation))["extraction"][name] for name in ("turns", "continues")] == [5, False]
    monkeypatch.setattr(dry_runs, "MAX_READ", 3)
    assert [(await dry_run(client, conversation))["extraction"][name] for name in ("turns", "continues")] == [2, True]
