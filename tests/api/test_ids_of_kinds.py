"""A turn, a fact and a memory of one tenant may have the same id: each is stored, found and erased for itself."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations
from typing import Any

import pytest

from app.core.database.transactions import Database
from app.core.ids import format_id, new_uuid
from tests.api.test_doctor import faults, ops
from tests.api.test_exports import export, records
from tests.api.test_imports import file_of, imported
from tests.support.api import Client, Service

__all__ = ["ops"]

WORDS = {"turn": "pelican", "fact": "ostrich", "memory": "flamingo"}
KINDS = list(WORDS)
PAIRS = list(permutations(KINDS, 2))


async def store_turn(_service: Service, client: Client, id_: str) -> None:
    conversation = await client.conversation(external_id="birds")
    await client.append(conversation, {"role": "user", "content": "We saw a pelican in May.", "id": id_})


async def fact_record(client: Client, id_: str) -> dict[str, Any]:
    """The record of a fact, as an export has it, with another id."""
    fact = {"subject": "zoo", "predicate": "likes", "object": "ostrich"}
    answer = await client.post("/v1/facts", json=fact)
    assert answer.is_success, answer.text
    [record] = [one for one in records(await export(client)) if one["type"] == "fact"]
    assert (await client.delete(f"/v1/facts/{answer.json()['fact']['id']}")).is_success
    return record | {"id": id_}


def memory_record(id_: str) -> dict[str, Any]:
    return {
        "type": "memory", "id": id_, "agent_id": "default", "content": "A flamingo stands on one leg.",
        "created_at": "2026-11-20T08:30:00.000Z",
    }  # fmt: skip


async def store_fact(service: Service, client: Client, id_: str) -> None:
    result = await imported(service, client, file_of([await fact_record(await service.new_tenant(), id_)]))
    assert (result["problems"], result["records"]["fact"]) == ([], 1)


async def store_memory(service: Service, client: Client, id_: str) -> None:
    result = await imported(service, client, file_of([memory_record(id_)]))
    assert (result["problems"], result["records"]["memory"]) == ([], 1)


STORE: dict[str, Callable[[Service, Client, str], Awaitable[None]]] = {
    "turn": store_turn,
    "fact": store_fact,
    "memory": store_memory,
}


async def found(client: Client, kinds: Sequence[str] = KINDS, mode: str = "hybrid") -> set[tuple[str, str]]:
    """Kind and id of the hits of each kind's own word; the text of each has the word."""
    hits: set[tuple[str, str]] = set()
    for kind in kinds:
        for hit in await client.recall(None, WORDS[kind], kinds=list(kinds), mode=mode):
            if WORDS[kind] in hit["text"]:
                assert hit["kind"] == kind
                hits.add((hit["kind"], hit["id"]))
    return hits


async def erase(client: Client, kind: str, id_: str) -> None:
    if kind == "turn":
        conversation = await client.conversation(external_id="birds")
        answer = await client.delete(f"/v1/conversations/{conversation}/turns/{id_}")
    else:
        answer = await client.delete(f"/v1/{'facts' if kind == 'fact' else 'memories'}/{id_}")
    assert answer.is_success, answer.text


@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_two_kinds_with_one_id_are_both_found_and_erasing_one_leaves_the_other(
    service: Service, client: Client, other: Client, ops: Database, first: str, second: str
) -> None:
    id_ = format_id(new_uuid())
    for tenant in (client, other):
        await STORE[first](service, tenant, id_)
        assert await found(tenant, [first]) == {(first, id_)}
        await STORE[second](service, tenant, id_)
    await service.run_jobs()
    for tenant in (client, other):
        for mode in ("hybrid", "text", "vector"):
            assert await found(tenant, [first, second], mode) == {(first, id_), (second, id_)}
            for kind in (first, second):
                assert await found(tenant, [kind], mode) == {(kind, id_)}
        assert await faults(ops, tenant) == []
    await erase(client, first, id_)
    assert await found(client, [first, second]) == {(second, id_)}
    assert await found(other, [first, second]) == {(first, id_), (second, id_)}
    await erase(client, second, id_)
    assert await found(client, [first, second]) == set()
    assert await faults(ops, client) == []
    assert await found(other, [first, second]) == {(first, id_), (second, id_)}
