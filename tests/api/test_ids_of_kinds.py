"""A turn, a fact and a memory of one tenant may have the same id: each is stored, found and erased for itself."""

from asyncio import gather
from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations
from typing import Any

import pytest

from app.core.database.transactions import Database
from app.core.ids import format_id, new_uuid
from tests.api.test_doctor import faults, ops
from tests.api.test_exports import export, records
from tests.api.test_imports import file_of, imported, started
from tests.support.api import Client, Service, problem
from tests.support.live import serving, socket_on

__all__ = ["ops"]

WORDS = {"turn": "pelican", "fact": "ostrich", "memory": "flamingo"}
WORDS_OF_MEMORY = "A flamingo stands on one leg."
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
        "type": "memory", "id": id_, "agent_id": "default", "content": WORDS_OF_MEMORY,
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


async def test_an_open_turn_with_the_id_of_a_memory_is_committed(service: Service, client: Client) -> None:
    id_ = format_id(new_uuid())
    await store_memory(service, client, id_)
    path = f"/v1/conversations/{await client.conversation(external_id='birds')}/turns"
    turn = {"role": "assistant", "actor": "bot", "id": id_}
    assert (await client.post(f"{path}/open", json={"turn": turn})).status_code == 201
    chunk = {"offset": 0, "delta": "We saw a pelican."}
    assert (await client.post(f"{path}/{id_}/chunks?durable=true", json=chunk)).is_success
    assert (await client.post(f"{path}/{id_}/commit", json={})).is_success
    await service.run_jobs()
    assert await found(client, ["turn", "memory"]) == {("turn", id_), ("memory", id_)}


async def test_a_turn_with_the_id_of_a_fact_is_written_through_a_websocket(service: Service, client: Client) -> None:
    id_, other_id = format_id(new_uuid()), format_id(new_uuid())
    await store_fact(service, client, id_)
    await client.append(await client.conversation(), {"role": "user", "content": "elsewhere", "id": other_id})
    conversation = await client.conversation(external_id="birds")
    settings = service.container.settings
    async with serving(service.app, settings) as port, socket_on(port, conversation, client.key) as writer:
        taken = await writer.ask("open", turn={"role": "assistant", "actor": "bot", "id": other_id}, writer="w")
        assert (taken["type"], taken["code"], taken["retryable"]) == ("error", "turn_id_conflict", False)
        assert await writer.open_turn(id=id_) == id_
        await writer.ask("chunk", turn_id=id_, offset=0, delta="We saw a pelican.")
        assert (await writer.ask("commit", turn_id=id_, length=17))["turn"]["content"] == "We saw a pelican."
    await service.run_jobs()
    assert await found(client, ["turn", "fact"]) == {("turn", id_), ("fact", id_)}


@pytest.mark.parametrize("dry", [True, False])
async def test_a_file_in_which_a_turn_and_a_memory_have_one_id_is_stored_wholly(
    service: Service, client: Client, other: Client, *, dry: bool
) -> None:
    id_ = format_id(new_uuid())
    await store_turn(service, client, id_)
    await store_memory(service, client, id_)
    await store_fact(service, client, id_)
    file = await export(client)
    result = await imported(service, other, file, **({"dry_run": True} if dry else {}))
    counts = result["records"]
    assert (counts["turn"], counts["memory"], counts["fact"], result["problems"]) == (1, 1, 1, [])
    if not dry:
        await service.run_jobs()
        assert await found(other) == {(kind, id_) for kind in KINDS}
        assert await export(other) == file
        again = await imported(service, other, file)
        assert (again["records"]["memory"], again["skipped_records"], again["problems"]) == (0, 4, [])


