"""Tenants never meet: not through the API, and not in the database even when a query forgets the tenant."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from app.core.database.transactions import Database
from app.core.ids import format_id, new_uuid, parse_id
from app.core.tracing.call_record import CallRecord
from app.diagnostics.service import FinishedCall, Monitor
from app.operations.service import OperationHandler, OperationRun, Operations
from app.providers.schemas import ModelPurpose, ModelUsage
from app.tenancy.key_text import parse_key
from app.tenancy.limits.schemas import TenantLimits
from app.tenancy.schemas import Scope as KeyScope
from app.tenancy.service import Tenancy
from app.tenancy.spending.service import Spending
from tests.support.api import Client, Service, problem
from tests.support.postgres import on_citus
from tests.support.shared import api_document

Connection = asyncpg.Connection
SECRET = "quokkasecret"
DOCUMENT: dict[str, Any] = api_document()
OPERATIONS: dict[str, tuple[str, str]] = {
    operation["operationId"]: (method.upper(), path)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}


@dataclass
class Two:
    """A tenant that has something, and another that wants it. `mine` and `my_turn` belong to the intruder."""

    owner: Client
    intruder: Client
    conversation: str
    turn: str
    mine: str
    my_turn: str
    spending: Spending
    tenancy: Tenancy
    operations: Operations
    database: Database
    monitor: Monitor
    run_jobs: Callable[[], Awaitable[None]]
    seal_audit: Callable[[], Awaitable[int]]

    async def start_operation(self, client: Client, operation_id: UUID) -> None:
        async def end_at_once(run: OperationRun) -> None:
            async with self.database.transaction(run.tenant_id) as tx:
                await run.succeed(tx, result={})

        self.operations.handlers.setdefault("test", OperationHandler(end_at_once))
        caller = await self.tenancy.authenticate(client.key)
        async with self.database.transaction(caller.tenant_id) as tx:
            await self.operations.start(caller, tx, kind="test", parameters={}, operation_id=operation_id)

    async def owners_view(self) -> tuple[Any, Any]:
        conversation = (await self.owner.get(f"/v1/conversations/{self.conversation}")).json()
        return conversation, await self.owner.history(self.conversation)


@pytest.fixture
async def two(client: Client, other: Client, service: Service) -> Two:
    conversation = await client.conversation(
        external_id="shared name", owner="ann", title=SECRET, participants=[SECRET], metadata={"a": SECRET}
    )
    turn = (await client.append(conversation, f"the {SECRET} lives in a burrow"))["turns"][0]["id"]
    mine = await other.conversation()
    my_turn = (await other.append(mine, "something else entirely"))["turns"][0]["id"]
    return Two(client, other, conversation, turn, mine, my_turn, service.container.spending, service.container.tenancy,
               service.container.operations, service.container.database, service.app.state.turnkeep.monitor,
               service.run_jobs, service.container.audit.sealer.seal)  # fmt: skip


def without_request_id(response: httpx.Response) -> tuple[int, dict[str, Any], dict[str, str]]:
    changing = {"x-request-id", "ratelimit"}
    headers = {name: value for name, value in response.headers.items() if name not in changing}
    return response.status_code, response.json() | {"request_id": ""}, headers


BODIES: dict[str, dict[str, Any]] = {
    "update_conversation": {"title": "taken over"},
    "append_turns": {"turns": [{"role": "user", "content": "written by another"}]},
    "build_context": {"token_budget": 10_000, "semantic_recall": {"k": 5}},
    "recall_in_conversation": {"query": SECRET},
    "fork_conversation": {"title": "copied"},
    "summarise_turns": {},
    "compact_conversation": {},
    "revise_turn": {"content": "written by another"},
    "open_turn": {"turn": {"role": "assistant"}},
    "append_chunk": {"offset": 0, "delta": "written by another"},
    "commit_turn": {},
    "abort_turn": {},
    "resume_turn": {},
    "create_conversation_token": {"access": "append", "actor": "ann"},
    "extract_facts": {},
    "search_turns": {},
    "update_openai_conversation": {"metadata": {"a": "taken over"}},
    "update_webhook": {"description": "taken over"},
    "rotate_webhook_secret": {"grace_s": 5},
    "create_openai_items": {"items": [{"role": "user", "content": "written by another"}]},
}


async def refuses_foreign_ids(two: Two, name: str) -> None:
    """An operation on ids of another tenant answers exactly as on ids that never existed, and does nothing."""
    method, template = OPERATIONS[name]
    before = await two.owners_view()
    unknown = {"conversation_id": format_id(new_uuid()), "turn_id": format_id(new_uuid())}
    foreign = {"conversation_id": two.conversation, "turn_id": two.turn}
    pairs = [(unknown, foreign)]
    if "{turn_id}" in template:
        own = {"conversation_id": two.mine}
        pairs.append((unknown | own, foreign | own))
        pairs.append(({"conversation_id": unknown["conversation_id"], "turn_id": two.my_turn},
                      {"conversation_id": two.conversation, "turn_id": two.my_turn}))  # fmt: skip
    for never, others in pairs:
        for spell in (str, lambda text: str(parse_id(text))):
            expected, got = [
                await two.intruder.request(
                    method, template.format(**{key: spell(value) for key, value in ids.items()}), json=BODIES.get(name)
                )
                for ids in (never, others)
            ]
            problem(got, 404, "not_found")
            assert without_request_id(got) == without_request_id(expected)
    assert await two.owners_view() == before


async def reaches_only_its_own_trash(two: Two, name: str) -> None:
    """The trash of another tenant is neither listed nor restored, also where an own conversation has the same id."""
    await refuses_foreign_ids(two, name)
    before = await two.owners_view()
    assert (await two.owner.post(f"/v1/conversations/{two.conversation}/trash")).status_code == 200
    path = f"/v1/conversations/{two.conversation}/restore"
    problem(await two.intruder.post(path), 404, "not_found")
    assert (await two.intruder.get("/v1/conversations", params={"trashed": "true"})).json()["data"] == []
    assert (await two.intruder.post("/v1/conversations/search", json={"trashed": True})).json()["data"] == []
    assert (await two.intruder.post("/v1/conversations", json={"id": two.conversation})).status_code == 201
    assert (await two.intruder.post(path)).json()["title"] is None
    problem(await two.owner.get(f"/v1/conversations/{two.conversation}"), 404, "conversation_trashed")
    assert (await two.owner.post(path)).status_code == 200
    conversation, turns = await two.owners_view()
    changed = {"rev", "updated_at", "expires_at"}
    assert {name: value for name, value in conversation.items() if name not in changed} == {
        name: value for name, value in before[0].items() if name not in changed
    }
    assert turns == before[1]


async def creates_an_own_conversation(two: Two, _name: str) -> None:
    before = await two.owners_view()
    for body in ({"external_id": "shared name"}, {"id": two.conversation}):
        made = await two.intruder.post("/v1/conversations", json=body)
        assert made.status_code == 201
        assert SECRET not in made.text
        assert (made.json()["turn_count"], made.json()["owner"]) == (0, None)
        assert await two.intruder.history(made.json()["id"]) == []
        again = await two.intruder.post("/v1/conversations", json=body)
        assert (again.status_code, again.json()) == (200, made.json())
    # under its own id now: everything is still the intruder's own and empty
    path = f"/v1/conversations/{two.conversation}"
    await two.intruder.append(two.conversation, "mine")
    assert [turn["content"] for turn in await two.intruder.history(two.conversation)] == ["mine"]
    problem(await two.intruder.get(f"{path}/turns/{two.turn}"), 404, "not_found")
    assert SECRET not in (await two.intruder.post(f"{path}/recall", json={"query": SECRET})).text
    assert SECRET not in (await two.intruder.post(f"{path}/context", json={"token_budget": 1000})).text
    assert (await two.intruder.delete(path)).status_code == 204
    assert await two.owners_view() == before


async def lists_only_its_own(two: Two, _name: str) -> None:
    for params in (
        {},
        {"order": "asc"},
        {"external_id": "shared name"},
        {"owner": "ann"},
        {"participant": SECRET},
        {"project": "default"},
    ):
        page = await two.intruder.get("/v1/conversations", params=params)
        assert page.status_code == 200
        assert {item["id"] for item in page.json()["data"]} <= {two.mine}, params
        assert SECRET not in page.text


async def searches_only_its_own(two: Two, _name: str) -> None:
    for body in ({}, {"title": SECRET}, {"metadata": {"a": SECRET}}, {"owner": "ann"}, {"participant": SECRET}):
        page = await two.intruder.post("/v1/conversations/search", json=body)
        assert page.status_code == 200
        assert {item["id"] for item in page.json()["data"]} <= {two.mine}, body
        assert SECRET not in page.text


async def erases_only_its_own(two: Two, _name: str) -> None:
    before = await two.owners_view()
    never = format_id(new_uuid())
    for conversation in (two.conversation, two.mine):
        got, expected = [
            await two.intruder.delete(f"/v1/conversations/{conversation}/turns", params={"ids": [two.my_turn, turn]})
            for turn in (two.turn, never)
        ]
        problem(got, 404, "not_found")
        assert without_request_id(got) == without_request_id(expected)
    assert [turn["erased_at"] for turn in await two.intruder.history(two.mine)] == [None]
    assert await two.owners_view() == before


async def recalls_only_its_own(two: Two, _name: str) -> None:
    before = await two.owners_view()
    for body in (
        {},
        {"mode": "text"},
        {"mode": "vector"},
        {"k": 200, "neighbours": 5, "explain": True},
        {"owner": "ann"},
        {"project": "default"},
        {"filters": {"actors": [SECRET, "user"], "roles": ["user"]}},
    ):
        answer = await two.intruder.post("/v1/recall", json={"query": f"{SECRET} burrow", **body})
        assert answer.status_code == 200, answer.text
        assert {hit["conversation_id"] for hit in answer.json()["data"]} <= {two.mine}
        # with `explain` the query's own words come back, so it is the rest of the sentence that must not
        assert "lives in a" not in answer.text
    for ids in ([two.conversation], [two.mine, two.conversation]):
        unknown = [format_id(new_uuid()) if one == two.conversation else one for one in ids]
        got, expected = [
            await two.intruder.post("/v1/recall", json={"query": SECRET, "conversation_ids": some})
            for some in (ids, unknown)
        ]
        problem(got, 404, "not_found")
        assert without_request_id(got) == without_request_id(expected)
    assert await two.owners_view() == before


async def says_nothing_of_any_tenant(two: Two, name: str) -> None:
    method, path = OPERATIONS[name]
    answer = await two.intruder.request(method, path)
    assert answer.status_code == 200
    tenant = format_id(two.owner.tenant_id)
    for text in (SECRET, two.conversation, two.turn, tenant, str(two.owner.tenant_id), str(parse_id(two.conversation))):
        assert text not in answer.text


async def knows_only_its_own_keys(two: Two, name: str) -> None:
    """Keys of another tenant are not listed, and their ids are like ids that never existed."""
    parsed = parse_key(two.owner.key)
    assert parsed is not None
    method, template = OPERATIONS[name]
    if name in {"list_keys", "create_key"}:
        answer = await two.intruder.request(method, template, json={"name": "n"} if method == "POST" else None)
        assert answer.status_code in {200, 201}
        assert format_id(parsed.key_id) not in answer.text
        assert format_id(two.owner.tenant_id) not in answer.text
        listed = (await two.owner.get("/v1/admin/keys")).json()["data"]
        assert [key["id"] for key in listed] == [format_id(parsed.key_id)]
        return
    got, expected = [
        await two.intruder.request(
            method, template.format(key_id=one), json={"grace_s": 0} if name == "rotate_key" else {}
        )
        for one in (format_id(parsed.key_id), format_id(new_uuid()))
    ]
    problem(got, 404, "not_found")
    assert without_request_id(got) == without_request_id(expected)
    assert (await two.owner.get("/v1/conversations")).status_code == 200


async def knows_its_own_key(two: Two, name: str) -> None:
    method, path = OPERATIONS[name]
    for one, another in ((two.owner, two.intruder), (two.intruder, two.owner)):
        answer = await one.request(method, path)
        assert answer.json()["tenant_id"] == format_id(one.tenant_id)
        assert format_id(another.tenant_id) not in answer.text
        assert another.key.split("_")[2] not in answer.text


async def is_for_operators_only(two: Two, name: str) -> None:
    method, template = OPERATIONS[name]
    path = template.format(tenant_id=format_id(two.owner.tenant_id))
    body = {"POST": {"name": "taken over"}, "PATCH": {"name": "taken over"}, "PUT": {}}.get(method)
    answer = await two.intruder.request(method, path, json=body)
    problem(answer, 403, "forbidden")
    # not even its own, whose name is the operator's
    own = template.format(tenant_id=format_id(two.intruder.tenant_id))
    problem(await two.intruder.request(method, own, json=body), 403, "forbidden")


async def moves_no_installation(two: Two, name: str) -> None:
    """Spaces are the operator's, whose comparison reads its own tenant only."""
    method, template = OPERATIONS[name]
    body = {"queries": [SECRET], "conversation_id": two.conversation} if name == "compare_space" else {}
    path = template.format(space_id=1)
    problem(await two.intruder.request(method, path, json=body if method == "POST" else None), 403, "forbidden")
    if name != "compare_space":
        return
    scopes = list(KeyScope)
    key = await two.tenancy.create_key(two.intruder.tenant_id, name="operator", scopes=scopes)
    operator = {"Authorization": f"Bearer {key}"}
    spaces = (await two.intruder.get("/v1/admin/embedding-spaces", headers=operator)).json()["data"]
    (space,) = [one["id"] for one in spaces if one["searched_here"]]
    path = template.format(space_id=space)
    problem(await two.intruder.post(path, json=body, headers=operator), 404, "not_found")
    answer = await two.intruder.post(path, json={"queries": [SECRET], "k": 50}, headers=operator)
    assert answer.status_code == 200
    for hits in answer.json()["queries"]:
        assert {hit["id"] for hit in hits["searched"] + hits["compared"]} <= {two.my_turn}


