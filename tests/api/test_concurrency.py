"""Requests at the same moment: nothing is lost, doubled, or left behind."""

import asyncio
from collections import Counter
from typing import Any

import asyncpg
import httpx
import pytest

from tests.support.api import Client, Service, problem

TOGETHER = 20


async def post_together(client: Client, path: str, bodies: list[dict[str, Any]], **more: Any) -> list[httpx.Response]:
    return await asyncio.gather(*(client.post(path, json=body, **more) for body in bodies))


def said(*texts: str) -> dict[str, Any]:
    return {"turns": [{"role": "user", "content": text} for text in texts]}


def busy(response: httpx.Response) -> None:
    """Fail unless the response says that the very same request may be sent again, and when."""
    body = problem(response, 409, "resource_busy")
    assert body["retryable"] is True
    assert int(response.headers["Retry-After"]) >= 1


async def test_concurrent_appends_get_gapless_seqs_and_one_unbroken_chain(client: Client) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}/turns"
    answers = await post_together(client, path, [said(f"{n} a", f"{n} b") for n in range(TOGETHER)])
    assert {answer.status_code for answer in answers} == {201}
    for number, answer in enumerate(answers):
        first, second = answer.json()["turns"]
        assert [first["content"], second["content"]] == [f"{number} a", f"{number} b"]
        assert second["seq"] == first["seq"] + 1
        assert answer.json()["seq"] == second["seq"]
        assert answer.json()["head_hash"] == second["chain_hash"]
    turns = await client.history(conversation)
    assert [turn["seq"] for turn in turns] == list(range(1, 2 * TOGETHER + 1))
    assert [turn["position"] for turn in turns] == list(range(1, 2 * TOGETHER + 1))
    assert len({turn["id"] for turn in turns}) == 2 * TOGETHER
    assert [turn["created_at"] for turn in turns] == sorted(turn["created_at"] for turn in turns)
    head = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert (head["last_seq"], head["turn_count"], head["rev"]) == (2 * TOGETHER, 2 * TOGETHER, TOGETHER)
    assert head["head_hash"] == turns[-1]["chain_hash"]
    assert head["token_count"] == sum(turn["content_tokens"] for turn in turns)


async def test_concurrent_appends_to_different_conversations_all_hold(client: Client) -> None:
    conversations = [await client.conversation() for _ in range(5)]
    await asyncio.gather(*(client.append(conversations[n % 5], f"turn {n}") for n in range(TOGETHER)))
    for conversation in conversations:
        assert [turn["seq"] for turn in await client.history(conversation)] == [1, 2, 3, 4]