@pytest.mark.parametrize("dry", [True, False])
async def test_a_memory_whose_id_another_memory_has_is_refused_with_its_line_and_the_rest_is_stored(
    service: Service, client: Client, *, dry: bool
) -> None:
    taken, twice, last = (format_id(new_uuid()) for _ in range(3))
    await store_memory(service, client, taken)
    memories = [
        memory_record(format_id(new_uuid())) | {"content": "one"},
        memory_record(taken) | {"content": "two"},
        memory_record(twice) | {"content": "three"},
        memory_record(twice) | {"content": "four"},
        memory_record(last) | {"content": "five" * 100_000},
        memory_record(last) | {"content": "six"},
    ]
    result = await imported(service, client, file_of(memories), **({"dry_run": True} if dry else {}))
    refused = [(one["line"], one["errors"][0]["pointer"]) for one in result["problems"]]
    assert sorted(refused) == [(3, "/id"), (5, "/id"), (6, "/content")]
    assert (result["records"]["memory"], result["skipped_records"], result["problem_count"]) == (3, 3, 3)
    stored = {one["content"] for one in (await client.get("/v1/memories")).json()["data"]}
    assert stored == ({WORDS_OF_MEMORY} if dry else {WORDS_OF_MEMORY, "one", "three", "six"})


async def test_a_fact_whose_id_a_fact_of_another_subject_has_is_refused_with_its_line(
    service: Service, client: Client
) -> None:
    id_ = format_id(new_uuid())
    await store_fact(service, client, id_)
    record = await fact_record(await service.new_tenant(), id_)
    result = await imported(
        service, client, file_of([record | {"subject": "park", "subject_key": "park"}, record, memory_record(id_)])
    )
    assert [(one["line"], one["errors"][0]["pointer"]) for one in result["problems"]] == [(2, "/id")]
    assert (result["records"]["fact"], result["records"]["memory"]) == (0, 1)


async def test_vectors_that_went_are_made_again_for_each_kind_of_an_id(
    service: Service, client: Client, other: Client, ops: Database
) -> None:
    id_ = format_id(new_uuid())
    for tenant in (client, other):
        for kind in KINDS:
            await STORE[kind](service, tenant, id_)
    await service.run_jobs()
    both = [client.tenant_id, other.tenant_id]
    count = "select count(*) as n from vectors where tenant_id = any($1::uuid[])"
    async with ops.across_tenants() as tx:
        before = (await tx.fetch(count, both))[0]["n"]
        await tx.execute("delete from vectors where tenant_id = any($1::uuid[])", both)
        await tx.execute("update index_entries set vectors_due = false where tenant_id = any($1::uuid[])", both)
    await service.container.index.backfill.plan()
    await service.run_jobs()
    async with ops.across_tenants() as tx:
        assert (await tx.fetch(count, both))[0]["n"] == before
    for tenant in (client, other):
        assert await found(tenant, mode="vector") == {(kind, id_) for kind in KINDS}


async def test_a_turn_keeps_its_place_where_a_memory_has_its_id(
    service: Service, client: Client, ops: Database
) -> None:
    """Revisions, forks, the trash and the dates of a turn whose entry has another key."""
    id_ = format_id(new_uuid())
    await store_memory(service, client, id_)
    conversation = await client.conversation(external_id="birds")
    path = f"/v1/conversations/{conversation}"
    await client.append(conversation, {"role": "user", "content": "We saw a pelican yesterday.", "id": id_}, "Which?")
    await service.run_jobs()
    [hit] = [hit for hit in await client.recall(conversation, "pelican") if hit["id"] == id_]
    assert len(hit["dates"]) == 1
    fork = (await client.post(f"{path}/fork", json={})).json()
    await service.run_jobs()
    assert [hit["text"] for hit in await client.recall(fork["id"], "pelican", mode="vector", k=1)] == [hit["text"]]
    assert (await client.post(f"{path}/trash")).is_success
    await service.run_jobs()
    assert await client.recall(None, "pelican", kinds=["turn"], mode="text") != []  # that of the fork
    assert (await client.post(f"{path}/restore")).is_success
    await service.run_jobs()
    assert id_ in {hit["id"] for hit in await client.recall(conversation, "pelican")}
    revised = await client.post(f"{path}/turns/{id_}/revisions", json={"content": "We saw a heron."})
    assert revised.is_success, revised.text
    assert id_ not in {hit["id"] for hit in await client.recall(conversation, "pelican")}
    assert await found(client, ["memory"]) == {("memory", id_)}
    assert await faults(ops, client) == []
    assert (await client.delete(path)).is_success
    await service.run_jobs()
    assert await found(client, ["memory"]) == {("memory", id_)}
    assert await faults(ops, client) == []