async def counts_only_its_own(two: Two, _name: str) -> None:
    await two.owner.conversation(project=SECRET)
    stats = await two.intruder.get("/v1/admin/stats")
    assert stats.status_code == 200
    assert SECRET not in stats.text
    assert (stats.json()["conversations"], stats.json()["turns"]) == (1, 1)
    problem(await two.intruder.get("/v1/admin/stats", params={"of": "installation"}), 403, "forbidden")


async def sees_only_its_own_slow_calls(two: Two, _name: str) -> None:
    """Two tenants with a slow call of the same request id: each sees its own."""
    for one in (two.owner, two.intruder):
        call = FinishedCall(one.tenant_id, two.turn, None, "GET", "/v1/facts", "read", 200, 60.0, CallRecord())
        two.monitor.observe(call)
    for params in ({}, {"order": "asc"}, {"limit": 1}):
        page = (await two.intruder.get("/v1/admin/slow-calls", params=params)).json()["data"]
        assert {call["tenant_id"] for call in page} == {format_id(two.intruder.tenant_id)}
    problem(await two.intruder.get("/v1/admin/slow-calls", params={"all_tenants": "true"}), 403, "forbidden")


async def sees_only_its_own_spending(two: Two, _name: str) -> None:
    for one in (two.owner, two.intruder):
        usage = ModelUsage(7, 3)
        await two.spending.record(one.tenant_id, ModelPurpose.FACTS, model=SECRET[:4], usage=usage, failed=False)
    for params in ({}, {"order": "asc"}, {"purpose": "facts"}, {"first_day": "2000-01-01", "last_day": "2100-01-01"}):
        page = await two.intruder.get("/v1/admin/usage", params=params)
        assert [row["tenant_id"] for row in page.json()["data"]] == [format_id(two.intruder.tenant_id)]
    problem(await two.intruder.get("/v1/admin/usage", params={"all_tenants": "true"}), 403, "forbidden")


