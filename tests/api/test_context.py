"""Contexts through the API: within the budget, in every format, the same bytes for the same request."""

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from app.formats.schemas import Format
from app.providers.tokens import TiktokenCounter
from tests.support.api import Client, Service, problem

O200K = TiktokenCounter("o200k_base")
WORDS = ["parrot", "invoice", "Reykjavík", "天気", "🐎🌧️", "tomorrow", "12,345", "naïve", "\n", "we agreed on it"]


def openai_count(messages: list[dict[str, Any]]) -> int:
    """Recount an OpenAI chat render by the published rule: 3 a message, 1 more for a name, 3 for the reply."""
    total = 3
    for message in messages:
        total += 3 + O200K.count(message["role"])
        if isinstance(message.get("content"), str):
            total += O200K.count(message["content"])
        if "name" in message:
            total += 1 + O200K.count(message["name"])
        if "tool_call_id" in message:
            total += O200K.count(message["tool_call_id"])
        for call in message.get("tool_calls", []):
            total += 3 + O200K.count(json.dumps(call, ensure_ascii=False, separators=(",", ":")))
    return total


def random_turns(chance: random.Random, count: int) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for number in range(count):
        kind = chance.random()
        text = " ".join(chance.choices(WORDS, k=chance.choice([1, 5, 30, 400])))
        if kind < 0.15:
            calls = [
                {"id": f"c{number}-{n}", "name": "look_up", "arguments": "{}"} for n in range(chance.randint(1, 3))
            ]
            turns.append({"role": "assistant", "content": chance.choice([None, text]), "tool_calls": calls})
            answered = [call for call in calls if chance.random() < 0.8]
            turns += [{"role": "tool", "tool_call_id": call["id"], "content": text[:200]} for call in answered]
        else:
            role = chance.choice(["user", "user", "assistant", "system"])
            turns.append({"role": role, "actor": f"{role}{chance.randint(1, 2)}", "content": text})
    return turns


@pytest.mark.slow
async def test_a_context_is_within_its_budget_by_an_independent_count(client: Client) -> None:
    chance = random.Random(20)  # noqa: S311 - for repeatable tests
    for _ in range(6):
        conversation = await client.conversation()
        await client.append(conversation, *random_turns(chance, 60))
        for _ in range(8):
            body = {
                "token_budget": chance.choice([20, 64, 256, 1000, 4000]),
                "system": chance.choice([None, "Be kind."]),
                "semantic_recall": chance.choice([None, {"k": 5}]),
                "recent_turns": chance.choice([None, 5, 200]),
            }
            response = await client.post(f"/v1/conversations/{conversation}/context", json=body)
            if response.status_code == 422:
                minimum = problem(response, 422, "budget_too_small", "/token_budget")["minimum_budget"]
                assert minimum > body["token_budget"]
                body["token_budget"] = minimum
                response = await client.post(f"/v1/conversations/{conversation}/context", json=body)
            made = response.json()
            assert made["usage"]["used"] == openai_count(made["messages"]) <= body["token_budget"]
            ids = made["included"]["turn_ids"]
            assert len(ids) == len(set(ids))
            calls = [call["id"] for message in made["messages"] for call in message.get("tool_calls", [])]
            results = [message["tool_call_id"] for message in made["messages"] if message["role"] == "tool"]
            assert calls == results
            again = await client.post(f"/v1/conversations/{conversation}/context", json=body)
            assert again.content == response.content


