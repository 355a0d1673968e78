"""What models and tools produced is exported, restored and forked with all digits."""

import json
from random import Random
from typing import Any

import pytest

from app.formats.schemas import Format
from tests.api.test_exports import export, records
from tests.api.test_imports import file_of, imported
from tests.api.test_produced_values import BIG, HISTORIES, HUGE, INPUT
from tests.support.api import Client, Service
from tests.support.histories import history

CALL = {"role": "assistant", "tool_calls": [{"id": "t1", "name": "send", "arguments": INPUT}]}


async def appended(client: Client, turns: list[Any], shape: str) -> str:
    conversation = await client.conversation()
    body = {"turns": turns, "format": shape}
    response = await client.post(f"/v1/conversations/{conversation}/turns", json=body)
    assert response.status_code == 201, response.text
    return conversation


async def contexts(client: Client, conversation: str) -> dict[str, Any]:
    """The context in each format, exactly as it was sent."""
    return {one: (await client.context(conversation, 100_000, format=one))["messages"] for one in Format}


async def verified(client: Client, conversation: str, turns: int) -> None:
    answer = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
    assert (answer["valid"], answer["verified_content"]) == (True, turns)


async def test_an_export_with_large_integers_is_restored_exactly(
    service: Service, client: Client, other: Client
) -> None:
    stored = [await appended(client, HISTORIES[shape], shape) for shape in HISTORIES]
    stored += [await appended(client, history(source, Random(7), steps=25).messages, source) for source in Format]  # noqa: S311
    [first, *_] = await client.history(stored[1])
    revision = {"role": "assistant", "content": "b", "tool_calls": [{"id": "2", "name": "f", "arguments": {"n": HUGE}}]}
    revised = await client.post(f"/v1/conversations/{stored[1]}/turns/{first['id']}/revisions", json=revision)
    assert revised.status_code == 201, revised.text
    before = await export(client)
    assert str(HUGE).encode() in before
    result = await imported(service, other, before)
    assert result["problems"] == []
    assert result["conversations"]["restored"] == len(stored)
    assert await export(other) == before
    for conversation in stored:
        original = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
        await verified(other, conversation, original["verified_content"])
        assert await contexts(other, conversation) == await contexts(client, conversation)


async def test_new_ids_leave_large_integers_as_they_are(service: Service, client: Client, other: Client) -> None:
    conversation = await appended(client, HISTORIES["canonical"], "canonical")
    await other.conversation(id=conversation, title="another")
    result = await imported(service, other, await export(client))
    [mapped] = result["mapping"]
    await verified(other, mapped["stored_id"], len(HISTORIES["canonical"]))
    turns = [await one.history(of) for one, of in ((client, conversation), (other, mapped["stored_id"]))]
    assert [turn["tool_calls"] for turn in turns[1]] == [turn["tool_calls"] for turn in turns[0]]
    assert [turn["content"] for turn in turns[1]] == [turn["content"] for turn in turns[0]]


@pytest.mark.parametrize(
    "changed",
    [
        {"metadata": {"n": BIG}}, {"usage": {"n": BIG}}, {"content": "a\0"}, {"role": "user", "content": [{"n": BIG}]},
        {"tool_calls": [{"id": "1", "name": "f", "arguments": {"a\0": "b"}}]},
    ],
)  # fmt: skip
async def test_an_import_refuses_what_no_append_stores(
    service: Service, client: Client, other: Client, changed: dict[str, Any]
) -> None:
    await appended(client, [CALL], "canonical")
    lines = [one | changed if one["type"] == "turn" else one for one in records(await export(client))]
    result = await imported(service, other, file_of(lines))
    assert result["conversations"]["refused"] == 1
    assert (await other.get("/v1/conversations")).json()["data"] == []


@pytest.mark.parametrize("shape", HISTORIES)
async def test_a_fork_has_large_integers_as_they_are(client: Client, shape: str) -> None:
    conversation = await appended(client, HISTORIES[shape], shape)
    fork = (await client.post(f"/v1/conversations/{conversation}/fork", json={})).json()["id"]
    await verified(client, fork, len(HISTORIES[shape]))

    async def of(one: str) -> str:
        shown = await contexts(client, one)
        return json.dumps([[m | {"id": 0, "occurred_at": 0} for m in messages] for messages in shown.values()])

    assert await of(fork) == await of(conversation)
    assert json.dumps(BIG) in await of(fork)