async def lists_only_its_own_entries(two: Two, name: str) -> None:
    """The audit of another tenant, whatever is asked for."""
    _, path = OPERATIONS[name]
    for where in ({}, {"conversation_id": two.conversation}, {"object_id": two.turn}):
        own = (await two.intruder.get(path, params=where)).json()["data"]
        theirs = (await two.owner.get(path, params=where)).json()["data"]
        assert theirs
        assert {one["id"] for one in own} & {one["id"] for one in theirs} == set()
        assert bool(own) == (where == {})


async def verifies_only_its_own_chains(two: Two, _name: str) -> None:
    """Another tenant's chains are not walked, and an end of them is no end of one's own."""
    await two.seal_audit()
    own, theirs = [
        (await one.post("/v1/admin/audit/verify", json={})).json()["chains"] for one in (two.intruder, two.owner)
    ]
    assert {one["hash"] for one in own} & {one["hash"] for one in theirs} == set()
    part = (await two.owner.post("/v1/admin/audit/verify", json={"max_entries": 1})).json()
    continued = await two.intruder.post("/v1/admin/audit/verify", json={"cursor": part["next_cursor"]})
    problem(continued, 422, "cursor_invalid")
    assert not (await two.intruder.post("/v1/admin/audit/verify", json={"known": theirs})).json()["valid"]


async def counts_only_its_own_jobs(two: Two, _name: str) -> None:
    """The jobs of another tenant are in no count, and an operator's reach is refused."""
    path = "/v1/admin/jobs/counts"
    before = (await two.intruder.get(path)).json()
    await two.owner.append(two.conversation, "it was yesterday")
    assert (await two.owner.get(path)).json()["queued"] > 0
    assert (await two.intruder.get(path)).json() == before
    problem(await two.intruder.get(path, params={"all_tenants": "true"}), 403, "forbidden")


async def erases_and_sees_only_its_own_owners(two: Two, _name: str) -> None:
    """The owner, conversation and actor of another tenant are unknown here, also where an own one is called alike."""
    before = await two.owners_view()
    await two.intruder.conversation(id=two.conversation, owner="ann")
    view = (await two.intruder.post("/v1/owners/lookup", json={"owner": "ann"})).json()
    assert [item["turn_count"] for item in view["conversations"]["data"]] == [0]
    assert SECRET not in str(view)
    for body in ({"owner": "ann"}, {"conversation_id": two.conversation}, {"actor": SECRET}, {"actor": "user"}):
        assert (await two.intruder.post("/v1/erasures", json=body)).status_code == 202
    tenant = {"tenant": format_id(two.owner.tenant_id)}
    problem(await two.intruder.post("/v1/erasures", json=tenant), 403, "forbidden")
    await two.run_jobs()
    assert await two.owners_view() == before
    own = (await two.intruder.get("/v1/erasures")).json()["data"]
    assert [receipt["status"] for receipt in own] == ["complete"] * 4
    assert (await two.owner.get("/v1/erasures")).json()["data"] == []
    problem(await two.owner.get(f"/v1/erasures/{own[0]['id']}"), 404, "not_found")
    checked = await two.owner.post("/v1/erasures/verify", json={"receipt": own[-1], "owner": "ann"})
    assert checked.json() == {"valid": False, "matches": False}


async def exports_only_its_own(two: Two, _name: str) -> None:
    """An export of a conversation of another tenant, and of all data, also where an own one has the same id."""
    before = await two.owners_view()
    problem(await two.intruder.get(f"/v1/conversations/{two.conversation}/export"), 404, "not_found")
    await two.intruder.conversation(id=two.conversation, owner="ann")
    mine = (await two.intruder.get(f"/v1/conversations/{two.conversation}/export")).text
    assert [json.loads(line)["type"] for line in mine.splitlines()] == ["header", "conversation", "trailer"]
    for body in ({}, {"project": "default"}, {"checkpoints": True}):
        assert SECRET not in (await two.intruder.post("/v1/export", json=body)).text
    assert SECRET in (await two.owner.post("/v1/export", json={})).text
    assert await two.owners_view() == before


async def imports_into_its_own_tenant_only(two: Two, _name: str) -> None:
    """The whole export of another tenant, imported: it is a copy, and nothing of the other tenant changes."""
    lines = (await two.owner.post("/v1/export", json={})).content
    before = await two.owners_view()
    started = await two.intruder.post("/v1/import", content=lines)
    assert started.status_code == 202, started.text
    problem(await two.owner.get(f"/v1/operations/{started.json()['id']}"), 404, "not_found")
    await two.run_jobs()
    assert (await two.intruder.get(f"/v1/conversations/{two.conversation}")).status_code == 200
    assert (await two.intruder.delete(f"/v1/conversations/{two.conversation}")).is_success
    assert await two.owners_view() == before


async def reaches_only_its_own_webhooks(two: Two, name: str) -> None:
    """A webhook or delivery of another tenant is unknown, also below an own webhook."""
    method, path = OPERATIONS[name]
    receiver = {"url": "https://hooks.example.com/turnkeep"}
    theirs, own = [(await one.post("/v1/webhooks", json=receiver)).json()["id"] for one in (two.owner, two.intruder)]
    await two.owner.conversation(title=SECRET)
    deliveries = f"/v1/webhooks/{theirs}/deliveries"
    before = [(await two.owner.get(found)).json() for found in (f"/v1/webhooks/{theirs}", deliveries)]
    delivery = before[1]["data"][0]["id"]
    body = {"since": "2026-01-01T00:00:00Z"} if name == "replay_deliveries" else BODIES.get(name)
    if "{webhook_id}" in path:
        for webhook in (theirs, own) if "{delivery_id}" in path else (theirs,):
            place = path.format(webhook_id=webhook, delivery_id=delivery)
            problem(await two.intruder.request(method, place, json=body), 404, "not_found")
    listed = (await two.intruder.get("/v1/webhooks")).json()["data"]
    assert [webhook["id"] for webhook in listed] == [own]
    assert SECRET not in str((await two.intruder.get(f"/v1/webhooks/{own}/deliveries")).json())
    assert [(await two.owner.get(found)).json() for found in (f"/v1/webhooks/{theirs}", deliveries)] == before


async def reaches_only_its_own_operations(two: Two, name: str) -> None:
    """The same id in both tenants: each reads and cancels its own; an id that only the owner has is unknown."""
    method, path = OPERATIONS[name]
    shared, own = new_uuid(), new_uuid()
    await two.start_operation(two.owner, shared)
    await two.start_operation(two.owner, own)
    if "{operation_id}" in path:
        problem(await two.intruder.request(method, path.format(operation_id=format_id(shared))), 404, "not_found")
    await two.start_operation(two.intruder, shared)
    before = (await two.owner.get("/v1/operations")).json()
    if "{operation_id}" in path:
        answer = await two.intruder.request(method, path.format(operation_id=format_id(shared)))
        assert answer.status_code == 200
        problem(await two.intruder.request(method, path.format(operation_id=format_id(own))), 404, "not_found")
    assert [item["id"] for item in (await two.intruder.get("/v1/operations")).json()["data"]] == [format_id(shared)]
    assert (await two.owner.get("/v1/operations")).json() == before


