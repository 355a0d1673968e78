"""Two tenants, each with two owners, that use the same ids: calls that find an object by an id that callers choose.

At one process, and at two over one database. The first tenant's calls go to the first process, those of the second
tenant to the last, and the two owners of a tenant to both in turn.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from app.core.ids import format_id, new_uuid
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.live import serving
from tests.support.mcp import call, post
from tests.support.postgres import TestDatabase

MARKERS = ("ALPHA", "BRAVO")
at_processes = pytest.mark.parametrize("count", [1, 2], ids=["one process", "two processes"])


class Tenant:
    """The clients of one tenant at each process, and its text in all that it writes."""

    def __init__(self, marker: str, clients: list[Client], ports: list[int]) -> None:
        self.marker, self.clients, self.ports = marker, clients, ports

    async def send(
        self, method: str, path: str, *, at: int = 0, status: int | None = None, headers: Any = None, **body: Any
    ) -> dict[str, Any]:
        """Send a request to one process; no answer has the text of the other tenant."""
        client = self.clients[at % len(self.clients)]
        answer = await client.request(method, path, json=body or None, headers=headers)
        assert status is None or answer.status_code == status, answer.text
        assert not [other for other in MARKERS if other != self.marker and other in answer.text]
        return json.loads(answer.content or b"null")

    async def texts(self, conversation: str, *, at: int = 0) -> list[str]:
        history = await self.send("GET", f"/v1/conversations/{conversation}/turns?order=asc", at=at)
        return [turn["content"] for turn in history["data"]]


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture(scope="module")
async def processes(
    words_database: TestDatabase, fake: FakeChat, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[tuple[Service, int]]]:
    settings = {"embedder": "none", "llm_model": CHAT_MODEL, "llm_base_url": fake.url}
    async with AsyncExitStack() as stack:
        opened: list[tuple[Service, int]] = []
        for name in ("one", "two"):
            folder = tmp_path_factory.mktemp(name)
            service = await stack.enter_async_context(open_service(words_database, folder, **settings))
            opened.append((service, await stack.enter_async_context(serving(service.app, service.settings))))
        yield opened


@pytest.fixture
async def two(processes: list[tuple[Service, int]], fake: FakeChat, count: int) -> AsyncIterator[tuple[Tenant, Tenant]]:
    fake.reply, fake.replies = says("Hello."), []
    async with AsyncExitStack() as stack:
        tenants: list[Tenant] = []
        for number, marker in enumerate(MARKERS):
            opened = processes[:count]
            order = opened if number == 0 else opened[::-1]
            first = await stack.enter_async_context(await order[0][0].new_tenant())
            rest = [await stack.enter_async_context(service.client(first.key)) for service, _ in order[1:]]
            tenants.append(Tenant(marker, [first, *rest], [port for _, port in order]))
        yield tenants[0], tenants[1]


async def conversations_of(two: tuple[Tenant, Tenant], conversation: str) -> None:
    for tenant in two:
        created = {"id": conversation, "external_id": "ticket", "owner": "ann", "title": tenant.marker}
        await tenant.send("POST", "/v1/conversations", status=201, **created)


@at_processes
async def test_a_conversation_is_given_to_its_owner_of_its_tenant_alone(two: tuple[Tenant, Tenant]) -> None:
    conversation = format_id(new_uuid())
    await conversations_of(two, conversation)
    item = {"type": "message", "role": "user", "content": "mine?"}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("/v1/conversations", "owner", {"external_id": "ticket"}),
        ("/v1/conversations", "owner", {"id": conversation}),
        ("/v1/generate", "owner", {"external_id": "ticket", "messages": [{"role": "user", "content": "mine?"}]}),
        ("/openai/v1/chat/completions", "user",
         {"model": CHAT_MODEL, "conversation_id": conversation, "messages": [{"role": "user", "content": "mine?"}]}),
        ("/openai/v1/responses", "user",
         {"model": CHAT_MODEL, "conversation": f"conv_{conversation}", "input": "mine?"}),
        ("/v1/lifecycle/before-turn", "user_id",
         {"session_id": "ticket", "turn_id": "t1", "current_input": [item], "max_input_tok": 1000}),
        ("/v1/lifecycle/after-turn", "user_id", {"session_id": "ticket", "turn_id": "t1", "input_items": [item]}),
    ]  # fmt: skip
    for tenant in two:
        for number, (path, owner, body) in enumerate(requests):
            refused = await tenant.send("POST", path, at=number, status=409, **body, **{owner: "bob"})
            assert refused.get("code", refused.get("error", {}).get("code")) == "conversation_owned", path
        turns = [{"role": "user", "content": "mine?"}]
        arguments = {"external_id": "ticket", "owner": "bob", "turns": turns}
        async with httpx.AsyncClient() as http:
            answer = await post(http, tenant.ports[0], tenant.clients[0].key, call("append_turns", arguments))
        assert "conversation_owned" in answer.text
        assert await tenant.texts(conversation, at=1) == []
        for number, (path, owner, body) in enumerate(requests):
            await tenant.send("POST", path, at=number, **body, **{owner: "ann"})
        assert "mine?" in await tenant.texts(conversation, at=1)


@at_processes
async def test_of_two_owners_who_create_a_conversation_at_once_one_has_it(two: tuple[Tenant, Tenant]) -> None:
    for number in range(4):
        name = f"race {number}"
        answers = await asyncio.gather(
            *(
                tenant.send("POST", "/v1/conversations", at=at, external_id=name, owner=owner, title=tenant.marker)
                for tenant in two
                for at, owner in enumerate(("ann", "bob"))
            )
        )
        for first, second in (answers[:2], answers[2:]):
            created, refused = (first, second) if "id" in first else (second, first)
            assert (created["external_id"], refused["code"]) == (name, "conversation_owned")


@at_processes
async def test_the_same_ids_of_turns_memories_and_facts_are_found_and_erased_apart(two: tuple[Tenant, Tenant]) -> None:
    alpha, bravo = two
    conversation = format_id(new_uuid())
    await conversations_of(two, conversation)
    path = f"/v1/conversations/{conversation}/turns"
    for tenant in two:
        stored = await tenant.send(
            "POST", "/v1/memories", status=201, headers={"Idempotency-Key": "one"}, content=f"{tenant.marker} likes tea"
        )
        turn = {"id": stored["id"], "role": "user", "content": f"{tenant.marker} says tea"}
        old = turn | {"id": format_id(new_uuid()), "occurred_at": "2024-05-01T00:00:00Z"}
        await tenant.send("POST", path, status=201, turns=[turn])
        await tenant.send("POST", path, at=1, status=201, turns=[old], **{"import": True})
    memory = (await alpha.send("GET", "/v1/memories"))["data"][0]["id"]
    shared = {"id": memory, "role": "user", "content": "BRAVO says tea with the id of a memory of the other"}
    await bravo.send("POST", path, status=201, turns=[shared])
    await alpha.send("DELETE", f"/v1/memories/{memory}", at=1, status=204)
    await alpha.send(
        "POST", "/v1/memories", at=1, status=404, headers={"Idempotency-Key": "one"}, content="ALPHA likes tea"
    )
    again = await bravo.send(
        "POST", "/v1/memories", at=1, status=201, headers={"Idempotency-Key": "one"}, content="BRAVO likes tea"
    )
    assert again["id"] == (await bravo.send("GET", "/v1/memories"))["data"][0]["id"]
    assert memory in [turn["id"] for turn in (await alpha.send("GET", path))["data"]]
    await alpha.send("DELETE", f"{path}/{memory}", status=204)
    assert shared["content"] in await bravo.texts(conversation, at=1)
    for tenant in two:
        hits = await tenant.send("POST", f"/v1/conversations/{conversation}/recall", at=1, query="tea", k=5)
        assert hits["data"]
        assert all(tenant.marker in hit["text"] for hit in hits["data"])


@at_processes
async def test_items_that_another_tenant_has_are_new_ones(two: tuple[Tenant, Tenant]) -> None:
    conversation = format_id(new_uuid())
    await conversations_of(two, conversation)
    alpha, bravo = two
    body = {"model": CHAT_MODEL, "conversation": f"conv_{conversation}"}
    await alpha.send("POST", "/openai/v1/responses", status=200, **body, input="ALPHA asks")
    items = (await alpha.send("GET", f"/openai/v1/conversations/conv_{conversation}/items?order=asc", at=1))["data"]
    plain = [item | {"content": [part | {"text": "from elsewhere"} for part in item["content"]]} for item in items]
    await bravo.send("POST", "/openai/v1/responses", at=1, status=200, **body, input=plain)
    assert (await bravo.texts(conversation)).count("ALPHA asks") == 0
    assert await alpha.texts(conversation) == ["ALPHA asks", "Hello."]
    await alpha.send(
        "POST", "/openai/v1/responses", at=1, status=200, **body, input=[*items, {"role": "user", "content": "and?"}]
    )
    assert await alpha.texts(conversation) == ["ALPHA asks", "Hello.", "and?", "Hello."]


@at_processes
async def test_a_late_turn_and_a_resumed_one_stay_in_their_tenant(two: tuple[Tenant, Tenant]) -> None:
    conversation, turn_id = format_id(new_uuid()), format_id(new_uuid())
    await conversations_of(two, conversation)
    path = f"/v1/conversations/{conversation}/turns"
    for tenant in two:
        opened = {"turn": {"id": turn_id, "role": "user", "actor": "ann"}, "writer": "w", "position": "opened"}
        await tenant.send("POST", f"{path}/open", status=201, **opened)
        await tenant.send(
            "POST", path, status=201, turns=[{"role": "assistant", "content": f"{tenant.marker} answers"}]
        )
        await tenant.send("POST", f"{path}/{turn_id}/chunks", status=200, offset=0, delta=f"{tenant.marker} asks")
    for tenant in two:
        resumed = await tenant.send("POST", f"{path}/{turn_id}/resume", at=1, status=200, writer="w")
        assert [part["durable_offset"] for part in resumed["parts"]] == [len(f"{tenant.marker} asks")]
        await tenant.send("POST", f"{path}/{turn_id}/commit", at=1, status=200, length=len(f"{tenant.marker} asks"))
        assert await tenant.texts(conversation) == [f"{tenant.marker} asks", f"{tenant.marker} answers"]
        verified = await tenant.send("GET", f"/v1/conversations/{conversation}/verify", at=1)
        assert verified["valid"]


@at_processes
async def test_a_kept_answer_is_of_the_tenant_that_asked(two: tuple[Tenant, Tenant], fake: FakeChat) -> None:
    conversation = format_id(new_uuid())
    await conversations_of(two, conversation)
    fake.reply, fake.may_go_on = Reply(text="word " * 40, piece=5, stops_after=5), asyncio.Event()

    async def leave(tenant: Tenant) -> None:
        body = {"model": CHAT_MODEL, "conversation_id": conversation, "stream": True, "on_disconnect": "keep",
                "messages": [{"role": "user", "content": f"{tenant.marker} asks"}]}  # fmt: skip
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", tenant.ports[0])
        head = (
            "POST /openai/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {tenant.clients[0].key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        await reader.readuntil(b"word")
        writer.close()
        await writer.wait_closed()

    try:
        await asyncio.gather(*(leave(tenant) for tenant in two))
        for tenant in two:
            texts: list[str] = []
            for _ in range(500):
                texts = await tenant.texts(conversation, at=1)
                if len(texts) == 2:
                    break
                await asyncio.sleep(0.02)
            assert (texts[0], texts[1][:4]) == (f"{tenant.marker} asks", "word")
    finally:
        fake.may_go_on.set()
