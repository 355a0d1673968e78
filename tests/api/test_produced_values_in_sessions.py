"""Calls around the turns of an agent take what a model or a tool produced, as appends do."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest

from tests.api.test_produced_values import BAD, BIG, GOOD, INPUT
from tests.support.api import Client, Service
from tests.support.live import serving
from tests.support.mcp import call as tool_call
from tests.support.mcp import post

SESSION = {"session_id": "s", "user_id": "ann"}
ASK = {"role": "user", "content": "Post it."}
CALL = {"type": "function_call", "call_id": "t1", "name": "send", "arguments": json.dumps(INPUT), "serial": BIG}
OUTPUT = {"type": "function_call_output", "call_id": "t1", "output": BAD}
SAID = {"role": "assistant", "content": BAD}

Call = Callable[..., Coroutine[Any, Any, tuple[bool, dict[str, Any]]]]


@pytest.fixture(params=["rest", "mcp"])
async def call(request: pytest.FixtureRequest, client: Client, service: Service) -> AsyncIterator[Call]:
    """A call of a route or of its tool: whether it succeeded, and its answer."""

    async def by_rest(name: str, **body: Any) -> tuple[bool, dict[str, Any]]:
        path = f"/v1/lifecycle/{name.replace('_', '-')}"
        content = json.dumps(body)
        answer = await client.post(path, content=content, headers={"Content-Type": "application/json"})
        return answer.is_success, answer.json()

    if request.param == "rest":
        yield by_rest
        return
    async with serving(service.app, service.settings) as port, httpx.AsyncClient() as http:

        async def by_mcp(name: str, **body: Any) -> tuple[bool, dict[str, Any]]:
            content = json.dumps(tool_call(f"memory_{name}", body)).encode()
            answer = await post(http, port, client.key, content, **{"Content-Type": "application/json"})
            result = answer.json().get("result", {"isError": True})
            return not result.get("isError", False), result.get("structuredContent") or answer.json()

        yield by_mcp


async def turns_of(client: Client) -> list[dict[str, Any]]:
    found = (await client.get("/v1/conversations", params={"external_id": "s"})).json()["data"]
    return await client.history(found[0]["id"]) if found else []


async def test_a_stored_turn_has_what_a_model_and_a_tool_produced(client: Client, call: Call) -> None:
    items = {"input_items": [ASK, CALL, OUTPUT], "output_items": [SAID]}
    for _ in range(2):
        is_done, done = await call("after_turn", **SESSION, turn_id="1", **items)
        assert (is_done, done) == (
            True,
            {"ok": True, "sanitised": ["/input_items/2/output", "/output_items/0/content"]},
        )
    turns = await turns_of(client)
    assert json.loads(turns[1]["tool_calls"][0]["arguments"]) == INPUT
    assert turns[1]["tool_calls"][0]["turnkeep.given"]["members"]["serial"] == BIG
    assert (turns[2]["content"], turns[3]["content"]) == (GOOD, GOOD)
    path = f"/v1/conversations/{turns[0]['conversation_id']}/verify"
    assert (await client.get(path)).json()["valid"] is True
    is_done, before = await call("before_turn", **SESSION, turn_id="2", current_input=[ASK, CALL, OUTPUT])
    assert is_done
    assert [item["serial"] for item in before["input_items"] if item["type"] == "function_call"] == [BIG, BIG]
    assert [item["output"] for item in before["input_items"] if "output" in item] == [GOOD, GOOD]


async def test_a_turn_in_two_calls_has_them_too(client: Client, call: Call) -> None:
    is_done, prepared = await call("run_turn", **SESSION, turn_id="1", current_input=[ASK, CALL, OUTPUT])
    assert is_done, prepared
    assert prepared["sanitised"] == ["/current_input/2/output"]
    token = prepared["operation_token"]
    is_done, done = await call("run_turn", operation_token=token, output_items=[SAID | {"n": BIG}])
    assert (is_done, done) == (True, {"ok": True, "sanitised": ["/output_items/0/content"]})
    result, said = (await turns_of(client))[2:]
    assert (result["content"], said["content"][0]["text"]) == (GOOD, GOOD)
    assert said["content"][1]["members"] == {"n": BIG}


async def test_an_answer_names_no_members_if_nothing_was_left_out(call: Call) -> None:
    assert await call("after_turn", **SESSION, turn_id="1", input_items=[ASK, CALL]) == (True, {"ok": True})
    is_done, prepared = await call("run_turn", **SESSION, turn_id="2", current_input=[ASK])
    assert is_done
    assert "sanitised" not in prepared


@pytest.mark.parametrize("user", [{"role": "user", "content": BAD}, {"role": "user", "content": "a", "n": BIG}])
async def test_what_a_callers_program_writes_is_refused(client: Client, call: Call, user: dict[str, Any]) -> None:
    for name, body in {
        "before_turn": {"current_input": [user]},
        "after_turn": {"input_items": [user]},
        "run_turn": {"current_input": [user]},
    }.items():
        is_done, refusal = await call(name, **SESSION, turn_id="1", **body)
        assert not is_done
        assert any(code in json.dumps(refusal) for code in ("text_not_storable", "number_not_interoperable")), refusal
    for members in ({"session_id": "s\0"}, {"turn_id": "\0"}, {"base_instructions": BAD}, {"max_input_tok": BIG}):
        body = SESSION | {"turn_id": "1", "current_input": [ASK, SAID]} | members
        is_done, refusal = await call("before_turn", **body)
        assert not is_done, refusal
    assert await turns_of(client) == []
