"""The hash chain holds, and the first place where it does not is named."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from app.core.ids import parse_id
from tests.support.api import Client, Service, problem
from tests.support.postgres import earlier

Change = Callable[..., Awaitable[None]]


@pytest.fixture
def change(service: Service, client: Client) -> Change:
    """Changes rows behind the service's back."""

    async def run(statement: str, *args: object) -> None:
        connection = await asyncpg.connect(service.database.superuser)
        try:
            done = await connection.execute(f"{statement} and tenant_id = '{client.tenant_id}'", *args)
            assert not done.endswith(" 0"), "nothing was changed"
        finally:
            await connection.close()

    return run


async def verify(client: Client, conversation: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/conversations/{conversation}/verify")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_empty_and_a_rich_conversation_verify(client: Client) -> None:
    conversation = await client.conversation()
    empty = await verify(client, conversation)
    assert empty == {
        "conversation_id": conversation, "valid": True, "turns": 0, "verified_content": 0, "erased": 0,
        "head_hash": "0" * 64, "first_break": None,
    }  # fmt: skip
    calls = [{"id": "c", "name": "f", "arguments": {"x": [1.10, 1e20, -0.0, None, "žluť 🐎"]}}]
    await client.append(
        conversation,
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "x", "n": 0.1}], "metadata": {"é": 1}},
        {"role": "assistant", "tool_calls": calls, "usage": {"a": 1}, "model": "m", "adapter": "a"},
        {"role": "tool", "tool_results": [{"tool_call_id": "c", "content": "ok"}]},
        {"role": "user", "content": "then", "occurred_at": "2020-01-01T00:00:00.123Z"},
    )
    found = await verify(client, conversation)
    assert (found["valid"], found["turns"], found["verified_content"]) == (True, 4, 4)
    head = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert found["head_hash"] == head["head_hash"]


async def test_a_walk_of_many_batches_counts_every_turn(client: Client) -> None:
    conversation = await client.conversation()
    for _ in range(3):
        await client.append(conversation, *[f"turn {n}" for n in range(400)])
    found = await verify(client, conversation)
    assert (found["valid"], found["turns"], found["verified_content"]) == (True, 1200, 1200)


A_DAY = "interval '1 day'"
BREAKS = {
    "content": ("update turns set content = '\"forged\"' where seq = 2", 2, "content_hash"),
    "actor": ("update turns set actor = 'forged' where seq = 2", 2, "content_hash"),
    "time": ("update turns set occurred_at = '2001-01-01' where seq = 2", 2, "content_hash"),
    "salt": ("update turns set salt = null where seq = 2", 2, "content_hash"),
    "forged with its hash": (
        "update turns set salt = ''::bytea, content_hash = sha256('x') where seq = 2", 2, "content_hash",
    ),
    "role of a tombstone": ("update turns set role = 'user', erased_at = now() where seq = 3", 3, "chain_hash"),
    "created_at": (
        f"update turns set created_at = {earlier('created_at', A_DAY)}, erased_at = now() where seq = 2",  # noqa: S608
        2, "chain_hash",
    ),
    "chain": ("update turns set chain_hash = sha256('x') where seq = 2", 2, "chain_hash"),
    "a turn is gone": ("delete from turns where seq = 2", 2, "missing"),
    "the last is gone": ("delete from turns where seq = 4", 4, "missing"),
    "head": ("update conversation_heads set chain_hash = sha256('x') where last_seq = 4", 4, "head"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
async def test_the_first_break_is_named(client: Client, change: Change, name: str) -> None:
    conversation = await client.conversation()
    turns = (await client.append(conversation, "one", "two", {"role": "assistant", "content": "three"}, "four"))[
        "turns"
    ]
    statement, seq, what = BREAKS[name]
    await change(statement)
    found = await verify(client, conversation)
    turn_id = None if what in {"missing", "head"} else turns[seq - 1]["id"]
    assert found["first_break"] == {"turn_id": turn_id, "seq": seq, "what": what}
    assert found["valid"] is False
    assert found["turns"] == (4 if what == "head" else seq - 1)


async def test_a_chain_can_be_checked_by_any_reader_of_the_turns(client: Client) -> None:
    conversation = await client.conversation()
    first = (await client.append(conversation, "one"))["turns"][0]
    path = f"/v1/conversations/{conversation}/turns"
    await client.post(f"{path}/{first['id']}/revisions", json={"content": "eins"})
    await client.delete(f"{path}/{first['id']}")
    chain = bytes(32)
    for turn in sorted(await client.history(conversation, include_superseded=True), key=lambda turn: turn["seq"]):
        lines = [turn["id"], str(turn["seq"]), turn["role"], turn["kind"], turn["created_at"], turn["content_hash"]]
        chain = hashlib.sha256(chain + "\n".join(lines).encode()).digest()
        assert chain.hex() == turn["chain_hash"]


async def test_the_hash_of_a_revision_covers_what_it_supersedes(client: Client, change: Change) -> None:
    conversation = await client.conversation()
    turns = (await client.append(conversation, "one", "two"))["turns"]
    path = f"/v1/conversations/{conversation}/turns/{turns[0]['id']}/revisions"
    await client.post(path, json={"content": "eins"})
    await change("update turns set supersedes = $1 where seq = 3", parse_id(turns[1]["id"]))
    assert (await verify(client, conversation))["first_break"]["what"] == "content_hash"


async def test_a_conversation_that_is_not_there_is_not_found(client: Client) -> None:
    problem(await client.get("/v1/conversations/01ARZ3NDEKTSV4RRFFQ69G5FAV/verify"), 404, "not_found")
