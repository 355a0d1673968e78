"""Arguments of tools as clients write them: null, digits and JSON as text. Stored text is never changed."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError

from app.agents.tools.leniency import read_arguments
from app.agents.tools.service import all_tools
from app.agents.tools.small_profile import small_tools
from tests.support.api import Client, Service
from tests.support.live import serving
from tests.support.mcp import Mode, call, mcp_client, message, post

TOOLS = {tool.name: tool for tool in all_tools()}


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


@asynccontextmanager
async def caller_of(client: Client, port: int) -> AsyncIterator[Any]:
    """A function that calls a tool, and returns its result or the members of its error."""
    async with httpx.AsyncClient(timeout=60) as http:

        async def run(name: str, **arguments: Any) -> dict[str, Any]:
            answer = await post(http, port, client.key, call(name, arguments))
            return answer.json()["result"]["structuredContent"]

        yield run


def nulls_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Null for every member that may be left out."""
    return dict.fromkeys(schema["properties"].keys() - set(schema.get("required", ())))


async def test_null_is_an_omitted_argument_of_every_tool(client: Client, port: int) -> None:
    conversation = await client.conversation(external_id="trip")
    await client.append(conversation, "hello")
    named = {"session_id": "s", "user_id": "u", "turn_id": "t"}
    item = {"role": "user", "content": "hi"}
    required: dict[str, dict[str, Any]] = {
        "recall_memory": {"query": "x"},
        "store_memory": {"content": "x"},
        "recall": {"query": "x"},
        "build_context": {"token_budget": 500, "conversation_id": conversation},
        "append_turns": {"conversation_id": conversation, "turns": [{"role": "user", "content": "x"}]},
        "get_history": {"conversation_id": conversation},
        "create_conversation": {},
        "find_conversations": {},
        "summarize": {"external_id": "trip"},
        "list_facts": {},
        "assert_fact": {"subject": "Mia", "predicate": "lives_in", "object": "Oslo"},
        "memory_before_turn": named | {"current_input": [item]},
        "memory_after_turn": named | {"input_items": [item], "output_items": [{**item, "role": "assistant"}]},
        "memory_run_turn": named | {"turn_id": "t2", "current_input": [item]},
        "memory_run_maintenance": {"session_id": "s"},
        "memory_list_dir_with_abstract": {"session_id": "s"},
    }
    assert required.keys() == TOOLS.keys() - {"ask_agent"}
    async with caller_of(client, port) as run:
        for name, arguments in required.items():
            answer = await run(name, **nulls_of(TOOLS[name].input_schema) | arguments)
            assert answer.get("code") in {None, "no_such_session"}, (name, answer)
            assert "errors" not in answer, (name, answer)
        turn = nulls_of(TOOLS["append_turns"].input_schema["properties"]["turns"]["items"])  # pyright: ignore[reportIndexIssue, reportUnknownArgumentType]
        stored = await run("append_turns", external_id="trip", turns=[turn | {"role": "user", "content": "nested"}])
        assert stored["turns"][0]["content"] == "nested"
        missing = await run("recall", query=None)
        assert [(error["pointer"], error["detail"]) for error in missing["errors"]] == [("/query", "This is required.")]


async def test_digits_are_numbers_and_words_are_booleans(client: Client, port: int) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *(f"ferry {number}" for number in range(5)))
    async with caller_of(client, port) as run:
        hits = await run("recall", query="ferry", k="2", threshold="0", neighbours="1", explain="true")
        assert len(hits["data"]) == 2
        page = await run("get_history", conversation_id=conversation, limit="3", include_summaries="False")
        assert len(page["data"]) == 3
        assert len((await run("get_history", conversation_id=conversation, limit=3.0))["data"]) == 3
        context = await run(
            "build_context", conversation_id=conversation, token_budget="500", recent_turns="1",
            semantic_recall={"k": "2", "threshold": "0.0"}, query="ferry", include_summary="false",
        )  # fmt: skip
        assert len(context["messages"]) > 1
        late = await run("append_turns", conversation_id=conversation, expected_seq="7", turns=[
            {"role": "user", "content": "x"}])  # fmt: skip
        assert (late["code"], late["seq"]) == ("conversation_advanced", 5)
        assert (await run("find_conversations", archived="any", pinned="false", limit="1"))["data"]


@pytest.mark.parametrize("text", ["null", "None", "undefined"])
async def test_the_text_null_is_no_owner_and_no_id(client: Client, port: int, text: str) -> None:
    conversation = await client.conversation(owner="mia")
    await client.append(conversation, "ferries leave at nine")
    async with caller_of(client, port) as run:
        assert (await run("create_conversation", owner=text, external_id=text, id=text))["owner"] is None
        await run("store_memory", content="Mia likes ferries.", owner=text)
        assert [entry["owner"] for entry in (await client.get("/v1/memories")).json()["data"]] == [None]
        assert (await run("recall_memory", query="ferries", filters={"owner": text}))["entries"]
        assert (await run("recall", query="ferries", owner=text, project=text, conversation_ids=text))["data"]
        assert (await run("get_history", conversation_id=conversation, external_id=text, cursor=text))["data"]
        assert len((await run("find_conversations", owner=text, order=text))["data"]) == 2
        made = await run("append_turns", external_id="new", owner=text, turns=[
            {"id": text, "role": "user", "content": text, "actor": text}])  # fmt: skip
        [turn] = made["turns"]
        assert (turn["content"], turn["actor"]) == (text, text)
        nameless = await run("get_history", conversation_id=text)
        assert nameless["detail"] == "Give conversation_id or external_id."


