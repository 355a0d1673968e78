"""Documents, answers and results that are larger than the budget of a context: what they say reaches the model."""

import json
from typing import Any

import pytest

from tests.support.api import Client

FACT = "The deposit of the Lisbon flat is 1,450 euros."
QUESTION = "How much is the deposit of the Lisbon flat?"


def document(paragraphs: int = 1500) -> str:
    filler = " ".join(f"paragraph {n} is about lamps, rivers and stone." for n in range(paragraphs))
    return f"{filler} {FACT} {filler}"


def said(made: dict[str, Any]) -> str:
    return json.dumps(made["messages"], ensure_ascii=False)


THAI = "ค่ามัดจำของห้องเช่าที่ลิสบอนคือหนึ่งพันสี่ร้อยห้าสิบยูโร"
CUSTOM = {"type": "custom", "data": [f"value {n}" for n in range(30_000)]}


async def build(client: Client, conversation: str, budget: int, **more: Any) -> dict[str, Any]:
    body = {"token_budget": budget, **more}
    response = await client.post(f"/v1/conversations/{conversation}/context", json=body)
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    assert made["usage"]["used"] <= budget
    return made


def with_document(kind: str, text: str) -> list[dict[str, Any]]:
    match kind:
        case "user":
            return [{"role": "user", "content": text}, {"role": "assistant", "content": "Read."}]
        case "assistant":
            return [{"role": "user", "content": "Write it down."}, {"role": "assistant", "content": text}]
        case _:
            call = {"id": "c1", "name": "read_file", "arguments": '{"path": "flat.txt"}'}
            return [
                {"role": "user", "content": "Read the file."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": text},
                {"role": "assistant", "content": "Read."},
            ]


@pytest.mark.parametrize("kind", ["user", "assistant", "tool"])
@pytest.mark.parametrize(("budget", "target"), [(4000, "openai"), (6000, "anthropic"), (8000, "openai_responses")])
async def test_a_sentence_in_a_long_document_is_in_the_context(
    client: Client, kind: str, budget: int, target: str
) -> None:
    conversation, text = await client.conversation(), document()
    await client.append(conversation, *with_document(kind, text), {"role": "user", "content": QUESTION})
    made = await build(client, conversation, budget, semantic_recall={"k": 5}, format=target, explain=True)
    assert FACT in said(made)
    assert "tokens left out …]" in said(made)
    assert made["gap"] is None
    assert "turns_shortened" in made["degraded"]
    long = next(turn["id"] for turn in await client.history(conversation) if turn["content"] == text)
    runs = [(run["start"], run["end"]) for run in made["included"]["passages"] if run["turn_id"] == long]
    assert any(FACT in text[start:end] for start, end in runs)
    assert runs[0][0] == 0
    assert runs[-1][1] == len(text)
    rows = [row for row in made["explain"] if row["id"] == long and row["decision"] == "included"]
    assert {row["section"] for row in rows} == {"recent", "recalled"}
    assert any(row["passages"] for row in rows)
    before = await build(client, conversation, budget, semantic_recall={"k": 5}, format=target, shorten=False)
    assert FACT not in said(before)
    assert before["gap"]["turns"] >= 1
    assert before["included"]["passages"] == []


async def test_a_document_of_another_conversation_is_recalled_by_its_passages(client: Client) -> None:
    first = await client.conversation(owner="mia", title="The flat")
    await client.append(first, {"role": "user", "content": document()})
    conversation = await client.conversation(owner="mia")
    await client.append(conversation, {"role": "user", "content": QUESTION})
    for budget in (1000, 4000, 8000):
        made = await build(client, conversation, budget, semantic_recall={"scope": "owner"})
        assert FACT in said(made)
        assert "in another conversation: The flat] […] " in said(made)
        assert len(made["included"]["passages"]) >= 1


async def test_the_prefix_of_a_context_with_a_shortened_turn_is_the_same_whatever_is_asked(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *with_document("user", document()), {"role": "user", "content": "Well?"})
    windows: set[str] = set()
    for query in (QUESTION, "paragraph 77 about rivers", "the weather"):
        made = await build(client, conversation, 4000, semantic_recall={}, query=query)
        windows.add(json.dumps(made["messages"][:2]))
    assert len(windows) == 1


async def test_a_newest_turn_that_is_larger_than_the_budget_is_shortened(client: Client) -> None:
    conversation, text = await client.conversation(), f"{document()} {QUESTION}"
    await client.append(conversation, {"role": "user", "content": "Hello."}, {"role": "user", "content": text})
    made = await build(client, conversation, 4000, semantic_recall={})
    assert made["messages"][-1]["content"].endswith(QUESTION)
    assert FACT in said(made)
    assert made["usage"]["used"] > 3000
    made = await build(client, conversation, 60)
    assert "tokens left out …]" in said(made)
    body = {"token_budget": 4000, "shorten": False}
    refused = await client.post(f"/v1/conversations/{conversation}/context", json=body)
    assert refused.status_code == 422
    assert refused.json()["code"] == "budget_too_small"


@pytest.mark.parametrize("before", range(9_000, 10_400, 100))
async def test_a_fact_in_a_text_without_spaces_is_whole_in_the_context(client: Client, before: int) -> None:
    conversation, filler = await client.conversation(), "แม่น้ำก้อนหินโคมไฟถนน" * 1000
    await client.append(conversation, filler[:before] + THAI + filler[: 20_000 - before], "Read.", "And?")
    for budget in (2000, 4000, 8000):
        made = await build(client, conversation, budget, semantic_recall={}, query="ค่ามัดจำของห้องเช่าที่ลิสบอนเท่าไร")
        assert THAI in said(made), budget


@pytest.mark.parametrize("target", ["openai", "openai_responses", "anthropic", "workers_ai", "canonical"])
async def test_a_newest_turn_with_a_large_custom_part_is_shown_without_it(client: Client, target: str) -> None:
    conversation = await client.conversation()
    parts = [{"type": "text", "text": QUESTION}, CUSTOM]
    await client.append(conversation, "Hello.", {"role": "user", "content": parts})
    made = await build(client, conversation, 500, format=target)
    assert f"{QUESTION}\\n[custom]" in said(made)
    assert made["gap"] is None
    assert ("turns_shortened" in made["degraded"]) == (target == "canonical")
    body = {"token_budget": 500, "format": "canonical", "shorten": False}
    refused = await client.post(f"/v1/conversations/{conversation}/context", json=body)
    assert refused.json()["code"] == "budget_too_small"


@pytest.mark.parametrize("words", ["ok", "Yes, please!", "Vielen Dank", "好的", "👍"])
async def test_the_query_of_a_newest_turn_that_says_nothing_is_the_turn_before_it(client: Client, words: str) -> None:
    conversation = await client.conversation()
    await client.append(
        conversation,
        {"role": "user", "content": "The wifi password is sunflower-42."},
        *[{"role": "user", "content": text} for n in range(20) for text in (f"Lunch number {n}, and rain.", words)],
        {"role": "assistant", "content": "Shall I tell your guests the wifi password?"},
        {"role": "user", "content": words},
    )
    made = await build(client, conversation, 400, semantic_recall={"k": 2}, recent_turns=2)
    assert "sunflower-42" in said(made)
    block = made["messages"][-2]["content"]
    assert f"] {words}" not in block


async def test_nothing_is_recalled_if_no_turn_says_anything(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *[{"role": "user", "content": "ok"}] * 30)
    made = await build(client, conversation, 400, semantic_recall={"k": 3}, recent_turns=2)
    assert made["usage"]["sections"]["recalled"]["used"] == 0


async def test_a_sentence_that_was_said_often_is_recalled_once(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(
        conversation,
        {"role": "user", "content": "The wifi password is sunflower-42."},
        {"role": "user", "content": "The wifi password of the guest network is maple-7."},
    )
    for n in range(12):
        await client.append(
            conversation,
            {"role": "user", "content": "What is the wifi password?"},
            {"role": "assistant", "content": "I don't know the wifi password, sorry."},
            {"role": "user", "content": f"Never mind, talk {n} about lunch."},
        )
    query = "What is the wifi password?"
    made = await build(client, conversation, 600, semantic_recall={"k": 5}, recent_turns=1, query=query)
    assert "sunflower-42" in said(made)
    assert "maple-7" in said(made)
    assert said(made).count("I don't know the wifi password") <= 1
