"""Erasures: all data of a conversation, an owner, an actor or a tenant goes, with a receipt that can be verified."""

import asyncio
import contextvars
import subprocess
import sys
from typing import Any

import asyncpg
import pytest

from app.core.ids import format_id, new_uuid, parse_id
from app.governance.erasures.runner import ErasureRunner
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, problem
from tests.support.postgres import earlier
from tests.support.rows import fetch, rows

AN_HOUR = "interval '1 hour'"


async def erase(service: Service, client: Client, **body: Any) -> dict[str, Any]:
    """Erase, run the jobs, and return the receipt."""
    answer = await client.post("/v1/erasures", json=body)
    assert answer.status_code == 202, answer.text
    operation = answer.json()
    assert answer.headers["Location"] == f"/v1/operations/{operation['id']}"
    await service.run_jobs()
    ended = (await client.get(f"/v1/operations/{operation['id']}")).json()
    assert ended["status"] == "succeeded", ended
    receipt = (await client.get(f"/v1/erasures/{operation['id']}")).json()
    assert receipt["status"] == "complete"
    assert ended["result"] == {"erasure_id": receipt["id"], "counts": receipt["counts"]}
    return receipt


async def own(client: Client, owner: str, project: str = "default") -> tuple[str, list[str]]:
    """A conversation of an owner with turns, a summary, a fact and an open turn; and a fact and a memory beside it."""
    conversation = await client.conversation(owner=owner, project=project, title=f"of {owner}", participants=[owner])
    turns = (await client.append(conversation, {"role": "user", "actor": owner, "content": f"{owner} likes tea"},
                                 {"role": "assistant", "content": f"noted, {owner}"}))["turns"]  # fmt: skip
    path = f"/v1/conversations/{conversation}"
    assert (await client.post(f"{path}/summaries", json={})).status_code == 200
    opened = await client.post(f"{path}/turns/open", json={"turn": {"role": "assistant"}})
    await client.post(
        f"{path}/turns/{opened.json()['turn']['id']}/chunks?durable=true", json={"offset": 0, "delta": "x"}
    )
    subject = owner if owner.strip("@") else "someone"
    fact = {"subject": subject, "predicate": "likes", "object": "tea", "source_turn_ids": [turns[0]["id"]]}
    assert (await client.post("/v1/facts", json=fact)).status_code in {200, 201}
    fact = {"subject": subject, "predicate": "owns", "object": "a boat", "owner": owner, "project": project}
    assert (await client.post("/v1/facts", json=fact)).status_code in {200, 201}
    memory = {"content": f"{owner} sails", "owner": owner, "metadata": {"of": owner}}
    assert (await client.post("/v1/memories", json=memory)).status_code == 201
    return conversation, [turn["id"] for turn in turns]


@pytest.mark.slow
async def test_erasing_an_owner_leaves_nothing_of_it_and_everything_of_others(service: Service, client: Client) -> None:
    of_ann, _ = await own(client, "ann")
    of_bob, _ = await own(client, "bob")
    receipt = await erase(service, client, owner="ann")
    counts = {table: count["deleted"] for table, count in receipt["counts"].items()}
    derived = {table: counts.pop(table) for table in ("fact_decision_sources", "index_entries", "vectors")}
    assert all(derived.values())
    assert counts == {
        "turns": 3, "turn_streams": 1, "turn_chunks": 1, "summaries": 1, "conversations": 1, "conversation_heads": 1,
        "facts": 2, "fact_evidence": 2, "fact_decisions": 2, "memories": 1,
    }  # fmt: skip
    problem(await client.get(f"/v1/conversations/{of_ann}"), 404, "not_found")
    for table in ("conversations", "facts", "memories", "index_entries"):
        assert await rows(service, client, table, "owner = 'ann'") == 0, table
        assert await rows(service, client, table, "owner = 'bob'") > 0, table
    assert await client.recall(None, "ann sails", owner="ann") == []
    assert len(await client.history(of_bob)) == 2
    assert (await client.get(f"/v1/conversations/{of_bob}/verify")).json()["valid"]
    assert "ann" not in str(receipt)
    operation = (await client.get(f"/v1/operations/{receipt['id']}")).json()
    assert operation["progress"]["done"] == operation["progress"]["total"] == 6