async def test_a_json_text_is_read_where_an_object_or_a_list_is_expected(client: Client, port: int) -> None:
    async with caller_of(client, port) as run:
        made = await run(
            "create_conversation", external_id="c", metadata='{"a": {"b": "5"}}', participants='[{"actor": "mia"}]'
        )
        assert made["metadata"] == {"a": {"b": "5"}}
        assert [participant["actor"] for participant in made["participants"]] == ["mia"]
        turns = [{"role": "user", "content": '{"a": 1}', "metadata": '{"n": "7", "none": null}', "id": None}]
        stored = await run("append_turns", external_id="c", turns=json.dumps(turns))
        assert stored["turns"][0]["content"] == '{"a": 1}'
        assert stored["turns"][0]["metadata"] == {"n": "7", "none": None}
        hits = await run(
            "recall",
            query="a",
            filters='{"actors": "[\\"user\\"]"}',
            kinds='["turn"]',
            conversation_ids=f'["{made["id"]}"]',
        )
        assert len(hits["data"]) == 1
        context = await run(
            "build_context", external_id="c", token_budget=500, semantic_recall='{"k": 2}', system="[1]"
        )
        assert context["messages"][0]["content"] == "[1]"


@pytest.mark.parametrize("content", ["5", "null", "true", "[]", '{"a":1}', "undefined", "-1.5"])
async def test_stored_text_is_never_read_as_something_else(client: Client, port: int, content: str) -> None:
    async with caller_of(client, port) as run:
        stored = await run("append_turns", external_id=f"of {content}", turns=[{"role": "user", "content": content}])
        assert stored["turns"][0]["content"] == content
        await run("store_memory", content=content, metadata={"a": content, "b": None})
        [memory] = (await client.get("/v1/memories")).json()["data"]
        assert (memory["content"], memory["metadata"]) == (content, {"a": content, "b": None})
        assert "data" in await run("recall", query=content)
        titled = await run("create_conversation", title=content)
        assert titled["title"] == content
        fact = (await run("assert_fact", subject="x", predicate="is", object=f"a {content}"))["fact"]
        assert fact["object"] == f"a {content}"


@pytest.mark.parametrize(
    ("arguments", "pointer", "detail"),
    [
        ({"query": 5}, "/query", "a text is expected"),
        ({"query": ["x"]}, "/query", "a text is expected"),
        ({"query": "x", "k": "five"}, "/k", "a whole number is expected"),
        ({"query": "x", "k": ""}, "/k", "a whole number is expected"),
        ({"query": "x", "k": "5.5"}, "/k", "a whole number is expected"),
        ({"query": "x", "k": " 5"}, "/k", "a whole number is expected"),
        ({"query": "x", "k": "٥"}, "/k", "a whole number is expected"),
        ({"query": "x", "k": True}, "/k", "a whole number is expected"),
        ({"query": "x", "k": "0"}, "/k", "at least 1"),
        ({"query": "x", "k": "9" * 30}, "/k", "a whole number is expected"),
        ({"query": "x", "explain": "yes"}, "/explain", "true or false is expected"),
        ({"query": "x", "explain": 1}, "/explain", "true or false is expected"),
        ({"query": "x", "filters": "[]"}, "/filters", "an object is expected"),
        ({"query": "x", "filters": "{"}, "/filters", "an object is expected"),
        ({"query": "x", "filters": '{"a": 1, "a": 2}'}, "/filters", "an object is expected"),
        ({"query": "x", "filters": '{"metadata": ' + "[" * 40 + "]" * 40 + "}"}, "/filters", "an object is expected"),
        ({"query": "x", "filters": '{"metadata": {"a": "\\u0000"}}'}, "/filters", "an object is expected"),
        ({"query": "x", "filters": '{"roles": 5}'}, "/filters/roles", "a list is expected"),
        ({"query": "x", "kinds": "{}"}, "/kinds", "a list is expected"),
    ],
)
async def test_arguments_that_leave_doubt_are_refused_by_name(
    client: Client, port: int, arguments: dict[str, Any], pointer: str, detail: str
) -> None:
    async with caller_of(client, port) as run:
        wrong = await run("recall", **arguments)
    assert wrong["code"] == "invalid_request"
    assert {error["pointer"]: error["detail"] for error in wrong["errors"]} == {pointer: detail}


def test_the_tools_of_the_small_profile_read_the_same() -> None:
    tools = {tool.name: tool for tool in small_tools(TOOLS)}
    tools["recall"].prepare({"query": "x", "k": "5", "external_id": "null"})
    tools["get_history"].prepare({"conversation_id": None, "external_id": "c", "limit": "5"})
    tools["recall_memory"].prepare({"query": "5", "top_k": None})
    assert read_arguments({"query": "5", "top_k": "5"}, tools["recall"].input_schema) == {"query": "5", "top_k": 5}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_resource_that_does_not_exist_is_named_by_its_uri(client: Client, port: int, mode: Mode) -> None:
    uris = ("test://missing", "conversation://01ARZ3NDEKTSV4RRFFQ69G5FAV", "memory://default/session/context/summary")
    async with mcp_client(port, client.key, mode) as mcp:
        for uri in uris:
            with pytest.raises(MCPError) as refusal:
                await mcp.read_resource(uri)
            assert (refusal.value.data["code"], refusal.value.data["uri"]) == ("not_found", uri)
            assert uri not in refusal.value.message


async def test_what_is_no_uri_is_not_repeated(client: Client, port: int) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        for text in ("s3cret text", "note: s3cret text", "x:" + "s3cret" * 500, "s3cret", ""):
            answer = await post(http, port, client.key, message("resources/read", {"uri": text}))
            assert "error" in answer.json()
            assert "s3cret" not in answer.text