@pytest.mark.parametrize("target", list(Format))
async def test_every_format_renders_the_same_conversation(client: Client, target: Format) -> None:
    conversation = await client.conversation()
    call = {"role": "assistant", "tool_calls": [{"id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'}]}
    await client.append(
        conversation,
        {"role": "user", "content": "What is the weather in Oslo?"},
        call,
        {"role": "tool", "tool_call_id": "c1", "content": "Rain, 4 degrees"},
        {"role": "assistant", "content": "Take an umbrella."},
        {"role": "user", "content": "Thanks!"},
    )
    made = await client.context(conversation, 2000, format=target, system="You are brief.")
    assert made["format"] == target
    text = json.dumps([made["system"], made["messages"]])
    for wanted in (
        "You are brief.",
        "What is the weather in Oslo?",
        "Rain, 4 degrees",
        "umbrella",
        "weather",
        "Thanks!",
    ):
        assert wanted in text, wanted
    assert made["usage"]["exact"] == (target not in {Format.ANTHROPIC, Format.WORKERS_AI})
    assert len(made["included"]["turn_ids"]) == 5
    assert made["as_of_seq"] == 5
    await client.append(conversation, "Bye.", expected_seq=made["as_of_seq"])


async def test_recalled_turns_are_older_ones_labelled_and_never_repeat_recent_ones(client: Client) -> None:
    conversation = await client.conversation()
    old = {
        "role": "user",
        "actor": "Ann",
        "content": "My parrot is called Coco.",
        "occurred_at": "2024-03-01T10:00:00Z",
    }
    await client.append(conversation, old, *[f"Filler number {n} about nothing." for n in range(80)])
    await client.append(conversation, {"role": "user", "actor": "Ann", "content": "What is my parrot called?"})
    made = await client.context(conversation, 1000, semantic_recall={"k": 3}, recent_turns=10, explain=True)
    first = (await client.history(conversation, limit=1))[0]["id"]
    assert first in made["included"]["turn_ids"]
    assert made["usage"]["sections"]["recalled"]["used"] > 0
    block = next(m for m in made["messages"] if "Coco" in json.dumps(m))
    assert made["messages"].index(block) == len(made["messages"]) - 2
    assert "Ann" in block["content"]
    assert "2024-03-01" in block["content"]
    recalled = [row for row in made["explain"] if row["section"] == "recalled" and row["decision"] == "included"]
    assert len(recalled) == 3
    ids = made["included"]["turn_ids"]
    assert len(ids) == len(set(ids))


async def test_the_query_narrows_what_is_recalled(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "The invoice is INV-7.", "The parrot is green.", *["ok"] * 60)
    for query, wanted in (("invoice number", "INV-7"), ("colour of the parrot", "green")):
        made = await client.context(conversation, 800, semantic_recall={"k": 1}, query=query, recent_turns=5)
        assert wanted in json.dumps(made["messages"])


async def test_filter_participants_shows_only_them(client: Client) -> None:
    conversation = await client.conversation()
    said = enumerate(("ann", "bob") * 5)
    turns = [{"role": "user", "actor": actor, "content": f"{actor} speaks of {n} parrots"} for n, actor in said]
    await client.append(conversation, *turns)
    made = await client.context(
        conversation, 2000, filter_participants=["ann"], semantic_recall={"k": 5}, recent_turns=2, explain=True
    )
    assert "bob" not in json.dumps(made)
    assert len(made["included"]["turn_ids"]) == 5


@pytest.mark.slow
async def test_the_prefix_stays_the_same_while_turns_are_appended(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *[f"turn number {n}" for n in range(300)])
    starts: list[str] = []
    for number in range(32):
        await client.append(conversation, f"and one more, {number}")
        made = await client.context(conversation, 600, system="Stable.", recent_turns=100)
        starts.append(made["messages"][1]["content"])
        assert made["messages"][0] == {"role": "system", "content": "Stable."}
    moves = sum(one != other for one, other in pairwise(starts))
    assert moves <= 5, "the window moves in blocks of 8"


NEVER = {"strategy": "never"}


@pytest.mark.parametrize("newest", [1, 3, 4, 8, 10, 20, 50, 53])
async def test_recent_turns_shows_so_many_and_at_most_a_quarter_more(client: Client, newest: int) -> None:
    conversation = await client.conversation(compaction=NEVER)
    await client.append(conversation, *[f"Turn {n}: we talked about the harbour and its ships." for n in range(54)])
    made = await client.context(conversation, 8000, recent_turns=newest)
    shown = len(made["included"]["turn_ids"])
    assert newest <= shown <= newest + max(1, newest // 4)
    gap = {"turns": 54 - shown, "from_position": 1, "to_position": 54 - shown} if shown < 54 else None
    assert made["gap"] == gap
    assert made["degraded"] == []


async def test_without_recent_turns_every_turn_that_no_summary_covers_is_shown_while_there_is_room(
    client: Client,
) -> None:
    conversation = await client.conversation(compaction=NEVER)
    await client.append(conversation, *[f"Turn {n}" for n in range(480)])
    made = await client.context(conversation, 100_000)
    assert (len(made["included"]["turn_ids"]), made["gap"]) == (480, None)
    made = await client.context(conversation, 1000)
    shown = len(made["included"]["turn_ids"])
    assert made["usage"]["used"] > 940
    assert made["gap"] == {"turns": 480 - shown, "from_position": 1, "to_position": 480 - shown}
    assert made["usage"]["sections"]["recent"]["dropped"] > 0


async def test_what_is_recalled_from_a_gap_is_not_counted_in_it(client: Client) -> None:
    conversation = await client.conversation(compaction=NEVER)
    await client.append(conversation, "The parrot is called Coco.", *["filler"] * 40, "What is the parrot called?")
    made = await client.context(conversation, 2000, recent_turns=4, semantic_recall={"k": 1})
    assert len(made["included"]["turn_ids"]) == 6
    assert made["gap"] == {"turns": 36, "from_position": 2, "to_position": 37}


async def test_what_cannot_be_shown_and_what_a_filter_takes_out_is_counted_in_the_gap(client: Client) -> None:
    conversation = await client.conversation()
    call = {"role": "assistant", "actor": "bot", "tool_calls": [{"id": "c", "name": "f", "arguments": "{}"}]}
    await client.append(conversation, "one", call, "two", "three")
    made = await client.context(conversation, 1000)
    assert len(made["included"]["turn_ids"]) == 3
    assert made["gap"] == {"turns": 1, "from_position": 2, "to_position": 2}
    made = await client.context(conversation, 1000, filter_participants=["bot"])
    assert made["gap"] == {"turns": 4, "from_position": 1, "to_position": 4}


async def test_an_erased_turn_is_no_gap_and_the_context_says_that_sources_were_erased(client: Client) -> None:
    conversation = await client.conversation()
    turns = (await client.append(conversation, "one", "two", "three"))["turns"]
    assert (await client.context(conversation, 1000))["degraded"] == []
    await client.delete(f"/v1/conversations/{conversation}/turns/{turns[1]['id']}")
    made = await client.context(conversation, 1000)
    assert (made["gap"], made["degraded"]) == (None, ["erased_sources"])
    assert [message["content"] for message in made["messages"]] == ["one", "three"]


async def test_a_revised_turn_leaves_no_gap(client: Client) -> None:
    conversation = await client.conversation()
    turns = (await client.append(conversation, "one", "two", "three"))["turns"]
    path = f"/v1/conversations/{conversation}/turns/{turns[1]['id']}/revisions"
    assert (await client.post(path, json={"content": "another two"})).status_code == 201
    await client.append(conversation, "four")
    made = await client.context(conversation, 1000)
    assert (made["gap"], made["degraded"], len(made["included"]["turn_ids"])) == (None, [], 4)


async def test_the_call_of_a_result_is_read_back_to_however_many_results_it_has(client: Client) -> None:
    conversation = await client.conversation(compaction=NEVER)
    calls = [{"id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(30)]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": f"result {n}"} for n in range(30)]
    await client.append(conversation, *["filler"] * 20, {"role": "assistant", "tool_calls": calls}, *results)
    made = await client.context(conversation, 4000, recent_turns=1)
    assert [message["role"] for message in made["messages"]] == ["assistant", *["tool"] * 30]
    assert made["gap"] == {"turns": 20, "from_position": 1, "to_position": 20}


async def test_an_empty_conversation_gives_an_empty_context(client: Client) -> None:
    conversation = await client.conversation()
    made = await client.context(conversation, 50, semantic_recall={"k": 3}, system="Hi.")
    assert [message["role"] for message in made["messages"]] == ["system"]
    assert made["included"]["turn_ids"] == []


async def test_a_failing_recall_leaves_a_context_that_says_so(client: Client, service: Any, monkeypatch: Any) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *["the parrot"] * 60)

    async def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("a defect in recall")

    monkeypatch.setattr(type(service.container.recall_service), "recall_turns", fail)
    made = await client.context(conversation, 500, semantic_recall={"k": 3}, recent_turns=5)
    assert made["degraded"] == ["recall_failed"]
    assert made["messages"]


async def test_filtered_participants_are_not_crowded_out_by_tools(client: Client) -> None:
    conversation = await client.conversation()
    said = [f"mia says thing {n}" for n in range(5)]
    await client.append(conversation, *[{"role": "user", "actor": "mia", "content": text} for text in said])
    for number in range(60):
        call = {"role": "assistant", "actor": "bot", "tool_calls": [{"id": f"c{number}", "name": "f", "arguments": ""}]}
        await client.append(conversation, call, {"role": "tool", "tool_call_id": f"c{number}", "content": "ok"})
    made = await client.context(conversation, 4000, filter_participants=["mia"])
    assert [message["content"] for message in made["messages"]] == said
    bots = await client.context(conversation, 4000, filter_participants=["bot"], recent_turns=3)
    assert [message["role"] for message in bots["messages"]] == ["assistant", "tool"] * 2


async def test_the_query_is_the_newest_user_turn_even_when_tools_fill_the_window(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "The parrot is called Coco.", *["filler"] * 30, "What is the parrot called?")
    for number in range(20):
        call = {"role": "assistant", "tool_calls": [{"id": f"c{number}", "name": "f", "arguments": ""}]}
        await client.append(conversation, call, {"role": "tool", "tool_call_id": f"c{number}", "content": "ok"})
    made = await client.context(conversation, 4000, semantic_recall={"k": 2}, recent_turns=10)
    assert "Coco" in json.dumps(made["messages"])


async def test_an_erased_turn_is_not_the_query_of_a_window_full_of_tools(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "The parrot is called Coco.", *["filler"] * 30, "What is the parrot called?")
    gone = (await client.append(conversation, "Never mind."))["turns"][0]["id"]
    for number in range(10):
        call = {"role": "assistant", "tool_calls": [{"id": f"c{number}", "name": "f", "arguments": ""}]}
        await client.append(conversation, call, {"role": "tool", "tool_call_id": f"c{number}", "content": "ok"})
    assert (await client.delete(f"/v1/conversations/{conversation}/turns/{gone}")).status_code == 204
    made = await client.context(conversation, 4000, semantic_recall={"k": 2}, recent_turns=10)
    assert "Coco" in json.dumps(made["messages"])


@pytest.mark.parametrize("turns", [150, 400])
async def test_turns_under_highlights_of_shown_turns_alone_are_shown_while_there_is_room(
    client: Client, turns: int
) -> None:
    conversation = await client.conversation(compaction=NEVER)
    said = [f"Line {number}: " + "word " * 60 for number in range(turns)]
    for start in range(0, turns, 200):
        await client.append(conversation, *said[start : start + 200])
    [last] = (await client.get(f"/v1/conversations/{conversation}/turns?before={turns - 30}&limit=1")).json()["data"]
    made = await client.post(f"/v1/conversations/{conversation}/summaries", json={"through": last["id"]})
    assert made.status_code == 200, made.text
    context = await client.context(conversation, 100_000)
    assert (len(context["included"]["turn_ids"]), context["gap"]) == (turns, None)
    assert context["included"]["summary_ids"] == []
    small = await client.context(conversation, 6_000)
    assert small["usage"]["used"] > 5_000


async def test_a_recalled_turn_says_what_its_relative_dates_mean(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    texts = [
        "Yesterday the boat sank, and yesterday the mast broke.",
        "The boat was built last month.",
        "We bought the boat last year.",
        "The boat raced last week.",
        "The boat has a red sail.",
        "Um barco novo chegou ontem ao porto da cidade.",
    ]
    said = {"role": "user", "actor": "mia", "occurred_at": "2023-05-10T15:00:00Z"}
    await client.append(conversation, *[said | {"content": text} for text in texts])
    await client.append(conversation, *[f"Talk {n} about lunch." for n in range(60)])
    await service.run_jobs()
    body = {
        "token_budget": 700,
        "recent_turns": 2,
        "include_summary": False,
        "query": "boat barco",
        "semantic_recall": {"k": 12},
    }
    context = (await client.post(f"/v1/conversations/{conversation}/context", json=body)).json()
    assert context["usage"]["used"] <= 700
    lines = {line for message in context["messages"] for line in message["content"].splitlines()}
    label = "[2023-05-10 15:00 UTC, mia"
    assert {line for line in lines if line.startswith(label)} == {
        f"{label}; yesterday = 2023-05-09] {texts[0]}",
        f"{label}; last month = April 2023] {texts[1]}",
        f"{label}; last year = 2022] {texts[2]}",
        f"{label}; last week = 2023-05-01 to 2023-05-07] {texts[3]}",
        f"{label}] {texts[4]}",
        f"{label}; ontem = 2023-05-09] {texts[5]}",
    }


async def test_a_passage_says_what_its_own_relative_dates_mean(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    filler = "Lamps, rivers and stones are in every paragraph of this text. " * 200
    text = f"We began yesterday. {filler} The harbour of Porto closed last Friday. {filler}"
    turn = {"role": "user", "actor": "mia", "occurred_at": "2023-05-10T15:00:00Z", "content": text}
    await client.append(conversation, turn, *[f"Talk {n} about lunch." for n in range(60)])
    await service.run_jobs()
    body = {"token_budget": 900, "recent_turns": 2, "query": "When did the harbour of Porto close?"}
    body["semantic_recall"] = {"k": 1}
    context = (await client.post(f"/v1/conversations/{conversation}/context", json=body)).json()
    shown = "\n".join(message["content"] for message in context["messages"])
    assert "[2023-05-10 15:00 UTC, mia; last Friday = 2023-05-05] […]" in shown
    assert "yesterday" not in shown
