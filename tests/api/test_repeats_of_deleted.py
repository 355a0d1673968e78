"""A repeated request reads its object again: 404 where it was deleted since, for every call that takes a key."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest

from app.tenancy.schemas import Scope
from tests.api.test_idempotency_keys import KEYED
from tests.api.test_keys_without_read import OPERATIONS
from tests.support.api import Client, Service, open_service, problem
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat, says
from tests.support.marked import REQUESTS, Marked, marked_tenant

KEY = {"Idempotency-Key": "once"}
Delete = Callable[[Client, Marked, dict[str, Any]], Awaitable[httpx.Response]]


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = says("Hello.")
        yield opened


@pytest.fixture(scope="module")
async def modelled(service: Service, fake: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_service(
        service.database, tmp_path_factory.mktemp("modelled"), embedder="none", llm_model=CHAT_MODEL,
        llm_base_url=fake.url, enable_internal_agent=True,
    ) as opened:  # fmt: skip
        yield opened


@pytest.fixture
async def tenant(modelled: Service) -> AsyncIterator[Client]:
    """A tenant with a key of all scopes."""
    tenant_id = (await modelled.new_tenant()).tenant_id
    key = await modelled.container.tenancy.create_key(tenant_id, name="all", scopes=list(Scope), agent_id="cook")
    async with modelled.client(str(key)) as opened:
        opened.key = str(key)
        yield opened


@pytest.fixture
async def plain(service: Service, tenant: Client) -> AsyncIterator[Client]:
    """The same key at a service that summarises without a model."""
    async with service.client(tenant.key) as opened:
        yield opened


@pytest.fixture
async def marked(service: Service, plain: Client) -> Marked:
    return await marked_tenant(service, plain)


def _deletes(path: str) -> Delete:
    return lambda client, marked, answer: client.delete(path.format_map(vars(marked) | answer))


async def _undo_compaction(client: Client, marked: Marked, _answer: dict[str, Any]) -> httpx.Response:
    return await client.post(f"/v1/conversations/{marked.conversation_id}/compact/undo")


_CONVERSATION = _deletes("/v1/conversations/{conversation_id}")
DELETES: Mapping[str, tuple[Delete, ...]] = {
    "append_turns": (_CONVERSATION,),
    "ask_agent": (_CONVERSATION,),
    "create_conversation": (_deletes("/v1/conversations/{id}"),),
    "create_fact": (_CONVERSATION, _deletes("/v1/conversations/{conversation_id}/turns/{turn_id}")),
    "create_openai_conversation": (_deletes("/openai/v1/conversations/{id}"),),
    "create_response": (_deletes("/openai/v1/responses/{id}"), _CONVERSATION),
    "create_webhook": (_deletes("/v1/webhooks/{id}"),),
    "fork_conversation": (_deletes("/v1/conversations/{id}"),),
    "generate": (_CONVERSATION,),
    "open_turn": (_CONVERSATION,),
    "revise_turn": (_CONVERSATION,),
    "rotate_webhook_secret": (_deletes("/v1/webhooks/{id}"),),
    "send_test_event": (_deletes("/v1/webhooks/{webhook_id}"),),
    "store_memory": (_deletes("/v1/memories/{id}"),),
    "summarise_turns": (_CONVERSATION, _undo_compaction),
}
"""For each call the ways in which what it made goes."""
STAYS = {"create_erasure", "create_key", "create_tenant", "replay_deliveries", "rotate_key"}
"""Calls whose object stays: a receipt, a key, which can only be revoked, an erased tenant's id, and an operation."""
AGAIN = {"create_conversation": {"external_id": "a name of its own"}}


async def _made(tenant: Client, name: str, marked: Marked) -> Callable[[], Awaitable[httpx.Response]]:
    """Return the request of a call on the marked tenant, as often as it is called."""
    method, path, _ = OPERATIONS[name]
    sent = REQUESTS[name](marked)
    names = vars(marked) | dict(sent.path)
    if "{webhook_id}" in path:
        hook = await tenant.post("/v1/webhooks", json={"url": "https://example.com/hook"})
        names["webhook_id"] = hook.json()["id"]
    body = AGAIN.get(name, sent.json)
    if name == "create_fact":
        body = {"subject": "Mia", "predicate": "likes", "object": "tea", "source_turn_ids": [marked.turn_id]}
    content = {} if body is None else {"json": body}
    return lambda: tenant.request(method, path.format_map(names), headers=KEY, **content)


def test_every_call_that_takes_a_key_is_here() -> None:
    assert sorted({*DELETES, *STAYS}) == KEYED


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in DELETES.items() for way in range(len(ways))])
async def test_a_repeated_request_whose_object_was_deleted_is_not_found(
    name: str, way: int, modelled: Service, tenant: Client, plain: Client, marked: Marked
) -> None:
    request = await _made(plain if name == "summarise_turns" else tenant, name, marked)
    answer = await request()
    assert answer.status_code in {200, 201, 202}, answer.text
    again = await request()
    if again.status_code == 409:
        problem(again, 409, "secret_shown_once")
    else:
        assert (again.status_code, again.headers["Idempotent-Replayed"]) == (answer.status_code, "true"), again.text
    deleted = await DELETES[name][way](tenant, marked, answer.json())
    assert deleted.status_code in {200, 202, 204}, deleted.text
    await modelled.run_jobs()
    for _ in range(2):
        problem(await request(), 404, "not_found")


async def test_a_memory_of_an_erased_owner_is_not_found_by_a_repeat(modelled: Service, tenant: Client) -> None:
    body = {"content": "Mia drinks decaffeinated tea.", "owner": "mia"}
    first = await tenant.post("/v1/memories", json=body, headers=KEY)
    assert first.status_code == 201
    assert (await tenant.post("/v1/erasures", json={"owner": "mia"})).status_code == 202
    await modelled.run_jobs()
    problem(await tenant.post("/v1/memories", json=body, headers=KEY), 404, "not_found")
    fresh = await tenant.post("/v1/memories", json=body, headers={"Idempotency-Key": "another"})
    assert (fresh.status_code, fresh.json()["id"] == first.json()["id"]) == (201, False)


async def test_keys_of_another_tenant_do_not_answer_for_a_deleted_object(modelled: Service, tenant: Client) -> None:
    body = {"content": "Mia drinks tea."}
    async with await modelled.new_tenant() as other:
        made = [await one.post("/v1/memories", json=body, headers=KEY) for one in (tenant, other)]
        assert (await tenant.delete(f"/v1/memories/{made[0].json()['id']}")).status_code == 204
        problem(await tenant.post("/v1/memories", json=body, headers=KEY), 404, "not_found")
        assert (await other.post("/v1/memories", json=body, headers=KEY)).json()["id"] == made[1].json()["id"]
