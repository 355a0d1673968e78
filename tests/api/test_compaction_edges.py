"""Compaction where it is easily got wrong: holes, unanswered calls, tombstones, a model that comes and goes."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from app.context.compaction import requests
from app.conversations.stores import summary_store
from app.core.database.transactions import Database, PoolOptions
from tests.api.test_compaction import compact, say, summaries, talk
from tests.api.test_doctor import faults
from tests.support.api import Client, Service, open_service, problem
from tests.support.fake_chat import CHAT_MODEL, FILTERED, FakeChat, Reply, open_fake_chat, says
from tests.support.postgres import TestDatabase
from tests.support.timing import PATIENT_MS

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
        database, tmp_path, embedder="none", llm_base_url=fake.url, llm_model=CHAT_MODEL, llm_timeout_ms=PATIENT_MS,
        llm_max_retries=0,
    ) as opened:  # fmt: skip
        yield opened


@pytest.fixture
async def ops(service: Service) -> AsyncIterator[Database]:
    database = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor"))
    await database.open()
    yield database
    await database.close()


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


async def test_a_call_without_a_result_is_summarised_like_other_turns(user: Client) -> None:
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


async def jobs_of(client: Client) -> list[str]:
    return [job["kind"] for job in (await client.get("/v1/admin/jobs")).json()["data"]]


async def test_tombstones_are_not_counted_by_the_triggers(client: Client, ops: Database) -> None:
    conversation = await talk(client, 10)
    turns = await client.history(conversation)
    for turn in turns[1:]:
        await client.delete(f"/v1/conversations/{conversation}/turns/{turn['id']}")
    await say(client, conversation, 9, start=10)
    assert await jobs_of(client) == []
    assert (await compact(client, conversation))["remaining_turns"] == 10
    assert await faults(ops, client) == []
    # a tombstone that is revised speaks again
    revision = {"content": "something after all"}
    answer = await client.post(f"/v1/conversations/{conversation}/turns/{turns[4]['id']}/revisions", json=revision)
    assert answer.status_code == 201
    assert await jobs_of(client) == ["conversation.compact"]
    assert (await compact(client, conversation))["remaining_turns"] == 5
    await client.delete(f"/v1/conversations/{conversation}/turns/{turns[0]['id']}")
    assert await faults(ops, client) == []


async def end_waits(modelled: Service, user: Client) -> None:
    """Let the waits after failures of the model be over."""
    async with modelled.container.tenancy._ops.across_tenants() as tx:  # noqa: SLF001
        await tx.execute("update summaries set retry_at = now() where tenant_id = $1", user.tenant_id)


@pytest.mark.parametrize("mode", ["unauthorized", "no_model", "spent"])
@pytest.mark.slow
async def test_trouble_that_passes_leaves_highlights_only_until_it_is_over(
    user: Client, modelled: Service, fake: FakeChat, mode: str
) -> None:
    spending = modelled.container.spending
    settings = spending._settings  # noqa: SLF001
    fake.reply = Reply(mode="forbidden") if mode == "unauthorized" else Reply(mode="no_model")
    if mode == "spent":
        spending._settings = settings.model_copy(update={"llm_daily_tokens": 1})  # noqa: SLF001
        fake.reply = WRITTEN
        await compact(user, await talk(user, 3), "summaries")
    conversation = await talk(user, 11)
    await modelled.run_jobs()
    (one,) = await summaries(user, conversation)
    assert (one["kind"], await jobs_of(user)) == ("highlights", [])
    spending._settings, fake.reply = settings, WRITTEN  # noqa: SLF001
    await modelled.container.compactor.refresh()
    assert await jobs_of(user) == []  # the model is asked again in an hour
    await end_waits(modelled, user)
    await modelled.container.compactor.refresh()
    await modelled.run_jobs()
    (one,) = await summaries(user, conversation)
    assert (one["kind"], one["from_position"], one["to_position"]) == ("summary", 1, 6)


@pytest.mark.slow
async def test_another_model_that_the_policy_names_is_asked_what_the_first_refused(
    user: Client, modelled: Service, fake: FakeChat
) -> None:
    fake.reply = FILTERED
    conversation = await talk(user, 11)
    await modelled.run_jobs()
    fake.reply = WRITTEN
    await modelled.container.compactor.refresh()
    await modelled.run_jobs()
    assert [one["kind"] for one in await summaries(user, conversation)] == ["highlights"]
    policy = {"compaction": {"summarizer_model": "bolder"}}
    assert (await user.patch(f"/v1/conversations/{conversation}", json=policy)).status_code == 200
    await modelled.container.compactor.refresh()
    await modelled.run_jobs()
    assert [(one["kind"], one["model"]) for one in await summaries(user, conversation)] == [("summary", "bolder")]


@pytest.mark.slow
async def test_highlights_of_tombstones_do_not_keep_others_from_becoming_a_summary(
    user: Client, modelled: Service, fake: FakeChat
) -> None:
    fake.reply = Reply(mode="no_model")
    conversation = await talk(user, 9, compaction={"strategy": "hierarchical"})
    turns = await user.history(conversation)
    for last in (2, 5):
        await compact(user, conversation, "summaries", through=turns[last]["id"])
    for turn in turns[:3]:
        await user.delete(f"/v1/conversations/{conversation}/turns/{turn['id']}")
    fake.reply = WRITTEN
    await end_waits(modelled, user)
    await modelled.container.compactor.refresh()
    await modelled.run_jobs()
    assert [one["kind"] for one in await summaries(user, conversation)] == ["highlights", "summary"]
    await modelled.container.compactor.refresh()
    assert await jobs_of(user) == []


async def test_a_compaction_amid_the_reading_of_a_context_leaves_no_turn_out(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await talk(client, 70, compaction={"trigger_turns": 100})
    turns = await client.history(conversation)
    await compact(client, conversation, "summaries", through=turns[9]["id"])
    read = summary_store.list_valid
    waiting = [True]

    async def after_another(*args: Any) -> Any:
        if waiting.pop() if waiting else False:
            call = compact(client, conversation, "summaries", through=turns[19]["id"])
            await asyncio.create_task(call, context=Context())
        return await read(*args)

    monkeypatch.setattr(summary_store, "list_valid", after_another)
    context = await client.context(conversation, 600, recent_turns=20)
    assert len(context["included"]["summary_ids"]) == 1
    (one,) = await summaries(client, conversation, include_replaced=True, limit=1)
    assert context["included"]["summary_ids"] == [one["id"]]
    told = set(range(one["from_position"], one["to_position"] + 1))
    verbatim = {turn["position"] for turn in turns if turn["id"] in context["included"]["turn_ids"]}
    left_out = sorted(set(range(1, 71)) - told - verbatim)
    gap = {"turns": len(left_out), "from_position": left_out[0], "to_position": left_out[-1]}
    assert context["gap"] == gap


@pytest.mark.slow
async def test_long_highlights_become_a_summary_in_parts_that_are_stored(
    user: Client, fake: FakeChat, ops: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.reply = Reply(mode="no_model")
    conversation = await talk(user, 30)
    await compact(user, conversation, "summaries")
    monkeypatch.setattr(requests, "MAX_TOKENS", 10)
    fake.replies, fake.reply = [WRITTEN] * 12, Reply(mode="overloaded")
    # not by jobs: those would also do what other tests have left, and take the replies
    problem(await user.post(f"/v1/conversations/{conversation}/compact", json={}), 503, "model_overloaded")
    one, rest = await summaries(user, conversation)
    assert [one["kind"], rest["kind"]] == ["summary", "highlights"]
    assert rest["from_position"] == one["to_position"] + 1 == 9
    turns = {turn["id"]: turn["position"] for turn in await user.history(conversation)}
    assert rest["lines"]
    assert all(turns[line["turn_id"]] >= 9 for line in rest["lines"])
    assert await faults(ops, user) == []
    fake.reply = WRITTEN
    await compact(user, conversation)
    (one,) = await summaries(user, conversation)
    assert (one["kind"], one["from_position"], one["to_position"]) == ("summary", 1, 29)
    assert await faults(ops, user) == []
