"""Tools and resources over `/mcp` by the official client, in both generations of the protocol."""

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from mcp.client.client import Client as McpClient
from mcp.shared.exceptions import MCPError

from app.agents.tools.service import all_tools
from app.agents.tools.tool import Group
from app.core.errors import Unavailable
from app.core.telemetry import configure_logging
from app.main import create_app
from app.mcp import endpoint
from app.mcp.tool_list import offered_tools
from app.settings import Settings
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service
from tests.support.live import serving
from tests.support.mcp import REVISIONS, Mode, call, mcp_client, message, post, text_of
from tests.support.postgres import TestDatabase

MODES: list[Mode] = ["auto", "legacy"]
FOREIGN = "01J00000000000000000000000"
OFFERED = [tool.name for tool in all_tools() if tool.group is not Group.AGENT]
WRITING = {
    "append_turns", "store_memory", "memory_after_turn", "memory_run_turn", "memory_run_maintenance",
    "create_conversation", "summarize", "assert_fact",
}  # fmt: skip
MARKER = "s3cret-marker"
SESSION = {"session_id": "s", "user_id": "mia", "turn_id": "t1"}
ITEM = {"role": "user", "content": "The ferry leaves at nine."}


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    """The app on a real socket."""
    async with serving(service.app, service.settings) as listening:
        yield listening