async def test_concurrent_appends_of_one_turn_id_store_it_once(client: Client) -> None:
    conversation = await client.conversation()
    body = {"turns": [{"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "role": "user", "content": "once"}]}
    path = f"/v1/conversations/{conversation}/turns"
    answers = await post_together(client, path, [body] * TOGETHER)
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: TOGETHER - 1}
    assert len({answer.text for answer in answers}) == 1
    assert [turn["content"] for turn in await client.history(conversation)] == ["once"]


async def test_concurrent_appends_of_one_turn_id_with_other_bodies_store_one_of_them(client: Client) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}/turns"
    turn_id = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    bodies = [{"turns": [{"id": turn_id, "role": "user", "content": f"body {n}"}]} for n in range(10)]
    answers = await post_together(client, path, bodies)
    won = [number for number, answer in enumerate(answers) if answer.status_code == 201]
    assert len(won) == 1
    for number, answer in enumerate(answers):
        if number not in won:
            problem(answer, 409, "turn_id_conflict", "/turns/0/id")
    assert [turn["content"] for turn in await client.history(conversation)] == [f"body {won[0]}"]


async def test_one_turn_id_sent_to_two_conversations_at_once_lands_in_one(client: Client) -> None:
    for round_ in range(5):
        pair = [await client.conversation(), await client.conversation()]
        body = {"turns": [{"id": f"01ARZ3NDEKTSV4RRFFQ69G5FA{round_}", "role": "user", "content": "x"}]}
        answers = await asyncio.gather(*(client.post(f"/v1/conversations/{c}/turns", json=body) for c in pair))
        assert sorted(answer.status_code for answer in answers) == [201, 409]
        lost = next(answer for answer in answers if answer.status_code == 409)
        assert not problem(lost, 409, "turn_id_conflict", "/turns/0/id")["retryable"]
        assert sum([len(await client.history(conversation)) for conversation in pair]) == 1


@pytest.mark.parametrize("what", ["append", "create"])
async def test_concurrent_requests_with_one_idempotency_key_take_effect_once(client: Client, what: str) -> None:
    conversation = await client.conversation()
    if what == "append":
        path, body = f"/v1/conversations/{conversation}/turns", said("one", "two")
    else:
        path, body = "/v1/conversations", {"title": "once"}
    headers = {"Idempotency-Key": "the key"}
    answers = await post_together(client, path, [body] * TOGETHER, headers=headers)
    done = [answer for answer in answers if answer.status_code == 201]
    assert len([answer for answer in done if "Idempotent-Replayed" not in answer.headers]) == 1
    assert len({answer.text for answer in done}) == 1
    for answer in answers:
        if answer.status_code != 201:
            busy(answer)
    again = await client.post(path, json=body, headers=headers)
    assert (again.status_code, again.text) == (201, done[0].text)
    assert again.headers["Idempotent-Replayed"] == "true"
    if what == "append":
        assert [turn["content"] for turn in await client.history(conversation)] == ["one", "two"]
    else:
        assert len((await client.get("/v1/conversations")).json()["data"]) == 2


async def test_concurrent_get_or_create_of_one_external_id_makes_one_conversation(client: Client) -> None:
    bodies = [{"external_id": "shared", "title": str(number)} for number in range(TOGETHER)]
    answers = await post_together(client, "/v1/conversations", bodies)
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: TOGETHER - 1}
    assert len({answer.text for answer in answers}) == 1
    assert len((await client.get("/v1/conversations")).json()["data"]) == 1


async def test_concurrent_get_or_create_of_one_id_makes_one_conversation(client: Client) -> None:
    body = {"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
    answers = await post_together(client, "/v1/conversations", [body] * TOGETHER)
    assert Counter(answer.status_code for answer in answers) == {201: 1, 200: TOGETHER - 1}
    assert len((await client.get("/v1/conversations")).json()["data"]) == 1


async def test_of_concurrent_appends_that_expect_one_seq_exactly_one_wins(client: Client) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}/turns"
    for expected in range(3):
        bodies = [said(f"{expected} {n}") | {"expected_seq": expected} for n in range(10)]
        answers = await post_together(client, path, bodies)
        assert Counter(answer.status_code for answer in answers) == {201: 1, 409: 9}
        for answer in answers:
            if answer.status_code == 409:
                body = problem(answer, 409, "conversation_advanced", "/expected_seq")
                assert body["seq"] == expected + 1
    assert [turn["seq"] for turn in await client.history(conversation)] == [1, 2, 3]


async def test_concurrent_patches_keep_what_each_changed(client: Client) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}"
    changes = [{"title": "T"}, {"ttl_s": 60}, {"metadata": {"a": 1}}, {"facts": {"enabled": True}}]
    answers = await asyncio.gather(*(client.patch(path, json=change) for change in changes))
    assert {answer.status_code for answer in answers} == {200}
    now = (await client.get(path)).json()
    assert (now["title"], now["ttl_s"], now["metadata"], now["facts"]["enabled"]) == ("T", 60, {"a": 1}, True)


async def test_an_append_that_names_a_new_speaker_survives_a_concurrent_patch(client: Client) -> None:
    for _ in range(15):
        conversation = await client.conversation()
        path = f"/v1/conversations/{conversation}"
        turn = {"role": "user", "actor": "zoe", "content": "hello"}
        appended, patched = await asyncio.gather(
            client.post(f"{path}/turns", json={"turns": [turn]}), client.patch(path, json={"title": "T"})
        )
        assert (appended.status_code, patched.status_code) == (201, 200)
        now = (await client.get(path)).json()
        assert ([item["actor"] for item in now["participants"]], now["title"]) == (["zoe"], "T")