async def sees_only_its_own_limits(two: Two, _name: str) -> None:
    before = (await two.intruder.get("/v1/admin/limits")).json()
    await two.owner.append(two.conversation, "one", "two", "three")
    after = (await two.intruder.get("/v1/admin/limits")).json()
    assert (after["tenant_id"], after["quotas"]) == (format_id(two.intruder.tenant_id), before["quotas"])


async def reaches_only_its_own_jobs(two: Two, name: str) -> None:
    """A list holds one's own jobs; another's job is a job that never was; an operator's reach is refused."""
    method, path = OPERATIONS[name]
    for one, conversation in ((two.owner, two.conversation), (two.intruder, two.mine)):
        await one.append(conversation, "it was yesterday")
    before = (await two.owner.get("/v1/admin/jobs")).json()
    job = before["data"][0]["id"]
    if "{job_id}" not in path:
        for params in ({}, {"order": "asc"}, {"kind": "index.dates"}, {"state": "queued"}):
            page = (await two.intruder.get(path, params=params)).json()["data"]
            assert page
            assert {item["tenant_id"] for item in page} == {format_id(two.intruder.tenant_id)}
            assert job not in {item["id"] for item in page}
    expected, got = [
        await two.intruder.request(method, path.format(job_id=one)) for one in (format_id(new_uuid()), job)
    ]
    if "{job_id}" in path:
        problem(got, 404, "not_found")
        assert without_request_id(got) == without_request_id(expected)
    reaching = await two.intruder.request(method, path.format(job_id=job), params={"all_tenants": "true"})
    problem(reaching, 403, "forbidden")
    assert (await two.owner.get("/v1/admin/jobs")).json() == before


async def knows_only_its_own_facts(two: Two, name: str) -> None:
    """Another's fact is a fact that never was; its turns are no sources; the same key is another."""
    told = {
        "subject": "ann",
        "predicate": "likes",
        "object": SECRET,
        "owner": "ann",
        "conversation_id": two.conversation,
    }
    theirs = (await two.owner.post("/v1/facts", json=told)).json()["fact"]
    method, path = OPERATIONS[name]
    if "{fact_id}" in path:
        got, expected = [
            await two.intruder.request(
                method, path.format(fact_id=one), json={"object": "x"} if method == "PATCH" else None
            )
            for one in (theirs["id"], format_id(new_uuid()))
        ]
        problem(got, 404, "not_found")
        assert without_request_id(got) == without_request_id(expected)
    else:
        for of in ({"conversation_id": two.conversation}, {"source_turn_ids": [two.turn]}):
            body = {"subject": "ann", "predicate": "likes", "object": "tea"} | of
            problem(await two.intruder.post("/v1/facts", json=body), 404, "not_found")
        own = {"subject": "ann", "predicate": "likes", "object": SECRET, "owner": "ann", "replaces": True}
        made = (await two.intruder.post("/v1/facts", json=own)).json()
        assert (made["changed"], made["fact"]["evidence_count"]) == ([], 1)
        for params in ({}, {"subject": "ann"}, {"owner": "ann"}, {"include_retracted": True}):
            for page in (
                await two.intruder.get("/v1/facts", params=params),
                await two.intruder.post("/v1/facts/search", json=params),
            ):
                assert [one["id"] for one in page.json()["data"]] == [made["fact"]["id"]]
        narrowed = await two.intruder.get("/v1/facts", params={"conversation_id": two.conversation})
        assert narrowed.json()["data"] == []
        hits = await two.intruder.recall(None, SECRET, kinds=["fact"])
        assert [hit["id"] for hit in hits] == [made["fact"]["id"]]
    assert (await two.owner.get(f"/v1/facts/{theirs['id']}")).json() == theirs


async def stores_its_own_memory(two: Two, _name: str) -> None:
    await two.owner.post("/v1/memories", json={"content": SECRET}, headers={"Idempotency-Key": "k"})
    before = (await two.owner.get("/v1/memories")).json()
    made = await two.intruder.post("/v1/memories", json={"content": "mine"}, headers={"Idempotency-Key": "k"})
    assert (made.status_code, made.headers.get("Idempotent-Replayed")) == (201, None)
    assert [item["content"] for item in (await two.intruder.get("/v1/memories")).json()["data"]] == ["mine"]
    assert (await two.owner.get("/v1/memories")).json() == before


async def remembers_only_its_own(two: Two, name: str) -> None:
    for one, content in ((two.owner, f"the {SECRET} is asleep"), (two.intruder, "the wombat is asleep")):
        stored = await one.post("/v1/memories", json={"content": content, "owner": "ann", "metadata": {"a": 1}})
        assert stored.status_code == 201
    if name in {"list_memories", "filter_memories"}:
        filters: list[dict[str, Any]] = [{}, {"order": "asc"}, {"agent_id": "default"}, {"owner": "ann"}]
        answers = [
            await two.intruder.get("/v1/memories", params=given)
            if name == "list_memories"
            else await two.intruder.post("/v1/memories/list", json=given)
            for given in filters
        ]
        shown = [[item["content"] for item in answer.json()["data"]] for answer in answers]
    else:
        bodies: list[dict[str, Any]] = [{}, {"filters": {"owner": "ann"}}, {"filters": {"metadata": {"a": 1}}}]
        answers = [
            await two.intruder.post("/v1/memories/search", json={"query": f"{SECRET} asleep", "top_k": 20, **body})
            for body in bodies
        ]
        shown = [[item["content"] for item in answer.json()["entries"]] for answer in answers]
        hits = await two.intruder.recall(None, f"{SECRET} asleep", kinds=["memory", "turn"], k=50)
        shown.append([hit["text"] for hit in hits if hit["kind"] == "memory"])
    assert shown == [["the wombat is asleep"]] * len(shown)


async def deletes_only_its_own_memories(two: Two, _name: str) -> None:
    memory = (await two.owner.post("/v1/memories", json={"content": f"a {SECRET}"})).json()["id"]
    before = (await two.owner.get("/v1/memories")).json()
    got, expected = [await two.intruder.delete(f"/v1/memories/{one}") for one in (memory, format_id(new_uuid()))]
    assert (got.status_code, got.content) == (expected.status_code, expected.content) == (204, b"")
    assert (await two.owner.get("/v1/memories")).json() == before
    assert len((await two.owner.post("/v1/memories/search", json={"query": SECRET})).json()["entries"]) == 1


async def reads_only_its_own_memory(two: Two, _name: str) -> None:
    memory = (await two.owner.post("/v1/memories", json={"content": f"a {SECRET}"})).json()["id"]
    got, expected = [await two.intruder.get(f"/v1/memories/{one}") for one in (memory, format_id(new_uuid()))]
    problem(got, 404, "not_found")
    assert without_request_id(got) == without_request_id(expected)
    assert (await two.owner.get(f"/v1/memories/{memory}")).json()["content"] == f"a {SECRET}"


async def reads_only_its_own_summary(two: Two, _name: str) -> None:
    await two.owner.append(two.conversation, *(f"a {SECRET} of {number} euros in Lisbon" for number in range(6)))
    made = await two.owner.post(f"/v1/conversations/{two.conversation}/summaries", json={})
    summary = made.json()["summaries"][0]["id"]
    for conversation in (two.conversation, two.mine):
        path = f"/v1/conversations/{conversation}/summaries"
        got, expected = [await two.intruder.get(f"{path}/{one}") for one in (summary, format_id(new_uuid()))]
        problem(got, 404, "not_found")
        assert without_request_id(got) == without_request_id(expected)


