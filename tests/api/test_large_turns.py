"""One answer gives so much text and no more: a turn may have a whole request of it, and pages have up to 200."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api import Client, open_service, problem
from tests.support.postgres import TestDatabase

LIMIT = 10_000
SIZE = 3_000


@pytest.fixture(scope="module")
async def narrow(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """A service whose answers give 10 kB of text."""
    async with open_service(database, tmp_path_factory.mktemp("data"), max_answer_bytes=LIMIT) as service:
        yield service


@pytest.fixture
async def large(narrow: Any) -> AsyncIterator[tuple[Client, str]]:
    """A conversation of ten turns, of which four reach the limit."""
    async with await narrow.new_tenant() as client:
        conversation = await client.conversation()
        for number in range(10):
            text = {"type": "text", "text": f"the parrot said {number}"}
            await client.append(conversation, {"role": "user", "content": [text, {"type": "x", "data": "a" * SIZE}]})
        yield client, conversation


def size(turns: list[dict[str, Any]]) -> int:
    return sum(len(str(turn["content"])) for turn in turns)


@pytest.mark.parametrize("versions", [True, False])
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_of_large_turns_ends_early_and_none_is_lost(
    large: tuple[Client, str], order: str, *, versions: bool
) -> None:
    client, conversation = large
    params = {"limit": 8, "order": order, "include_superseded": versions}
    page = (await client.get(f"/v1/conversations/{conversation}/turns", params=params)).json()
    assert len(page["data"]) == 4
    assert page["has_more"]
    found = await client.history(conversation, **params)
    assert [turn["seq"] for turn in found] == (list(range(1, 11)) if order == "asc" else list(range(10, 0, -1)))
    last = await client.get(f"/v1/conversations/{conversation}/turns", params={"limit": 3, "after": 7})
    assert (len(last.json()["data"]), last.json()["has_more"]) == (3, False)


async def test_recall_gives_every_hit_and_says_whose_text_it_left_out(large: tuple[Client, str]) -> None:
    client, conversation = large
    body = {"query": "parrot", "k": 10}
    answer = (await client.post(f"/v1/conversations/{conversation}/recall", json=body)).json()
    assert len({hit["id"] for hit in answer["data"]}) == 10
    assert answer["degraded"] == ["turns_too_large"]
    assert [hit["turn"] is None for hit in answer["data"]] == [False] * 4 + [True] * 6
    assert all(hit["conversation_id"] == conversation and not hit["text"] for hit in answer["data"][4:])
    few = (await client.post(f"/v1/conversations/{conversation}/recall", json=body | {"k": 4})).json()
    assert few["degraded"] == []


async def test_a_neighbour_of_many_hits_is_not_shown_many_times(large: tuple[Client, str]) -> None:
    client, conversation = large
    body = {"query": "parrot", "k": 4, "neighbours": 5}
    answer = (await client.post(f"/v1/conversations/{conversation}/recall", json=body)).json()
    assert answer["degraded"] == ["turns_too_large"]
    beside = [turn for hit in answer["data"] for turn in hit["neighbours"]]
    assert size(beside) <= LIMIT + 10 * SIZE


async def test_a_context_looks_back_as_far_as_its_turns_fit(large: tuple[Client, str]) -> None:
    client, conversation = large
    made = await client.context(conversation, 100_000, recent_turns=10)
    assert 1 <= len(made["included"]["turn_ids"]) <= 4


async def test_forks_and_verification_go_through_all_of_it(large: tuple[Client, str], monkeypatch: Any) -> None:
    client, conversation = large
    for module in ("app.transfer.fork", "app.conversations.turns.verify"):
        monkeypatch.setattr(f"{module}._BATCH_BYTES", LIMIT)
    fork = (await client.post(f"/v1/conversations/{conversation}/fork", json={})).json()
    assert fork["turn_count"] == 10
    for one in (conversation, fork["id"]):
        found = (await client.get(f"/v1/conversations/{one}/verify")).json()
        assert (found["valid"], found["verified_content"]) == (True, 10)


async def test_a_large_turn_sent_again_is_answered_whole_and_another_body_refused(large: tuple[Client, str]) -> None:
    client, conversation = large
    turn = {"id": str(uuid.uuid4()), "role": "user", "content": "b" * LIMIT}
    first = await client.append(conversation, turn)
    assert await client.append(conversation, turn) == first
    path = f"/v1/conversations/{conversation}/turns"
    again = await client.post(path, json={"turns": [turn | {"content": "c"}]})
    problem(again, 409, "turn_id_conflict", "/turns/0/id")
