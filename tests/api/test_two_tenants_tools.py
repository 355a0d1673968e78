"""Every tool, resource and frame, sent by a tenant with the ids and names of another: nothing crosses.

Once the ids are unknown to the sender, once it has a conversation of the same id and external id. The other tenant has
a marker in every text, and an open turn that is being written meanwhile.
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple, get_args

import httpx
import pytest

from app.agents.tools.service import all_tools
from app.conversations.schemas.frames import ClientFrame
from app.mcp import resources
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service
from tests.support.live import serving, socket_on
from tests.support.marked import EXTERNAL_ID, FRAMES, MARKER, TOOL_ARGUMENTS, Marked, marked_tenant
from tests.support.mcp import call, message, post

Ids = Literal["unknown", "the same"]
with_ids = pytest.mark.parametrize("ids", ["unknown", "the same"])
ELSEWHERE = {"ask_agent": "test_ask_agent.py: the agent is off here"}
"""Tools that another test sends with the ids of another tenant."""


class Victim(NamedTuple):
    """A tenant with a marker in all that it has, and what it sees of that."""

    client: Client
    marked: Marked
    before: Any


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


@pytest.fixture(scope="module")
async def victim(service: Service) -> AsyncIterator[Victim]:
    async with await service.new_tenant() as opened:
        marked = await marked_tenant(service, opened)
        yield Victim(opened, marked, await all_of(opened, marked))


@pytest.fixture
async def intruder(ids: Ids, service: Service, victim: Victim, other: Client) -> AsyncIterator[Client]:
    """A key with every scope of another tenant, which has nothing, or a conversation of the same id and name."""
    if ids == "the same":
        made = await other.conversation(id=victim.marked.conversation_id, external_id=EXTERNAL_ID)
        assert made == victim.marked.conversation_id
    key = await service.container.tenancy.create_key(other.tenant_id, name="intruder", scopes=list(Scope))
    async with service.client(str(key)) as opened:
        opened.tenant_id, opened.key = other.tenant_id, str(key)
        yield opened


def unmarked(arguments: Any) -> Any:
    """The arguments without the marker: where it is in an answer, it is the other tenant's."""
    return json.loads(json.dumps(arguments).replace(MARKER, "intruder"))


async def all_of(client: Client, marked: Marked) -> Any:
    """What the victim sees of its data."""
    path = f"/v1/conversations/{marked.conversation_id}"
    paths = (
        path, f"{path}/turns?limit=200&include_superseded=true", f"{path}/turns/{marked.open_turn}",
        f"{path}/summaries", "/v1/facts?include_retracted=true", "/v1/memories", "/v1/conversations?archived=any",
    )  # fmt: skip
    seen = [(await client.get(one)).json() for one in paths]
    assert MARKER in json.dumps(seen)
    return seen


def test_every_tool_and_every_frame_is_sent_here() -> None:
    assert set(TOOL_ARGUMENTS) == {tool.name for tool in all_tools()}
    frames = get_args(get_args(ClientFrame)[0])
    assert set(FRAMES) == {get_args(frame.model_fields["type"].annotation)[0] for frame in frames}


@with_ids
@pytest.mark.parametrize("tool", sorted(TOOL_ARGUMENTS))
async def test_no_tool_reaches_another_tenant(tool: str, victim: Victim, intruder: Client, port: int) -> None:
    client, marked, before = victim
    arguments = unmarked(TOOL_ARGUMENTS[tool](marked))
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await post(http, port, intruder.key, call(tool, arguments))
    assert answer.status_code == 200
    assert MARKER not in answer.text
    # an id that only the other tenant has is an error, never an empty answer
    if "conversation_id" in arguments and tool not in ELSEWHERE:
        has_own = bool((await intruder.get("/v1/conversations")).json()["data"])
        assert answer.json()["result"].get("isError", False) is not has_own
    assert await all_of(client, marked) == before


@with_ids
async def test_no_resource_reaches_another_tenant(
    ids: Ids, service: Service, victim: Victim, intruder: Client, port: int
) -> None:
    client, marked, before = victim
    conversation, session = f"conversation://{marked.conversation_id}", f"memory://default/{EXTERNAL_ID}"
    uris = {
        "conversation://{id}": [conversation],
        "conversation://{id}/turns/{turn}": [f"{conversation}/turns/{one}" for one in marked.turns],
        "memory://{project}/{session}/{+path}": [f"{session}/{one}" for one in ("context/summary", "events", "meta")],
    }
    caller = await service.container.tenancy.authenticate(intruder.key)
    assert {one.uri_template for one in resources.templates(caller)} == set(uris), "read the new resource here, too"
    async with httpx.AsyncClient(timeout=60) as http:
        listed = await post(http, port, intruder.key, message("resources/list", {}))
        assert MARKER not in listed.text
        assert (marked.conversation_id in listed.text) == (ids == "the same")
        for some in uris.values():
            for uri in some:
                answer = await post(http, port, intruder.key, message("resources/read", {"uri": uri}))
                assert MARKER not in answer.text
                if ids == "unknown" or "/turns/" in uri:
                    assert "error" in answer.json(), uri
    assert await all_of(client, marked) == before


@with_ids
async def test_no_frame_reaches_another_tenant(ids: Ids, victim: Victim, intruder: Client, port: int) -> None:
    client, marked, before = victim
    async with socket_on(port, marked.conversation_id, intruder.key) as socket:
        if ids == "unknown":
            assert (await socket.closed())[0] == 4404
            return
        kinds: dict[str, str] = {}
        for kind, members in FRAMES.items():
            more = {"token": intruder.key} if kind == "auth" else unmarked(members(marked))
            kinds[kind] = (await socket.ask(kind, **more))["type"]
        # those that name turns of the other tenant are refused, the others are about the sender's own conversation
        refused = {kind for kind, answer in kinds.items() if answer == "error"}
        assert refused == {"resume", "chunk", "commit", "open", "abort"}
        turns = f"/v1/conversations/{marked.conversation_id}/turns"
        chunk = {"offset": len(f"streamed {MARKER}"), "delta": ""}
        assert (await client.post(f"{turns}/{marked.open_turn}/chunks", json=chunk)).status_code == 200
        await socket.ask("ping")
    assert MARKER not in json.dumps(socket.received)
    assert await all_of(client, marked) == before