async def has_sessions_of_its_own(two: Two, name: str) -> None:
    """Of two tenants' sessions of one name each knows its own; a session of another tenant is none."""
    session = {"project": "default", "session_id": "shared name"}
    asked = {"role": "user", "content": f"where does the {SECRET} live?"}
    turn = session | {"user_id": "ann", "turn_id": "t1"}
    bodies = {
        "before_turn": turn | {"current_input": [asked]},
        "after_turn": turn | {"input_items": [asked]},
        "run_turn": turn | {"current_input": [asked]},
        "run_maintenance": session,
        "list_memory_tree": session,
    }
    stored = await two.owner.post("/v1/lifecycle/after-turn", json=turn | {"input_items": [asked]})
    assert stored.status_code == 200
    prepared = (await two.owner.post("/v1/lifecycle/run-turn", json=bodies["run_turn"] | {"turn_id": "t2"})).json()
    before = await two.owners_view()
    method, path = OPERATIONS[name]
    answer = await two.intruder.request(method, path, json=bodies[name])
    if name in {"run_maintenance", "list_memory_tree"}:
        problem(answer, 404, "not_found")
    else:
        assert answer.status_code == 200
        assert "lives in a" not in answer.text
    if name == "run_turn":
        end = {"operation_token": prepared["operation_token"], "output_items": [{"role": "assistant", "content": "x"}]}
        problem(await two.intruder.post(path, json=end), 422, "operation_token_invalid", "/operation_token")
    if name in {"after_turn", "run_turn"}:
        listed = (await two.intruder.get("/v1/conversations", params={"external_id": "shared name"})).json()["data"]
        assert [item["turn_count"] for item in listed] == [1]
        assert listed[0]["id"] != two.conversation
    assert await two.owners_view() == before


async def is_heard_by_its_own_tenant(_two: Two, _name: str) -> None:
    """The stream never ends, so it is followed over a real socket, in tests/api/test_events.py."""
    tests = (Path(__file__).parent / "test_events.py").read_text()
    assert "async def test_a_list_shows_no_other_tenant(" in tests


async def refuses_foreign_items(two: Two, name: str) -> None:
    before = await two.owners_view()
    method, template = OPERATIONS[name]
    never = format_id(new_uuid())
    for pair in ([(never, never), (two.conversation, two.turn)], [(two.mine, never), (two.mine, two.turn)]):
        expected, got = [
            await two.intruder.request(
                method, template.format(conversation_id=f"conv_{conversation}", item_id=f"msg_{turn}")
            )
            for conversation, turn in pair
        ]
        problem(got, 404, "not_found")
        assert without_request_id(got) == without_request_id(expected)
    assert await two.owners_view() == before


async def begins_its_own_conversation(two: Two, _name: str) -> None:
    before = await two.owners_view()
    items = [{"role": "user", "content": "mine"}]
    made = (await two.intruder.post("/openai/v1/conversations", json={"items": items})).json()
    assert made["id"].startswith("conv_")
    problem(await two.owner.get(f"/openai/v1/conversations/{made['id']}"), 404, "not_found")
    assert await two.owners_view() == before


async def says_only_that_there_is_no_model(two: Two, name: str) -> None:
    """Here is none; with one, `test_openai.py` asks for another tenant's conversation."""
    before = await two.owners_view()
    method, template = OPERATIONS[name]
    body = {"messages": [{"role": "user", "content": SECRET}], "conversation_id": two.conversation}
    sent = body if method == "POST" else None
    answer = await two.intruder.request(method, template.format(model="m"), json=sent)
    problem(answer, 503, "model_not_configured")
    assert await two.owners_view() == before


async def store_response(database: Database, client: Client, conversation: str, turn: str) -> None:
    """Make a turn the answer of a response, without a model."""
    async with database.transaction(client.tenant_id) as tx:
        await tx.execute(
            "insert into responses (tenant_id, turn_id, conversation_id, input_turn_ids, owns_conversation, request,"
            " created_at) values ($1, $2, $3, '{}', true, '{}', now())",
            client.tenant_id, parse_id(turn), parse_id(conversation),
        )  # fmt: skip


async def knows_only_its_own_responses(two: Two, name: str) -> None:
    """A response of another tenant is one that never was; with a model, `test_responses.py` makes some."""
    before = await two.owners_view()
    await store_response(two.database, two.owner, two.conversation, two.turn)
    method, template = OPERATIONS[name]
    got, expected = [
        await two.intruder.request(method, template.format(response_id=f"resp_{turn}"))
        for turn in (two.turn, format_id(new_uuid()))
    ]
    problem(got, 404, "not_found")
    assert without_request_id(got) == without_request_id(expected)
    assert (await two.owner.get(f"/openai/v1/responses/resp_{two.turn}")).status_code == 200
    assert await two.owners_view() == before


async def is_asked_about_its_own_tenant(two: Two, name: str) -> None:
    """Here nobody is there to be asked; where somebody is, the test named below shows."""
    tests = (Path(__file__).parent / "test_ask_agent.py").read_text()
    assert "async def test_another_tenant_has_nothing_to_be_asked_about(" in tests
    method, path = OPERATIONS[name]
    before = await two.owners_view()
    for conversation in (two.conversation, format_id(new_uuid()), two.mine):
        body = {"query": SECRET, "conversation_id": conversation}
        problem(await two.intruder.request(method, path, json=body), 403, "agent_disabled")
    assert await two.owners_view() == before


