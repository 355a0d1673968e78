"""After an erasure nothing of the text is left: in no table, no log, no metric, and nowhere in the process's memory."""

import io
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from app.core.ids import format_id, new_uuid
from app.core.telemetry import configure_logging
from app.settings import Settings
from app.transfer.lines import write_foreign
from tests.support.api import Client, Service, open_service
from tests.support.byte_search import memory_with, tables_with
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.postgres import Servers, TestDatabase, own_database
from tests.support.receiver import Receiver, receiving
from tests.support.timing import PATIENT_MS


@dataclass(frozen=True)
class Stored:
    """Ids of what a marker is in."""

    marker: str
    conversation: str
    turns: list[str]

    @property
    def owner(self) -> str:
        return f"owner-{self.marker}"

    @property
    def actor(self) -> str:
        return f"ann-{self.marker}"


@pytest.fixture(scope="module")
async def chat() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = repeats
        yield opened


def repeats(request: dict[str, Any]) -> Reply:
    """A reply that says the markers of the request again: what a model says of a text is as personal as the text."""
    asked = json.dumps(request["messages"], ensure_ascii=False)
    markers = " ".join(dict.fromkeys(re.findall("quokka[0-9a-f]{12}", asked))) or "nothing"
    if "response_format" not in request:
        return says(f"of {markers}")
    if "personal data" in asked:
        return says({"found": []})
    if "plainly say" in asked:
        return says({"facts": []})
    return says({"summary": f"They spoke of {markers}.", "abstract": f"Of {markers}."})


@pytest.fixture(scope="module")
async def database(servers: Servers) -> AsyncIterator[TestDatabase]:
    """A database of these tests alone: the model would be asked for what other tests have left, too."""
    async with own_database(servers, "erased") as opened:
        yield opened


@pytest.fixture(scope="module")
async def service(
    database: TestDatabase, tmp_path_factory: pytest.TempPathFactory, chat: FakeChat
) -> AsyncIterator[Service]:
    """A service with everything that keeps texts: a model, the agent, titles, webhooks, and all calls kept as slow."""
    settings = {
        "llm_base_url": chat.url, "llm_model": CHAT_MODEL, "llm_timeout_ms": PATIENT_MS, "llm_max_retries": 0,
        "enable_internal_agent": True, "title_generation_enabled": True, "webhook_allow_private": True,
        "webhook_allow_http": True, "slow_call_ms": 1,
    }  # fmt: skip
    async with open_service(database, tmp_path_factory.mktemp("data"), **settings) as opened:
        yield opened


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver of webhooks that fails, so that the events stay."""
    async with receiving() as opened:
        opened.status = 500
        yield opened


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log of the service, with all lines."""
    written = io.StringIO()
    configure_logging(Settings(log_level="debug").telemetry, written)
    yield written
    configure_logging(Settings(log_level="error").telemetry)


@pytest.fixture
async def user(service: Service) -> AsyncIterator[tuple[Client, str]]:
    """A client of a tenant, and a marker that nothing else has; the tenant's name has it, too."""
    marker = new_marker()
    key = await service.container.tenancy.create_tenant(f"tenant {marker}")
    async with service.client(str(key)) as client:
        client.tenant_id, client.key = key.tenant_id, str(key)
        yield client, marker


def new_marker() -> str:
    return f"quokka{new_uuid().hex[-12:]}"


async def ask(client: Client, method: str, path: str, **sent: Any) -> Any:
    answer = await client.request(method, path, **sent)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def turn_of(marker: str) -> dict[str, Any]:
    """A turn with the marker in each field that takes text."""
    return {
        "role": "assistant", "actor": f"bot-{marker}", "content": f"the secret is {marker}", "model": f"model-{marker}",
        "adapter": f"adapter-{marker}", "metadata": {f"key-{marker}": f"value-{marker}"}, "usage": {f"u-{marker}": 1},
        "tool_calls": [{"id": f"call-{marker}", "name": f"tool-{marker}", "arguments": {marker: marker}}],
    }  # fmt: skip


