"""Facts that an undo removed: they stay readable, have no effect, can be stated again, and go with their sources."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from app.core.database.transactions import Database, PoolOptions
from app.diagnostics.service import DataCheck
from tests.api.test_erasures import erase
from tests.api.test_exports import export, records
from tests.api.test_facts import TWO_DAYS, day, fact, facts, found, of_facts, tell, undo
from tests.api.test_imports import file_of, imported
from tests.api.test_owners import claim
from tests.support.api import Client, Service, problem
from tests.support.postgres import earlier

pytestmark = pytest.mark.usefixtures("sound")
BERLIN = {"subject": "ana", "predicate": "lives in", "object": "Berlin", "valid_from": day(0)}


@pytest.fixture
async def root(service: Service) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(service.database.superuser)
    yield connection
    await connection.close()


@pytest.fixture
async def sound(service: Service, client: Client) -> AsyncIterator[None]:
    """After each test, no row of the tenant refers to another one that is gone."""
    yield
    database = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor"))
    await database.open()
    assert await DataCheck(database, client.tenant_id).references() == []
    await database.close()


async def correct(client: Client, fact_id: str, value: str) -> dict[str, Any]:
    answer = await client.patch(f"/v1/facts/{fact_id}", json={"object": value})
    assert answer.status_code == 200, answer.text
    return answer.json()["fact"]


async def states(client: Client, **params: Any) -> dict[str, bool]:
    """Every fact with its object, and whether it is undone."""
    listed = await facts(client, include_retracted=True, limit=200, **params)
    assert len({one["object"] for one in listed}) == len(listed)
    return {one["object"]: one["undone"] for one in listed}


@pytest.mark.parametrize("named", ["the corrected fact", "the correction"])
async def test_an_undone_correction_stays_readable_and_has_no_effect(client: Client, named: str) -> None:
    wrong = await tell(client, "ana", "lives in", "Berln", owner="ana", valid_from=day(0))
    before = await fact(client, wrong["id"])
    right = await correct(client, wrong["id"], "Berlin")
    assert (await fact(client, wrong["id"]))["undone"] is False
    result = await undo(client, wrong["id"] if named == "the corrected fact" else right["id"])
    assert {one["id"] for one in [result["fact"], *result["changed"]]} == {wrong["id"], right["id"]}
    assert await fact(client, wrong["id"]) == before
    undone = await fact(client, right["id"])
    assert (undone["object"], undone["undone"], undone["evidence_count"]) == ("Berlin", True, 1)
    assert (undone["valid_to"], undone["invalidated_by"]) == (undone["valid_from"], None)
    assert undone["invalidated_at"] is not None
    assert await states(client) == {"Berln": False, "Berlin": True}
    # as it was known before
    known = await facts(client, known_at=undone["recorded_at"])
    assert {"id": right["id"], "undone": False, "invalidated_at": None}.items() <= known[0].items()
    # nowhere else
    for params in ({}, {"as_of": day(1)}, {"subject": "ana"}, {"owner": "ana"}):
        assert [one["id"] for one in await facts(client, **params)] == [wrong["id"]]
    assert await found(client, "Berlin Berln ana") == ["ana lives in Berln"]
    conversation = await client.conversation(owner="ana")
    for query in ("where does ana live", "xyzzy"):
        context = await client.context(conversation, 1000, include_facts=True, query=query)
        assert context["included"]["fact_ids"] == [wrong["id"]]


async def test_an_undone_fact_is_not_undone_corrected_or_retracted_again(client: Client) -> None:
    berlin = await tell(client, "ana", "lives in", "Berlin", valid_from=day(0))
    rome = await tell(client, "ana", "lives in", "Rome", valid_from=day(5))
    await tell(client, "ana", "lives in", "Oslo", valid_from=day(9))
    await undo(client, berlin["id"])
    path = f"/v1/facts/{rome['id']}"
    before = await fact(client, rome["id"])
    # Oslo had ended it: this change belongs to the facts that are left
    problem(await client.post(f"{path}/undo"), 409, "nothing_to_undo")
    problem(await client.patch(path, json={"object": "Roma"}), 409, "fact_retracted")
    assert (await client.delete(path)).json() == {"fact": before, "changed": []}
    assert await states(client) == {"Berlin": False, "Rome": True, "Oslo": False}
    assert (await fact(client, berlin["id"]))["valid_to"] == day(9)


async def test_an_undone_statement_is_asserted_again(client: Client) -> None:
    first = await tell(client, "ana", "lives in", "Berlin", valid_from=day(0))
    await undo(client, first["id"])
    answer = await client.post("/v1/facts", json=BERLIN)
    assert answer.status_code == 201, answer.text
    second = answer.json()["fact"]
    assert (second["id"] != first["id"], second["undone"], second["invalidated_at"]) == (True, False, None)
    assert [one["id"] for one in await facts(client)] == [second["id"]]
    assert await found(client, "where does ana live") == ["ana lives in Berlin"]
    assert (await client.post("/v1/facts", json=BERLIN)).status_code == 200
    undone = (await undo(client, second["id"]))["fact"]
    assert undone["undone"]
    assert {one["id"] for one in await facts(client, include_retracted=True)} == {first["id"], second["id"]}
    assert await facts(client) == []
    # a correction too
    wrong = await tell(client, "ana", "lives in", "Berln", valid_from=day(0))
    for _ in range(2):
        right = await correct(client, wrong["id"], "Berlin")
        assert [one["id"] for one in await facts(client)] == [right["id"]]
        await undo(client, right["id"])
        assert [one["id"] for one in await facts(client)] == [wrong["id"]]
    # what a caller retracted stays retracted
    assert (await client.delete(f"/v1/facts/{wrong['id']}")).status_code == 200
    problem(await client.post("/v1/facts", json=BERLIN | {"object": "Berln"}), 409, "fact_retracted")


async def test_a_statement_is_of_its_own_conversation_before_and_after_an_undo(
    client: Client, root: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    first, second = await client.conversation(), await client.conversation()
    before = await tell(client, "ana", "likes", "quokkas", conversation_id=first, valid_from=day(0))
    await undo(client, before["id"])
    after = await tell(client, "ana", "likes", "quokkas", conversation_id=second, valid_from=day(0))
    assert ((await fact(client, before["id"]))["conversation_id"], after["conversation_id"]) == (first, second)
    assert (await client.delete(f"/v1/conversations/{first}")).status_code == 204
    assert [one["id"] for one in await facts(client, include_retracted=True)] == [after["id"]]
    await undo(client, after["id"])
    assert (await client.delete(f"/v1/conversations/{second}")).status_code == 204
    assert await of_facts(root, client) == ""


async def test_erasing_a_source_takes_undone_facts(client: Client, root: "asyncpg.Connection[asyncpg.Record]") -> None:
    conversation = await client.conversation(owner="ana")
    turns = [turn["id"] for turn in (await client.append(conversation, "one", "two", "three"))["turns"]]
    both = await tell(client, "I", "owns", "a quokka", source_turn_ids=turns[:2], valid_from=day(0))
    corrected = await correct(client, both["id"], "a quokka farm")
    await undo(client, corrected["id"])
    alone = await tell(client, "I", "likes", "quokkas", source_turn_ids=turns[:1], valid_from=day(0))
    await undo(client, alone["id"])
    assert (await client.delete(f"/v1/conversations/{conversation}/turns/{turns[0]}")).status_code == 204
    problem(await client.get(f"/v1/facts/{alone['id']}"), 404, "not_found")
    left = await fact(client, corrected["id"])
    assert (left["source_turn_ids"], left["evidence_count"], left["undone"]) == (turns[1:2], 1, True)
    assert (await client.delete(f"/v1/conversations/{conversation}/turns/{turns[1]}")).status_code == 204
    assert await of_facts(root, client) == ""


async def test_erasing_an_owner_takes_undone_facts(
    client: Client, service: Service, root: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    wrong = await tell(client, "I", "owns", "a quoka", owner="ana", project="one")
    await undo(client, (await correct(client, wrong["id"], "a quokka"))["id"])
    await undo(client, (await tell(client, "I", "likes", "quokkas", owner="ana", project="two"))["id"])
    assert (await erase(service, client, owner="ana", project="two"))["counts"]["facts"]["deleted"] == 1
    assert set(await states(client)) == {"a quoka", "a quokka"}
    assert (await erase(service, client, owner="ana"))["counts"]["facts"]["deleted"] == 2
    assert await of_facts(root, client) == ""


async def test_an_undone_fact_is_as_hidden_as_its_conversation(client: Client) -> None:
    conversation = await client.conversation()
    tea = await tell(client, "ana", "likes", "tea", conversation_id=conversation)
    await undo(client, tea["id"])
    path = f"/v1/conversations/{conversation}"
    assert (await client.post(f"{path}/trash")).is_success
    problem(await client.get(f"/v1/facts/{tea['id']}"), 404, "not_found")
    assert await facts(client, include_retracted=True) == []


async def test_an_undone_fact_expires_as_it_would_have(
    client: Client, service: Service, root: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    tired = await tell(client, "ana", "is", "tired", tier="l1")
    await undo(client, tired["id"])
    for column in ("expires_at", "recorded_at", "due_at"):
        statement = f"update facts set {column} = {earlier(column, TWO_DAYS)} where tenant_id = $1"  # noqa: S608
        await root.execute(statement, client.tenant_id)
    assert await facts(client, include_retracted=True) == []
    await service.container.facts.sweep()
    assert await of_facts(root, client) == ""


async def test_an_undone_fact_moves_with_its_conversation_to_an_owner(client: Client) -> None:
    conversation = await client.conversation()
    wrong = await tell(client, "the user", "lives in", "Berln", conversation_id=conversation, valid_from=day(0))
    right = await correct(client, wrong["id"], "Berlin")
    await undo(client, right["id"])
    # of the owner, and undone, is the statement that now comes from the conversation
    other = await tell(client, "ann", "lives in", "Berln", owner="ann", valid_from=day(0))
    await undo(client, other["id"])
    await claim(client, conversation)
    assert [(one["id"], one["owner"]) for one in await facts(client)] == [(wrong["id"], "ann")]
    rows = {one["id"]: one for one in await facts(client, include_retracted=True)}
    assert {row["owner"] for row in rows.values()} == {row["subject"] for row in rows.values()} == {"ann"}
    assert {key: row["undone"] for key, row in rows.items()} == {
        wrong["id"]: False,
        right["id"]: True,
        other["id"]: True,
    }
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    assert [one["id"] for one in await facts(client, include_retracted=True)] == [other["id"]]


async def test_an_export_carries_undone_facts_and_two_tenants_have_them_under_the_same_ids(
    client: Client, other: Client, service: Service
) -> None:
    conversation = await client.conversation(owner="ana")
    turns = [turn["id"] for turn in (await client.append(conversation, "one"))["turns"]]
    wrong = await tell(client, "I", "lives in", "Berln", source_turn_ids=turns, valid_from=day(0))
    await undo(client, (await correct(client, wrong["id"], "Berlin"))["id"])
    # the same statement undone, and standing, of different conversations
    first = await tell(client, "ana", "likes", "tea", owner="ana", conversation_id=conversation, valid_from=day(0))
    await undo(client, first["id"])
    second = await tell(client, "ana", "likes", "tea", owner="ana", valid_from=day(0))
    before = await export(client)
    assert [one["object"] for one in records(before) if one.get("undone")] == ["Berlin", "tea"]
    assert (await imported(service, other, before))["problems"] == []
    assert await export(other) == before
    shown = await facts(client, include_retracted=True)
    assert await facts(other, include_retracted=True) == shown
    # the same file twice, and into its own tenant, stores nothing twice
    for tenant in (client, other):
        assert set((await imported(service, tenant, before))["records"].values()) == {0}
        assert await export(tenant) == before
    # each tenant has its own
    await undo(other, second["id"])
    assert (await other.delete(f"/v1/conversations/{conversation}")).status_code == 204
    assert {one["id"]: one["undone"] for one in await facts(other, include_retracted=True)} == {second["id"]: True}
    assert await facts(client, include_retracted=True) == shown


async def test_an_import_refuses_an_undone_fact_that_is_not_retracted(
    client: Client, other: Client, service: Service
) -> None:
    await undo(client, (await tell(client, "ana", "likes", "tea"))["id"])
    (hostile,) = [one for one in records(await export(client)) if one["type"] == "fact"]
    assert hostile.pop("retracted") is True
    result = await imported(service, other, file_of([hostile]))
    assert [error["pointer"] for problem in result["problems"] for error in problem["errors"]] == ["/undone"]
    assert await facts(other, include_retracted=True) == []


@pytest.mark.parametrize("member", ["retracted", "undone"])
async def test_an_import_refuses_a_retracted_fact_without_evidence(
    client: Client, service: Service, member: str
) -> None:
    bare = {"type": "fact", "subject": "ana", "predicate": "likes", "object": "tea", member: True}
    result = await imported(service, client, file_of([bare]))
    assert [error["pointer"] for problem in result["problems"] for error in problem["errors"]] == [f"/{member}"]
    assert await facts(client, include_retracted=True) == []


async def test_a_repeated_request_shows_that_its_fact_was_undone(client: Client) -> None:
    headers = {"Idempotency-Key": "k"}
    made = (await client.post("/v1/facts", json=BERLIN, headers=headers)).json()["fact"]
    await undo(client, made["id"])
    again = await client.post("/v1/facts", json=BERLIN, headers=headers)
    assert (again.status_code, again.json()["fact"]["id"], again.json()["fact"]["undone"]) == (201, made["id"], True)
    assert await facts(client) == []