CASES: dict[str, Callable[[Two, str], Awaitable[None]]] = {
    "create_conversation": creates_an_own_conversation,
    "generate": says_only_that_there_is_no_model,
    "create_chat_completion": says_only_that_there_is_no_model,
    "create_response": says_only_that_there_is_no_model,
    "get_response": knows_only_its_own_responses,
    "delete_response": knows_only_its_own_responses,
    "cancel_response": knows_only_its_own_responses,
    "list_response_input_items": knows_only_its_own_responses,
    "create_embedding": says_only_that_there_is_no_model,
    "list_models": says_only_that_there_is_no_model,
    "get_model": says_only_that_there_is_no_model,
    "create_openai_conversation": begins_its_own_conversation,
    "get_openai_conversation": refuses_foreign_ids,
    "update_openai_conversation": refuses_foreign_ids,
    "delete_openai_conversation": refuses_foreign_ids,
    "create_openai_items": refuses_foreign_ids,
    "list_openai_items": refuses_foreign_ids,
    "get_openai_item": refuses_foreign_items,
    "delete_openai_item": refuses_foreign_items,
    "list_conversations": lists_only_its_own,
    "get_conversation": refuses_foreign_ids,
    "update_conversation": refuses_foreign_ids,
    "delete_conversation": refuses_foreign_ids,
    "trash_conversation": refuses_foreign_ids,
    "restore_conversation": reaches_only_its_own_trash,
    "append_turns": refuses_foreign_ids,
    "list_turns": refuses_foreign_ids,
    "search_turns": refuses_foreign_ids,
    "get_turn": refuses_foreign_ids,
    "follow_conversation": refuses_foreign_ids,
    "follow_conversations": is_heard_by_its_own_tenant,
    "fork_conversation": refuses_foreign_ids,
    "verify_conversation": refuses_foreign_ids,
    "list_summaries": refuses_foreign_ids,
    "dry_run_conversation": refuses_foreign_ids,
    "get_summary": reads_only_its_own_summary,
    "summarise_turns": refuses_foreign_ids,
    "compact_conversation": refuses_foreign_ids,
    "undo_compaction": refuses_foreign_ids,
    "search_conversations": searches_only_its_own,
    "revise_turn": refuses_foreign_ids,
    "erase_turn": refuses_foreign_ids,
    "erase_turns": erases_only_its_own,
    "open_turn": refuses_foreign_ids,
    "append_chunk": refuses_foreign_ids,
    "commit_turn": refuses_foreign_ids,
    "abort_turn": refuses_foreign_ids,
    "resume_turn": refuses_foreign_ids,
    "build_context": refuses_foreign_ids,
    "create_conversation_token": refuses_foreign_ids,
    "void_conversation_tokens": refuses_foreign_ids,
    "list_facts": knows_only_its_own_facts,
    "search_facts": knows_only_its_own_facts,
    "create_fact": knows_only_its_own_facts,
    "get_fact": knows_only_its_own_facts,
    "update_fact": knows_only_its_own_facts,
    "retract_fact": knows_only_its_own_facts,
    "undo_fact": knows_only_its_own_facts,
    "extract_facts": refuses_foreign_ids,
    "recall": recalls_only_its_own,
    "recall_in_conversation": refuses_foreign_ids,
    "store_memory": stores_its_own_memory,
    "search_memories": remembers_only_its_own,
    "list_memories": remembers_only_its_own,
    "filter_memories": remembers_only_its_own,
    "get_memory": reads_only_its_own_memory,
    "delete_memory": deletes_only_its_own_memories,
    "before_turn": has_sessions_of_its_own,
    "after_turn": has_sessions_of_its_own,
    "run_turn": has_sessions_of_its_own,
    "run_maintenance": has_sessions_of_its_own,
    "list_memory_tree": has_sessions_of_its_own,
    "ask_agent": is_asked_about_its_own_tenant,
    "get_own_key": knows_its_own_key,
    "list_keys": knows_only_its_own_keys,
    "create_key": knows_only_its_own_keys,
    "rotate_key": knows_only_its_own_keys,
    "revoke_key": knows_only_its_own_keys,
    "get_limits": sees_only_its_own_limits,
    "get_key_limits": knows_only_its_own_keys,
    "set_key_limits": knows_only_its_own_keys,
    "get_tenant_limits": is_for_operators_only,
    "set_tenant_limits": is_for_operators_only,
    "list_tenants": is_for_operators_only,
    "create_tenant": is_for_operators_only,
    "get_tenant": is_for_operators_only,
    "update_tenant": is_for_operators_only,
    "get_stats": counts_only_its_own,
    "get_samples": is_for_operators_only,
    "list_replicas": is_for_operators_only,
    "list_slow_calls": sees_only_its_own_slow_calls,
    "list_model_usage": sees_only_its_own_spending,
    "list_spaces": moves_no_installation,
    "add_space": moves_no_installation,
    "compare_space": moves_no_installation,
    "switch_space": moves_no_installation,
    "roll_back_space": moves_no_installation,
    "drop_space": moves_no_installation,
    "list_jobs": reaches_only_its_own_jobs,
    "list_audit_entries": lists_only_its_own_entries,
    "verify_audit": verifies_only_its_own_chains,
    "count_jobs": counts_only_its_own_jobs,
    "get_job": reaches_only_its_own_jobs,
    "retry_job": reaches_only_its_own_jobs,
    "cancel_job": reaches_only_its_own_jobs,
    "export_conversation": exports_only_its_own,
    "export_data": exports_only_its_own,
    "import_data": imports_into_its_own_tenant_only,
    "create_erasure": erases_and_sees_only_its_own_owners,
    "list_erasures": erases_and_sees_only_its_own_owners,
    "get_erasure": erases_and_sees_only_its_own_owners,
    "verify_erasure": erases_and_sees_only_its_own_owners,
    "look_up_owner": erases_and_sees_only_its_own_owners,
    "create_webhook": reaches_only_its_own_webhooks,
    "list_webhooks": reaches_only_its_own_webhooks,
    "get_webhook": reaches_only_its_own_webhooks,
    "update_webhook": reaches_only_its_own_webhooks,
    "delete_webhook": reaches_only_its_own_webhooks,
    "rotate_webhook_secret": reaches_only_its_own_webhooks,
    "send_test_event": reaches_only_its_own_webhooks,
    "list_deliveries": reaches_only_its_own_webhooks,
    "get_delivery": reaches_only_its_own_webhooks,
    "replay_deliveries": reaches_only_its_own_webhooks,
    "replay_delivery": reaches_only_its_own_webhooks,
    "list_operations": reaches_only_its_own_operations,
    "get_operation": reaches_only_its_own_operations,
    "cancel_operation": reaches_only_its_own_operations,
    "get_health": says_nothing_of_any_tenant,
    "get_readiness": says_nothing_of_any_tenant,
    "head_health": says_nothing_of_any_tenant,
    "head_readiness": says_nothing_of_any_tenant,
    "get_metrics": says_nothing_of_any_tenant,
}


def test_every_operation_has_a_case_here() -> None:
    assert set(CASES) == set(OPERATIONS), "say above what another tenant's key may not do with a new operation"


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.sampled
async def test_another_tenants_key_reaches_nothing_by(name: str, two: Two) -> None:
    await CASES[name](two, name)


async def test_turn_ids_of_another_tenant_are_free_and_say_nothing(two: Two) -> None:
    before = await two.owners_view()
    turn = {"id": two.turn, "role": "user", "content": "the same id here"}
    first = await two.intruder.append(two.mine, turn)
    assert first["turns"][0]["id"] == two.turn
    path = f"/v1/conversations/{two.mine}/turns"
    assert (await two.intruder.post(path, json={"turns": [turn]})).status_code == 200
    assert (await two.intruder.get(f"{path}/{two.turn}")).json()["content"] == "the same id here"
    hits = await two.intruder.recall(None, "same id")
    assert [hit["text"] for hit in hits if hit["id"] == two.turn] == ["the same id here"]
    assert await two.owners_view() == before
    assert (await two.owner.recall(None, SECRET))[0]["text"] == f"the {SECRET} lives in a burrow"


async def test_the_same_ids_in_two_tenants_are_recalled_and_deleted_apart(client: Client, other: Client) -> None:
    ids = {"conversation": format_id(new_uuid()), "turn": format_id(new_uuid())}
    for one, text in ((client, "red wombat"), (other, "blue wombat")):
        await one.conversation(id=ids["conversation"])
        await one.append(ids["conversation"], {"id": ids["turn"], "role": "user", "content": text})
    for mode in ("text", "vector", "hybrid"):
        assert [hit["text"] for hit in await client.recall(None, "wombat", mode=mode)] == ["red wombat"]
        assert [hit["text"] for hit in await other.recall(ids["conversation"], "wombat", mode=mode)] == ["blue wombat"]
    assert (await client.delete(f"/v1/conversations/{ids['conversation']}")).status_code == 204
    assert await client.recall(None, "wombat") == []
    assert [hit["text"] for hit in await other.recall(None, "wombat")] == ["blue wombat"]
    assert [turn["content"] for turn in await other.history(ids["conversation"])] == ["blue wombat"]


async def test_a_tool_call_of_another_tenant_is_not_there_to_be_answered(two: Two) -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "call-1", "name": "look", "arguments": "{}"}]}
    await two.owner.append(two.conversation, call)
    result = {"turns": [{"role": "tool", "tool_call_id": "call-1", "content": "x"}]}
    path = f"/v1/conversations/{two.mine}/turns"
    problem(await two.intruder.post(path, json=result), 422, "tool_call_unknown", "/turns/0/tool_call_id")


async def test_idempotency_keys_of_two_tenants_are_independent(client: Client, other: Client) -> None:
    headers = {"Idempotency-Key": "one key"}
    first = await client.post("/v1/conversations", json={"title": SECRET}, headers=headers)
    # neither a replay nor a mismatch: another body under the same key is a new request of its own
    made = await other.post("/v1/conversations", json={"title": "its own"}, headers=headers)
    assert made.status_code == 201
    assert "Idempotent-Replayed" not in made.headers
    assert made.json()["id"] != first.json()["id"]
    again = await client.post("/v1/conversations", json={"title": SECRET}, headers=headers)
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")


