"""Lists of conversations: the one last written to first, pages while things move, previews of messages."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from app.conversations.previews import first_words
from tests.support.api import Client, Service

STATISTICS_TRIES = 120


@pytest.fixture
async def connection(service: Service) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    opened = await asyncpg.connect(service.database.superuser)
    yield opened
    await opened.close()


async def listed(client: Client, **params: Any) -> list[dict[str, Any]]:
    """One page of the list."""
    response = await client.get("/v1/conversations", params=params)
    assert response.status_code == 200, response.text
    return response.json()["data"]


async def walk(client: Client, **params: Any) -> AsyncIterator[list[dict[str, Any]]]:
    """The pages of the list, one at a time."""
    while True:
        response = await client.get("/v1/conversations", params=params)
        assert response.status_code == 200, response.text
        yield response.json()["data"]
        if (cursor := response.json()["next_cursor"]) is None:
            return
        params["cursor"] = cursor


async def test_the_conversation_just_written_to_is_first_in_every_list(client: Client) -> None:
    made = [await client.conversation(project="p", owner="ann", title=f"Chat {n}") for n in range(6)]
    chance = random.Random(1)  # noqa: S311 - repeatable, not secret
    for _ in range(12):
        one = chance.choice(made)
        await client.append(one, "hello")
        for params in ({}, {"project": "p"}, {"owner": "ann"}, {"limit": 1}):
            assert (await listed(client, **params))[0]["id"] == one, params
        found = await client.post("/v1/conversations/search", json={"title": "chat", "limit": 2})
        assert found.json()["data"][0]["id"] == one


async def test_a_revision_and_a_streamed_turn_move_a_conversation_up_as_an_append_does(client: Client) -> None:
    first, second = [await client.conversation() for _ in range(2)]
    [turn] = (await client.append(first, "one"))["turns"]
    await client.append(second, "two")
    await client.post(f"/v1/conversations/{first}/turns/{turn['id']}/revisions", json={"content": "one more"})
    assert (await listed(client))[0]["id"] == first
    path = f"/v1/conversations/{second}/turns"
    opened = (await client.post(f"{path}/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
    assert (await client.post(f"{path}/{opened}/commit", json={})).status_code == 200
    assert (await listed(client))[0]["id"] == second


CROWD = """
    insert into conversations (tenant_id, id, project, owner, compaction, facts, created_at, updated_at, active_at)
    select $1::uuid, gen_random_uuid(), 'p' || n % 2, 'o' || n % 3,
           '{"strategy": "rolling", "trigger_turns": 50, "trigger_tokens": 8000, "summarizer_model": null}',
           '{"enabled": false, "redact": true}', listed_at, listed_at, listed_at
    from (
        select n, date_trunc('milliseconds', now()) - make_interval(secs => (n % 7) * 20 + (n % 11)) as listed_at
        from generate_series(1, 120) n
    ) given
"""
CROWD_HEADS = """
    insert into conversation_heads (tenant_id, conversation_id, chain_hash, updated_at, active_at)
    select c.tenant_id, c.id, '\\x00', now(),
           case when random() < 0.8 then c.active_at + make_interval(secs => floor(random() * 60)) end
    from conversations c where c.tenant_id = $1