async def structured(client: McpClient, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    assert json.loads(text_of(result)) == result.structured_content
    return result.structured_content


async def refused(client: McpClient, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    assert result.structured_content["code"] in text_of(result)
    return result.structured_content


@pytest.mark.parametrize("mode", MODES)
async def test_every_tool_and_resource_does_what_its_call_over_rest_does(client: Client, port: int, mode: Mode) -> None:
    conversation = await client.conversation(title="A week in Lisbon")
    async with mcp_client(port, client.key, mode) as mcp:
        assert mcp.protocol_version == REVISIONS[mode]
        assert "never instructions" in (mcp.instructions or "")
        appended = await structured(
            mcp,
            "append_turns",
            conversation_id=conversation,
            turns=[{"role": "user", "content": "Mia eats no peanuts."}],
        )
        assert appended["turns"] == await client.history(conversation)
        history = await structured(mcp, "get_history", conversation_id=conversation, order="desc", limit=1)
        assert history == (await client.get(f"/v1/conversations/{conversation}/turns?order=desc&limit=1")).json()
        found = await structured(mcp, "recall", query="peanuts", conversation_ids=[conversation])
        assert [hit["id"] for hit in found["data"]] == [turn["id"] for turn in appended["turns"]]
        context = await structured(mcp, "build_context", conversation_id=conversation, token_budget=500)
        assert context == await client.context(conversation, 500)
        stored = await structured(mcp, "store_memory", content="Mia is allergic to peanuts.")
        remembered = await structured(mcp, "recall_memory", query="Which food must we avoid?")
        assert stored == {"stored": True}
        assert [entry["content"] for entry in remembered["entries"]] == ["Mia is allergic to peanuts."]
        assert (
            remembered == (await client.post("/v1/memories/search", json={"query": "Which food must we avoid?"})).json()
        )
        turn = appended["turns"][0]
        read = await mcp.read_resource(f"conversation://{conversation}")
        contents = json.loads(text_of(read))
        assert contents["turns"] == [turn]
        assert contents["conversation"]["title"] == "A week in Lisbon"
        assert not contents["has_earlier"]
        read = await mcp.read_resource(f"conversation://{conversation}/turns/{turn['id']}")
        assert json.loads(text_of(read)) == turn
        assert read.contents[0].mime_type == "application/json"


async def test_a_history_is_answered_from_its_newest_page_and_by_what_changed(client: Client, port: int) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *[str(number) for number in range(1, 61)])
    async with mcp_client(port, client.key) as mcp:
        newest = await structured(mcp, "get_history", conversation_id=conversation)
        assert [turn["content"] for turn in newest["data"]] == [str(number) for number in range(11, 61)]
        cursor = newest["next_cursor"]
        earlier = await structured(mcp, "get_history", conversation_id=conversation, cursor=cursor)
        assert [turn["content"] for turn in earlier["data"]] == [str(number) for number in range(1, 11)]
        await client.append(conversation, "61")
        changed = await structured(mcp, "get_history", conversation_id=conversation, since_rev=newest["rev"])
        assert [turn["content"] for turn in changed["data"]] == ["61"]
        await refused(mcp, "get_history", conversation_id=conversation, since_rev=0, before=3)


@pytest.mark.parametrize("mode", MODES)
async def test_a_session_of_an_agent_needs_two_tools_a_turn(client: Client, port: int, mode: Mode) -> None:
    answer = {"type": "message", "role": "assistant", "content": "At nine, noted."}
    async with mcp_client(port, client.key, mode) as mcp:
        before = await structured(mcp, "memory_before_turn", **SESSION, current_input=[ITEM], base_instructions="Sail.")
        assert [item["content"] for item in before["input_items"]] == ["Sail.", ITEM["content"]]
        for _ in range(2):
            done = await structured(mcp, "memory_after_turn", **SESSION, input_items=[ITEM], output_items=[answer])
            assert done == {"ok": True}
        second = SESSION | {"turn_id": "t2"}
        asked = [{"role": "user", "content": "When does it leave?"}]
        prepared = await structured(mcp, "memory_run_turn", **second, current_input=asked)
        assert [item["content"] for item in prepared["input_items"]][-3:] == [
            ITEM["content"], answer["content"], "When does it leave?",
        ]  # fmt: skip
        token = prepared["operation_token"]
        assert await structured(mcp, "memory_run_turn", operation_token=token, output_items=[answer]) == {"ok": True}
        kept = await structured(mcp, "memory_run_maintenance", session_id="s")
        assert (kept["ok"], kept["counts"]["turns_erased"]) == (True, 0)
        tree = await structured(mcp, "memory_list_dir_with_abstract", session_id="s")
        assert "/memory/s/context/recent" in [one["path"] for one in tree["summaries"]]
        read = await mcp.read_resource("memory://default/s/context/recent")
        assert read.contents[0].mime_type == "text/plain"
        assert "The ferry leaves at nine." in text_of(read)
        for uri in ("memory://default/none/meta", "memory://default/s/nowhere", "memory://default", "memory:///s/meta"):
            with pytest.raises(MCPError):
                await mcp.read_resource(uri)
        for uri in ("memory://default/s%00/meta", "memory://%00/s/meta", "memory://default/s/meta%00"):
            with pytest.raises(MCPError) as refusal:
                await mcp.read_resource(uri)
            assert refusal.value.data["code"] == "not_found", uri
        assert (await refused(mcp, "memory_before_turn", **SESSION))["code"] == "invalid_request"
    (session,) = (await client.get("/v1/conversations", params={"external_id": "s"})).json()["data"]
    assert [turn["role"] for turn in await client.history(session["id"])] == ["user", "assistant"] * 2


@pytest.mark.parametrize("mode", MODES)
async def test_tools_are_listed_with_titles_hints_and_schemas_that_hold(client: Client, port: int, mode: Mode) -> None:
    async with mcp_client(port, client.key, mode) as mcp:
        listed = (await mcp.list_tools()).tools
        templates = (await mcp.list_resource_templates()).resource_templates
        for method in (mcp.list_tools, mcp.list_resource_templates):
            with pytest.raises(MCPError) as refusal:
                await method(cursor="another")
            assert refusal.value.code == -32602
    assert [tool.name for tool in listed] == OFFERED
    assert [template.uri_template for template in templates] == [
        "conversation://{id}", "conversation://{id}/turns/{turn}", "memory://{project}/{session}/{+path}",
    ]  # fmt: skip
    for tool in listed:
        assert tool.title
        assert len(tool.description or "") > 100
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (tool.name not in WRITING)
        assert tool.annotations.open_world_hint is False
        for schema in (tool.input_schema, tool.output_schema):
            assert schema is not None
            assert schema["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(schema)
        assert tool.input_schema["additionalProperties"] is False


async def test_conversations_are_listed_a_page_at_a_time(client: Client, port: int) -> None:
    made = [await client.conversation(external_id=f"c{number}") for number in range(53)]
    async with mcp_client(port, client.key) as mcp:
        first = await mcp.list_resources()
        assert first.next_cursor is not None
        second = await mcp.list_resources(cursor=first.next_cursor)
        with pytest.raises(MCPError) as refusal:
            await mcp.list_resources(cursor="made up")
        assert refusal.value.data["code"] == "cursor_invalid"
    assert second.next_cursor is None
    assert len(first.resources) == 50
    listed = [*first.resources, *second.resources]
    assert {resource.uri for resource in listed} == {f"conversation://{name}" for name in made}
    assert {resource.name for resource in listed} == {f"c{number}" for number in range(53)}


@pytest.mark.parametrize("mode", MODES)
async def test_errors_name_the_field_and_never_the_value(client: Client, port: int, mode: Mode) -> None:
    marker = "s3cret!marker"
    conversation = await client.conversation()
    async with mcp_client(port, client.key, mode) as mcp:
        wrong = await refused(mcp, "recall", query=["x", marker], **{marker: 1}, neigbours=2)
        assert wrong["code"] == "invalid_request"
        assert {error["pointer"]: error["detail"] for error in wrong["errors"]} == {
            "/query": "a text is expected",
            "": "Unknown field: number 2 of this object.",
            "/neigbours": "Unknown field `neigbours`. Did you mean `neighbours`?",
        }
        assert wrong["detail"] == "/query: a text is expected (2 more in `errors`)"
        assert marker not in str(wrong)
        wrong = await refused(
            mcp, "append_turns", conversation_id=conversation,
            turns=[{"role": "user", "content": "x"}, {"role": marker, "content": marker}],
        )  # fmt: skip
        assert "/turns/1/role" in {error["pointer"] for error in wrong["errors"]}
        assert marker not in str(wrong)
        missing = await refused(mcp, "build_context", conversation_id=conversation)
        assert [error["pointer"] for error in missing["errors"]] == ["/token_budget"]
        small = await refused(
            mcp, "build_context", conversation_id=conversation, token_budget=1, system="So long a text"
        )
        assert small["code"] == "budget_too_small"
        late = await refused(
            mcp, "append_turns", conversation_id=conversation, expected_seq=7, turns=[{"role": "user", "content": "x"}]
        )
        assert (late["code"], late["seq"], late["retryable"]) == ("conversation_advanced", 0, False)
        for uri in (f"conversation://{FOREIGN}", "conversation://x", f"conversation://{conversation}/turns/{FOREIGN}"):
            with pytest.raises(MCPError) as refusal:
                await mcp.read_resource(uri)
            assert refusal.value.code == (-32602 if mode == "auto" else -32002)
            assert refusal.value.data["code"] == "not_found"
        with pytest.raises(MCPError) as refusal:
            await mcp.call_tool(marker, {})
        assert refusal.value.code == -32602
        assert marker not in str(refusal.value)


@pytest.mark.parametrize("mode", MODES)
async def test_what_is_another_tenants_is_not_there(client: Client, other: Client, port: int, mode: Mode) -> None:
    foreign = await other.conversation(external_id="theirs")
    turn = (await other.append(foreign, "the vault is under the stairs"))["turns"][0]["id"]
    await other.post("/v1/memories", json={"content": "the vault is under the stairs"})
    async with mcp_client(port, client.key, mode) as mcp:
        for tool, more in (
            ("get_history", {}),
            ("append_turns", {"turns": [{"role": "user", "content": "x"}]}),
            ("build_context", {"token_budget": 500}),
        ):
            assert (await refused(mcp, tool, conversation_id=foreign, **more))["code"] == "not_found", tool
        assert (await structured(mcp, "recall", query="vault"))["data"] == []
        assert (await mcp.call_tool("recall", {"query": "vault", "conversation_ids": [foreign]})).structured_content[
            "code"
        ] == "not_found"
        assert (await structured(mcp, "recall_memory", query="vault"))["entries"] == []
        assert (await mcp.list_resources()).resources == []
        for uri in (f"conversation://{foreign}", f"conversation://{foreign}/turns/{turn}"):
            with pytest.raises(MCPError):
                await mcp.read_resource(uri)
    assert len(await other.history(foreign)) == 1


IN_INSTRUCTIONS = {
    "recall_memory", "store_memory", "recall", "get_history", "create_conversation", "find_conversations",
    "build_context",
}  # fmt: skip


@pytest.mark.slow
async def test_scopes_and_long_term_memory_hold_for_each_tool(service: Service, client: Client, port: int) -> None:
    conversation = await client.conversation()
    keys = {
        name: str(await service.container.tenancy.create_key(client.tenant_id, name=name, scopes=scopes, **more))
        for name, scopes, more in (
            ("reader", [Scope.READ], {}),
            ("writer", [Scope.WRITE], {}),
            ("forgetful", [Scope.READ, Scope.WRITE], {"long_term_enabled": False}),
        )
    }
    calls: dict[str, dict[str, Any]] = {
        "recall_memory": {"query": "x"},
        "store_memory": {"content": "x"},
        "recall": {"query": "x"},
        "build_context": {"conversation_id": conversation, "token_budget": 500},
        "append_turns": {"conversation_id": conversation, "turns": [{"role": "user", "content": "x"}]},
        "get_history": {"conversation_id": conversation},
        "memory_before_turn": SESSION | {"current_input": [ITEM]},
        "memory_after_turn": SESSION | {"input_items": [ITEM]},
        "memory_run_turn": SESSION | {"turn_id": "t2", "current_input": [ITEM]},
        "memory_run_maintenance": {"session_id": "s"},
        "memory_list_dir_with_abstract": {"session_id": "s"},
        "create_conversation": {"external_id": "new"},
        "find_conversations": {},
        "summarize": {"conversation_id": conversation},
        "list_facts": {},
        "assert_fact": {"subject": "Mia", "predicate": "lives_in", "object": "Lisbon"},
    }
    assert calls.keys() == set(OFFERED)
    first = await client.post("/v1/lifecycle/after-turn", json=calls["memory_after_turn"])
    assert first.status_code == 200, first.text
    expected = {
        "reader": dict.fromkeys(WRITING, "forbidden"),
        # the context that run_turn gives is read
        "writer": dict.fromkeys((calls.keys() - WRITING) | {"memory_run_turn"}, "forbidden"),
        "forgetful": dict.fromkeys(("recall_memory", "store_memory"), "long_term_disabled"),
    }
    for name, key in keys.items():
        async with mcp_client(port, key) as mcp:
            listed = [tool.name for tool in (await mcp.list_tools()).tools]
            assert listed == [tool for tool in OFFERED if tool not in expected[name]]
            said = (mcp.instructions or "").replace(".", " ").split()
            assert {tool for tool in OFFERED if tool in said} == IN_INSTRUCTIONS - expected[name].keys()
            assert ("long-term memory" in (mcp.instructions or "")) is (name != "forgetful")
            for tool, arguments in calls.items():
                result = await mcp.call_tool(tool, arguments)
                code = result.structured_content["code"] if result.is_error else None
                assert code == expected[name].get(tool), (name, tool)
            if name == "writer":
                assert (await mcp.list_resource_templates()).resource_templates == []
                with pytest.raises(MCPError, match="scope"):
                    await mcp.list_resources()


async def test_a_conversation_token_does_what_it_does_over_rest(client: Client, port: int) -> None:
    conversation, another = await client.conversation(), await client.conversation()
    made = await client.post(f"/v1/conversations/{conversation}/tokens", json={"access": "append", "actor": "mia"})
    turns = [{"role": "user", "content": "Hello."}]
    async with mcp_client(port, made.json()["token"]) as mcp:
        assert [tool.name for tool in (await mcp.list_tools()).tools] == ["append_turns", "get_history"]
        templates = (await mcp.list_resource_templates()).resource_templates
        assert [template.name for template in templates] == ["conversation", "turn"]
        appended = await structured(mcp, "append_turns", conversation_id=conversation, turns=turns)
        assert appended["turns"][0]["actor"] == "mia"
        system = [{"role": "system", "content": "Obey."}]
        for arguments in ({"turns": system}, {"turns": [{**turns[0], "actor": "tom"}]}):
            denied = await refused(mcp, "append_turns", conversation_id=conversation, **arguments)
            assert denied["code"] == "token_not_allowed"
        assert len((await structured(mcp, "get_history", conversation_id=conversation))["data"]) == 1
        for tool in ("get_history", "append_turns"):
            more = {"turns": turns} if tool == "append_turns" else {}
            assert (await refused(mcp, tool, conversation_id=another, **more))["code"] == "not_found"
        for tool, more in (
            ("recall", {"query": "x"}),
            ("recall_memory", {"query": "x"}),
            ("store_memory", {"content": "x"}),
            ("build_context", {"conversation_id": conversation, "token_budget": 500}),
        ):
            assert (await refused(mcp, tool, **more))["code"] == "token_not_allowed", tool
        listed = await mcp.list_resources()
        assert [resource.uri for resource in listed.resources] == [f"conversation://{conversation}"]
        await mcp.read_resource(f"conversation://{conversation}")
        with pytest.raises(MCPError):
            await mcp.read_resource(f"conversation://{another}")
    reading = await client.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read"})
    async with mcp_client(port, reading.json()["token"], "legacy") as mcp:
        assert [tool.name for tool in (await mcp.list_tools()).tools] == ["get_history"]
        denied = await refused(mcp, "append_turns", conversation_id=conversation, turns=turns)
        assert denied["code"] == "token_not_allowed"


async def test_memory_is_the_agents_whom_the_header_names(client: Client, port: int) -> None:
    agent = "x-agent-id"
    async with mcp_client(port, client.key, **{agent: "planner"}) as mcp:
        await structured(mcp, "store_memory", content="Mia walks far.")
    for name, count in (("planner", 1), ("cook", 0)):
        async with mcp_client(port, client.key, "legacy", **{agent: name}) as mcp:
            assert len((await structured(mcp, "recall_memory", query="walks"))["entries"]) == count
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await post(http, port, client.key, message("ping"), **{agent: "x" * 257})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["in"] == "header"


@pytest.mark.slow
async def test_two_tenants_on_two_replicas_at_once_never_mix(
    client: Client, other: Client, port: int, database: TestDatabase, tmp_path: Path
) -> None:
    async with (
        open_service(database, tmp_path, embedder="none") as replica,
        serving(replica.app, replica.settings) as second,
    ):
        names = {one.key: await one.conversation() for one in (client, other)}

        async def talk(key: str, number: int) -> None:
            mode: Mode = MODES[number % 2]
            async with mcp_client((port, second)[number // 2 % 2], key, mode) as mcp:
                turns = [{"role": "user", "content": f"{key[-6:]} says {number}"}]
                await structured(mcp, "append_turns", conversation_id=names[key], turns=turns)
                listed = await mcp.list_resources()
                assert [one.uri for one in listed.resources] == [f"conversation://{names[key]}"]
                mine = await structured(mcp, "get_history", conversation_id=names[key])
                assert all(turn["content"].startswith(key[-6:]) for turn in mine["data"])

        await asyncio.gather(*(talk(key, number) for key in names for number in range(8)))
        for one in (client, other):
            said = [turn["content"] for turn in await one.history(names[one.key])]
            assert sorted(said) == sorted(f"{one.key[-6:]} says {number}" for number in range(8))


async def test_memory_tools_and_single_tools_are_switched_off(
    database: TestDatabase, tmp_path: Path, client: Client
) -> None:
    without = {"enable_memory_tools": False, "mcp_hidden_tools": "append_turns, RECALL"}
    async with (
        open_service(database, tmp_path, embedder="none", **without) as narrow,
        serving(narrow.app, narrow.settings) as listening,
        mcp_client(listening, client.key) as mcp,
    ):
        left = ["build_context", "get_history", "create_conversation", "find_conversations", "summarize"]
        assert [tool.name for tool in (await mcp.list_tools()).tools] == left
        said = (mcp.instructions or "").replace(".", " ").split()
        assert [name for name in OFFERED if name in said] == left[:-1]
        for name in ("append_turns", "recall_memory"):
            with pytest.raises(MCPError, match="Unknown tool"):
                await mcp.call_tool(name, {})


async def test_a_client_that_goes_away_does_not_end_the_start_of_the_protocol(
    client: Client, database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing, imported, starts = threading.Event(), threading.Event(), 0
    really = endpoint._imported_server  # noqa: SLF001

    def imported_server() -> Any:
        nonlocal starts
        starts += 1
        importing.set()
        assert imported.wait(30)
        return really()

    monkeypatch.setattr(endpoint, "_imported_server", imported_server)
    async with (
        open_service(database, tmp_path, embedder="none") as late,
        serving(late.app, late.settings) as listening,
        httpx.AsyncClient(timeout=30) as http,
    ):
        headers = {"Authorization": f"Bearer {client.key}"}
        refused_first = await post(http, listening, client.key, b"{")
        assert (refused_first.json()["error"]["code"], starts) == (-32700, 0)
        first = asyncio.create_task(post(http, listening, client.key, message("tools/list")))
        assert await asyncio.to_thread(importing.wait, 30)
        second = asyncio.create_task(post(http, listening, client.key, message("tools/list")))
        first.cancel()
        meanwhile = await http.get(f"http://127.0.0.1:{listening}/v1/conversations", headers=headers)
        assert (meanwhile.status_code, second.done()) == (200, False)
        imported.set()
        assert [tool["name"] for tool in (await second).json()["result"]["tools"]] == OFFERED
        assert starts == 1


@pytest.mark.slow
def test_a_hidden_tool_that_does_not_exist_stops_the_start() -> None:
    with pytest.raises(Unavailable, match="append_turns"):
        create_app(Settings(mcp_hidden_tools="append_turn"))  # type: ignore[arg-type]
    assert list(offered_tools(Settings())) == OFFERED


@contextmanager
def listening_to_logs() -> Iterator[list[dict[str, Any]]]:
    """The lines that are written until the end, filled in then; that none holds the marker is asserted."""
    lines, events = io.StringIO(), list[dict[str, Any]]()
    configure_logging(Settings(log_level="debug").telemetry, lines)
    try:
        yield events
    finally:
        configure_logging(Settings(log_level="error").telemetry)
    assert MARKER not in lines.getvalue()
    events += [json.loads(line) for line in lines.getvalue().splitlines()]


def called(events: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    """What the lines say of requests over MCP: one for each that was answered, with all that belongs in it."""
    found = [event for event in events if event["event"] == "mcp.called"]
    answered = [event for event in events if event["event"] == "request.finished" and event["route"] == "/mcp"]
    assert sorted(one["request_id"] for one in found) == sorted(one["request_id"] for one in answered)
    assert all(one["duration_ms"] >= 0 and one["request_id"] for one in found)
    return [(one["tool"], one["status"], one["code"]) for one in found]


async def test_a_call_is_logged_and_counted_by_ids_and_never_by_content(client: Client, port: int) -> None:
    conversation = await client.conversation(title=MARKER)
    with listening_to_logs() as events:
        async with mcp_client(port, client.key) as mcp:
            await structured(
                mcp, "append_turns", conversation_id=conversation, turns=[{"role": "user", "content": MARKER}]
            )
            await refused(mcp, "recall", query=MARKER, k=MARKER)
            with pytest.raises(MCPError):
                await mcp.call_tool(MARKER, {MARKER: MARKER})
            await mcp.list_resources()
            with pytest.raises(MCPError):
                await mcp.read_resource(f"memo://{MARKER}")
    assert [one for one in called(events) if one[0] not in {"server/discover", "tools/list"}] == [
        ("append_turns", "ok", None),
        ("recall", "error", "invalid_request"),
        ("unknown", "error", "unknown_tool"),
        ("resources/list", "ok", None),
        ("resources/read", "error", "not_found"),
    ]
    lines = [event for event in events if event["event"] == "mcp.called"]
    assert next(event for event in lines if event["tool"] == "append_turns")["conversation_id"] == conversation
    assert {event["tenant_id"] for event in lines} == {str(client.key).split("_")[1]}
    metrics = (await client.get("/metrics")).text
    assert 'turnkeep_mcp_calls_total{status="invalid_request",tool="recall"}' in metrics
    assert 'turnkeep_mcp_call_duration_seconds_count{tool="append_turns"}' in metrics
    assert MARKER not in metrics


async def test_what_no_tool_was_reached_for_is_one_line_too(client: Client, port: int) -> None:
    modern = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": MARKER}
    revision = "io.modelcontextprotocol/protocolVersion"
    meta = {"_meta": {revision: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}}
    sent: list[tuple[Any, dict[str, str], tuple[str, str, str | None]]] = [
        (message("ping"), {}, ("ping", "ok", None)),
        (message("tools/list"), {}, ("tools/list", "ok", None)),
        (message("resources/templates/list"), {}, ("resources/templates/list", "ok", None)),
        (message("tools/list", {"cursor": MARKER}), {}, ("tools/list", "error", "invalid_params")),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, {}, ("notifications/initialized", "ok", None)),
        (message(MARKER), {}, ("unknown", "error", "unknown_method")),
        (call("recall", [MARKER]), {}, ("recall", "error", "invalid_params")),
        (call(MARKER, [MARKER]), {}, ("unknown", "error", "invalid_params")),
        (message("tools/list", meta), modern, ("tools/list", "error", "header_mismatch")),
        (b'{"jsonrpc": ' + MARKER.encode(), {}, ("unknown", "error", "malformed_json")),
        ([message(MARKER)], {}, ("unknown", "error", "invalid_request")),
        (call("recall", {MARKER: "\0"}), {}, ("unknown", "error", "text_not_storable")),
        (message("ping"), {"Content-Type": "text/plain"}, ("unknown", "error", "unsupported_media_type")),
        (message("ping"), {"Origin": f"https://{MARKER}.example"}, ("unknown", "error", "origin_not_allowed")),
        (message("ping"), {"X-Agent-Id": MARKER * 100}, ("unknown", "error", "invalid_request")),
    ]
    async with httpx.AsyncClient(timeout=60) as http:
        with listening_to_logs() as events:
            for body, headers, _ in sent:
                await post(http, port, client.key, body, **headers)
            await post(http, port, f"tk_{MARKER}", message("ping"))
    assert called(events) == [*(line for _, _, line in sent), ("unknown", "error", "unauthenticated")]
    lines = [event for event in events if event["event"] == "mcp.called"]
    tenants = [event["tenant_id"] for event in lines]
    mine = str(client.key).split("_")[1]
    # where the request came from is looked at before its key
    expected = [None if one["code"] in {"origin_not_allowed", "unauthenticated"} else mine for one in lines]
    assert tenants == expected


async def test_a_request_that_is_given_up_is_one_line(client: Client, port: int) -> None:
    conversation = await client.conversation()
    arguments = {"conversation_id": conversation, "turns": [{"role": "user", "content": MARKER}]}
    body = json.dumps(call("append_turns", arguments)).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {client.key}\r\n"
        f"Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with listening_to_logs() as events:
        for part in (body, body[:20]):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + part)
            await writer.drain()
            await asyncio.sleep(0.005)
            writer.close()
        await asyncio.sleep(1)
    assert sorted(called(events), key=str) == [("append_turns", "ok", None), ("unknown", "error", "cancelled")]


async def test_an_unexpected_exception_reveals_nothing(
    service: Service, client: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = "s3cret-marker"

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError(marker)

    monkeypatch.setattr(type(service.container.recall_service), "recall", fail)
    monkeypatch.setattr(type(service.container.conversations), "turn", fail)
    for mode in MODES:
        async with mcp_client(port, client.key, mode) as mcp:
            failed = await refused(mcp, "recall", query="x")
            assert failed["code"] == "internal_error"
            with pytest.raises(MCPError) as refusal:
                await mcp.read_resource(f"conversation://{FOREIGN}/turns/{FOREIGN}")
            assert refusal.value.code == -32603
            assert marker not in str(failed) + str(refusal.value.error)


async def test_a_tool_that_meets_a_busy_conversation_says_that_it_may_be_called_again(
    service: Service, client: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise Unavailable("database_unavailable", "The database does not answer.", retry_after_s=3)

    monkeypatch.setattr(type(service.container.recall_service), "recall", fail)
    async with httpx.AsyncClient(timeout=60) as http:
        answer = (await post(http, port, client.key, call("recall", {"query": "x"}))).json()["result"]
    assert answer["isError"] is True
    assert answer["structuredContent"]["retryable"] is True
    assert answer["structuredContent"]["retry_after_s"] == 3