async def test_the_very_same_request_of_two_tenants_makes_two_conversations(client: Client, other: Client) -> None:
    made = [
        await one.post("/v1/conversations", json={"external_id": "x"}, headers={"Idempotency-Key": "k"})
        for one in (client, other)
    ]
    assert [answer.status_code for answer in made] == [201, 201]
    assert made[0].json()["id"] != made[1].json()["id"]


async def test_cursors_of_another_tenant_are_refused_on_every_list(client: Client, other: Client) -> None:
    shared = format_id(new_uuid())
    for one in (client, other):
        await one.conversation(id=shared)
        await one.conversation()
        await one.append(shared, "one", "two")
    for path in ("/v1/conversations", f"/v1/conversations/{shared}/turns"):
        cursor = (await client.get(path, params={"limit": 1})).json()["next_cursor"]
        assert (await client.get(path, params={"limit": 1, "cursor": cursor})).status_code == 200
        problem(await other.get(path, params={"limit": 1, "cursor": cursor}), 422, "cursor_invalid", "/cursor")


# in the database


@asynccontextmanager
async def connected(url: str, tenant: UUID | None = None) -> AsyncIterator[Connection]:
    """A connection, with a tenant in one transaction: a setting that lasts longer does not go to nodes of Citus."""
    connection = await asyncpg.connect(url)
    try:
        if tenant is None:
            yield connection
        else:
            async with connection.transaction():
                await connection.execute(f"set local app.tenant = '{tenant}'")
                yield connection
    finally:
        await connection.close()


@pytest.fixture
async def tables(service: Service) -> list[str]:
    """Every table that has rows of tenants."""
    async with connected(service.database.superuser) as connection:
        rows = await connection.fetch(
            """
            select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
            where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace order by 1
            """
        )
    names = [row["relname"] for row in rows]
    assert {"tenants", "api_keys", "conversations", "conversation_heads", "turns", "index_entries", "vectors"} <= set(
        names
    )
    return names