async def fill_conversation(client: Client, marker: str) -> Stored:
    """Store the marker in a conversation of an owner, and all that can be derived from it; search for it, too."""
    owner, actor, key = f"owner-{marker}", f"ann-{marker}", {"Idempotency-Key": f"a-{marker}"}
    body = {
        "owner": owner, "title": f"title {marker}", "metadata": {f"key-{marker}": marker}, "project": f"in-{marker}",
        "external_id": f"case-{marker}",
        "participants": [{"actor": actor, "name": f"Ann {marker}", "aliases": [marker]}],
    }  # fmt: skip
    conversation = (await ask(client, "POST", "/v1/conversations", json=body, headers=key))["id"]
    path = f"/v1/conversations/{conversation}"
    said = {"role": "user", "actor": actor, "content": f"My name is Ann {marker} and I live in Berlin-{marker}."}
    result = {"role": "tool", "actor": f"tool-{marker}", "tool_call_id": f"call-{marker}", "content": f"is {marker}"}
    other = {"Idempotency-Key": f"b-{marker}"}
    sent = {"turns": [said, turn_of(marker), result, said, said]}
    turns = [turn["id"] for turn in (await ask(client, "POST", f"{path}/turns", json=sent, headers=other))["turns"]]
    revised = await ask(client, "POST", f"{path}/turns/{turns[3]}/revisions", json={"content": f"again {marker}"})
    turns.append(revised["turn"]["id"])
    await ask(client, "POST", f"{path}/trash")
    await ask(client, "POST", f"{path}/restore")
    for end in (None, "commit", "abort"):
        opening = {"turn": {"role": "assistant", "actor": f"bot-{marker}"}, "writer": f"writer-{marker}"}
        turn = (await ask(client, "POST", f"{path}/turns/open", json=opening))["turn"]["id"]
        chunk = {"offset": 0, "delta": f"streamed {marker}"}
        await ask(client, "POST", f"{path}/turns/{turn}/chunks", params={"durable": "true"}, json=chunk)
        if end is not None:
            await ask(client, "POST", f"{path}/turns/{turn}/{end}", json={})
        turns.append(turn)
    await ask(client, "POST", f"{path}/summaries", json={"through": turns[2]})
    await ask(client, "POST", f"{path}/facts/extract", json={})
    evidence = {"subject": f"Ann {marker}", "predicate": "likes", "object": marker, "source_turn_ids": turns[:1]}
    fact = (await ask(client, "POST", "/v1/facts", json=evidence))["fact"]["id"]
    await ask(client, "PATCH", f"/v1/facts/{fact}", json={"object": f"Rome {marker}"})
    await search(client, conversation, marker)
    return Stored(marker, conversation, turns)


async def fill_owner(client: Client, marker: str) -> None:
    """Store the marker in facts and memories of an owner."""
    owner, project = f"owner-{marker}", f"in-{marker}"
    fact = {"subject": f"Ann {marker}", "predicate": f"owns {marker}", "object": f"a {marker}"}
    await ask(client, "POST", "/v1/facts", json=fact | {"owner": owner, "project": project})
    memory = {"content": f"{marker} sails", "metadata": {marker: marker}, "owner": owner}
    agent = {"X-Agent-Id": f"agent-{marker}"}
    await ask(client, "POST", "/v1/memories", json=memory, headers=agent)
    query = {"query": marker, "owner": owner, "kinds": ["fact", "memory"], "agent_id": f"agent-{marker}"}
    await ask(client, "POST", "/v1/recall", json=query)
    await ask(client, "POST", "/v1/memories/search", json={"query": marker}, headers=agent)


async def talk(client: Client, stored: Stored) -> None:
    """Let models and agents speak in the conversation, and all that is made from it: titles, tokens, forks, exports."""
    marker, path = stored.marker, f"/v1/conversations/{stored.conversation}"
    key = {"Idempotency-Key": f"c-{marker}"}
    said = [{"role": "user", "content": f"What of {marker}?"}]
    generate = {"conversation_id": stored.conversation, "messages": said}
    await ask(client, "POST", "/v1/generate", json=generate, headers=key)
    await ask(client, "POST", "/openai/v1/chat/completions", json=generate | {"model": CHAT_MODEL})
    responds = {
        "conversation": stored.conversation, "input": f"And {marker}?", "instructions": f"Say {marker}.",
        "metadata": {f"key-{marker}": marker}, "tools": [{"type": "function", "name": f"tool-{marker}"}],
    }  # fmt: skip
    made = await ask(client, "POST", "/openai/v1/responses", json=responds, headers={"Idempotency-Key": f"r-{marker}"})
    more = {"previous_response_id": made["id"], "input": f"More of {marker}", "user": stored.owner}
    await ask(client, "POST", "/openai/v1/responses", json=more | {"store": False})
    query = {"query": f"And {marker}?", "conversation_id": stored.conversation}
    await ask(
        client,
        "POST",
        "/v1/agent/ask",
        json=query,
        headers={"Idempotency-Key": f"d-{marker}", "X-Agent-Id": f"agent-{marker}"},
    )
    items = {"items": [{"type": "message", "role": "user", "content": f"an item {marker}"}]}
    await ask(client, "POST", f"/openai/v1/conversations/conv_{stored.conversation}/items", json=items)
    session = {
        "project": f"in-{marker}", "session_id": f"case-{marker}", "user_id": stored.owner, "turn_id": f"turn-{marker}",
    }  # fmt: skip
    await ask(client, "POST", "/v1/lifecycle/before-turn", json=session | {"current_input": said})
    answered = [{"role": "assistant", "content": f"It is {marker}"}]
    await ask(
        client, "POST", "/v1/lifecycle/after-turn", json=session | {"input_items": said, "output_items": answered}
    )
    await ask(client, "PATCH", path, json={"title": None, "metadata": {f"other-{marker}": marker}})
    await ask(client, "GET", f"{path}/dry-run")


