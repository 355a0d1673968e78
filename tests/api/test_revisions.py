"""Revisions: a turn takes another's place, and what stood there stays as it was."""

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.support.api import Client, problem

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
CALL = {"role": "assistant", "tool_calls": [{"id": "c1", "name": "weather", "arguments": "{}"}]}


async def revise(client: Client, conversation: str, turn: str, **body: Any) -> httpx.Response:
    return await client.post(f"/v1/conversations/{conversation}/turns/{turn}/revisions", json=body)


async def revised(client: Client, conversation: str, turn: str, **body: Any) -> dict[str, Any]:
    answer = await revise(client, conversation, turn, **body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def head_of(client: Client, conversation: str) -> dict[str, Any]:
    return (await client.get(f"/v1/conversations/{conversation}")).json()


async def valid(client: Client, conversation: str) -> bool:
    return (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"]


async def started(client: Client, *texts: str) -> tuple[str, list[str]]:
    conversation = await client.conversation()
    return conversation, [turn["id"] for turn in (await client.append(conversation, *texts))["turns"]]


async def test_a_revision_takes_the_place_of_the_old_turn_which_stays_as_it_was(client: Client) -> None:
    conversation, ids = await started(client, "one", "two", "three")
    before = (await client.get(f"/v1/conversations/{conversation}/turns/{ids[1]}")).json()
    result = await revised(client, conversation, ids[1], content="zwei")
    new = result["turn"]
    assert (new["seq"], new["position"], new["supersedes"], new["role"]) == (4, 2, ids[1], "user")
    assert (result["superseded_count"], result["seq"], result["rev"]) == (1, 4, 2)
    assert [turn["content"] for turn in await client.history(conversation)] == ["one", "zwei", "three"]
    after = (await client.get(f"/v1/conversations/{conversation}/turns/{ids[1]}")).json()
    assert after == before | {"superseded_by": new["id"], "rev": 2}
    head = await head_of(client, conversation)
    assert (head["last_seq"], head["turn_count"], head["rev"]) == (4, 3, 2)
    assert head["head_hash"] == new["chain_hash"] == result["head_hash"]
    assert head["token_count"] == sum(turn["content_tokens"] for turn in await client.history(conversation))
    assert await valid(client, conversation)


async def test_recall_and_context_see_the_new_turn_alone_and_at_once(client: Client) -> None:
    conversation, ids = await started(client, "the parrot is green", "unrelated words about tea")
    new = (await revised(client, conversation, ids[0], content="the parrot is blue"))["turn"]
    for mode in ("text", "vector", "hybrid"):
        for scope in (conversation, None):
            hits = await client.recall(scope, "which colour has the parrot", mode=mode)
            assert ids[0] not in [hit["id"] for hit in hits]
            assert hits[0]["id"] == new["id"]
    context = await client.context(conversation, 1000, semantic_recall={"k": 5})
    assert context["included"]["turn_ids"] == [new["id"], ids[1]]


async def test_truncate_after_supersedes_all_that_follows_and_appends_go_on(client: Client) -> None:
    conversation, ids = await started(client, "one", "two", "three", "four")
    result = await revised(client, conversation, ids[1], content="zwei", truncate_after=True)
    assert result["superseded_count"] == 3
    new = result["turn"]["id"]
    versions = await client.history(conversation, include_superseded=True)
    assert [(turn["position"], turn["seq"], turn["superseded_by"]) for turn in versions] == [
        (1, 1, None), (2, 2, new), (2, 5, None), (3, 3, new), (4, 4, new),
    ]  # fmt: skip
    assert {turn["rev"] for turn in versions[1:]} == {2}
    more = await client.append(conversation, "drei")
    assert (more["turns"][0]["seq"], more["turns"][0]["position"]) == (6, 6)
    assert [turn["content"] for turn in await client.history(conversation)] == ["one", "zwei", "drei"]
    head = await head_of(client, conversation)
    assert (head["last_seq"], head["turn_count"], head["rev"]) == (6, 3, 3)
    assert await valid(client, conversation)


async def test_neighbours_are_the_next_live_turns_across_the_gap_of_a_truncation(client: Client) -> None:
    conversation, ids = await started(client, "alpha", "the zebra sleeps", "beta", "gamma")
    new = (await revised(client, conversation, ids[1], content="the zebra wakes", truncate_after=True))["turn"]
    later = (await client.append(conversation, "delta", "epsilon"))["turns"]
    [hit] = await client.recall(conversation, "zebra wakes", mode="text", k=1, neighbours=2)
    assert hit["id"] == new["id"]
    assert [turn["id"] for turn in hit["neighbours"]] == [ids[0], later[0]["id"], later[1]["id"]]


async def test_what_stands_behind_the_gap_is_lifted_as_the_turn_beside(client: Client) -> None:
    conversation, ids = await started(client, "alpha", "tea", "beta", "gamma")
    await revised(client, conversation, ids[1], content="where does the zebra sleep?", truncate_after=True)
    await client.append(conversation, {"role": "assistant", "content": "under the old oak"})
    hits = await client.recall(conversation, "where does the zebra sleep", explain=True)
    answer = next(hit for hit in hits if hit["text"] == "under the old oak")
    assert answer["explain"]["terms"]["neighbour"] > 0


async def test_a_revision_stays_in_the_session_of_the_old_turn(client: Client) -> None:
    conversation = await client.conversation()
    old = {"role": "user", "content": "long ago", "occurred_at": "2020-01-01T00:00:00Z"}
    first = (await client.append(conversation, old, old | {"content": "also long ago"}))["turns"]
    await client.append(conversation, "today")
    await revised(client, conversation, first[1]["id"], content="also long ago, said better")
    hits = await client.recall(conversation, "long ago", explain=True)
    bonuses = {hit["text"]: hit["explain"]["terms"]["neighbour"] for hit in hits}
    assert bonuses["long ago"] > 0
    assert bonuses["today"] == 0


async def test_what_is_left_out_is_the_old_turns(client: Client) -> None:
    conversation = await client.conversation()
    turns = await client.append(
        conversation,
        {"role": "user", "actor": "ann", "content": "hi"},
        CALL,
        {"role": "user", "kind": "system_instruction", "content": "x"},
    )
    ids = [turn["id"] for turn in turns["turns"]]
    seen = [
        (await revised(client, conversation, ids[0], content="hello"))["turn"],
        (await revised(client, conversation, ids[1], content="no tool needed"))["turn"],
        (await revised(client, conversation, ids[2], content="y"))["turn"],
    ]
    assert [(turn["role"], turn["kind"], turn["actor"]) for turn in seen] == [
        ("user", "user_message", "ann"),
        ("assistant", "agent_message", "assistant"),
        ("user", "system_instruction", "user"),
    ]
    other = (await revised(client, conversation, seen[0]["id"], role="assistant", content="hello"))["turn"]
    assert (other["role"], other["kind"], other["actor"]) == ("assistant", "agent_message", "assistant")


async def test_an_old_version_cannot_be_revised_and_the_refusal_names_the_one_that_stands(client: Client) -> None:
    conversation, ids = await started(client, "one")
    new = (await revised(client, conversation, ids[0], content="eins"))["turn"]
    refused = problem(await revise(client, conversation, ids[0], content="uno"), 409, "already_superseded")
    assert refused["superseded_by"] == new["id"]
    assert [turn["content"] for turn in await client.history(conversation)] == ["eins"]


async def test_a_revision_sent_again_by_id_or_key_is_stored_once(client: Client) -> None:
    conversation, ids = await started(client, "one", "two", "three")
    body = {"id": ULID, "content": "zwei", "truncate_after": True, "expected_seq": 3}
    first = await revise(client, conversation, ids[1], **body)
    again = await revise(client, conversation, ids[1], **body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    problem(await revise(client, conversation, ids[1], **body | {"content": "other"}), 409, "turn_id_conflict", "/id")
    path = f"/v1/conversations/{conversation}/turns"
    # the same body as an append is another turn
    append = {"turns": [{"id": ULID, "role": "user", "content": "zwei"}]}
    problem(await client.post(path, json=append), 409, "turn_id_conflict", "/turns/0/id")
    headers = {"Idempotency-Key": "k"}
    keyed = [
        await client.post(f"{path}/{ids[0]}/revisions", json={"content": "eins"}, headers=headers) for _ in range(2)
    ]
    assert [answer.status_code for answer in keyed] == [201, 201]
    assert keyed[0].json() == keyed[1].json()
    assert keyed[1].headers["Idempotent-Replayed"] == "true"
    assert [turn["content"] for turn in await client.history(conversation)] == ["eins", "zwei"]


async def test_expected_seq_refuses_a_revision_of_what_moved_on(client: Client) -> None:
    conversation, ids = await started(client, "one")
    await client.append(conversation, "two")
    refused = problem(
        await revise(client, conversation, ids[0], content="x", expected_seq=1), 409, "conversation_advanced"
    )
    assert refused["seq"] == 2


async def test_a_result_may_take_a_place_only_behind_its_call(client: Client) -> None:
    conversation = await client.conversation()
    turns = await client.append(
        conversation, "before", CALL, {"role": "tool", "tool_call_id": "c1", "content": "rain"}, "after"
    )
    before, call, result, _ = [turn["id"] for turn in turns["turns"]]
    again = await revised(client, conversation, result, tool_call_id="c1", content="sun")
    assert again["turn"]["role"] == "tool"
    problem(
        await revise(client, conversation, before, role="tool", tool_call_id="c1", content="x"),
        422,
        "tool_call_unknown",
        "/tool_call_id",
    )
    problem(await revise(client, conversation, again["turn"]["id"], content="x"), 422, "invalid_request")
    # without its call the result is stored still, and no context shows it
    await revised(client, conversation, call, content="I cannot look that up")
    context = await client.context(conversation, 1000)
    assert again["turn"]["id"] not in context["included"]["turn_ids"]
    late = {"turns": [{"role": "tool", "tool_call_id": "c1", "content": "late"}]}
    problem(await client.post(f"/v1/conversations/{conversation}/turns", json=late), 422, "tool_call_unknown")


async def test_versions_are_paged_in_both_orders_without_loss(client: Client) -> None:
    conversation, ids = await started(client, *[f"turn {n}" for n in range(7)])
    for index in (1, 4):
        turn = ids[index]
        for number in range(3):
            turn = (await revised(client, conversation, turn, content=f"{index} version {number}"))["turn"]["id"]
    await revised(client, conversation, ids[5], content="cut", truncate_after=True)
    whole = await client.history(conversation, include_superseded=True)
    assert len(whole) == 14
    keys = [(turn["position"], turn["seq"]) for turn in whole]
    assert keys == sorted(keys)
    for order, expected in (("asc", whole), ("desc", whole[::-1])):
        assert await client.history(conversation, include_superseded=True, order=order, limit=2) == expected
    live = [turn for turn in whole if turn["superseded_by"] is None]
    assert await client.history(conversation, limit=2) == live
    assert await client.history(conversation, include_summaries=True) == live
    bounded = await client.history(conversation, include_superseded=True, after=1, before=3, limit=1)
    assert {turn["position"] for turn in bounded} == {2}
    assert len(bounded) == 4
    path = f"/v1/conversations/{conversation}/turns"
    cursor = (await client.get(path, params={"limit": 1})).json()["next_cursor"]
    params = {"limit": 1, "cursor": cursor, "include_superseded": True}
    problem(await client.get(path, params=params), 422, "cursor_invalid", "/cursor")


async def test_of_concurrent_revisions_of_one_turn_one_wins(client: Client) -> None:
    conversation, ids = await started(client, "one", "two")
    answers = await asyncio.gather(*(revise(client, conversation, ids[0], content=f"{n}") for n in range(8)))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 409: 7}
    won = next(answer for answer in answers if answer.status_code == 201).json()["turn"]
    for answer in answers:
        if answer.status_code == 409:
            assert problem(answer, 409, "already_superseded")["superseded_by"] == won["id"]
    head = await head_of(client, conversation)
    assert (head["last_seq"], head["turn_count"], head["rev"]) == (3, 2, 2)
    assert await valid(client, conversation)


@pytest.mark.parametrize("more", [{}, {"truncate_after": True}], ids=["alone", "truncating"])
async def test_a_revision_racing_appends_erases_and_deletes_leaves_a_whole_conversation(
    client: Client, more: dict[str, Any]
) -> None:
    for round_ in range(4):
        conversation, ids = await started(client, "one", "two", "three")
        path = f"/v1/conversations/{conversation}"
        await asyncio.gather(
            revise(client, conversation, ids[1], content="zwei", **more),
            client.post(f"{path}/turns", json={"turns": [{"role": "user", "content": "four"}]}),
            client.delete(f"{path}/turns/{ids[1]}"),
            client.delete(f"{path}/turns", params={"ids": [ids[0], ids[2]]}),
            *([client.delete(path)] if round_ % 2 else []),
        )
        if round_ % 2:
            problem(await client.get(path), 404, "not_found")
            continue
        head, live = await head_of(client, conversation), await client.history(conversation)
        assert (head["last_seq"], head["turn_count"], head["rev"]) == (5, len(live), 5)
        assert head["token_count"] == sum(turn["content_tokens"] for turn in live)
        assert await valid(client, conversation)


async def test_a_turn_that_is_not_there_cannot_be_revised(client: Client) -> None:
    conversation, ids = await started(client, "one")
    elsewhere = await client.conversation()
    for where, turn in ((conversation, ULID), (elsewhere, ids[0]), (ULID, ids[0])):
        problem(await revise(client, where, turn, content="x"), 404, "not_found")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/content"),
        ({"content": "x", "tool_calls": [{"id": "c", "name": "f"}]}, "/tool_calls"),
        ({"content": "x", "role": "robot"}, "/role"),
        ({"content": "x", "truncate_after": "yes"}, "/truncate_after"),
        ({"content": "x", "expected_seq": -1}, "/expected_seq"),
        ({"content": "x", "occurred_at": "2999-01-01T00:00:00Z"}, "/occurred_at"),
        ({"content": "x", "id": "nonsense"}, "/id"),
    ],
)
async def test_a_revision_that_breaks_a_rule_is_refused_and_named(
    client: Client, body: dict[str, Any], pointer: str
) -> None:
    conversation, ids = await started(client, "one")
    problem(await revise(client, conversation, ids[0], **body), 422, "invalid_request", pointer)
    assert (await head_of(client, conversation))["last_seq"] == 1