@pytest.fixture
async def filled(two: Two, service: Service, tables: list[str]) -> Two:
    """Both tenants have a row in every table."""
    for one, conversation in ((two.owner, two.conversation), (two.intruder, two.mine)):
        assert (await one.post("/v1/webhooks", json={"url": "https://hooks.example.com/turnkeep"})).is_success
        lines = (await one.post("/v1/export", json={})).content
        assert (await one.post("/v1/import", content=lines)).is_success
        await one.post(
            f"/v1/conversations/{conversation}/turns",
            json={"turns": [{"role": "user", "content": "again, as yesterday"}]},
            headers={"Idempotency-Key": "k"},
        )
        path = f"/v1/conversations/{conversation}/turns"
        opened = (await one.post(f"{path}/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
        await one.post(f"{path}/{opened}/chunks?durable=true", json={"offset": 0, "delta": "half"})
        await one.post(f"/v1/conversations/{conversation}/summaries", json={})
        await store_response(two.database, one, conversation, (await one.history(conversation))[0]["id"])
        told = {"subject": "ann", "predicate": "likes", "object": "tea", "conversation_id": conversation}
        await one.post("/v1/facts", json=told)
        await one.post("/v1/memories", json={"content": "worth remembering"})
        short = (await one.post("/v1/memories", json={"content": "soon deleted"})).json()["id"]
        assert (await one.delete(f"/v1/memories/{short}")).is_success
        assert (await one.post("/v1/erasures", json={"owner": "an owner of nothing"})).is_success
        usage = ModelUsage(1, 1)
        await two.spending.record(one.tenant_id, ModelPurpose.FACTS, model="m", usage=usage, failed=False)
        operator = replace(await service.container.tenancy.authenticate(one.key), scopes=frozenset(KeyScope))
        await service.container.limits.set_limits(operator, one.tenant_id, body=TenantLimits())
    await service.container.tenancy.quotas.flush()
    await service.container.audit.sealer.seal()
    for one in (two.owner, two.intruder):  # an audit entry that is not sealed
        await one.conversation()
    async with connected(service.database.superuser) as connection:
        for table in tables:
            for one in (two.owner, two.intruder):
                count = await connection.fetchval(
                    f"select count(*) from {table} where tenant_id = $1",  # noqa: S608
                    one.tenant_id,
                )
                assert count, f"{table} has no row to hide: fill it above"
    return two


# what the application cannot even read of its own tenant
HIDDEN = {"audit_days"}


# Citus refuses every role to move a row to another tenant, or to store a row without a tenant
REFUSALS: tuple[type[asyncpg.PostgresError], ...] = (
    (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError, asyncpg.NullValueNotAllowedError)
    if on_citus()
    else (asyncpg.InsufficientPrivilegeError,)
)


async def refused(connection: Connection, statement: str, *args: object) -> None:
    """Fail unless the database refuses a statement for want of a right."""
    with pytest.raises(REFUSALS):
        async with connection.transaction():
            await connection.execute(statement, *args)


async def test_without_a_tenant_the_application_role_sees_and_writes_nothing(
    filled: Two, service: Service, tables: list[str]
) -> None:
    for unset in ("reset app.tenant", "set app.tenant = ''"):
        async with connected(service.database.app) as connection:
            await connection.execute(unset)
            for table in tables:
                if table in HIDDEN:
                    await refused(connection, f"select from {table}")
                else:
                    assert await connection.fetchval(f"select count(*) from {table}") == 0  # noqa: S608
                await refused(
                    connection,
                    f"insert into {table} (tenant_id) values ($1)",  # noqa: S608
                    filled.owner.tenant_id,
                )
                await refused(connection, f"insert into {table} (tenant_id) values (null)")  # noqa: S608


async def test_with_a_tenant_the_application_role_sees_and_writes_that_tenant_only(
    filled: Two, service: Service, tables: list[str]
) -> None:
    a, b = filled.owner.tenant_id, filled.intruder.tenant_id
    async with connected(service.database.app, a) as connection:
        for table in tables:
            if table in HIDDEN:
                await refused(connection, f"select from {table}")
            else:
                seen = await connection.fetch(f"select distinct tenant_id from {table}")  # noqa: S608
                assert [row["tenant_id"] for row in seen] == [a], table
            await refused(connection, f"insert into {table} (tenant_id) values ($1)", b)  # noqa: S608
            await refused(connection, f"update {table} set tenant_id = $1", b)  # noqa: S608
            if table != "tenants":
                for change in ("delete from {table} where", "update {table} set tenant_id = tenant_id where"):
                    done = "refused 0"
                    with suppress(*REFUSALS):
                        async with connection.transaction():
                            done = await connection.execute(f"{change.format(table=table)} tenant_id = $1", b)
                    assert done.split()[-1] == "0", table


async def test_a_row_cannot_hang_on_a_row_of_another_tenant(filled: Two, service: Service) -> None:
    async with connected(service.database.app, filled.intruder.tenant_id) as connection:
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await connection.execute(
                """
                insert into conversation_heads (tenant_id, conversation_id, chain_hash, updated_at)
                values ($1, $2, ''::bytea, now())
                """,
                filled.intruder.tenant_id,
                parse_id(filled.conversation),
            )


@pytest.mark.parametrize("tenant", ["none", "owner", "intruder"])
async def test_the_functions_that_search_a_scope_name_the_tenant_themselves(
    filled: Two, service: Service, tenant: str
) -> None:
    own = {"owner": filled.owner.tenant_id, "intruder": filled.intruder.tenant_id}.get(tenant)
    scope = "array['turn', 'summary', 'fact', 'memory'], null, null, null, null, null, null, null, null, null"
    async with connected(service.database.superuser) as connection:
        words = await connection.fetchval(
            "select string_agg(distinct quote_literal(w), ' | ')"
            " from index_entries, unnest(tsvector_to_array(lexemes)) w where tenant_id = any($1::uuid[])",
            [filled.owner.tenant_id, filled.intruder.tenant_id],
        )
    async with connected(service.database.app, own) as connection:
        expected = {row["entry_id"] for row in await connection.fetch("select entry_id from index_entries where live")}
        found = await connection.fetch(f"select * from match_in_scope($1::text::tsquery, 1000, {scope})", words)  # noqa: S608
        assert {row["entry_id"] for row in found} == expected
        counted = await connection.fetchval(f"select entries from count_in_scope(array[$1::text], {scope})", words)  # noqa: S608
        assert counted == len(expected)
        assert bool(expected) == (own is not None)
        assert (parse_id(filled.turn) in expected) == (tenant == "owner")


async def test_the_application_role_cannot_become_or_grant_itself_more(service: Service, tables: list[str]) -> None:
    async with connected(service.database.superuser) as connection:
        roles = [row["rolname"] for row in await connection.fetch("select rolname from pg_roles")]
        assert not await connection.fetch(
            "select 1 from pg_auth_members where member = 'turnkeep_app'::regrole", timeout=5
        )
    async with connected(service.database.app) as connection:
        me = await connection.fetchrow("select * from pg_roles where rolname = current_user")
        assert me is not None
        for right in ("rolsuper", "rolbypassrls", "rolcreaterole", "rolcreatedb", "rolreplication"):
            assert me[right] is False, right
        for role in roles:
            if role != "turnkeep_app":
                await refused(connection, f'set role "{role}"')
                await refused(connection, f'set session authorization "{role}"')
        for table in [*tables, "installation", "embedding_spaces"]:
            await refused(connection, f"alter table {table} disable row level security")
            await refused(connection, f"alter table {table} no force row level security")
            await refused(connection, f"create policy all_of_it on {table} using (true)")
            await refused(connection, f"drop table {table}")
            await refused(connection, f"truncate {table}")
        for statement in (
            "create table public.mine (id integer)",
            "create function public.mine() returns integer language sql as 'select 1'",
            "create temporary table mine (id integer)",
            "create schema mine",
            "create extension pg_trgm",
            "select * from pg_authid",
            "select * from pg_shadow",
            "select pg_read_file('postgresql.conf')",
            "copy (select 1) to program 'true'",
            "alter role turnkeep_app bypassrls",
            "create role mine",
            "update installation set secret = ''",
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres'",
            "alter function match_in_scope owner to turnkeep_app",
            "create or replace function shard_of_tenant(of_tenant uuid) returns oid language sql as 'select 1::oid'",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                assert await connection.fetch(statement) == ["never"], statement


async def test_the_application_role_cannot_make_keys_or_tenants(filled: Two, service: Service) -> None:
    async with connected(service.database.app, filled.owner.tenant_id) as connection:
        await refused(connection, "update api_keys set scopes = '{read,write,admin,operator}'")
        await refused(connection, "update api_keys set revoked_at = null, expires_at = null")
        await refused(
            connection,
            "insert into api_keys (tenant_id, id, name, secret_hmac, scopes) values ($1, $2, 'x', '', '{operator}')",
            filled.owner.tenant_id,
            new_uuid(),
        )
        await refused(connection, "delete from api_keys")
        await refused(connection, "update tenants set name = 'x'")
        await refused(connection, "delete from tenants")
        await refused(connection, "select secret from installation")


async def test_every_tenant_table_has_row_security_forced_and_a_policy(service: Service, tables: list[str]) -> None:
    async with connected(service.database.superuser) as connection:
        for table in tables:
            row = await connection.fetchrow(
                "select relrowsecurity, relforcerowsecurity from pg_class where oid = $1::text::regclass", table
            )
            assert row is not None
            assert (row["relrowsecurity"], row["relforcerowsecurity"]) == (True, True), table
            policies = await connection.fetch("select * from pg_policies where tablename = $1", table)
            of_app = [policy for policy in policies if "turnkeep_app" in policy["roles"]]
            assert of_app, f"{table} has no policy for turnkeep_app"
            for policy in policies:
                assert "public" not in policy["roles"], policy["policyname"]
                if policy in of_app:
                    assert "tenant_id" in policy["qual"], policy["policyname"]
                    assert "app.tenant" in policy["qual"], policy["policyname"]
                    assert policy["with_check"] == policy["qual"], policy["policyname"]
                elif "turnkeep_search" in policy["roles"]:
                    assert policy["cmd"] == "SELECT"


async def test_every_key_of_a_tenant_table_starts_with_the_tenant(service: Service, tables: list[str]) -> None:
    async with connected(service.database.superuser) as connection:
        rows = await connection.fetch(
            """
            select i.indexrelid::regclass::text as name, a.attname as first
            from pg_index i join pg_class c on c.oid = i.indrelid
            left join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]
            where (i.indisunique or i.indisprimary) and c.relname = any($1::text[])
            """,
            tables,
        )
        keyless = await connection.fetch(
            """
            select c.relname from pg_class c where c.relname = any($1::text[]) and not exists (
                select from pg_index i where i.indrelid = c.oid and i.indisprimary)
            """,
            tables,
        )
        foreign = await connection.fetch(
            """
            select k.conname as name, a.attname as first from pg_constraint k
            join pg_class c on c.oid = k.conrelid join pg_class target on target.oid = k.confrelid
            join pg_attribute a on a.attrelid = c.oid and a.attnum = k.conkey[1]
            where k.contype = 'f' and c.relname = any($1::text[]) and target.relname = any($1::text[])
            """,
            tables,
        )
    assert rows
    assert foreign
    assert keyless == []
    assert {row["name"]: row["first"] for row in [*rows, *foreign] if row["first"] != "tenant_id"} == {}


async def test_no_role_of_the_service_bypasses_row_security_by_attribute(service: Service) -> None:
    async with connected(service.database.superuser) as connection:
        roles = await connection.fetch(
            "select rolname, rolsuper, rolbypassrls, rolcanlogin from pg_roles"
            # other tests make roles to log in with
            " where rolname like 'turnkeep_%' and rolname not like 'turnkeep_login_%'"
        )
        assert {role["rolname"] for role in roles} == {
            "turnkeep_app",
            "turnkeep_ops",
            "turnkeep_owner",
            "turnkeep_search",
        }
        assert [role["rolname"] for role in roles if role["rolsuper"] or role["rolbypassrls"]] == []
        # a coordinator of Citus enters the nodes as this role, too
        without_login = [] if on_citus() else ["turnkeep_search"]
        assert [role["rolname"] for role in roles if not role["rolcanlogin"]] == without_login
        owners = await connection.fetch(
            """
            select distinct pg_get_userbyid(relowner) as owner from pg_class
            where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')
            """
        )
        assert [row["owner"] for row in owners] == ["turnkeep_owner"]


async def test_even_the_owner_of_the_tables_sees_no_row(filled: Two, service: Service, tables: list[str]) -> None:
    for tenant in (None, filled.owner.tenant_id):
        async with connected(service.database.owner, tenant) as connection:
            # it is a member of turnkeep_search, whose policy it inherits on this one
            for table in set(tables) - {"index_entries"}:
                assert await connection.fetchval(f"select count(*) from {table}") == 0  # noqa: S608


async def test_no_other_role_may_connect_to_the_database(service: Service) -> None:
    async with connected(service.database.superuser) as connection:
        may = await connection.fetchval("select has_database_privilege('public', current_database(), 'connect')")
    assert may is False
