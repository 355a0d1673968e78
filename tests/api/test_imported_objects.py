"""Calls can read and change what was imported, with any optional members in its file."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.transfer.importers.service import ForeignSystem
from tests.api.test_exports import export, records
from tests.api.test_imports import file_of, foreign, imported
from tests.support.api import Client, Service

SAMPLES = Path(__file__).parents[1] / "imports" / "samples"
MINIMAL = {"type": "conversation", "external_id": "minimal"}
TURN = {"type": "turn", "external_id": "first", "role": "user", "actor": "mia", "content": "My parrot is called Kiwi."}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "no member": {},
    "a participant": {"participants": [{"actor": "mia"}]},
    "a participant with a name": {"participants": [{"actor": "mia", "name": "Mia"}]},
    "a participant with aliases": {"participants": [{"actor": "mia", "aliases": ["Mimi"]}]},
    "a tool": {"tools": [{"actor": "weather"}]},
    "a derived title": {"derived_title": {"text": "Parrots", "source": "question"}},
    "a policy": {"compaction": {}, "facts": {}},
    "a policy in part": {"compaction": {"trigger_turns": 20}, "facts": {"enabled": True}},
    "a summarised range": {"summarized": {}},
}


async def check_readable(client: Client) -> int:
    """Read and change everything that the tenant has; return how many conversations these are."""

    async def call(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = await client.request(method, path, json=body)
        assert answer.is_success, (method, path, answer.text)
        return answer.json() if answer.headers["content-type"] == "application/json" else {}

    conversations = (await call("GET", "/v1/conversations?limit=100"))["data"]
    for conversation in conversations:
        path = f"/v1/conversations/{conversation['id']}"
        assert (await call("GET", path))["participants"] == conversation["participants"]
        for part in ("turns", "summaries", "verify", "export"):
            await call("GET", f"{path}/{part}")
        await call("POST", f"{path}/context", {"token_budget": 2000, "query": "parrot"})
        await call("POST", f"{path}/recall", {"query": "parrot", "k": 5})
        names = {name: conversation[name] for name in ("project", "external_id", "owner") if conversation[name]}
        if conversation["external_id"]:
            assert (await call("POST", "/v1/conversations", names))["id"] == conversation["id"]
        speakers = [{"actor": one["actor"], "name": "Renamed"} for one in conversation["participants"]]
        changed = await call("PATCH", path, {"title": "Another", "participants": speakers})
        assert {one["actor"] for one in conversation["participants"]} <= {
            one["actor"] for one in changed["participants"]
        }
    for path in ("/v1/facts?limit=100", "/v1/memories?limit=100"):
        await call("GET", path)
    await call("POST", "/v1/conversations/search", {"title": "Another"})
    await call("POST", "/v1/export", {})
    return len(conversations)


@pytest.mark.parametrize("system", ForeignSystem)
async def test_the_sample_of_every_system_can_be_read_and_changed(
    service: Service, client: Client, system: ForeignSystem
) -> None:
    result = await imported(service, client, (SAMPLES / f"{system}.json").read_bytes(), source=system.value)
    found = await check_readable(client)
    assert found == result["records"]["conversation"]
    assert sum(result["records"].values())


@pytest.mark.parametrize("members", CONVERSATIONS)
async def test_a_conversation_with_only_the_needed_members_of_a_part_can_be_read_and_changed(
    service: Service, client: Client, members: str
) -> None:
    result = await imported(service, client, foreign(MINIMAL | CONVERSATIONS[members], TURN))
    assert result["problems"] == []
    assert await check_readable(client) == 1


async def test_an_export_whose_participants_have_only_their_actors_can_be_read_and_changed(
    service: Service, client: Client, other: Client
) -> None:
    await client.append(await client.conversation(external_id="e", participants=["mia"]), "My parrot is called Kiwi.")
    found = records(await export(client))
    found[0] |= {"participants": [{"actor": one["actor"]} for one in found[0]["participants"]]}
    result = await imported(service, other, file_of(found))
    assert result["problems"] == []
    assert await check_readable(other) == 1


async def test_participants_that_were_stored_in_part_are_shown_whole(service: Service, client: Client) -> None:
    given = [{"actor": "mia"}, {"actor": "ben", "name": "Ben"}]
    await imported(service, client, foreign(MINIMAL | {"participants": given, "tools": [{"actor": "weather"}]}, TURN))
    [conversation] = (await client.get("/v1/conversations")).json()["data"]
    assert conversation["participants"] == [
        {"actor": "mia", "name": None, "aliases": []},
        {"actor": "ben", "name": "Ben", "aliases": []},
        {"actor": "weather", "name": None, "aliases": [], "role": "tool"},
    ]


async def test_a_session_of_honcho_leaves_the_list_readable(service: Service, client: Client) -> None:
    message = {"id": "m1", "content": "ok", "peer_id": "mia", "created_at": "2024-01-01T09:00:01Z"}
    session = {"id": "h1", "created_at": "2024-01-01T09:00:00Z", "messages": [message]}
    document = {"workspace_id": "w", "peers": [{"id": "mia"}], "sessions": [session], "conclusions": []}
    await imported(service, client, json.dumps(document).encode(), source="honcho")
    assert await check_readable(client) == 1