async def move(service: Service, client: Client, marker: str) -> None:
    """Import a conversation of the owner from another system, and export everything."""
    owner = f"owner-{marker}"
    found: list[dict[str, Any]] = [
        {"type": "conversation", "external_id": f"chat-{marker}", "owner": owner, "title": f"Words {marker}"},
        {"type": "turn", "external_id": f"turn-{marker}", "role": "user", "content": f"imported {marker}"},
        {"type": "fact", "subject": marker, "predicate": "likes", "object": marker, "owner": owner},
        {"type": "memory", "agent_id": f"agent-{marker}", "content": f"{marker} was imported", "owner": owner},
    ]
    body = b"".join(write_foreign("chatgpt", found, created_at="2026-01-01T00:00:00.000Z"))
    operation = await ask(client, "POST", "/v1/import", content=body)
    await service.run_jobs()
    ended = await ask(client, "GET", f"/v1/operations/{operation['id']}")
    assert (ended["status"], ended["result"]["problems"]) == ("succeeded", [])
    exported = await client.post("/v1/export", json={})
    assert marker in exported.text


async def search(client: Client, conversation: str, marker: str) -> None:
    path = f"/v1/conversations/{conversation}"
    await ask(client, "POST", f"{path}/recall", json={"query": f"Where does {marker} live?"})
    for scope in ({}, {"owner": f"owner-{marker}"}, {"project": f"in-{marker}"}):
        await ask(client, "POST", "/v1/recall", json={"query": marker, **scope})
    context = {"token_budget": 2000, "include_facts": True, "semantic_recall": {"k": 5}}
    await ask(client, "POST", f"{path}/context", json=context)
    await ask(client, "POST", "/v1/conversations/search", json={"owner": f"owner-{marker}"})
    await ask(client, "POST", "/v1/owners/lookup", json={"owner": f"owner-{marker}"})


async def filter_lists(client: Client, conversation: str, marker: str) -> None:
    """Send the marker in what access logs have: filters of lists, a path, and the name of a parameter."""
    filters = {
        "/v1/conversations": ("owner", "participant", "external_id", "project"),
        f"/v1/conversations/{conversation}/turns": ("actors",),
        "/v1/facts": ("subject", "predicate", "owner", "project"),
        "/v1/memories": ("owner", "agent_id"),
        "/v1/admin/audit": ("request_id",),
    }
    for path, names in filters.items():
        for name in names:
            await ask(client, "GET", path, params={name: marker})
    assert (await client.get("/v1/facts", params={marker: "1"})).status_code == 422
    assert (await client.get(f"/v1/{marker}")).status_code == 404


async def keep_others(client: Client) -> str:
    """Store what is not erased, so that segments of the tenant have other entries."""
    conversation = await client.conversation(owner="someone else")
    await client.append(conversation, *[{"role": "user", "actor": "ben", "content": f"tea {at}"} for at in range(9)])
    return conversation


async def erase(service: Service, client: Client, **body: Any) -> None:
    started = await client.post("/v1/erasures", json=body)
    assert started.status_code == 202, started.text
    await service.run_jobs()
    ended = await ask(client, "GET", f"/v1/operations/{started.json()['id']}")
    assert ended["status"] == "succeeded", ended


def without_ids(line: str) -> str:
    """A line of the log without the ids that callers chose: logs may have ids, and guides say so."""
    fields = json.loads(line)
    return json.dumps(
        {name: value for name, value in fields.items() if name not in {"project", "session_id", "turn_id"}}
    )


