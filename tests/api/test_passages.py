"""Passages of long turns in recall: which part of a turn is shown, where it is, and how to get the rest."""

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.support.api import Client, Service

QUERY = "How much is the deposit of the Lisbon flat?"
FACT = "The deposit of the Lisbon flat is 1,450 euros."
MEBIBYTE = 2**20


def filler(sentences: int, *, start: int = 0) -> str:
    """Sentences that say nothing of the fact."""
    return " ".join(f"Paragraph {n} is about lamps, rivers and stone." for n in range(start, start + sentences))


def document(before: int, after: int) -> str:
    return f"{filler(before)} {FACT} {filler(after, start=before)}"


async def only_hit(client: Client, conversation: str, query: str = QUERY, **options: Any) -> dict[str, Any]:
    return (await client.recall(conversation, query, k=1, **options))[0]


@pytest.mark.parametrize(("before", "after"), [(0, 200), (100, 100), (600, 20)])
async def test_a_long_turn_is_shown_by_the_passage_that_matches(client: Client, before: int, after: int) -> None:
    conversation, text = await client.conversation(), document(before, after)
    await client.append(conversation, text)
    hit = await only_hit(client, conversation)
    passage = hit["passage"]
    assert FACT in hit["text"]
    assert hit["text"] == text[passage["start"] : passage["end"]]
    assert passage["length"] == len(text)
    assert len(hit["text"]) < 400 * 6
    assert hit["text"].startswith(("Paragraph", "The deposit"))
    assert hit["text"].endswith(".")
    assert hit["turn"]["content"] is None
    assert hit["turn"]["actor"] == "user"


async def test_the_whole_content_is_returned_on_request(client: Client) -> None:
    conversation, text = await client.conversation(), document(100, 100)
    await client.append(conversation, text)
    hit = await only_hit(client, conversation, content="full")
    assert hit["turn"]["content"] == text
    assert FACT in hit["text"]
    assert len(hit["text"]) < len(text)


async def test_a_short_turn_is_whole_in_both(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, FACT)
    for content in ("passage", "full"):
        hit = await only_hit(client, conversation, content=content)
        assert (hit["text"], hit["turn"]["content"], hit["passage"], hit["passages"]) == (FACT, FACT, None, [])


async def test_further_passages_of_a_turn_follow_the_best_one_without_overlap(client: Client) -> None:
    conversation = await client.conversation()
    other = "The deposit of the Lisbon flat was paid back in May."
    text = f"{filler(60)} {FACT} {filler(120)} {other} {filler(60)}"
    await client.append(conversation, text)
    hit = await only_hit(client, conversation)
    parts = [hit["passage"] | {"text": hit["text"]}, *hit["passages"]]
    assert all(part["text"] == text[part["start"] : part["end"]] for part in parts)
    assert {FACT in hit["text"], other in hit["text"]} == {True, False}
    assert any(FACT in part["text"] for part in parts)
    assert any(other in part["text"] for part in parts)
    ranges = sorted((part["start"], part["end"]) for part in parts)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))


async def test_a_tool_result_and_its_neighbours_are_shown_by_passages(client: Client) -> None:
    conversation, text = await client.conversation(), document(100, 100)
    call = {"id": "c1", "name": "read_file", "arguments": json.dumps({"path": "lease.txt"})}
    await client.append(
        conversation,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_results": [{"tool_call_id": "c1", "content": text}]},
        {"role": "assistant", "content": f"I have read it. {filler(300)}"},
        {"role": "user", "content": "Thanks."},
    )
    hit = await only_hit(client, conversation, neighbours=2, filters={"roles": ["tool"]})
    assert FACT in hit["text"]
    assert hit["turn"]["tool_results"] == []
    assert [turn["content"] for turn in hit["neighbours"]] == [None, None, "Thanks."]
    assert len(json.dumps(hit)) < 10_000


async def test_what_stands_behind_the_embedded_pieces_is_found_by_words(client: Client) -> None:
    conversation = await client.conversation()
    text = f"{filler(1200)} {FACT} {filler(20)}"
    await client.append(conversation, text)
    for mode in ("hybrid", "text"):
        assert FACT in (await only_hit(client, conversation, mode=mode))["text"]


async def test_a_turn_is_not_found_by_words_behind_256_kib_but_its_passages_are(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, f"Zanzibar. {filler(6000)} {FACT} {filler(20)}", "A turn about rivers.")
    [turn, _] = await client.history(conversation)
    assert len(turn["content"]) > 256 * 1024
    assert turn["index_state"] == "indexed"
    best, *_ = await client.recall(conversation, "zanzibar", k=1, mode="text")
    assert best["turn"]["id"] == turn["id"]
    assert await client.recall(conversation, "Lisbon", k=2, mode="text") == []
    assert FACT in (await only_hit(client, conversation, "Zanzibar, and the deposit of the Lisbon flat"))["text"]


async def test_dates_are_delimited_in_the_passage(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    said = "The deposit of the Lisbon flat was paid last Friday."
    text = f"I moved yesterday. {filler(100)} {said} {filler(100)}"
    await client.append(conversation, {"role": "user", "content": text, "occurred_at": "2026-05-06T10:00:00Z"})
    await service.run_jobs()
    hit = await only_hit(client, conversation, "When was the deposit of the Lisbon flat paid?")
    assert said in hit["text"]
    assert [hit["text"][date["start"] : date["end"]] for date in hit["dates"]] == ["last Friday"]


@pytest.mark.parametrize(
    "text",
    [
        "x" * MEBIBYTE,
        " ".join(["lamp"] * (MEBIBYTE // 5)),
        "\n".join(f'{{"level": "info", "at": {n}, "message": "lamp {n} is on"}}' for n in range(17_000)),
        "灯在河边。" * (MEBIBYTE // 15),
        "灯在河边" * (MEBIBYTE // 12),
    ],
    ids=["no break", "one line", "log", "chinese", "chinese without stops"],
)
@pytest.mark.slow
async def test_a_passage_of_any_text_of_a_mebibyte_is_short(client: Client, text: str) -> None:
    conversation = await client.conversation()
    await client.append(conversation, {"role": "user", "content": text}, "a short one")
    hits = await client.recall(conversation, "lamp 灯", k=2)
    hit = next(hit for hit in hits if hit["passage"] is not None)
    assert 0 < len(hit["text"].encode()) < 8_000
    assert len(json.dumps(hit)) < 32_000
