"""Erasing turns: what was said is gone everywhere, a tombstone keeps the place and the chain."""

import asyncio
from typing import Any

import asyncpg
import pytest

from app.core.ids import format_id, new_uuid, parse_id
from app.governance.erasures.store import tenant_tables
from app.governance.registry import NOT_OF_CONVERSATIONS, REGISTRY, DataTable
from tests.support.api import Client, Service, problem

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
SECRET = "quokkasecret"
AUDIT = {"audit_unsealed", "audit_entries"}
"""Tables that say that a conversation was deleted, and stay. Their `actor` is a kind of caller."""
RICH = {
    "role": "assistant",
    "actor": "helper",
    "content": f"{SECRET} content",
    "tool_calls": [{"id": f"{SECRET}-call", "name": SECRET, "arguments": {"a": SECRET}}],
    "usage": {"note": SECRET},
    "model": SECRET,
    "adapter": SECRET,
    "metadata": {SECRET: SECRET},
}


async def dump(service: Service, client: Client) -> str:
    """Everything the database holds of a tenant, as text."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        return "\n".join(
            [
                str(row[0])
                for table in [*REGISTRY, *NOT_OF_CONVERSATIONS]
                for row in await connection.fetch(
                    f"select t::text from {table} t where tenant_id = $1",  # noqa: S608
                    client.tenant_id,
                )
            ]
        )
    finally:
        await connection.close()


async def started(client: Client, *turns: Any) -> tuple[str, list[str]]:
    conversation = await client.conversation()
    return conversation, [turn["id"] for turn in (await client.append(conversation, *turns))["turns"]]


async def test_an_erased_turn_is_a_tombstone_that_keeps_its_place_and_hashes(client: Client) -> None:
    conversation, ids = await started(client, "one", RICH, "three")
    path = f"/v1/conversations/{conversation}/turns/{ids[1]}"
    before = (await client.get(path)).json()
    assert (await client.delete(path)).status_code == 204
    after = (await client.get(path)).json()
    assert after["erased_at"] is not None
    gone = {"content": None, "tool_calls": [], "usage": None, "model": None, "adapter": None, "metadata": {}}
    assert after == before | gone | {
        "content_tokens": 0, "index_state": "none", "rev": 2, "erased_at": after["erased_at"],
    }  # fmt: skip
    history = await client.history(conversation)
    assert [turn["content"] for turn in history] == ["one", None, "three"]
    head = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert (head["last_seq"], head["turn_count"], head["rev"]) == (3, 3, 2)
    assert head["token_count"] == sum(turn["content_tokens"] for turn in history)
    found = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
    assert (found["valid"], found["verified_content"], found["erased"]) == (True, 2, 1)


async def test_nothing_of_the_text_is_left_in_the_database(client: Client, service: Service) -> None:
    conversation, ids = await started(client, "one", RICH)
    tool = {"role": "tool", "tool_call_id": f"{SECRET}-call", "content": SECRET}
    answer = (await client.append(conversation, tool))["turns"][0]["id"]
    path = f"/v1/conversations/{conversation}/turns"
    revised = await client.post(f"{path}/{ids[1]}/revisions", json={"content": f"{SECRET} again"})
    everything = await dump(service, client)
    assert SECRET in everything
    assert SECRET[:8] in everything
    ids = [ids[1], answer, revised.json()["turn"]["id"]]
    assert (await client.delete(path, params={"ids": ",".join(ids)})).json()["erased"] == ids
    assert SECRET[:8] not in await dump(service, client)
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"]


async def test_recall_and_context_forget_an_erased_turn_at_once(client: Client) -> None:
    conversation, ids = await started(client, "the parrot is green", "tea is hot", "rain falls")
    await client.delete(f"/v1/conversations/{conversation}/turns/{ids[0]}")
    for mode in ("text", "vector", "hybrid"):
        for scope in (conversation, None):
            hits = await client.recall(scope, "green parrot", mode=mode, neighbours=2)
            shown = {hit["id"] for hit in hits} | {turn["id"] for hit in hits for turn in hit["neighbours"]}
            assert ids[0] not in shown
    context = await client.context(conversation, 1000, semantic_recall={"k": 5})
    assert context["included"]["turn_ids"] == ids[1:]


async def test_erasing_again_changes_nothing(client: Client) -> None:
    conversation, ids = await started(client, "one", "two")
    path = f"/v1/conversations/{conversation}/turns"
    first = (await client.delete(path, params={"ids": [ids[0]]})).json()
    assert first == {"conversation_id": conversation, "erased": [ids[0]], "already_erased": [], "rev": 2}
    turn = (await client.get(f"{path}/{ids[0]}")).json()
    assert (await client.delete(f"{path}/{ids[0]}")).status_code == 204
    assert (await client.get(f"{path}/{ids[0]}")).json() == turn
    both = (await client.delete(path, params={"ids": f"{ids[0]},{ids[1]},{ids[1]}"})).json()
    assert both == {"conversation_id": conversation, "erased": [ids[1]], "already_erased": [ids[0]], "rev": 3}


async def revise(client: Client, conversation: str, turn: str, **body: Any) -> str:
    answer = await client.post(f"/v1/conversations/{conversation}/turns/{turn}/revisions", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["turn"]["id"]


@pytest.mark.parametrize("named", [0, 1, 2])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.slow
async def test_erasing_a_message_erases_its_earlier_and_later_revisions(
    client: Client, service: Service, named: int, *, batch: bool
) -> None:
    conversation, [first, answer] = await started(client, f"my {SECRET} pin is 4711", "an answer")
    body = {"subject": "ana", "predicate": "pin", "object": SECRET, "source_turn_ids": [first]}
    assert (await client.post("/v1/facts", json=body)).status_code == 201
    revisions = [first]
    for text in (f"my {SECRET} pin", f"my {SECRET}"):
        revisions.append(await revise(client, conversation, revisions[-1], content=text))
    await client.post(f"/v1/conversations/{conversation}/summaries", json={})
    assert SECRET in await dump(service, client)
    path = f"/v1/conversations/{conversation}/turns"
    if batch:
        erased = (await client.delete(path, params={"ids": revisions[named]})).json()
        assert erased["erased"][0] == revisions[named]
        assert (set(erased["erased"]), erased["already_erased"]) == (set(revisions), [])
    else:
        assert (await client.delete(f"{path}/{revisions[named]}")).status_code == 204
    await service.run_jobs()
    stored = await client.history(conversation, include_superseded=True)
    assert [(turn["id"], turn["content"]) for turn in stored] == [
        *((turn, None) for turn in revisions), (answer, "an answer"),
    ]  # fmt: skip
    assert SECRET[:8] not in await dump(service, client)
    assert [hit["id"] for hit in await client.recall(conversation, SECRET, mode="text")] == []
    assert (await client.get("/v1/facts")).json()["data"] == []
    found = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
    assert (found["valid"], found["erased"], found["turns"]) == (True, 3, 4)


async def test_only_the_named_revision_is_erased_with_only_this(client: Client) -> None:
    conversation, ids = await started(client, "first words")
    path = f"/v1/conversations/{conversation}/turns"
    new = await revise(client, conversation, ids[0], content="second words")
    before = (await client.get(f"/v1/conversations/{conversation}")).json()
    await client.delete(f"{path}/{ids[0]}", params={"only_this": True})
    stored = await client.history(conversation, include_superseded=True)
    assert [(turn["id"], turn["content"]) for turn in stored] == [(ids[0], None), (new, "second words")]
    after = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert (after["token_count"], after["turn_count"]) == (before["token_count"], before["turn_count"])
    assert [hit["id"] for hit in await client.recall(conversation, "words")] == [new]
    both = (await client.delete(path, params={"ids": ids[0], "only_this": True})).json()
    assert (both["erased"], both["already_erased"]) == ([], [ids[0]])
    rest = (await client.delete(path, params={"ids": ids[0]})).json()
    assert (rest["erased"], rest["already_erased"]) == ([new], [ids[0]])


async def test_turns_superseded_by_a_truncation_are_no_revisions_of_the_new_turn(client: Client) -> None:
    conversation, ids = await started(client, "one", "two", "three")
    new = await revise(client, conversation, ids[1], content="zwei", truncate_after=True)
    await client.delete(f"/v1/conversations/{conversation}/turns/{new}")
    stored = await client.history(conversation, include_superseded=True)
    assert [turn["content"] for turn in stored] == ["one", None, None, "three"]


async def opened(client: Client, conversation: str, text: str, **turn: Any) -> str:
    path = f"/v1/conversations/{conversation}/turns"
    body = {"turn": {"role": "assistant"} | turn}
    turn_id = (await client.post(f"{path}/open", json=body)).json()["turn"]["id"]
    assert (
        await client.post(f"{path}/{turn_id}/chunks?durable=true", json={"offset": 0, "delta": text})
    ).status_code == 200
    return turn_id


async def test_erasing_a_turn_erases_the_drafts_of_its_revisions(client: Client, service: Service) -> None:
    conversation, ids = await started(client, "a question", "an answer")
    path = f"/v1/conversations/{conversation}/turns"
    given_up = await opened(client, conversation, f"{SECRET} one", supersedes=ids[1])
    await client.post(f"{path}/{given_up}/abort", json={})
    again = await opened(client, conversation, f"{SECRET} two", supersedes=given_up)
    await client.post(f"{path}/{again}/abort", json={})
    writing = await opened(client, conversation, f"{SECRET} three", supersedes=ids[1])
    unrelated = await opened(client, conversation, "another draft")
    await client.post(f"{path}/{unrelated}/abort", json={})
    erased = (await client.delete(path, params={"ids": ids[1]})).json()["erased"]
    assert set(erased) == {ids[1], given_up, again, writing}
    assert SECRET[:8] not in await dump(service, client)
    problem(await client.post(f"{path}/{writing}/commit", json={}), 409, "turn_aborted")
    assert (await client.get(f"{path}/{unrelated}")).json()["content"] == "another draft"
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"]


async def test_a_first_draft_goes_with_the_answer_that_came_of_it(client: Client) -> None:
    conversation, _ = await started(client, "a question")
    path = f"/v1/conversations/{conversation}/turns"
    draft = await opened(client, conversation, "half of")
    await client.post(f"{path}/{draft}/abort", json={})
    answer = await revise(client, conversation, draft, content="the whole answer")
    assert (await client.delete(path, params={"ids": answer})).json()["erased"] == [answer, draft]


async def test_erasing_a_draft_leaves_the_turn_that_it_was_to_replace(client: Client) -> None:
    conversation, ids = await started(client, "a question", "an answer")
    path = f"/v1/conversations/{conversation}/turns"
    draft = await opened(client, conversation, "another answer", supersedes=ids[1])
    await client.post(f"{path}/{draft}/abort", json={})
    assert (await client.delete(path, params={"ids": draft})).json()["erased"] == [draft]
    assert [turn["content"] for turn in await client.history(conversation)] == ["a question", "an answer"]


async def test_erasing_an_item_of_openai_erases_all_revisions_of_its_turn(client: Client) -> None:
    conversation, ids = await started(client, "the old pin", "an answer")
    await revise(client, conversation, ids[0], content="the new pin")
    items = f"/openai/v1/conversations/conv_{conversation}/items"
    listed = (await client.get(items, params={"order": "asc"})).json()["data"]
    assert (await client.delete(f"{items}/{listed[0]['id']}")).status_code == 200
    stored = await client.history(conversation, include_superseded=True)
    assert [turn["content"] for turn in stored] == [None, None, "an answer"]


async def test_a_tombstone_may_be_revised(client: Client) -> None:
    conversation, ids = await started(client, "one", "two", "three")
    path = f"/v1/conversations/{conversation}/turns"
    await client.delete(f"{path}/{ids[1]}")
    await client.post(f"{path}/{ids[1]}/revisions", json={"content": "zwei"})
    assert [turn["content"] for turn in await client.history(conversation)] == ["one", "zwei", "three"]
    hits = await client.recall(conversation, "zwei", mode="text", neighbours=1)
    assert [turn["content"] for turn in hits[0]["neighbours"]] == ["one", "three"]
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"]


async def test_a_retry_does_not_bring_an_erased_turn_back(client: Client) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}/turns"
    body = {"turns": [{"id": ULID, "role": "user", "content": SECRET}]}
    headers = {"Idempotency-Key": "k"}
    await client.post(path, json=body, headers=headers)
    await client.delete(f"{path}/{ULID}")
    problem(await client.post(path, json=body), 409, "turn_erased", "/turns/0/id")
    replayed = await client.post(path, json=body, headers=headers)
    assert (replayed.status_code, replayed.json()["turns"][0]["content"]) == (201, None)
    fresh = {"turns": [{"id": format_id(new_uuid()), "role": "user", "content": "x"}, *body["turns"]]}
    problem(await client.post(path, json=fresh), 409, "turn_erased", "/turns/1/id")
    again = {"id": ULID, "content": SECRET}
    two = (await client.append(conversation, "two"))["turns"][0]["id"]
    problem(await client.post(f"{path}/{two}/revisions", json=again), 409, "turn_erased", "/id")
    elsewhere = await client.conversation()
    other = f"/v1/conversations/{elsewhere}/turns"
    problem(await client.post(other, json=body), 409, "turn_id_conflict", "/turns/0/id")
    assert [turn["content"] for turn in await client.history(conversation)] == [None, "two"]


async def test_what_is_not_there_is_named_and_nothing_is_erased(client: Client) -> None:
    conversation, ids = await started(client, "one", "two")
    _, elsewhere = await started(client, "other")
    path = f"/v1/conversations/{conversation}/turns"
    answer = await client.delete(path, params={"ids": [ids[0], elsewhere[0], ids[1], ULID]})
    body = problem(answer, 404, "not_found")
    assert [error["pointer"] for error in body["errors"]] == ["/ids/1", "/ids/3"]
    assert [turn["erased_at"] for turn in await client.history(conversation)] == [None, None]


@pytest.mark.parametrize(
    ("ids", "pointer"),
    [("", "/ids/0"), ("nonsense", "/ids/0"), (f"{ULID},", "/ids/1"), (f"{ULID},x,{ULID},", "/ids/1"), (None, "/ids")],
)
async def test_malformed_ids_are_named(client: Client, ids: str | None, pointer: str) -> None:
    conversation, _ = await started(client, "one")
    answer = await client.delete(f"/v1/conversations/{conversation}/turns", params={} if ids is None else {"ids": ids})
    problem(answer, 422, "invalid_request", pointer)


async def test_five_hundred_are_erased_at_once_and_more_are_refused(client: Client) -> None:
    conversation = await client.conversation()
    ids = [turn["id"] for turn in (await client.append(conversation, *[f"turn {n}" for n in range(500)]))["turns"]]
    path = f"/v1/conversations/{conversation}/turns"
    problem(await client.delete(path, params={"ids": ",".join([*ids, ULID])}), 422, "invalid_request", "/ids")
    assert len((await client.delete(path, params={"ids": ",".join(ids)})).json()["erased"]) == 500
    assert await client.recall(conversation, "turn") == []


async def test_concurrent_erases_take_effect_once(client: Client) -> None:
    conversation, ids = await started(client, "one", "two")
    path = f"/v1/conversations/{conversation}/turns"
    answers = await asyncio.gather(*(client.delete(path, params={"ids": ids}) for _ in range(8)))
    assert sorted(len(answer.json()["erased"]) for answer in answers) == [0] * 7 + [2]
    head = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert (head["token_count"], head["rev"]) == (0, 2)


# the registry


async def test_every_table_with_tenants_rows_is_in_the_registry_or_said_not_to_belong(service: Service) -> None:
    connection = await asyncpg.connect(service.database.superuser)
    rows = await connection.fetch(
        """
        select c.relname, array(
            select a2.attname::text from pg_attribute a2 where a2.attrelid = c.oid and a2.attnum > 0
        ) as columns
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
        where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace and not c.relispartition
        """
    )
    await connection.close()
    tables = {row["relname"]: set(row["columns"]) for row in rows}
    assert not set(REGISTRY) & set(NOT_OF_CONVERSATIONS)
    assert set(tables) == set(REGISTRY) | set(NOT_OF_CONVERSATIONS), "say in app/governance/registry.py how it goes"
    # an erasure finds all rows that name an owner or an actor, and a tenant's erasure deletes from every table
    for table, columns in tables.items():
        known = REGISTRY.get(table) or NOT_OF_CONVERSATIONS[table]
        if "owner" in columns:
            assert known.of_owner is not None, table
        if {"actor", "actors", "participants"} & columns and table not in AUDIT:
            assert isinstance(known, DataTable), table
            assert known.of_actor is not None, table
    kept = {table for table, other in NOT_OF_CONVERSATIONS.items() if other.on_tenant_erasure == "kept"}
    assert sorted(tenant_tables()) == sorted(set(tables) - kept)
    # a delivery has ids alone, and outlives its conversation: the event of the deletion is one
    for table in NOT_OF_CONVERSATIONS.keys() - AUDIT - {"webhook_deliveries"}:
        assert not tables[table] & {"conversation_id", "turn_id", "entry_id"}, table


async def count(connection: "asyncpg.Connection[asyncpg.Record]", table: str, where: str, *args: object) -> int:
    return await connection.fetchval(f"select count(*) from {table} where tenant_id = $1 and {where}", *args)  # noqa: S608


async def open_turn(client: Client, conversation: str, text: str) -> str:
    """A turn that is being written, with some text."""
    path = f"/v1/conversations/{conversation}/turns"
    opened = (await client.post(f"{path}/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
    assert (
        await client.post(f"{path}/{opened}/chunks?durable=true", json={"offset": 0, "delta": text})
    ).status_code == 200
    return opened


async def tell(client: Client, turn: str) -> None:
    """A fact that rests on a turn."""
    body = {"subject": "ana", "predicate": "likes", "object": "tea", "source_turn_ids": [turn]}
    assert (await client.post("/v1/facts", json=body)).status_code == 201


async def respond(service: Service, client: Client, conversation: str, *turns: str) -> None:
    """Make turns the answers of responses."""
    async with service.container.database.transaction(client.tenant_id) as tx:
        for turn in turns:
            await tx.execute(
                "insert into responses (tenant_id, turn_id, conversation_id, input_turn_ids, owns_conversation,"
                " request, created_at) values ($1, $2, $3, '{}', false, '{}', now())",
                client.tenant_id, parse_id(turn), parse_id(conversation),
            )  # fmt: skip


async def test_deleting_and_erasing_do_what_the_registry_says(client: Client, service: Service) -> None:
    conversation, ids = await started(client, "one", "two")
    opened = await open_turn(client, conversation, "half of a sen")
    await client.post(f"/v1/conversations/{conversation}/summaries", json={})
    await tell(client, ids[0])
    await respond(service, client, conversation, ids[0], opened)
    connection = await asyncpg.connect(service.database.superuser)
    tenant, own = client.tenant_id, parse_id(conversation)
    for table, belongs in REGISTRY.items():
        assert await count(connection, table, belongs.of_conversation, tenant, own), f"{table}: fill it above"
    for turn in (ids[0], opened):
        await client.delete(f"/v1/conversations/{conversation}/turns/{turn}")
        for table, belongs in REGISTRY.items():
            if belongs.of_turn is not None:
                left = await count(connection, table, belongs.of_turn, tenant, parse_id(turn))
                assert left == (0 if belongs.on_erase == "delete" else 1), table
    await open_turn(client, conversation, "another half")
    # what entries held is gone with them, so vectors are counted by the tenant
    await client.delete(f"/v1/conversations/{conversation}")
    for table in REGISTRY:
        assert await count(connection, table, "true", tenant) == 0, table
    await connection.close()


async def test_a_deletion_counts_every_table_of_the_registry(client: Client, service: Service) -> None:
    conversation, ids = await started(client, "one", "two")
    caller = await service.container.tenancy.authenticate(client.key)
    await open_turn(client, conversation, "half of a sen")
    await client.post(f"/v1/conversations/{conversation}/summaries", json={})
    await tell(client, ids[0])
    await respond(service, client, conversation, ids[0])
    counts = await service.container.governance.delete_conversation(caller, parse_id(conversation))  # type: ignore[arg-type]
    assert counts == {
        "vectors": 3, "index_entries": 3, "turn_chunks": 1, "turn_streams": 1, "turns": 3, "conversation_heads": 1,
        "conversations": 1, "summaries": 1, "facts": 1, "fact_evidence": 1, "fact_decisions": 1,
        "fact_decision_sources": 2, "responses": 1,
    }  # fmt: skip
    assert set(counts) == set(REGISTRY)