async def places_with(service: Service, client: Client, log: io.StringIO, marker: str) -> dict[str, list[str]]:
    """Return where a marker is: tables, lines of the log and of the metrics, and ways to texts in memory."""
    metrics = (await client.get("/metrics")).text
    assert "request.finished" in log.getvalue()
    return {
        "tables": await tables_with(service, marker),
        "log": [line for line in log.getvalue().splitlines() if marker in without_ids(line)],
        "metrics": [line for line in metrics.splitlines() if marker in line],
        "memory": memory_with((service.container, service.app.state), marker),
    }


STORED_IN = {"conversations", "turns", "turn_chunks", "summaries", "facts", "index_entries", "responses"}
NOWHERE: dict[str, list[str]] = {"tables": [], "log": [], "metrics": [], "memory": []}


@pytest.mark.parametrize("subject", ["conversation", "deleted conversation", "owner", "tenant"])
@pytest.mark.slow
async def test_nothing_is_left_of_an_erased(
    subject: str, service: Service, user: tuple[Client, str], log: io.StringIO, receiver: Receiver, chat: FakeChat
) -> None:
    client, marker = user
    hook = {"url": receiver.url, "description": f"for {marker}" if subject == "tenant" else "for all"}
    await ask(client, "POST", "/v1/webhooks", json=hook)
    if subject != "tenant":
        marker = new_marker()  # the tenant and its name stay
    receiver.body = f"no {marker}".encode()
    others = await keep_others(client)
    stored = await fill_conversation(client, marker)
    await talk(client, stored)
    await filter_lists(client, stored.conversation, marker)
    if subject in {"owner", "tenant"}:
        await fill_owner(client, marker)
        await move(service, client, marker)
    await service.container.webhooks.dispatcher.drain()
    assert any(marker in one.body.decode() for one in receiver.received)
    before = await places_with(service, client, log, marker)
    assert set(before["tables"]) >= STORED_IN
    assert before["memory"]
    await service.run_jobs()
    receiver.received.clear()
    receiver.body = b""
    match subject:
        case "conversation":
            await erase(service, client, conversation_id=stored.conversation)
        case "owner":
            await erase(service, client, owner=stored.owner)
        case "tenant":
            await erase(service, client, tenant=format_id(client.tenant_id))
        case _:
            await ask(client, "DELETE", f"/v1/conversations/{stored.conversation}")
            await service.run_jobs()
    await service.container.webhooks.dispatcher.drain()
    chat.forget_requests()
    assert await places_with(service, client, log, marker) == NOWHERE
    if subject != "tenant":
        assert len(await client.recall(others, "tea")) == 9


@pytest.mark.slow
async def test_nothing_is_left_of_erased_turns(
    service: Service, client: Client, log: io.StringIO, chat: FakeChat
) -> None:
    marker = new_marker()
    conversation = await keep_others(client)
    path = f"/v1/conversations/{conversation}"
    call = turn_of(marker) | {"actor": "bot"}
    said = [{"role": "user", "content": f"I am Ann {marker}"}, call,
            {"role": "tool", "tool_call_id": f"call-{marker}", "content": f"a result {marker}"}]  # fmt: skip
    turns = [turn["id"] for turn in (await client.append(conversation, *said))["turns"]]
    revised = await ask(client, "POST", f"{path}/turns/{turns[0]}/revisions", json={"content": f"I am {marker}"})
    evidence = {"subject": marker, "predicate": "likes", "object": marker, "source_turn_ids": [revised["turn"]["id"]]}
    await ask(client, "POST", "/v1/facts", json=evidence)
    await ask(client, "POST", f"{path}/summaries", json={})
    await client.recall(conversation, marker)
    await client.recall(None, marker)
    before = await places_with(service, client, log, marker)
    assert {"turns", "summaries", "facts", "index_entries"} <= set(before["tables"])
    await ask(client, "DELETE", f"{path}/turns", params={"ids": ",".join(turns)})
    await service.run_jobs()
    chat.forget_requests()
    assert await places_with(service, client, log, marker) == NOWHERE


@pytest.mark.slow
async def test_nothing_is_left_of_the_name_of_an_erased_actor(
    service: Service, client: Client, log: io.StringIO
) -> None:
    name = new_marker()
    conversation = await client.conversation(participants=[name, "ben"])
    said = [{"role": "user", "actor": who, "content": "tea is hot"} for who in (name, "ben", name, "ben")]
    await client.append(conversation, *said)
    for scope in (conversation, None):
        await client.recall(scope, "tea", filters={"actors": [name]})
    assert (await places_with(service, client, log, name))["memory"]
    await erase(service, client, actor=name)
    assert await places_with(service, client, log, name) == NOWHERE
    (hit,) = await client.recall(None, "tea")
    assert hit["count"] == 2