async def test_a_memory_expires_where_a_turn_has_its_id(service: Service, client: Client, ops: Database) -> None:
    id_ = format_id(new_uuid())
    await store_turn(service, client, id_)
    record = memory_record(id_) | {"expires_at": "2999-01-01T00:00:00.000Z"}
    await imported(service, client, file_of([record]))
    async with ops.across_tenants() as tx:
        await tx.execute(
            "update memories set expires_at = now() - interval '1 s' where tenant_id = $1", client.tenant_id
        )
        assert await service.container.memories.erase_expired(tx, limit=10) >= 1
    assert await found(client, ["turn", "memory"]) == {("turn", id_)}
    assert await faults(ops, client) == []


async def test_an_id_that_two_conversations_open_at_once_is_a_conflict_that_names_its_field(client: Client) -> None:
    conversations = [await client.conversation() for _ in range(2)]
    for _ in range(5):
        body = {"turn": {"role": "assistant", "id": format_id(new_uuid())}}
        answers = await gather(
            *(client.post(f"/v1/conversations/{one}/turns/open", json=body) for one in conversations)
        )
        [refused] = [answer for answer in answers if not answer.is_success]
        assert not problem(refused, 409, "turn_id_conflict", "/turn/id")["retryable"]


async def test_a_tenant_with_as_many_imports_as_it_may_have_can_erase(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.operations.service._MAX_OPEN", 2)
    file = file_of([memory_record(format_id(new_uuid()))])
    for _ in range(2):
        await started(client, file)
    problem(await client.post("/v1/import", content=file), 429, "too_many_operations")
    for owner in ("ana", "ben"):
        assert (await client.post("/v1/erasures", json={"owner": owner})).status_code == 202
    problem(await client.post("/v1/erasures", json={"owner": "eve"}), 429, "too_many_operations")
    await service.run_jobs()
    assert (await client.post("/v1/erasures", json={"owner": "eve"})).status_code == 202


async def test_a_fact_that_breaks_a_rule_is_refused_with_its_line_and_the_others_of_its_subject_are_stored(
    service: Service, client: Client
) -> None:
    record = await fact_record(await service.new_tenant(), format_id(new_uuid()))
    facts = [
        record | {"object": "ostriches"},
        {name: value for name, value in record.items() if name != "valid_from"} | {"id": format_id(new_uuid())},
        record | {"object": "emus"},
        record | {"id": format_id(new_uuid()), "object": "rheas"},
    ]
    result = await imported(service, client, file_of(facts))
    refused = [(one["line"], [error["pointer"] for error in one["errors"]]) for one in result["problems"]]
    assert refused == [(3, ["/valid_from"]), (4, ["/id"])]
    assert (result["records"]["fact"], result["skipped_records"]) == (2, 2)


async def test_a_context_shows_a_turn_a_fact_and_a_memory_with_one_id(service: Service, client: Client) -> None:
    id_ = format_id(new_uuid())
    for kind in ("memory", "fact", "turn"):
        await STORE[kind](service, client, id_)
    await service.run_jobs()
    conversation = await client.conversation(external_id="birds")
    context = await client.context(
        conversation, 2_000, query="Which flamingo stands on one leg?", include_memories=True
    )
    assert context["included"]["turn_ids"] == [id_]
    assert id_ in context["included"]["memory_ids"]
