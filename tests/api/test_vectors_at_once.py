"""How many vectors are made while callers wait for their appends; a job makes the others."""

import asyncio
from typing import Any

import pytest

from app.providers.schemas import Vectors
from tests.support.api import Client, Service

MOST = 32


async def states(client: Client, conversation: str) -> list[str]:
    return [turn["index_state"] for turn in await client.history(conversation)]


@pytest.mark.slow
async def test_of_long_texts_an_append_embeds_what_is_within_its_bound_and_a_job_the_rest(
    service: Service, client: Client
) -> None:
    conversation = await client.conversation()
    long = " ".join(f"word{number} of a long text" for number in range(4000))
    await client.append(conversation, f"badger {long}", f"wombat {long}", "The last one is short.")
    # the first one's pieces take up the bound; the others wait, and are found by their words
    assert await states(client, conversation) == ["indexed", "pending", "pending"]
    body = {"query": "wombat", "k": 1}
    answer = (await client.post(f"/v1/conversations/{conversation}/recall", json=body)).json()
    assert answer["data"][0]["text"].startswith("wombat")
    assert answer["degraded"] == ["vectors_pending"]
    await service.run_jobs()
    assert await states(client, conversation) == ["indexed"] * 3
    answer = (await client.post(f"/v1/conversations/{conversation}/recall", json=body)).json()
    assert answer["degraded"] == []


async def test_many_appends_at_once_leave_vectors_to_a_job_but_not_those_of_short_messages_or_another_tenant(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = service.container.embedder
    assert embedder is not None
    embed, under_way, rest = embedder.embed, 0, asyncio.Event()

    async def waiting(texts: list[str], *, purpose: Any) -> Vectors:
        nonlocal under_way
        under_way += len(texts)
        if len(texts) == MOST:
            await rest.wait()
        return await embed(texts, purpose=purpose)

    monkeypatch.setattr(embedder, "embed", waiting)
    turns = [f"remark number {number}" for number in range(MOST)]
    talks = [await client.conversation() for _ in range(4)]
    first = [asyncio.create_task(client.append(talk, *turns)) for talk in talks[:2]]
    async with asyncio.timeout(60):
        while under_way < 2 * MOST:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    await client.append(talks[2], *turns)
    assert await states(client, talks[2]) == ["pending"] * MOST
    await client.append(talks[3], "A short message.", "And another one.")
    assert await states(client, talks[3]) == ["indexed"] * 2
    async with await service.new_tenant() as other:
        theirs = await other.conversation()
        second = asyncio.create_task(other.append(theirs, *turns))
        async with asyncio.timeout(60):
            while under_way < 3 * MOST + 2:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        rest.set()
        await asyncio.gather(*first, second)
        assert await states(other, theirs) == ["indexed"] * MOST
    assert await states(client, talks[0]) == ["indexed"] * MOST
    await service.run_jobs()
    assert await states(client, talks[2]) == ["indexed"] * MOST
    await client.append(talks[3], *turns)
    assert await states(client, talks[3]) == ["indexed"] * (MOST + 2)
