"""Random conversations, policies and requests, through the API: every live turn is shown, covered or counted.

What a context says of itself is held against the history and the summaries of the conversation. A seed is a
conversation; `TURNKEEP_COVERAGE_SEEDS=500` is the long form.
"""

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat, says, summary_of
from tests.support.postgres import TestDatabase

SEEDS = int(os.environ.get("TURNKEEP_COVERAGE_SEEDS", "4"))
ACTORS = ["ann", "bert", "planner"]
WORDS = ["harbour", "I paid 12 euros", "in Lisbon", "yes", "Maria", "on Friday", "the boat", "天気", "we agreed"]
BUDGETS = [150, 400, 900, 2500, 6000, 300_000]
FORMATS = ["openai", "openai_responses", "anthropic", "workers_ai", "canonical"]


@pytest.fixture(scope="module")
async def modelled(
    words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Service, FakeChat]]:
    """An app with a chat model, and without an embedder."""
    async with (
        open_fake_chat() as fake,
        open_service(
            words_database, tmp_path_factory.mktemp("data"), embedder="none", llm_base_url=fake.url,
            llm_model=CHAT_MODEL,
        ) as opened,
    ):  # fmt: skip
        fake.reply = lambda request: says({"summary": summary_of(request), "abstract": "Boats."})
        yield opened, fake


