"""Facts: asserted, corrected, retracted, undone; found, shown in contexts; gone with what they rest on."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from app.core.ids import format_id, new_uuid
from app.memory.facts.fact_timeline import FactTimeline
from app.memory.facts.merge import Clock
from app.memory.facts.store import FactKey, StoredFact
from app.memory.schemas import Statement, Tier
from app.settings.memory import FactSettings
from tests.support.api import Client, Service, problem
from tests.support.postgres import earlier

TWO_DAYS = "interval '2 days'"

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def day(number: int) -> str:
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def tell(client: Client, subject: str, predicate: str, value: str, **more: Any) -> dict[str, Any]:
    body = {"subject": subject, "predicate": predicate, "object": value} | more
    answer = await client.post("/v1/facts", json=body)
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()["fact"]


async def facts(client: Client, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get("/v1/facts", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def fact(client: Client, fact_id: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/facts/{fact_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def undo(client: Client, fact_id: str) -> dict[str, Any]:
    answer = await client.post(f"/v1/facts/{fact_id}/undo")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def found(client: Client, query: str, **body: Any) -> list[str]:
    return [hit["text"] for hit in await client.recall(None, query, kinds=["fact"], **body)]


@pytest.fixture
async def root(service: Service) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(service.database.superuser)
    yield connection
    await connection.close()


# asserting


async def test_a_fact_is_recorded_and_read(client: Client) -> None:
    body = {"subject": "Ana", "predicate": "resides in", "object": "Berlin", "owner": "ana", "valid_from": day(0)}
    answer = await client.post("/v1/facts", json=body)
    assert answer.status_code == 201
    made = answer.json()["fact"]
    assert answer.json()["changed"] == []
    assert made == {
        "id": made["id"], "subject": "Ana", "predicate": "lives_in", "object": "Berlin", "owner": "ana",
        "project": None, "conversation_id": None, "source_turn_ids": [], "confidence": 1.0, "tier": "l3",
        "stated_by": "caller", "evidence_count": 1, "valid_from": day(0), "valid_to": None,
        "recorded_at": made["recorded_at"], "invalidated_at": None, "invalidated_by": None, "undone": False,
    }  # fmt: skip
    assert await fact(client, made["id"]) == made
    assert await facts(client) == [made]


async def test_the_same_fact_gains_evidence_and_the_very_same_statement_changes_nothing(client: Client) -> None:
    conversation = await client.conversation(owner="ana")
    turns = [turn["id"] for turn in (await client.append(conversation, "one", "two"))["turns"]]
    made = await tell(client, "I", "likes", "green tea", source_turn_ids=turns[:1], valid_from=day(0))
    assert (made["subject"], made["owner"], made["conversation_id"]) == ("ana", "ana", conversation)
    for _ in range(2):
        body = {"subject": "ana", "predicate": "loves", "object": "the green tea", "valid_from": day(1)}
        answer = await client.post("/v1/facts", json=body | {"source_turn_ids": turns[1:]})
        assert answer.status_code == 200
        again = answer.json()["fact"]
        assert (again["id"], again["evidence_count"], again["source_turn_ids"]) == (made["id"], 2, turns)
    assert again["valid_from"] == day(0)


async def test_a_new_object_ends_an_earlier_one_only_where_there_is_room_for_one(client: Client) -> None:
    berlin = await tell(client, "ana", "lives in", "Berlin", valid_from=day(0))
    answer = await client.post(
        "/v1/facts", json={"subject": "ana", "predicate": "lives in", "object": "Paris", "valid_from": day(10)}
    )
    paris = answer.json()["fact"]
    (ended,) = answer.json()["changed"]
    assert (ended["id"], ended["valid_to"], ended["invalidated_by"]) == (berlin["id"], day(10), paris["id"])
    tea = await tell(client, "ana", "likes", "tea", valid_from=day(0))
    await tell(client, "ana", "likes", "coffee", valid_from=day(1))
    assert (await fact(client, tea["id"]))["valid_to"] is None
    juice = await tell(client, "ana", "likes", "juice", valid_from=day(2), replaces=True)
    assert (await fact(client, tea["id"]))["invalidated_by"] == juice["id"]


async def test_a_late_import_never_ends_what_is_newer(client: Client) -> None:
    paris = await tell(client, "ana", "lives in", "Paris", valid_from=day(10))
    berlin = await tell(client, "ana", "lives in", "Berlin", valid_from=day(0))
    assert (berlin["valid_to"], berlin["invalidated_by"]) == (day(10), paris["id"])
    assert (await fact(client, paris["id"]))["valid_to"] is None
    assert await found(client, "where does ana live") == ["ana lives in Paris"]


async def test_time_travel_by_what_was_so_and_by_what_was_known(client: Client) -> None:
    berlin = await tell(client, "ana", "lives in", "Berlin", valid_from=day(0))
    await asyncio.sleep(0.005)
    paris = await tell(client, "ana", "lives in", "Paris", valid_from=day(10))
    assert [one["object"] for one in await facts(client, as_of=day(5))] == ["Berlin"]
    assert [one["object"] for one in await facts(client, as_of=day(10))] == ["Paris"]
    assert await facts(client, as_of="2025-06-01T00:00:00Z") == []
    before = berlin["recorded_at"]
    (known,) = await facts(client, known_at=before)
    assert (known["object"], known["valid_to"], known["invalidated_by"]) == ("Berlin", None, None)
    assert [one["object"] for one in await facts(client, known_at=before, as_of=day(20))] == ["Berlin"]
    assert [one["object"] for one in await facts(client, known_at=paris["recorded_at"], as_of=day(20))] == ["Paris"]
    await client.delete(f"/v1/facts/{berlin['id']}")
    assert [one["object"] for one in await facts(client, known_at=before)] == ["Berlin"]


async def test_lists_are_narrowed_and_paged_by_key(client: Client) -> None:
    conversation = await client.conversation(owner="ana")
    for number in range(5):
        await tell(client, "ana", "likes", f"tea {number}", owner="ana")
    await tell(client, "Bo", "works for", "Acme", tier="l2")
    await tell(client, "I", "owns", "a bike", conversation_id=conversation)
    assert len(await facts(client)) == 7
    assert [one["object"] for one in await facts(client, subject="BO")] == ["Acme"]
    assert [one["object"] for one in await facts(client, predicate="employed by")] == ["Acme"]
    assert len(await facts(client, owner="ana")) == 6
    assert [one["object"] for one in await facts(client, tier="l2")] == ["Acme"]
    assert [one["object"] for one in await facts(client, conversation_id=conversation)] == ["a bike"]
    seen: list[str] = []
    params: dict[str, Any] = {"owner": "ana", "limit": 2, "order": "asc"}
    while True:
        page = (await client.get("/v1/facts", params=params)).json()
        seen += [one["object"] for one in page["data"]]
        if not page["has_more"]:
            break
        params["cursor"] = page["next_cursor"]
    assert seen == [*(f"tea {number}" for number in range(5)), "a bike"]
    problem(await client.get("/v1/facts", params=params | {"owner": "bo"}), 422, "cursor_invalid", "/cursor")


async def test_an_idempotency_key_asserts_once(client: Client) -> None:
    headers = {"Idempotency-Key": "k"}
    body = {"subject": "ana", "predicate": "lives in", "object": "Paris", "valid_from": day(10)}
    await tell(client, "ana", "lives in", "Berlin", valid_from=day(0))
    first = await client.post("/v1/facts", json=body, headers=headers)
    again = await client.post("/v1/facts", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
    problem(
        await client.post("/v1/facts", json=body | {"object": "Rome"}, headers=headers), 409, "idempotency_mismatch"
    )
    assert len(await facts(client)) == 2


async def test_what_cannot_be_a_fact_is_refused_and_named(client: Client) -> None:
    good = {"subject": "ana", "predicate": "likes", "object": "tea"}
    conversation = await client.conversation()
    other = await client.conversation()
    turn = (await client.append(other, "one"))["turns"][0]["id"]
    for more, status, pointer in (
        ({"object": "…"}, 201, None),
        ({"subject": "???"}, 422, "/subject"),
        ({"object": " "}, 422, "/object"),
        ({"confidence": 1.5}, 422, "/confidence"),
        ({"valid_from": day(2), "valid_to": day(1)}, 422, None),
        ({"valid_to": day(-400)}, 422, "/valid_to"),
        ({"source_turn_ids": [ULID]}, 404, "/source_turn_ids/0"),
        ({"source_turn_ids": [turn], "conversation_id": conversation}, 404, "/source_turn_ids/0"),
        ({"conversation_id": ULID}, 404, None),
    ):
        answer = await client.post("/v1/facts", json=good | more)
        assert answer.status_code == status, (more, answer.text)
        if pointer is not None:
            assert pointer in [error["pointer"] for error in answer.json()["errors"]]
    await client.delete(f"/v1/conversations/{other}/turns/{turn}")
    answer = await client.post("/v1/facts", json=good | {"source_turn_ids": [turn]})
    problem(answer, 409, "source_gone", "/source_turn_ids/0")


# correcting, retracting, undoing


async def test_a_correction_retracts_and_stands_in_its_place(client: Client) -> None:
    made = await tell(client, "ana", "lives in", "Berln", valid_from=day(0))
    answer = await client.patch(f"/v1/facts/{made['id']}", json={"object": "Berlin"})
    assert answer.status_code == 200, answer.text
    corrected = answer.json()["fact"]
    assert (corrected["object"], corrected["valid_from"]) == ("Berlin", day(0))
    assert corrected["id"] != made["id"]
    assert [one["object"] for one in await facts(client)] == ["Berlin"]
    assert {one["object"] for one in await facts(client, include_retracted=True)} == {"Berlin", "Berln"}
    assert await found(client, "ana Berlin Berln") == ["ana lives in Berlin"]
    problem(await client.patch(f"/v1/facts/{made['id']}", json={"object": "Bern"}), 409, "fact_retracted")
    same = await client.patch(f"/v1/facts/{corrected['id']}", json={"object": "Berlin"})
    assert (same.json()["fact"], same.json()["changed"]) == (corrected, [])
    undone = await undo(client, corrected["id"])
    assert (undone["fact"]["id"], undone["fact"]["undone"]) == (corrected["id"], True)
    assert [one["id"] for one in undone["changed"]] == [made["id"]]
    assert [one["object"] for one in await facts(client)] == ["Berln"]


async def test_a_correction_may_give_an_end_and_refuses_one_before_the_beginning(client: Client) -> None:
    made = await tell(client, "ana", "works at", "Acme", valid_from=day(10))
    path = f"/v1/facts/{made['id']}"
    problem(await client.patch(path, json={"valid_to": day(5)}), 422, "invalid_request", "/valid_to")
    ended = (await client.patch(path, json={"valid_to": day(20), "tier": "l2"})).json()["fact"]
    assert (ended["valid_to"], ended["tier"]) == (day(20), "l2")
    assert await found(client, "where does ana work") == []


async def test_a_retraction_opens_what_was_ended_and_can_be_undone(client: Client) -> None:
    berlin = await tell(client, "ana", "lives in", "Berlin", valid_from=day(0))
    paris = await tell(client, "ana", "lives in", "Paris", valid_from=day(10))
    answer = (await client.delete(f"/v1/facts/{paris['id']}")).json()
    assert answer["fact"]["invalidated_at"] is not None
    assert [(one["id"], one["valid_to"]) for one in answer["changed"]] == [(berlin["id"], None)]
    assert await found(client, "where does ana live") == ["ana lives in Berlin"]
    again = (await client.delete(f"/v1/facts/{paris['id']}")).json()
    assert again == {"fact": answer["fact"], "changed": []}
    body = {"subject": "ana", "predicate": "lives in", "object": "Paris", "valid_from": day(10)}
    problem(await client.post("/v1/facts", json=body), 409, "fact_retracted")
    back = await undo(client, paris["id"])
    assert (back["fact"]["id"], back["fact"]["invalidated_at"]) == (paris["id"], None)
    assert (await fact(client, berlin["id"]))["valid_to"] == day(10)
    assert await found(client, "where does ana live") == ["ana lives in Paris"]


async def test_undoing_goes_back_step_by_step_and_ends(client: Client) -> None:
    tea = await tell(client, "ana", "likes", "tea", valid_from=day(0))
    conversation = await client.conversation()
    turn = (await client.append(conversation, "one"))["turns"][0]["id"]
    await tell(client, "ana", "likes", "tea", valid_from=day(1), source_turn_ids=[turn], owner=None)
    assert (await fact(client, tea["id"]))["evidence_count"] == 2
    once = await undo(client, tea["id"])
    (repeat,) = once["changed"]
    assert once["fact"]["evidence_count"] == 1
    assert (repeat["undone"], repeat["source_turn_ids"]) == (True, [turn])
    undone = await undo(client, tea["id"])
    assert (undone["fact"]["undone"], undone["fact"]["evidence_count"], undone["changed"]) == (True, 1, [])
    assert await facts(client) == []
    assert await facts(client, include_retracted=True) == [repeat, undone["fact"]]
    problem(await client.post(f"/v1/facts/{tea['id']}/undo"), 409, "nothing_to_undo")


async def test_undoing_what_ended_a_fact_opens_it_again(client: Client) -> None:
    berlin = await tell(client, "ana", "lives in", "Berlin", valid_from=day(0))
    paris = await tell(client, "ana", "lives in", "Paris", valid_from=day(10))
    undone = await undo(client, berlin["id"])
    assert (undone["fact"]["valid_to"], [one["id"] for one in undone["changed"]]) == (None, [paris["id"]])
    assert [one["object"] for one in await facts(client)] == ["Berlin"]


async def test_only_so_many_changes_of_a_key_are_kept(client: Client) -> None:
    made = await tell(client, "ana", "likes", "tea", valid_from=day(0))
    for number in range(1, 13):
        await tell(client, "ana", "likes", "tea", valid_from=day(number))
    for _ in range(10):
        await undo(client, made["id"])
    problem(await client.post(f"/v1/facts/{made['id']}/undo"), 409, "nothing_to_undo")


# tiers


async def test_tiers_rise_with_evidence_and_what_is_past_its_time_goes(
    client: Client, service: Service, root: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    conversation = await client.conversation()
    turns = [turn["id"] for turn in (await client.append(conversation, "one", "two"))["turns"]]
    short = await tell(client, "ana", "is", "tired", tier="l1", source_turn_ids=turns[:1], valid_from=day(0))
    kept = await tell(client, "ana", "feels", "fine", tier="l1", source_turn_ids=turns[:1], valid_from=day(0))
    kept = await tell(client, "ana", "feels", "fine", tier="l1", source_turn_ids=turns[1:], valid_from=day(1))
    assert (short["tier"], kept["tier"]) == ("l1", "l2")
    for column in ("expires_at", "recorded_at", "due_at"):
        await root.execute(
            f"update facts set {column} = {earlier(column, TWO_DAYS)} where tenant_id = $1",  # noqa: S608
            client.tenant_id,
        )
    assert [one["id"] for one in await facts(client)] == [kept["id"]]
    assert await found(client, "is ana tired") == ["ana feels fine"]
    problem(await client.get(f"/v1/facts/{short['id']}"), 404, "not_found")
    await service.container.facts.sweep()
    rows = await root.fetch("select id from facts where tenant_id = $1", client.tenant_id)
    assert [format_id(row["id"]) for row in rows] == [kept["id"]]
    decisions = await root.fetch("select decision::text from fact_decisions where tenant_id = $1", client.tenant_id)
    assert len(decisions) == 2
    assert not any("tired" in row[0] for row in decisions)
    left = await root.fetchval(
        "select count(*) from index_entries where tenant_id = $1 and kind = 'fact'", client.tenant_id
    )
    assert left == 1


async def test_very_many_facts_of_a_key_go_at_once_when_their_time_is_over() -> None:
    """Nobody else is answered while a timeline is drawn: so it is drawn once, not once for each that goes."""
    now, ids = datetime(2026, 1, 1, tzinfo=UTC), Clock(datetime(2026, 1, 1, tzinfo=UTC), new_uuid)
    key, settings = FactKey("ana", "ana", "likes"), FactSettings()
    stored: list[StoredFact] = []
    for number in range(600):
        one = FactTimeline(
            key, [], {}, clock=ids, settings=settings
        )  # of its own: a merge takes longer the more facts there are
        tier = Tier.L3 if number == 7 else Tier.L1
        one.merge(Statement("ana", "likes", f"thing {number}", now + timedelta(seconds=number), tier=tier), {})
        stored += one.written()
    began = time.process_time()
    after = FactTimeline(key, stored, {}, clock=replace(ids, now=now + timedelta(days=2)), settings=settings)
    assert time.process_time() - began < 1
    assert ([one.object for one in after.facts], len(after.deleted())) == (["thing 7"], 599)


async def test_a_fact_that_is_only_to_begin_is_not_found_yet(client: Client) -> None:
    berlin = await tell(client, "ana", "lives in", "Berlin", owner="ana", valid_from=day(0))
    paris = await tell(client, "ana", "lives in", "Paris", owner="ana", valid_from="2124-01-01T00:00:00Z")
    assert await found(client, "where does ana live") == ["ana lives in Berlin"]
    conversation = await client.conversation(owner="ana")
    for query in ("where does ana live", "xyzzy"):
        context = await client.context(conversation, 1000, include_facts=True, query=query)
        assert context["included"]["fact_ids"] == [berlin["id"]]
    assert {one["id"] for one in await facts(client)} == {berlin["id"], paris["id"]}


async def test_a_fact_with_an_end_to_come_is_found_until_then(
    client: Client, service: Service, root: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    made = await tell(client, "ana", "works at", "Acme", valid_from=day(0), valid_to=later)
    assert await found(client, "where does ana work") == ["ana works at Acme"]
    await root.execute(
        "update facts set valid_to = now() - interval '1 s', due_at = now() - interval '1 s' where tenant_id = $1",
        client.tenant_id,
    )
    assert await found(client, "where does ana work") == []
    await service.container.facts.sweep()
    entries = "select count(*) from index_entries where tenant_id = $1"
    assert await root.fetchval(entries, client.tenant_id) == 0
    assert (await fact(client, made["id"]))["valid_to"] is not None


# found, and shown


async def test_facts_are_recalled_with_their_sources(client: Client) -> None:
    conversation = await client.conversation(owner="ana")
    turn = (await client.append(conversation, "I have a parrot."))["turns"][0]["id"]
    made = await tell(client, "I", "has pet", "a parrot", source_turn_ids=[turn])
    for mode in ("text", "vector", "hybrid"):
        for scope in (conversation, None):
            (hit,) = await client.recall(scope, "which pet does ana have", kinds=["fact"], mode=mode, explain=True)
            assert (hit["kind"], hit["id"], hit["text"]) == ("fact", made["id"], "ana has pet a parrot")
            assert (hit["fact"], hit["turn"], hit["neighbours"]) == (made, None, None)
            assert hit["fact"]["source_turn_ids"] == [turn]
    kinds = {hit["kind"] for hit in await client.recall(conversation, "parrot", kinds=["turn", "fact"])}
    assert kinds == {"turn", "fact"}
    assert {hit["kind"] for hit in await client.recall(conversation, "parrot")} == {"turn"}
    assert await found(client, "parrot", owner="bo") == []


async def test_contexts_have_facts_when_asked(client: Client) -> None:
    conversation = await client.conversation(owner="ana")
    turn = await client.append(conversation, {"role": "user", "actor": "ana", "content": "What do I drink?"})
    turn = turn["turns"][0]["id"]
    tea = await tell(client, "I", "likes", "green tea", conversation_id=conversation, valid_from=day(0))
    elsewhere = await tell(client, "ana", "lives in", "Rome", owner="ana", valid_from=day(0))
    await tell(client, "bo", "likes", "coffee", owner="bo")
    without = await client.context(conversation, 1000)
    assert without["included"]["fact_ids"] == []
    context = await client.context(conversation, 1000, include_facts=True)
    assert context["included"]["fact_ids"] == [tea["id"], elsewhere["id"]]
    text = str(context["messages"])
    assert "ana likes green tea (since 2026-01-01)" in text
    assert "coffee" not in text
    assert context["usage"]["sections"]["facts"]["used"] > 0
    assert context["usage"]["used"] <= 1000
    await client.delete(f"/v1/facts/{tea['id']}")
    context = await client.context(conversation, 1000, include_facts=True)
    assert context["included"]["fact_ids"] == [elsewhere["id"]]


async def test_a_conversation_without_an_owner_shows_its_own_facts_and_a_filter_holds_for_them(client: Client) -> None:
    conversation, other = await client.conversation(), await client.conversation()
    said = [{"role": "user", "actor": actor, "content": "hm"} for actor in ("ana", "bo")]
    turns = [turn["id"] for turn in (await client.append(conversation, *said))["turns"]]
    by_ana = await tell(client, "ana", "likes", "tea", source_turn_ids=turns[:1])
    by_bo = await tell(client, "bo", "likes", "tea", source_turn_ids=turns[1:])
    await tell(client, "cy", "likes", "tea", conversation_id=other)
    context = await client.context(conversation, 1000, include_facts=True, query="who likes tea")
    assert set(context["included"]["fact_ids"]) == {by_ana["id"], by_bo["id"]}
    context = await client.context(
        conversation, 1000, include_facts=True, query="who likes tea", filter_participants=["ana"]
    )
    assert context["included"]["fact_ids"] == [by_ana["id"]]


async def test_late_vectors_are_made_by_a_job(client: Client, service: Service) -> None:
    """What comes up again in a transaction, where nothing is embedded, is found by words until the job has run."""
    berlin = await tell(client, "ana", "lives in", "Berlin", valid_from=day(0))
    paris = await tell(client, "ana", "lives in", "Paris", valid_from=day(10))
    await client.delete(f"/v1/facts/{paris['id']}")
    (hit,) = await client.recall(None, "ana Berlin", kinds=["fact"], explain=True)
    assert (hit["id"], hit["explain"]["cosine"]) == (berlin["id"], None)
    await service.run_jobs()
    (hit,) = await client.recall(None, "in which town is her home", kinds=["fact"], mode="vector", explain=True)
    assert (hit["id"], hit["explain"]["cosine"] is not None) == (berlin["id"], True)


# gone with its sources


async def of_facts(root: "asyncpg.Connection[asyncpg.Record]", client: Client) -> str:
    """All that is held of a tenant's facts, as text."""
    tables = ("facts", "fact_evidence", "fact_decisions", "fact_decision_sources")
    texts = [
        row[0]
        for table in tables
        for row in await root.fetch(f"select t::text from {table} t where tenant_id = $1", client.tenant_id)  # noqa: S608
    ]
    entries = "select t::text from index_entries t where tenant_id = $1 and kind = 'fact'"
    return "\n".join([*texts, *(row[0] for row in await root.fetch(entries, client.tenant_id))])