async def test_keys_lose_the_name_of_an_erased_owner_and_are_counted(service: Service, client: Client) -> None:
    for owners in (["ann"], ["ann", "bob"], ["bob"]):
        made = await client.post("/v1/admin/keys", json={"name": "of some", "owners": owners})
        assert made.status_code == 201, made.text
    narrow = await erase(service, client, owner="ann", project="sales")
    assert narrow["counts"] == {}
    receipt = await erase(service, client, owner="ann")
    assert receipt["counts"] == {"api_keys": {"deleted": 0, "emptied": 2}}
    keys = (await client.get("/v1/admin/keys")).json()["data"]
    assert [(key["owners"], key["state"]) for key in keys if key["name"] == "of some"] == [
        (["bob"], "valid"), (["bob"], "valid"), ([], "revoked"),
    ]  # fmt: skip


async def test_a_key_that_is_restricted_to_an_owner_during_its_erasure_loses_the_name_too(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own(client, "ann")
    step, number = ErasureRunner._step, 0  # noqa: SLF001

    async def restrict() -> None:
        made = await client.post("/v1/admin/keys", json={"name": "of some", "owners": ["ann", "bob"]})
        assert made.status_code == 201, made.text

    async def stepping(self: ErasureRunner, erasing: Any, tx: Any) -> None:
        nonlocal number
        number += 1
        if number == 2:  # the names were removed from keys
            await asyncio.get_running_loop().create_task(restrict(), context=contextvars.Context())
        await step(self, erasing, tx)

    monkeypatch.setattr(ErasureRunner, "_step", stepping)
    receipt = await erase(service, client, owner="ann")
    assert receipt["counts"]["api_keys"] == {"deleted": 0, "emptied": 1}
    keys = (await client.get("/v1/admin/keys")).json()["data"]
    assert [key["owners"] for key in keys if key["name"] == "of some"] == [["bob"]]


async def test_with_a_project_only_that_project_of_the_owner_goes(service: Service, client: Client) -> None:
    here, _ = await own(client, "ann", "sales")
    there, _ = await own(client, "ann", "support")
    receipt = await erase(service, client, owner="ann", project="sales")
    assert "memories" not in receipt["counts"]
    problem(await client.get(f"/v1/conversations/{here}"), 404, "not_found")
    assert (await client.get(f"/v1/conversations/{there}")).status_code == 200
    facts = (await client.get("/v1/facts", params={"owner": "ann"})).json()["data"]
    assert {fact["project"] for fact in facts} == {"support"}
    assert await rows(service, client, "memories", "owner = 'ann'") > 0


@pytest.mark.parametrize("subject", ["owner", "actor", "conversation_id"])
async def test_a_receipt_counts_the_index_entries_of_facts(service: Service, client: Client, subject: str) -> None:
    conversation = await client.conversation(owner="ann", participants=["ann"])
    said = {"role": "user", "actor": "ann", "content": "My boat is the Marguerite."}
    [turn] = (await client.append(conversation, said))["turns"]
    for predicate in ("owns", "sails"):
        fact = {"subject": "ann", "predicate": predicate, "object": "a boat", "source_turn_ids": [turn["id"]]}
        assert (await client.post("/v1/facts", json=fact)).status_code == 201
    before = {table: await rows(service, client, table) for table in ("facts", "index_entries", "vectors")}
    assert before["index_entries"] == 3
    receipt = await erase(service, client, **{subject: conversation if subject == "conversation_id" else "ann"})
    after = {table: await rows(service, client, table) for table in before}
    removed = {table: count - after[table] for table, count in before.items()}
    assert removed["facts"] == 2
    assert {table: receipt["counts"][table]["deleted"] for table in before} == removed


async def test_erasing_a_conversation_counts_every_table(service: Service, client: Client) -> None:
    conversation, _ = await own(client, "ann")
    other, _ = await own(client, "bob")
    receipt = await erase(service, client, conversation_id=conversation)
    assert receipt["counts"]["turns"] == {"deleted": 3, "emptied": 0}
    assert receipt["counts"]["turn_chunks"] == {"deleted": 1, "emptied": 0}
    problem(await client.get(f"/v1/conversations/{conversation}"), 404, "not_found")
    assert (await client.get(f"/v1/conversations/{other}")).status_code == 200
    again = await erase(service, client, conversation_id=conversation)
    assert again["counts"] == {}


async def test_an_erased_actor_leaves_tombstones_without_its_name(service: Service, client: Client) -> None:
    conversation = await client.conversation(participants=[{"actor": "ann", "name": "Ann Smith"}, "bob"])
    turns = (await client.append(
        conversation,
        {"role": "user", "actor": "ann", "content": "my boat is the Marguerite"},
        {"role": "assistant", "actor": "bob", "content": "a fine name"},
        {"role": "user", "actor": "ann", "content": "thanks"},
    ))["turns"]  # fmt: skip
    path = f"/v1/conversations/{conversation}"
    assert (await client.post(f"{path}/summaries", json={})).status_code == 200
    await client.post(f"{path}/turns/{turns[2]['id']}/revisions", json={"content": "thank you"})
    await client.delete(f"{path}/turns/{turns[2]['id']}")
    fact = {"subject": "ann", "predicate": "owns", "object": "a boat", "source_turn_ids": [turns[1]["id"]]}
    assert (await client.post("/v1/facts", json=fact)).status_code in {200, 201}
    rev = (await client.get(path)).json()["rev"]
    receipt = await erase(service, client, actor="ann")
    assert receipt["counts"]["turns"] == {"deleted": 0, "emptied": 3}
    assert receipt["counts"]["conversations"] == {"deleted": 0, "emptied": 1}
    history = await client.history(conversation)
    assert [(turn["actor"], turn["content"]) for turn in history] == [
        ("erased", None), ("bob", "a fine name"), ("erased", None)
    ]  # fmt: skip
    seen = (await client.get(path)).json()
    assert [one["actor"] for one in seen["participants"]] == ["bob"]
    assert seen["rev"] > rev
    assert (await client.get(f"{path}/verify")).json()["valid"]
    assert (await client.get("/v1/facts", params={"subject": "ann"})).json()["data"] == []
    summaries = (await client.get(f"{path}/summaries")).json()["data"]
    assert "ann" not in str(summaries)
    assert "Marguerite" not in str(summaries)
    changed = (await client.get(f"{path}/turns", params={"since_rev": rev})).json()["data"]
    assert {turn["id"] for turn in changed} >= {turns[0]["id"]}
    for table in ("turns", "conversations", "summaries", "facts", "fact_evidence", "index_entries"):
        found = await fetch(service, f"select t::text as row from {table} t where tenant_id = $1", client.tenant_id)  # noqa: S608
        assert not [row["row"] for row in found if "ann" in row["row"].lower()], table


async def test_an_actor_whose_name_is_that_of_erased_actors_is_erased_once(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    await client.append(
        conversation,
        {"role": "user", "actor": "ann", "content": "my boat is the Marguerite"},
        {"role": "user", "actor": "erased", "content": "this is my real name"},
        {"role": "user", "actor": "bob", "content": "hello"},
    )
    await erase(service, client, actor="ann")
    for emptied in (1, 0):  # the tombstone of ann is not one of this actor
        receipt = await erase(service, client, actor="erased")
        assert receipt["counts"].get("turns", {"emptied": 0})["emptied"] == emptied
    seen = await client.history(conversation)
    assert [(turn["actor"], turn["content"]) for turn in seen] == [("erased", None), ("erased", None), ("bob", "hello")]


async def test_an_actor_in_many_conversations_is_erased_in_short_steps(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.governance.erasures.runner._WINDOW", 3)
    monkeypatch.setattr("app.governance.erasures.runner._TURNS", 2)
    conversations = [await client.conversation() for _ in range(8)]
    for number, conversation in enumerate(conversations):
        actor = "ann" if number % 3 == 0 else "bob"
        await client.append(conversation, *({"role": "user", "actor": actor, "content": f"said {n}"} for n in range(5)))
    receipt = await erase(service, client, actor="ann")
    assert receipt["counts"]["turns"]["emptied"] == 15
    assert await rows(service, client, "turns", "actor = 'ann'") == 0
    assert await rows(service, client, "turns", "actor = 'bob' and content is not null") == 25


async def test_removing_a_name_from_the_participants_is_a_new_revision(service: Service, client: Client) -> None:
    conversation = await client.conversation(participants=["ann", "bob"])
    await client.append(conversation, {"role": "user", "actor": "bob", "content": "Hello."})
    before = await client.get(f"/v1/conversations/{conversation}")
    await erase(service, client, actor="ann")
    after = await client.get(f"/v1/conversations/{conversation}")
    assert [one["actor"] for one in after.json()["participants"]] == ["bob"]
    assert after.json()["rev"] == before.json()["rev"] + 1
    assert after.headers["ETag"] != before.headers["ETag"]
    tag = {"If-Match": before.headers["ETag"]}
    problem(await client.patch(f"/v1/conversations/{conversation}", json={}, headers=tag), 412, "revision_changed")


@pytest.mark.slow
async def test_erasing_a_tenant_leaves_its_id_and_the_receipt(service: Service, client: Client, other: Client) -> None:
    await own(client, "ann")
    await own(other, "ann")
    key = await service.container.tenancy.create_key(other.tenant_id, name="operator", scopes=list(Scope))
    tenant = format_id(client.tenant_id)
    async with service.client(str(key)) as operator:
        problem(await other.post("/v1/erasures", json={"tenant": tenant}), 403, "forbidden")
        problem(await operator.post("/v1/erasures", json={"tenant": format_id(new_uuid())}), 404, "not_found")
        operator.tenant_id = other.tenant_id
        receipt = await erase(service, operator, tenant=tenant)
    assert receipt["counts"]["turns"] == {"deleted": 3, "emptied": 0}
    assert receipt["counts"]["tenants"] == {"deleted": 0, "emptied": 1}
    assert receipt["counts"]["api_keys"]["deleted"] == 1
    await asyncio.sleep(0.6)  # the time that a checked key is cached
    problem(await client.get("/v1/conversations"), 401, "unauthenticated")
    tables = await fetch(service, "select relname from pg_class c join pg_attribute a on a.attrelid = c.oid"
                         " and a.attname = 'tenant_id' where relkind = 'r'")  # fmt: skip
    left = {name for (name,) in tables if await rows(service, client, name)}
    assert left - {"index_removals", "audit_unsealed", "audit_entries", "audit_days"} == {"tenants"}
    assert await rows(service, other, "turns") == 3
    assert (await other.get("/v1/conversations")).json()["data"]


async def test_what_an_erased_tenant_stored_before_is_not_counted_afterwards(
    service: Service, client: Client, other: Client
) -> None:
    await own(client, "ann")
    key = await service.container.tenancy.create_key(other.tenant_id, name="operator", scopes=list(Scope))
    async with service.client(str(key)) as operator:
        operator.tenant_id = other.tenant_id
        await own(other, "ann")
        await erase(service, operator, tenant=format_id(client.tenant_id))
    await service.container.tenancy.quotas.flush()
    assert await rows(service, client, "tenant_usage") == 0
    assert await rows(service, other, "tenant_usage") == 1


async def test_a_tenant_may_erase_itself_and_keeps_the_key_that_asked(service: Service, client: Client) -> None:
    conversation, _ = await own(client, "ann")
    await service.container.tenancy.create_key(client.tenant_id, name="Ann's key", scopes=[Scope.READ])
    await client.post("/v1/conversations", json={"external_id": "x"}, headers={"Idempotency-Key": "k"})
    receipt = await erase(service, client, tenant=format_id(client.tenant_id))
    assert receipt["counts"]["api_keys"] == {"deleted": 1, "emptied": 1}
    problem(await client.get(f"/v1/conversations/{conversation}"), 404, "not_found")
    assert [key["name"] for key in (await client.get("/v1/admin/keys")).json()["data"]] == ["erased"]
    assert await rows(service, client, "idempotency_records") == 0
    assert [one["id"] for one in (await client.get("/v1/erasures")).json()["data"]] == [receipt["id"]]


# the receipt


async def verify(client: Client, receipt: dict[str, Any], **subject: Any) -> dict[str, Any]:
    answer = await client.post("/v1/erasures/verify", json={"receipt": receipt, **subject})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_receipt_is_valid_for_its_tenant_and_its_subject_only(
    service: Service, client: Client, other: Client
) -> None:
    receipt = await erase(service, client, owner="ann", project="sales")
    assert await verify(client, receipt) == {"valid": True, "matches": None}
    assert await verify(client, receipt, owner="ann", project="sales") == {"valid": True, "matches": True}
    for wrong in ({"owner": "ann"}, {"owner": "bob", "project": "sales"}, {"actor": "ann", "project": "sales"}):
        assert await verify(client, receipt, **wrong) == {"valid": True, "matches": False}
    assert await verify(other, receipt, owner="ann", project="sales") == {"valid": False, "matches": False}
    changes: list[dict[str, Any]] = [
        {"counts": {"turns": {"deleted": 1, "emptied": 0}}}, {"status": "failed"}, {"subject_hash": "0" * 64},
        {"ended_at": receipt["created_at"]}, {"id": format_id(new_uuid())}, {"subject_kind": "actor"},
        {"signature": "0" * 64}, {"signature": None},
    ]  # fmt: skip
    for change in changes:
        assert not (await verify(client, {**receipt, **change}))["valid"], change
    same = await erase(service, other, owner="ann", project="sales")
    assert same["subject_hash"] != receipt["subject_hash"]


async def test_receipts_stay_when_their_operations_are_deleted(service: Service, client: Client) -> None:
    receipts = [(await erase(service, client, owner=owner)) for owner in ("ann", "bob", "cid")]
    await fetch(service, "delete from operations where tenant_id = $1", client.tenant_id)
    page = (await client.get("/v1/erasures", params={"limit": 2})).json()
    assert page["data"] == receipts[:0:-1]
    rest = (await client.get("/v1/erasures", params={"limit": 2, "cursor": page["next_cursor"]})).json()
    assert rest["data"] == receipts[:1]
    problem(await client.get(f"/v1/operations/{receipts[0]['id']}"), 404, "not_found")


# what is refused


@pytest.mark.parametrize(
    "body",
    [{}, {"owner": "a", "actor": "a"}, {"conversation_id": "x"}, {"owner": ""}, {"owner": "a" * 257}, {"owner": ["a"]},
     {"tenant": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "project": "p"}, {"owners": "a"}, {"owner": None}],
)  # fmt: skip
async def test_a_request_that_names_no_single_subject_is_refused(client: Client, body: dict[str, Any]) -> None:
    problem(await client.post("/v1/erasures", json=body), 422, "invalid_request")
    problem(await client.post("/v1/erasures", json={"owner": "a\0"}), 422, "text_not_storable")
    assert (await client.get("/v1/erasures")).json()["data"] == []


async def test_an_erasure_needs_the_scope_admin(service: Service, client: Client) -> None:
    key = await service.container.tenancy.create_key(client.tenant_id, name="w", scopes=[Scope.READ, Scope.WRITE])
    async with service.client(str(key)) as writer:
        problem(await writer.post("/v1/erasures", json={"owner": "ann"}), 403, "forbidden")
        problem(await writer.get("/v1/erasures"), 403, "forbidden")
        problem(await writer.post("/v1/owners/lookup", json={"owner": "ann"}), 403, "forbidden")


@pytest.mark.slow
async def test_odd_names_are_erased_as_they_are(service: Service, client: Client) -> None:
    for name in ("%a", "_b", "'; drop table turns; --", "ann\\", "null", "✻ Ünï", '"c"', "@@@"):
        await own(client, name)
        await erase(service, client, owner=name)
        await erase(service, client, actor=name)
        assert await rows(service, client, "conversations") == 0
    assert await rows(service, client, "facts") == 0


async def test_a_repeated_request_starts_nothing_twice(service: Service, client: Client) -> None:
    headers = {"Idempotency-Key": "k"}
    first = await client.post("/v1/erasures", json={"owner": "ann"}, headers=headers)
    again = await client.post("/v1/erasures", json={"owner": "ann"}, headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.headers["Location"] == first.headers["Location"]
    problem(await client.post("/v1/erasures", json={"owner": "bob"}, headers=headers), 409, "idempotency_mismatch")
    await service.run_jobs()
    assert len((await client.get("/v1/erasures")).json()["data"]) == 1


async def test_the_same_owner_conversation_and_actor_in_another_tenant_stay(
    service: Service, client: Client, other: Client
) -> None:
    ids = {"conversation": format_id(new_uuid()), "turn": format_id(new_uuid())}
    for one in (client, other):
        await own(one, "ann")
        await one.conversation(id=ids["conversation"], owner="ann")
        await one.append(ids["conversation"], {"id": ids["turn"], "role": "user", "actor": "ann", "content": "hello"})
    before = await other.history(ids["conversation"])
    await asyncio.gather(*(client.post("/v1/erasures", json=body) for body in (
        {"owner": "ann"}, {"actor": "ann"}, {"conversation_id": ids["conversation"]}
    )))  # fmt: skip
    await service.run_jobs()
    assert await rows(service, client, "conversations") == 0
    assert await other.history(ids["conversation"]) == before
    assert len((await other.post("/v1/owners/lookup", json={"owner": "ann"})).json()["conversations"]["data"]) == 2


# beside writers, and after a death


@pytest.mark.slow
async def test_what_an_owner_or_actor_commits_before_the_end_is_erased_too(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own(client, "ann")
    late = await client.conversation()
    act_in = asyncio.Event()

    async def write(number: int) -> None:
        if number in {2, 4, 5, 6, 7}:
            act_in.set()
            await own(client, "ann")
            await client.append(late, {"role": "user", "actor": "ann", "content": "one more"})

    step, number = ErasureRunner._step, 0  # noqa: SLF001

    async def stepping(self: ErasureRunner, erasing: Any, tx: Any) -> None:
        nonlocal number
        number += 1
        # in a context of its own: that of the step is inside its transaction
        await asyncio.get_running_loop().create_task(write(number), context=contextvars.Context())
        await step(self, erasing, tx)

    monkeypatch.setattr(ErasureRunner, "_step", stepping)
    for body in ({"owner": "ann"}, {"actor": "ann"}):
        number = 0
        receipt = await erase(service, client, **body)
        (subject,) = body
        if subject == "owner":
            assert receipt["counts"]["conversations"]["deleted"] == 6
            for table in ("conversations", "facts", "memories", "index_entries"):
                assert await rows(service, client, table, "owner = 'ann'") == 0, table
        else:
            assert await rows(service, client, "turns", "actor = 'ann'") == 0
    assert act_in.is_set()


async def test_an_actor_that_becomes_a_participant_during_its_erasure_is_erased_too(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await client.conversation()
    connection = await asyncpg.connect(service.database.superuser)
    await connection.execute(  # its last turn was written long before
        f"update conversation_heads set updated_at = {earlier('updated_at', AN_HOUR)} where conversation_id = $1",  # noqa: S608
        parse_id(conversation),
    )
    await connection.close()
    step, number = ErasureRunner._step, 0  # noqa: SLF001

    async def name_ann() -> None:
        body = {"participants": [{"actor": "ann", "name": "Ann Smith"}]}
        assert (await client.patch(f"/v1/conversations/{conversation}", json=body)).status_code == 200

    async def stepping(self: ErasureRunner, erasing: Any, tx: Any) -> None:
        nonlocal number
        number += 1
        if number == 2:  # the first pass has looked at the conversation
            await asyncio.get_running_loop().create_task(name_ann(), context=contextvars.Context())
        await step(self, erasing, tx)

    monkeypatch.setattr(ErasureRunner, "_step", stepping)
    receipt = await erase(service, client, actor="ann")
    assert receipt["counts"]["conversations"] == {"deleted": 0, "emptied": 1}
    assert (await client.get(f"/v1/conversations/{conversation}")).json()["participants"] == []


async def test_an_interrupted_erasure_counts_each_row_once(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step dies once after its statements and before its commit, as by kill -9."""
    for _ in range(3):
        await own(client, "ann")
    step = ErasureRunner._step  # noqa: SLF001
    died: list[bool] = []

    async def dying(self: ErasureRunner, erasing: Any, tx: Any) -> None:
        await step(self, erasing, tx)
        died.append(len(died) % 2 == 0)
        if died[-1]:
            raise asyncio.CancelledError

    monkeypatch.setattr(ErasureRunner, "_step", dying)
    operation = (await client.post("/v1/erasures", json={"owner": "ann"})).json()["id"]
    ended: dict[str, Any] = {}
    for _ in range(40):
        run = await service.container.operations._begin(client.tenant_id, parse_id(operation))  # noqa: SLF001
        if run is None:
            break
        try:
            await service.container.operations.handlers["erasure"].run(run)
        except asyncio.CancelledError:
            continue
    ended = (await client.get(f"/v1/operations/{operation}")).json()
    assert ended["status"] == "succeeded"
    assert sum(died) > 3
    counts = {table: rows["deleted"] for table, rows in ended["result"]["counts"].items()}
    assert (counts["conversations"], counts["turns"], counts["summaries"], counts["turn_chunks"]) == (3, 9, 3, 3)
    assert await rows(service, client, "index_entries") == 0


async def test_a_cancelled_erasure_leaves_a_signed_receipt_of_what_it_did(service: Service, client: Client) -> None:
    await own(client, "ann")
    operation = (await client.post("/v1/erasures", json={"owner": "ann"})).json()["id"]
    await client.post(f"/v1/operations/{operation}/cancel")
    await service.run_jobs()
    receipt = (await client.get(f"/v1/erasures/{operation}")).json()
    assert (receipt["status"], receipt["counts"]) == ("cancelled", {})
    assert (await verify(client, receipt, owner="ann")) == {"valid": True, "matches": True}
    parameters = await fetch(service, "select parameters, state from operations where id = $1", parse_id(operation))
    assert tuple(parameters[0]) == (None, None)


async def test_the_doctor_finds_nothing_wrong_after_an_actors_erasure(service: Service, client: Client) -> None:
    conversation, _ = await own(client, "ann")
    await client.append(conversation, {"role": "assistant", "actor": "helper", "content": "well"})
    await erase(service, client, actor="ann")
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"]
    context = await client.context(conversation, 1000)
    assert "tea" not in str(context)


# the view of an owner


async def test_an_owner_is_shown_with_all_that_is_stored_under_it(service: Service, client: Client) -> None:
    made = [(await own(client, "ann", project))[0] for project in ("sales", "support")]
    await own(client, "bob")
    view = (await client.post("/v1/owners/lookup", json={"owner": "ann"})).json()
    assert [item["id"] for item in view["conversations"]["data"]] == made[::-1]
    assert (view["conversations"]["count"], view["facts"]["count"], view["memories"]["count"]) == (2, 2, 1)
    assert {fact["owner"] for fact in view["facts"]["data"]} == {"ann"}
    assert len(view["memories"]["data"][0]["stored_at"]) == 2
    narrow = (await client.post("/v1/owners/lookup", json={"owner": "ann", "project": "sales"})).json()
    assert (narrow["conversations"]["count"], narrow["facts"]["count"], narrow["memories"]["count"]) == (1, 2, 0)
    body: dict[str, Any] = {"owner": "ann", "limit": 1}
    pages: list[str] = []
    for _ in range(2):
        page = (await client.post("/v1/owners/lookup", json=body)).json()["conversations"]
        pages += [item["id"] for item in page["data"]]
        body["conversations_cursor"] = page["next_cursor"]
    assert pages == made[::-1]
    foreign = (await client.post("/v1/owners/lookup", json={"owner": "ann", "limit": 1})).json()["facts"]["next_cursor"]
    problem(await client.post("/v1/owners/lookup", json={"owner": "bob", "limit": 1, "facts_cursor": foreign}),
            422, "cursor_invalid")  # fmt: skip
    await erase(service, client, owner="ann")
    gone = (await client.post("/v1/owners/lookup", json={"owner": "ann"})).json()
    assert [gone[kind]["count"] for kind in ("conversations", "facts", "memories")] == [0, 0, 0]


def test_a_process_that_did_not_migrate_knows_all_tables_of_a_tenant_to_erase() -> None:
    """In a process of its own: a migration, in this one, describes all tables."""
    program = (
        "import app.container; from app.core.database.metadata import METADATA;"
        " from app.governance.erasures.store import tenant_tables; print(*{*tenant_tables()} - {*METADATA.tables})"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert found.stdout.split() == []
