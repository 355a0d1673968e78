"""Turns: append, retry, history."""

import hashlib
import json
from typing import Any

import asyncpg
import rfc8785

from tests.support.api import Client, Service, problem
from tests.support.postgres import earlier

TWO_MINUTES = "interval '2 minutes'"

CALL = {"role": "assistant", "tool_calls": [{"id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}]}


async def test_an_append_gives_gapless_seq_and_the_head_hash(client: Client) -> None:
    conversation = await client.conversation()
    first = await client.append(conversation, "one", "two")
    second = await client.append(conversation, {"role": "assistant", "content": "three"})
    assert [turn["seq"] for turn in first["turns"] + second["turns"]] == [1, 2, 3]
    assert [turn["position"] for turn in first["turns"]] == [1, 2]
    assert (first["seq"], second["seq"]) == (2, 3)
    assert (first["rev"], second["rev"]) == (1, 2)
    head = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert head["head_hash"] == second["head_hash"] == second["turns"][0]["chain_hash"]
    assert (head["last_seq"], head["turn_count"], head["rev"]) == (3, 3, 2)
    assert head["token_count"] == sum(turn["content_tokens"] for turn in await client.history(conversation))


async def test_defaults_follow_the_role(client: Client) -> None:
    conversation = await client.conversation()
    result = await client.append(
        conversation,
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        CALL,
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "system", "content": "be kind"},
    )
    assert [(turn["kind"], turn["actor"]) for turn in result["turns"]] == [
        ("user_message", "user"),
        ("agent_message", "assistant"),
        ("tool_call_request", "assistant"),
        ("tool_result", "tool"),
        ("system_instruction", "system"),
    ]
    assert [turn["index_state"] for turn in result["turns"]] == ["indexed"] * 4 + ["none"]
    assert all(turn["occurred_at"] == turn["created_at"] == turn["committed_at"] for turn in result["turns"])


async def test_structured_content_tool_calls_and_results_come_back_exactly(client: Client) -> None:
    conversation = await client.conversation()
    parts = [{"type": "text", "text": "Look:"}, {"z": 1, "type": "x_special", "a": {"n": 1.10, "u": "žluť 🐎"}}]
    turn = {
        "role": "assistant",
        "actor": "helper",
        "content": parts,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":  1.0}'}},
            {"id": "b", "name": "g", "arguments": {"z": 1, "a": [1, 2.50, None]}},
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "details": {"cached": 4}},
        "model": "m-1",
        "adapter": "openai",
        "metadata": {"b": 1, "a": {"c": []}},
        "occurred_at": "2023-05-07T13:56:00.5+02:00",
    }
    results = [
        {"tool_call_id": "a", "content": "ok", "extra": 1},
        {"tool_call_id": "b", "content": [{"type": "text", "text": "fine"}], "is_error": True},
    ]
    await client.append(conversation, turn, {"role": "tool", "tool_results": results})
    stored = await client.history(conversation)
    for name in ("content", "tool_calls", "usage", "model", "adapter", "metadata", "actor"):
        assert json.dumps(stored[0][name]) == json.dumps(turn[name]), name
    assert stored[0]["occurred_at"] == "2023-05-07T11:56:00.500Z"
    assert json.dumps(stored[1]["tool_results"]) == json.dumps(results)
    one = await client.get(f"/v1/conversations/{conversation}/turns/{stored[0]['id']}")
    assert one.json() == stored[0]


async def test_a_repeated_turn_id_is_stored_once_and_another_body_conflicts(client: Client) -> None:
    conversation = await client.conversation()
    turn: dict[str, Any] = {"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "role": "user", "content": "hello"}
    path = f"/v1/conversations/{conversation}/turns"
    first = await client.post(path, json={"turns": [turn]})
    again = await client.post(path, json={"turns": [turn], "expected_seq": 0})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    mixed = await client.post(path, json={"turns": [turn, {"role": "user", "content": "more"}]})
    assert mixed.status_code == 201
    assert [item["seq"] for item in mixed.json()["turns"]] == [1, 2]
    problem(
        await client.post(path, json={"turns": [{"role": "user", "content": "x"}, turn | {"content": "other"}]}),
        409,
        "turn_id_conflict",
        "/turns/1/id",
    )
    problem(
        await client.post(path, json={"turns": [turn | {"occurred_at": "2020-01-01T00:00:00Z"}]}),
        409,
        "turn_id_conflict",
    )
    assert len(await client.history(conversation)) == 2


async def test_a_given_time_is_part_of_what_a_retry_must_repeat(client: Client) -> None:
    conversation = await client.conversation()
    turn = {"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "role": "user", "content": "x", "occurred_at": "2020-01-01T00:00:00Z"}
    path = f"/v1/conversations/{conversation}/turns"
    assert (await client.post(path, json={"turns": [turn]})).status_code == 201
    assert (await client.post(path, json={"turns": [turn]})).status_code == 200


async def test_expected_seq_refuses_when_the_conversation_moved_on(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "one", expected_seq=0)
    path = f"/v1/conversations/{conversation}/turns"
    body = {"turns": [{"role": "user", "content": "two"}], "expected_seq": 0}
    refused = problem(await client.post(path, json=body), 409, "conversation_advanced", "/expected_seq")
    assert refused["seq"] == 1
    await client.append(conversation, "two", expected_seq=refused["seq"])
    assert [turn["content"] for turn in await client.history(conversation)] == ["one", "two"]


async def test_idempotency_key_replays_the_first_answer(client: Client) -> None:
    conversation = await client.conversation()
    path, headers = f"/v1/conversations/{conversation}/turns", {"Idempotency-Key": "k-1"}
    body = {"turns": [{"role": "user", "content": "hello"}]}
    first = await client.post(path, json=body, headers=headers)
    await client.append(conversation, "another")
    again = await client.post(path, json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    other_body = {"turns": [{"role": "user", "content": "other"}]}
    problem(await client.post(path, json=other_body, headers=headers), 409, "idempotency_mismatch")
    elsewhere = await client.conversation()
    problem(
        await client.post(f"/v1/conversations/{elsewhere}/turns", json=body, headers=headers),
        409,
        "idempotency_mismatch",
    )
    assert len(await client.history(conversation)) == 2


async def test_a_refused_append_leaves_its_idempotency_key_free(client: Client) -> None:
    conversation = await client.conversation()
    path, headers = f"/v1/conversations/{conversation}/turns", {"Idempotency-Key": "k-1"}
    wrong = {"turns": [{"role": "tool", "tool_call_id": "c9", "content": "x"}]}
    problem(await client.post(path, json=wrong, headers=headers), 422, "tool_call_unknown")
    right = {"turns": [{"role": "user", "content": "x"}]}
    assert (await client.post(path, json=right, headers=headers)).status_code == 201


async def test_history_reads_both_ways_between_positions_and_by_actor(client: Client) -> None:
    conversation = await client.conversation()
    actors = ["ann", "bob"]
    turns = [{"role": "user", "actor": actors[n % 2], "content": str(n)} for n in range(1, 12)]
    await client.append(conversation, *turns)

    async def contents(**params: Any) -> list[str]:
        return [turn["content"] for turn in await client.history(conversation, **params)]

    everything = [str(n) for n in range(1, 12)]
    assert await contents() == everything
    assert await contents(limit=4) == everything
    assert await contents(limit=4, order="desc") == everything[::-1]
    assert await contents(after=3, before=7) == ["4", "5", "6"]
    assert await contents(after=3, before=9, limit=2, order="desc") == ["8", "7", "6", "5", "4"]
    assert await contents(actors=["ann"], limit=2) == everything[1::2]
    assert await contents(actors=["nobody"]) == []


async def test_actors_join_the_participants_once_and_tools_are_marked(client: Client) -> None:
    conversation = await client.conversation(participants=[{"actor": "ann", "name": "Ann B."}])
    await client.append(conversation, {"role": "user", "actor": "ann", "content": "x"}, CALL)
    await client.append(conversation, {"role": "tool", "actor": "weather", "tool_call_id": "c1", "content": "rain"})
    found = (await client.get(f"/v1/conversations/{conversation}")).json()["participants"]
    assert found == [
        {"actor": "ann", "name": "Ann B.", "aliases": []},
        {"actor": "assistant", "name": None, "aliases": []},
        {"actor": "weather", "name": None, "aliases": [], "role": "tool"},
    ]


async def test_a_tool_result_may_answer_a_call_of_an_earlier_append(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, CALL)
    await client.append(conversation, {"role": "tool", "tool_call_id": "c1", "content": "rain"})
    path = f"/v1/conversations/{conversation}/turns"
    answer = {
        "role": "tool",
        "tool_results": [{"tool_call_id": "c1", "content": ""}, {"tool_call_id": "c2", "content": ""}],
    }
    problem(
        await client.post(path, json={"turns": [answer]}),
        422,
        "tool_call_unknown",
        "/turns/0/tool_results/1/tool_call_id",
    )
    assert len(await client.history(conversation)) == 2


async def test_the_activity_of_a_conversation_is_exact_and_its_indexed_copy_is_written_once_a_minute(
    client: Client, service: Service
) -> None:
    connection = await asyncpg.connect(service.database.superuser)

    async def written() -> Any:
        return await connection.fetchval("select active_at from conversations where tenant_id = $1", client.tenant_id)

    conversation = await client.conversation()
    await client.append(conversation, "one")
    before, copy = (await client.get(f"/v1/conversations/{conversation}")).json(), await written()
    await client.append(conversation, "two")
    after = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert after["active_at"] > before["active_at"]
    assert after["updated_at"] > before["updated_at"]
    assert await written() == copy
    await connection.execute(
        f"update conversations set active_at = {earlier('active_at', TWO_MINUTES)} where tenant_id = $1",  # noqa: S608
        client.tenant_id,
    )
    await client.append(conversation, "three")
    assert await written() > copy
    await connection.close()


async def test_any_reader_can_recompute_the_chain(client: Client, service: Service) -> None:
    conversation = await client.conversation()
    await client.append(
        conversation, "one", {"role": "assistant", "content": [{"type": "text", "text": "zwei €"}]}, CALL
    )
    await client.append(
        conversation,
        {"role": "tool", "tool_call_id": "c1", "content": "rain", "metadata": {"n": 1.5, "e": 1e22}},
        {"role": "user", "content": "old", "occurred_at": "2020-02-02T02:02:02.123456Z", "usage": {"prompt_tokens": 1}},
    )
    connection = await asyncpg.connect(service.database.superuser)
    rows = await connection.fetch("select seq, salt from turns where tenant_id = $1", client.tenant_id)
    salts = {row["seq"]: row["salt"] for row in rows}
    await connection.close()
    assert len(set(salts.values())) == 5
    chain = bytes(32)
    for turn in await client.history(conversation):
        given = {name: turn[name] for name in ("role", "kind", "actor", "content", "tool_calls", "tool_call_id",
                                               "tool_results", "usage", "model", "adapter", "metadata")}  # fmt: skip
        form = {name: value for name, value in given.items() if value not in (None, [], {})}
        if turn["occurred_at"] != turn["created_at"]:
            form["occurred_at"] = turn["occurred_at"]
        content = hashlib.sha256(salts[turn["seq"]] + rfc8785.dumps(form)).hexdigest()
        lines = [turn["id"], str(turn["seq"]), turn["role"], turn["kind"], turn["created_at"], content]
        chain = hashlib.sha256(chain + "\n".join(lines).encode()).digest()
        assert (turn["content_hash"], turn["chain_hash"]) == (content, chain.hex())
    assert (await client.get(f"/v1/conversations/{conversation}")).json()["head_hash"] == chain.hex()


async def test_the_first_time_there_is_comes_back_as_it_was_sent(client: Client) -> None:
    conversation = await client.conversation()
    earliest = "0001-01-01T00:00:00.001Z"
    await client.append(conversation, {"role": "user", "content": "parrot", "occurred_at": earliest})
    assert [turn["occurred_at"] for turn in await client.history(conversation)] == [earliest]
    assert [hit["turn"]["occurred_at"] for hit in await client.recall(None, "parrot")] == [earliest]