async def rows_left(service: Service, conversation: str) -> dict[str, int]:
    """How many rows of each table still belong to a conversation, seen as superuser."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        tables = await connection.fetch(
            """
            select c.relname as name, case c.relname when 'conversations' then 'id' else 'conversation_id' end as key
            from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
            where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace and c.relname not like 'audit_%'
              and (c.relname = 'conversations' or exists (
                  select from pg_attribute o where o.attrelid = c.oid and o.attname = 'conversation_id'))
            """
        )
        # vectors hang on index entries by a foreign key, and go with them
        assert {"conversations", "turns", "index_entries"} <= {table["name"] for table in tables}
        return {
            table["name"]: await connection.fetchval(
                f'select count(*) from "{table["name"]}" where "{table["key"]}" = $1::uuid',  # noqa: S608
                conversation,
            )
            for table in tables
        }
    finally:
        await connection.close()


async def test_an_append_racing_a_delete_leaves_nothing_behind(client: Client, service: Service) -> None:
    outcomes: Counter[int] = Counter()
    for round_ in range(12):
        conversation = f"01563e3a-b5d3-d676-4c61-{round_:012x}"
        await client.conversation(id=conversation)
        await client.append(conversation, "before")
        path = f"/v1/conversations/{conversation}"

        async def delete_later(path: str = path, wait_s: float = round_ * 0.002) -> httpx.Response:
            await asyncio.sleep(wait_s)
            return await client.delete(path)

        deleted, *appended = await asyncio.gather(
            delete_later(), *(client.post(f"{path}/turns", json=said(f"zebra {n}")) for n in range(4))
        )
        assert deleted.status_code == 204, deleted.text
        for answer in appended:
            outcomes[answer.status_code] += 1
            if answer.status_code != 201:
                problem(answer, 404, "not_found")
        problem(await client.get(path), 404, "not_found")
        assert set((await rows_left(service, conversation)).values()) == {0}
    assert set(outcomes) <= {201, 404}
    assert await client.recall(None, "zebra") == []


async def test_of_concurrent_deletes_one_deletes_and_the_others_find_nothing(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "one", "two")
    answers = await asyncio.gather(*(client.delete(f"/v1/conversations/{conversation}") for _ in range(10)))
    assert Counter(answer.status_code for answer in answers) == {204: 1, 404: 9}
    assert (await client.get("/v1/conversations")).json()["data"] == []


async def test_a_get_or_create_racing_a_delete_gives_a_conversation_or_says_busy(client: Client) -> None:
    for round_ in range(10):
        conversation = await client.conversation(external_id=f"race {round_}")
        deleted, made = await asyncio.gather(
            client.delete(f"/v1/conversations/{conversation}"),
            client.post("/v1/conversations", json={"external_id": f"race {round_}"}),
        )
        assert deleted.status_code == 204
        if made.status_code == 409:
            busy(made)
        else:
            assert made.status_code in {200, 201}, made.text
            assert (made.status_code == 200) == (made.json()["id"] == conversation)


async def test_recall_and_context_during_appends_and_deletes_answer_whole(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *(f"the zebra number {n}" for n in range(10)))
    path = f"/v1/conversations/{conversation}"
    work = [
        request
        for n in range(8)
        for request in (
            client.post(f"{path}/turns", json=said(f"another zebra {n}")),
            client.post("/v1/recall", json={"query": "zebra", "neighbours": 1}),
            client.post(f"{path}/recall", json={"query": "zebra"}),
            client.post(f"{path}/context", json={"token_budget": 2000, "semantic_recall": {"k": 5}}),
        )
    ]
    answers = await asyncio.gather(*work, client.delete(path))
    assert {answer.status_code for answer in answers} <= {200, 201, 204, 404}
    for answer in answers:
        if answer.status_code == 404:
            problem(answer, 404, "not_found")