@pytest.fixture(scope="module")
async def wordless(words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """An app without a chat model, whose summaries are highlights."""
    folder: Path = tmp_path_factory.mktemp("data")
    async with open_service(words_database, folder, embedder="none") as opened:
        yield opened


def some_turns(chance: random.Random, count: int, start: int) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    while len(turns) < count:
        number = start + len(turns)
        text = f"{number}. " + " ".join(chance.choices(WORDS, k=chance.choice([1, 3, 9, 9, 40])))
        if chance.random() < 0.12:
            calls = [{"id": f"c{number}-{n}", "name": "look", "arguments": "{}"} for n in range(chance.randint(1, 3))]
            turns.append({"role": "assistant", "actor": "planner", "content": None, "tool_calls": calls})
            turns += [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
        else:
            role = chance.choice(["user", "user", "assistant"])
            turns.append({"role": role, "actor": chance.choice(ACTORS), "content": text})
    return turns


async def random_conversation(chance: random.Random, client: Client, service: Service) -> str:
    compaction = {
        "strategy": chance.choice(["rolling", "rolling", "hierarchical", "never"]),
        "trigger_turns": chance.choice([6, 12, 30, 50]),
        "trigger_tokens": chance.choice([300, 2000, 8000]),
    }
    conversation = await client.conversation(compaction=compaction, owner="ann")
    total = 0
    for _ in range(chance.randint(1, 6)):
        turns = some_turns(chance, chance.choice([1, 4, 15, 40]), total)
        await client.append(conversation, *turns)
        total += len(turns)
        await change(chance, client, conversation)
        if chance.random() < 0.7:
            await service.run_jobs()
    return conversation


async def change(chance: random.Random, client: Client, conversation: str) -> None:
    """Erase or revise a message, sometimes with all that follows."""
    said = [turn for turn in await client.history(conversation) if turn["content"] and turn["role"] == "user"]
    if not said or chance.random() < 0.6:
        return
    path = f"/v1/conversations/{conversation}/turns/{chance.choice(said)['id']}"
    if chance.random() < 0.4:
        assert (await client.delete(path)).status_code == 204
        return
    body = {"content": "said anew", "truncate_after": chance.random() < 0.2}
    assert (await client.post(f"{path}/revisions", json=body)).status_code == 201


def random_request(chance: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"token_budget": chance.choice(BUDGETS), "format": chance.choice(FORMATS)}
    if chance.random() < 0.6:
        body["recent_turns"] = chance.choice([1, 2, 4, 8, 10, 20, 50, 1000])
    if chance.random() < 0.2:
        body["include_summary"] = False
    if chance.random() < 0.2:
        body["filter_participants"] = chance.sample(ACTORS, 2)
    if chance.random() < 0.4:
        body["semantic_recall"] = {
            **chance.choice([{"k": 3}, {}]),
            "scope": chance.choice(["conversation", "owner", "project"]),
        }
        body["query"] = chance.choice(WORDS)
    if chance.random() < 0.2:
        body["as_actor"] = chance.choice(ACTORS)
    if chance.random() < 0.3:
        body["system"] = "Be brief."
    if chance.random() < 0.3:
        body |= chance.choice([{"shorten": False}, {"max_turn_tokens": 20}])
    return body


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_live_turn_is_shown_or_covered_or_counted_as_left_out(
    seed: int, modelled: tuple[Service, FakeChat], wordless: Service
) -> None:
    chance = random.Random(seed)  # noqa: S311 - for repeatable tests
    service = modelled[0] if seed % 2 else wordless
    async with await service.new_tenant() as client:
        for _ in range(2):
            conversation = await random_conversation(chance, client, service)
            turns = await client.history(conversation)
            listed = await client.get(f"/v1/conversations/{conversation}/summaries", params={"limit": 200})
            for _ in range(12):
                body = random_request(chance)
                response = await client.post(f"/v1/conversations/{conversation}/context", json=body)
                if response.status_code == 422:
                    assert response.json()["minimum_budget"] > body["token_budget"]
                    continue
                assert response.status_code == 200, response.text
                check(body, response.json(), turns, listed.json()["data"])


def check(body: dict[str, Any], made: dict[str, Any], turns: list[dict[str, Any]], summaries: list[Any]) -> None:
    included = made["included"]
    assert made["usage"]["used"] <= body["token_budget"]
    assert len(set(included["turn_ids"])) == len(included["turn_ids"])
    shown = set(included["turn_ids"])
    assert {run["turn_id"] for run in included["passages"]} <= shown
    assert not (included["passages"] and body.get("shorten") is False)
    used = [one for one in summaries if one["id"] in included["summary_ids"]]
    assert len(used) == len(included["summary_ids"])
    covered = {at for one in used for at in range(one["from_position"], one["to_position"] + 1)}
    left_out = [turn for turn in turns if turn["id"] not in shown and turn["position"] not in covered]
    places = [turn["position"] for turn in left_out if turn["erased_at"] is None]
    gap = {"turns": len(places), "from_position": places[0], "to_position": places[-1]} if places else None
    assert made["gap"] == gap, body
    assert ("erased_sources" in made["degraded"]) == any(turn["erased_at"] is not None for turn in left_out), body
    live = [turn for turn in turns if turn["erased_at"] is None]
    for one in used:
        under = [turn for turn in live if one["from_position"] <= turn["position"] <= one["to_position"]]
        assert any(turn["id"] not in shown for turn in under), "a summary of turns that are all shown"
    if "filter_participants" not in body:
        check_recent(body, made, live, used)


def check_recent(body: dict[str, Any], made: dict[str, Any], live: list[Any], used: list[Any]) -> None:
    """Hold the number of recent turns against what was asked for."""
    recalled = sum(turn_id not in {turn["id"] for turn in live} for turn_id in made["included"]["turn_ids"])
    shown = len(made["included"]["turn_ids"]) - recalled
    asked = body.get("recent_turns")
    if made["usage"]["sections"]["recent"]["dropped"]:
        return
    newest = [turn["id"] for turn in live[-(asked or 50) :]]
    assert set(newest) <= set(made["included"]["turn_ids"]), body
    if asked is None and not used:
        assert shown == len(live), body
    if asked is not None and not used and "semantic_recall" not in body:
        # a call with three results may stand across the start of the window
        assert shown <= asked + max(1, asked // 4) + 3, body
    if asked is not None and asked >= len(live):
        assert (shown, used, made["gap"]) == (len(live), [], None), body