"""


@pytest.mark.parametrize("order", ["desc", "asc"])
@pytest.mark.parametrize("where", [{}, {"project": "p1"}, {"owner": "o2"}])
async def test_pages_are_in_the_order_of_the_exact_activity(
    client: Client, connection: "asyncpg.Connection[asyncpg.Record]", order: str, where: dict[str, str]
) -> None:
    for statement in (CROWD, CROWD_HEADS):
        await connection.execute(statement, client.tenant_id)
    for limit in (3, 50, 200):
        found = [one async for some in walk(client, order=order, limit=limit, **where) for one in some]
        keys = [(one["active_at"], one["id"]) for one in found]
        assert keys == sorted(keys, reverse=order == "desc")
        expected = await connection.fetchval(
            "select count(*) from conversations where tenant_id = $1 and ($2::text is null or project = $2)"
            " and ($3::text is null or owner = $3)",
            client.tenant_id, where.get("project"), where.get("owner"),
        )  # fmt: skip
        assert len({one["id"] for one in found}) == len(found) == expected


async def test_times_of_activity_narrow_a_search_exactly(
    client: Client, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    for statement in (CROWD, CROWD_HEADS):
        await connection.execute(statement, client.tenant_id)
    times = {one["id"]: one["active_at"] for one in await listed(client, limit=200)}
    moment = sorted(times.values())[60]
    for name, expected in (
        ("active_after", {one for one, at in times.items() if at > moment}),
        ("active_before", {one for one, at in times.items() if at < moment}),
    ):
        for order in ("asc", "desc"):
            body = {name: moment, "limit": 200, "order": order}
            found = (await client.post("/v1/conversations/search", json=body)).json()["data"]
            assert {one["id"] for one in found} == expected


async def test_what_does_not_move_is_seen_once_while_others_move(client: Client) -> None:
    made = [await client.conversation() for _ in range(30)]
    chance = random.Random(2)  # noqa: S311 - repeatable, not secret
    for _ in range(3):
        moved, seen = set[str](), list[str]()
        async for some in walk(client, limit=4):
            seen += [one["id"] for one in some]
            one = chance.choice(made)
            await client.append(one, "meanwhile")
            moved.add(one)
            assert (await listed(client, limit=1))[0]["id"] == one
        still = [one for one in seen if one not in moved]
        assert len(still) == len(set(still))
        assert set(still) == set(made) - moved


@pytest.mark.slow
async def test_heads_have_no_index_but_their_key_and_their_updates_stay_hot(
    client: Client, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    indexes = await connection.fetch("select indexname from pg_indexes where tablename = 'conversation_heads'")
    assert [row["indexname"] for row in indexes] == ["conversation_heads_pkey"]

    async def updates() -> tuple[int, int]:
        await connection.execute("select pg_stat_clear_snapshot()")
        row = await connection.fetchrow(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'conversation_heads'"
        )
        assert row is not None
        return row["n_tup_upd"], row["n_tup_hot_upd"]

    before = await updates()
    made = [await client.conversation() for _ in range(40)]
    for number in range(6):
        await asyncio.gather(*(client.append(one, f"turn {number}") for one in made))
    due = before[0] + 40 * 6
    after = await updates()
    for _ in range(STATISTICS_TRIES):  # a backend reports what it did at its next statement after a second
        if after[0] >= due:
            break
        await asyncio.sleep(0.5)
        await asyncio.gather(*(client.get(f"/v1/conversations/{one}") for one in made))
        after = await updates()
    assert after[0] >= due
    assert (after[1] - before[1]) / (after[0] - before[0]) >= 0.95


# previews


def said(message: dict[str, Any] | None) -> str | None:
    return None if message is None else message["text"]


async def preview(client: Client, conversation: str) -> tuple[str | None, str | None]:
    [found] = [one for one in await listed(client) if one["id"] == conversation]
    return said(found["first_message"]), said(found["last_message"])


async def test_a_list_has_the_first_and_the_last_message_of_each_conversation(client: Client) -> None:
    conversation = await client.conversation()
    assert await preview(client, conversation) == (None, None)
    turns = (
        await client.append(
            conversation,
            {"role": "system", "content": "Be brief."},
            {"role": "user", "actor": "ann", "content": "Where is\n\n the   parrot?"},
            {"role": "assistant", "tool_calls": [{"id": "c1", "name": "look", "arguments": {}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "in the tree"},
            {
                "role": "assistant",
                "content": [
                    {"type": "image", "url": "x"},
                    {"type": "text", "text": "In the"},
                    {"type": "text", "text": "tree."},
                ],
            },
            {"role": "assistant", "tool_calls": [{"id": "c2", "name": "look", "arguments": {}}]},
        )
    )["turns"]
    [found] = await listed(client)
    assert found["first_message"] == {
        "turn_id": turns[1]["id"], "role": "user", "actor": "ann", "text": "Where is the parrot?",
        "occurred_at": turns[1]["occurred_at"],
    }  # fmt: skip
    assert (found["last_message"]["turn_id"], found["last_message"]["text"]) == (turns[4]["id"], "In the tree.")
    searched = (await client.post("/v1/conversations/search", json={})).json()["data"]
    assert searched == [found]


async def test_a_preview_shows_what_is_live_and_not_erased(client: Client) -> None:
    conversation = await client.conversation()
    turns = (await client.append(conversation, "first", "middle", "last"))["turns"]
    path = f"/v1/conversations/{conversation}/turns"
    edited = (await client.post(f"{path}/{turns[0]['id']}/revisions", json={"content": "edited"})).json()["turn"]
    assert await preview(client, conversation) == ("edited", "last")
    await client.delete(f"{path}/{edited['id']}")
    assert await preview(client, conversation) == ("middle", "last")
    await client.delete(f"{path}/{turns[2]['id']}")
    assert await preview(client, conversation) == ("middle", "middle")
    await client.delete(f"{path}/{turns[1]['id']}")
    assert await preview(client, conversation) == (None, None)


async def test_a_preview_of_a_long_message_is_bounded(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "word " * 5000, "東京" * 400)
    first, last = await preview(client, conversation)
    assert first == ("word " * 40).rstrip() + "…"
    assert last == ("東京" * 400)[:199] + "…"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("a  b\n\tc", "a b c"),
        ("exactly ten", "exactly…"),
        ("ten chars!", "ten chars!"),
        ("a verylongwordindeed", "a verylon…"),
        ("abcdefghi jkl", "abcdefghi…"),
    ],
)
def test_first_words_end_at_a_word_where_there_is_one(text: str, expected: str) -> None:
    assert first_words(text, max_characters=10) == expected


async def test_the_messages_of_another_tenant_are_in_no_preview(client: Client, other: Client) -> None:
    shared = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    for one, text in ((client, "mine"), (other, "theirs")):
        await one.conversation(id=shared)
        await one.append(shared, text)
    assert await preview(client, shared) == ("mine", "mine")
    assert await preview(other, shared) == ("theirs", "theirs")
