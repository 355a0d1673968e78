"""What the tools take and show: names of conversations, the tools of a caller, the small profile, the sole agent."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client as McpClient
from mcp.shared.exceptions import MCPError

from app.agents.tools.service import all_tools
from app.tenancy.schemas import Restriction, Scope
from tests.support.api import Client, Service, open_service
from tests.support.live import serving
from tests.support.mcp import mcp_client
from tests.support.postgres import TestDatabase

HELLO = [{"role": "user", "content": "The ferry leaves at nine."}]
SCALARS = {"string", "integer", "number", "boolean"}


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


async def use(mcp: McpClient, tool: str, **arguments: Any) -> Any:
    result = await mcp.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.structured_content


async def code_of(mcp: McpClient, tool: str, **arguments: Any) -> str:
    result = await mcp.call_tool(tool, arguments)
    assert result.is_error, result
    return result.structured_content["code"]


async def test_a_conversation_is_created_and_found_by_its_external_id(client: Client, port: int) -> None:
    async with mcp_client(port, client.key) as mcp:
        made = await use(mcp, "create_conversation", external_id="trip", title="Lisbon", owner="mia", project="p")
        again = await use(mcp, "create_conversation", external_id="trip", project="p")
        assert again["id"] == made["id"]
        found = await use(mcp, "find_conversations", external_id="trip")
        assert [(one["id"], one["owner"]) for one in found["data"]] == [(made["id"], "mia")]
        assert (await use(mcp, "find_conversations", owner="leo"))["data"] == []


async def test_the_first_turns_of_a_conversation_name_its_owner(service: Service, client: Client, port: int) -> None:
    key = await service.container.tenancy.create_key(
        client.tenant_id, name="of mia", scopes=[Scope.READ, Scope.WRITE],
        restriction=Restriction(owners=frozenset({"mia"})), agent_id="assistant",
    )  # fmt: skip
    async with mcp_client(port, client.key) as mcp:
        await use(mcp, "append_turns", external_id="trip", owner="mia", turns=HELLO)
        of_leo = {"external_id": "trip", "owner": "leo", "turns": HELLO}
        assert await code_of(mcp, "append_turns", **of_leo) == "conversation_owned"
        await use(mcp, "append_turns", external_id="trip", turns=HELLO)
        [found] = (await use(mcp, "find_conversations", external_id="trip"))["data"]
        assert (found["owner"], found["turn_count"]) == ("mia", 2)
    async with mcp_client(port, str(key)) as mcp:
        await use(mcp, "append_turns", external_id="walk", owner="mia", turns=HELLO)
        [found] = (await use(mcp, "find_conversations", external_id="walk"))["data"]
        assert found["owner"] == "mia"


@pytest.mark.slow
async def test_an_external_id_is_taken_by_every_tool_that_takes_a_conversation(client: Client, port: int) -> None:
    named = [one.name for one in all_tools() if "conversation_id" in one.input_schema["properties"]]  # type: ignore[operator]
    assert set(named) == {
        "append_turns", "build_context", "get_history", "summarize", "list_facts", "assert_fact", "ask_agent",
    }  # fmt: skip
    for one in all_tools():
        if one.name in named:
            assert {"external_id", "project"} <= set(one.input_schema["properties"])  # type: ignore[call-overload]
    async with mcp_client(port, client.key) as mcp:
        await use(mcp, "append_turns", external_id="trip", turns=HELLO)
        [listed] = (await client.get("/v1/conversations", params={"external_id": "trip"})).json()["data"]
        names = {"external_id": "trip"}
        assert [turn["content"] for turn in (await use(mcp, "get_history", **names))["data"]] == [HELLO[0]["content"]]
        assert (await use(mcp, "build_context", **names, token_budget=500))["messages"] == HELLO
        assert (await use(mcp, "summarize", **names))["conversation_id"] == listed["id"]
        fact = {"subject": "ferry", "predicate": "leaves_at", "object": "nine"}
        stated = await use(mcp, "assert_fact", **names, **fact)
        assert stated["fact"]["conversation_id"] == listed["id"]
        assert [one["object"] for one in (await use(mcp, "list_facts", **names))["data"]] == ["nine"]
        hits = await use(mcp, "recall", query="ferry", external_ids=["trip"])
        assert [hit["conversation_id"] for hit in hits["data"]] == [listed["id"]]
        for tool, more in (
            ("get_history", {}),
            ("summarize", {}),
            ("build_context", {"token_budget": 500}),
            ("list_facts", {}),
        ):
            assert await code_of(mcp, tool, external_id="none", **more) == "not_found", tool
            assert await code_of(mcp, tool, external_id="trip", project="other", **more) == "not_found", tool
            assert (
                await code_of(mcp, tool, external_id="trip", conversation_id=listed["id"], **more) == "invalid_request"
            )
        for tool in ("get_history", "summarize"):
            assert await code_of(mcp, tool) == "invalid_request", tool
        assert await code_of(mcp, "recall", query="ferry", external_ids=["none"]) == "not_found"


async def test_a_token_finds_its_own_conversation_by_its_external_id(client: Client, port: int) -> None:
    own = await client.conversation(external_id="own")
    await client.conversation(external_id="other")
    made = await client.post(f"/v1/conversations/{own}/tokens", json={"access": "append", "actor": "mia"})
    async with mcp_client(port, made.json()["token"]) as mcp:
        await use(mcp, "append_turns", external_id="own", turns=HELLO)
        assert len((await use(mcp, "get_history", external_id="own"))["data"]) == 1
        for name in ("other", "none"):
            assert await code_of(mcp, "get_history", external_id=name) == "not_found"
            assert await code_of(mcp, "append_turns", external_id=name, turns=HELLO) == "not_found"


async def test_facts_are_asserted_and_listed(client: Client, port: int) -> None:
    async with mcp_client(port, client.key) as mcp:
        for city in ("Lisbon", "Hamburg"):
            await use(mcp, "assert_fact", subject="Mia", predicate="lives_in", object=city, replaces=True, owner="mia")
        page = await use(mcp, "list_facts", owner="mia", limit=1)
        assert ([one["object"] for one in page["data"]], page["has_more"]) == (["Hamburg"], True)
        rest = await use(mcp, "list_facts", owner="mia", cursor=page["next_cursor"])
        assert [one["object"] for one in rest["data"]] == ["Lisbon"]
        assert rest["data"][0]["valid_to"] is not None


async def test_a_small_profile_offers_four_tools_with_flat_arguments(
    database: TestDatabase, tmp_path: Path, client: Client
) -> None:
    async with (
        open_service(database, tmp_path, mcp_profile="small") as small,
        serving(small.app, small.settings) as listening,
        mcp_client(listening, client.key) as mcp,
    ):
        tools = (await mcp.list_tools()).tools
        assert [tool.name for tool in tools] == ["recall_memory", "store_memory", "recall", "get_history"]
        assert len(json.dumps([tool.model_dump(mode="json", by_alias=True) for tool in tools])) < 6000
        for tool in tools:
            assert {member["type"] for member in tool.input_schema["properties"].values()} <= SCALARS
        conversation = await client.conversation(external_id="trip")
        await client.append(conversation, HELLO[0]["content"], "And the train at ten.")
        await client.append(await client.conversation(), "Ferries are blue.")
        assert await use(mcp, "store_memory", content="Mia likes ferries.") == {"stored": True}
        assert len((await use(mcp, "recall_memory", query="ferries", top_k=1))["entries"]) == 1
        hits = await use(mcp, "recall", query="ferry", k=1, external_id="trip")
        assert [hit["text"] for hit in hits["data"]] == [HELLO[0]["content"]]
        for name in ({"external_id": "trip"}, {"conversation_id": conversation}):
            newest = await use(mcp, "get_history", **name, limit=1)
            assert [turn["content"] for turn in newest["data"]] == ["And the train at ten."]
        assert await code_of(mcp, "get_history", external_id="trip", include_summaries=True) == "invalid_request"
        assert await code_of(mcp, "recall", query="ferry", external_ids=["trip"]) == "invalid_request"
        with pytest.raises(MCPError, match="Unknown tool"):
            await mcp.call_tool("append_turns", {"conversation_id": conversation, "turns": HELLO})


async def test_where_ask_agent_is_alone_there_are_no_resources(
    database: TestDatabase, tmp_path: Path, client: Client
) -> None:
    conversation = await client.conversation()
    async with (
        open_service(database, tmp_path, embedder="none", enable_internal_agent=True, mcp_profile="small") as sole,
        serving(sole.app, sole.settings) as listening,
        mcp_client(listening, client.key) as mcp,
    ):
        assert [tool.name for tool in (await mcp.list_tools()).tools] == ["ask_agent"]
        assert mcp.server_capabilities.resources is None
        for work in (
            mcp.list_resources(),
            mcp.list_resource_templates(),
            mcp.read_resource(f"conversation://{conversation}"),
        ):
            with pytest.raises(MCPError, match="Method not found"):
                await work