async def test_erasing_a_source_takes_all_that_rests_on_it(
    client: Client, root: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    conversation = await client.conversation(owner="ana")
    turns = [turn["id"] for turn in (await client.append(conversation, "one", "two", "three"))["turns"]]
    alone = await tell(client, "I", "lives in", "Quokkatown", source_turn_ids=turns[:1], valid_from=day(0))
    await client.patch(f"/v1/facts/{alone['id']}", json={"object": "Quokkaville"})
    await tell(client, "I", "lives in", "Paris", source_turn_ids=turns[2:], valid_from=day(10))
    both = await tell(client, "I", "likes", "tea", source_turn_ids=turns[:1], valid_from=day(0))
    await tell(client, "I", "likes", "tea", source_turn_ids=turns[1:2], valid_from=day(1))
    assert "Quokka" in await of_facts(root, client)
    assert (await client.delete(f"/v1/conversations/{conversation}/turns/{turns[0]}")).status_code == 204
    left = await fact(client, both["id"])
    assert (left["evidence_count"], left["source_turn_ids"], left["valid_from"]) == (1, turns[1:2], day(1))
    assert {one["object"] for one in await facts(client, include_retracted=True)} == {"tea", "Paris"}
    everything = (await of_facts(root, client)).casefold()
    assert "quokka" not in everything
    assert not any("quokka" in text.casefold() for text in await found(client, "Quokkaville Quokkatown"))


async def test_a_revised_source_is_withdrawn_by_a_job(client: Client, service: Service) -> None:
    conversation = await client.conversation(owner="ana")
    turns = [turn["id"] for turn in (await client.append(conversation, "one", "two"))["turns"]]
    berlin = await tell(client, "I", "lives in", "Berlin", source_turn_ids=turns[:1], valid_from=day(0))
    paris = await tell(client, "I", "lives in", "Paris", source_turn_ids=turns[1:], valid_from=day(10))
    path = f"/v1/conversations/{conversation}/turns/{turns[1]}/revisions"
    assert (await client.post(path, json={"content": "zwei"})).status_code == 201
    await service.run_jobs()
    problem(await client.get(f"/v1/facts/{paris['id']}"), 404, "not_found")
    assert (await fact(client, berlin["id"]))["valid_to"] is None
    path = f"/v1/conversations/{conversation}/turns/{turns[0]}/revisions"
    assert (await client.post(path, json={"content": "eins", "truncate_after": True})).status_code == 201
    await service.run_jobs()
    assert await facts(client, include_retracted=True) == []


async def test_deleting_a_conversation_takes_its_facts_and_leaves_those_that_others_say_too(
    client: Client, root: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    first, second = await client.conversation(owner="ana"), await client.conversation(owner="ana")
    (one,), (two,) = [
        [turn["id"] for turn in (await client.append(conversation, "one"))["turns"]] for conversation in (first, second)
    ]
    await tell(client, "I", "owns", "a quokka", conversation_id=first)
    await tell(client, "I", "owns", "a quokka farm", source_turn_ids=[one])
    tea = await tell(client, "I", "likes", "tea", source_turn_ids=[one], valid_from=day(0))
    await tell(client, "I", "likes", "tea", source_turn_ids=[two], valid_from=day(1))
    assert (await fact(client, tea["id"]))["conversation_id"] is None
    assert (await client.delete(f"/v1/conversations/{first}")).status_code == 204
    assert "quokka" not in await of_facts(root, client)
    (left,) = await facts(client, include_retracted=True)
    assert (left["id"], left["source_turn_ids"], left["conversation_id"]) == (tea["id"], [two], second)
    assert await found(client, "tea") == ["ana likes tea"]
    assert (await client.delete(f"/v1/conversations/{second}")).status_code == 204
    assert await of_facts(root, client) == ""


async def test_what_is_asserted_for_good_too_outlives_the_conversation_that_it_was_asserted_in(
    client: Client, root: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    first, second = await client.conversation(owner="ana"), await client.conversation(owner="ana")
    held = await tell(client, "ana", "likes", "tea", owner="ana", conversation_id=first)
    await tell(client, "ana", "likes", "milk", owner="ana", conversation_id=first)
    again = await tell(client, "ana", "likes", "tea", owner="ana", valid_from=held["valid_from"])
    assert (again["id"], again["conversation_id"], again["evidence_count"]) == (held["id"], None, 1)
    # an assertion within a conversation takes nothing of that away
    await tell(client, "ana", "likes", "tea", owner="ana", valid_from=held["valid_from"], conversation_id=second)
    for conversation in (second, first):
        assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    (left,) = await facts(client, include_retracted=True)
    assert left["id"] == held["id"]
    assert "milk" not in await of_facts(root, client)
    assert await found(client, "what does ana like") == ["ana likes tea"]


# races


async def test_many_at_once_leave_one_timeline(client: Client) -> None:
    towns = [f"Town {number}" for number in range(12)]
    await asyncio.gather(
        *(tell(client, "ana", "lives in", town, valid_from=day(number)) for number, town in enumerate(towns))
    )
    held = sorted(await facts(client), key=lambda one: one["valid_from"])
    assert [one["object"] for one in held] == towns
    assert [one["valid_to"] for one in held] == [*(day(number) for number in range(1, 12)), None]
    for one, other in pairwise(held):
        assert one["invalidated_by"] == other["id"]
    assert await found(client, "where does ana live") == ["ana lives in Town 11"]


async def test_the_same_fact_at_once_is_one_fact(client: Client) -> None:
    conversation = await client.conversation()
    turns = [turn["id"] for turn in (await client.append(conversation, *["x"] * 8))["turns"]]
    made = await asyncio.gather(
        *(tell(client, "ana", "likes", "tea", source_turn_ids=[turn], valid_from=day(0)) for turn in turns)
    )
    assert len({one["id"] for one in made}) == 1
    (held,) = await facts(client)
    assert (held["evidence_count"], set(held["source_turn_ids"]), held["tier"]) == (8, set(turns), "l3")


async def test_erasing_and_asserting_at_once_leave_no_fact_without_a_source(client: Client) -> None:
    for _ in range(5):
        conversation = await client.conversation()
        turn = (await client.append(conversation, "x"))["turns"][0]["id"]
        body = {"subject": "ana", "predicate": "likes", "object": "tea", "source_turn_ids": [turn]}
        told, erased = await asyncio.gather(
            client.post("/v1/facts", json=body), client.delete(f"/v1/conversations/{conversation}/turns/{turn}")
        )
        assert (told.status_code, erased.status_code) in {(201, 204), (409, 204)}, told.text
        assert await facts(client, include_retracted=True) == []


async def test_a_fact_that_is_not_there_is_404_everywhere(client: Client) -> None:
    path = f"/v1/facts/{format_id(new_uuid())}"
    for answer in (
        await client.get(path),
        await client.patch(path, json={"object": "x"}),
        await client.delete(path),
        await client.post(f"{path}/undo"),
    ):
        problem(answer, 404, "not_found")
