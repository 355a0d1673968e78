"""`turnkeep mcp`: a real process between the official client and a server."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.client.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

from app.tenancy.key_text import generate_key
from tests.api.test_mcp import MARKER, OFFERED, called, listening_to_logs
from tests.support.api import Client, Service
from tests.support.command import TURNKEEP
from tests.support.live import serving
from tests.support.mcp import REVISIONS, call, message, post, text_of

ROOT = Path(__file__).parents[2]
# the newer one is named: the client asks for it with a time limit that a start on a busy machine may take
MODES = ["2026-07-28", "legacy"]
COMMAND = [*TURNKEEP, "mcp"]


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    """The app on a real socket."""
    async with serving(service.app, service.settings) as listening:
        yield listening


def environment(port: int, key: str, **more: str) -> dict[str, str]:
    return {"TURNKEEP_URL": f"http://127.0.0.1:{port}", "TURNKEEP_API_KEY": key, "PATH": ""} | more


@asynccontextmanager
async def bridged(port: int, key: str, mode: str, *arguments: str) -> AsyncIterator[McpClient]:
    """The official client of a `turnkeep mcp` of its own."""
    parameters = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], *arguments], env=environment(port, key), cwd=ROOT
    )
    async with McpClient(stdio_client(parameters), mode=mode) as client:
        yield client


async def structured(client: McpClient, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.structured_content


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
async def test_every_tool_and_resource_is_there_over_standard_input_and_output(
    client: Client, other: Client, port: int, mode: str
) -> None:
    conversation, foreign = await client.conversation(), await other.conversation()
    async with bridged(port, client.key, mode, "--agent", "pl") as mcp:
        assert mcp.protocol_version == REVISIONS["legacy" if mode == "legacy" else "auto"]
        assert [tool.name for tool in (await mcp.list_tools()).tools] == OFFERED
        turns = [{"role": "user", "content": "Käse & 雪, peanuts"}]
        appended = await structured(mcp, "append_turns", conversation_id=conversation, turns=turns)
        assert appended["turns"] == await client.history(conversation)
        assert (await structured(mcp, "get_history", conversation_id=conversation))["data"] == appended["turns"]
        assert (await structured(mcp, "recall", query="peanuts"))["data"][0]["text"] == turns[0]["content"]
        await structured(mcp, "build_context", conversation_id=conversation, token_budget=500)
        await structured(mcp, "store_memory", content="Mia is allergic to peanuts.")
        assert (await structured(mcp, "recall_memory", query="peanuts"))["entries"][0]["agent_id"] == "pl"
        assert [one.uri for one in (await mcp.list_resources()).resources] == [f"conversation://{conversation}"]
        assert len((await mcp.list_resource_templates()).resource_templates) == 3
        for uri in (
            f"conversation://{conversation}",
            f"conversation://{conversation}/turns/{appended['turns'][0]['id']}",
        ):
            assert json.loads(text_of(await mcp.read_resource(uri)))
        refused = await mcp.call_tool("get_history", {"conversation_id": foreign})
        assert refused.structured_content["code"] == "not_found"
        with pytest.raises(MCPError) as refusal:
            await mcp.read_resource(f"conversation://{foreign}")
        assert refusal.value.data["code"] == "not_found"
        many = [structured(mcp, "recall", query=f"peanuts {number}") for number in range(50)]
        assert all(one["data"] for one in await asyncio.gather(*many))


def say(port: int, key: str, lines: list[bytes], **more: str) -> list[Any]:
    """What a process writes for these lines; that it is only the protocol is asserted by reading it."""
    done = subprocess.run(
        COMMAND, input=b"".join(line + b"\n" for line in lines), env=environment(port, key, **more), cwd=ROOT,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
async def test_a_bad_key_and_a_server_that_is_away_are_reported_for_each_call(client: Client, port: int) -> None:
    lines = [json.dumps(message("tools/list", message_id=name)).encode() for name in (7, "a")]
    answers = await asyncio.to_thread(say, port, client.key[:-1] + "!", lines)
    assert {answer["id"] for answer in answers} == {7, "a"}
    assert all(answer["error"]["data"]["code"] == "unauthenticated" for answer in answers)
    answers = await asyncio.to_thread(say, 1, client.key, lines)
    assert {answer["id"] for answer in answers} == {7, "a"}
    assert all("does not answer" in answer["error"]["message"] for answer in answers)
    assert all("turnkeep serve" in answer["error"]["message"] for answer in answers)
    assert client.key not in str(answers)


@pytest.mark.slow
async def test_lines_that_are_no_message_are_answered_and_the_next_one_is_read(client: Client, port: int) -> None:
    lines = [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        json.dumps([message("ping")]).encode(),
        json.dumps(message("ping")).encode(),
    ]
    answers = await asyncio.to_thread(say, port, client.key, lines)
    assert [answer["result"] for answer in answers if answer["id"] == 1] == [{}]
    refused = [answer["error"]["code"] for answer in answers if answer["id"] is None]
    assert sorted(refused) == [-32700, -32700, -32700, -32600, -32600]  # the lists are JSON


NOT_JSON = [
    ("NaN", -32700, "malformed_json"),
    ("Infinity", -32700, "malformed_json"),
    ("-Infinity", -32700, "malformed_json"),
    ("1e400", None, "number_not_interoperable"),
    ("12345678901234567890", None, "number_not_interoperable"),
    ('{"a": 1, "a": 2}', -32600, "duplicate_key"),
    (r'"\ud800"', None, "text_not_storable"),
]
"""Values of metadata, and the code of the JSON-RPC error; None where the tool refuses the value itself."""


def refusal(answer: dict[str, Any]) -> tuple[int | None, str]:
    """The code of the JSON-RPC error, None for an error of the tool, and the code of the problem."""
    if (error := answer.get("error")) is not None:
        return error["code"], error["data"]["code"]
    assert answer["result"]["isError"]
    return None, answer["result"]["structuredContent"]["code"]


@pytest.mark.slow
async def test_what_is_no_json_is_refused_as_over_http_and_never_changed(client: Client, port: int) -> None:
    conversation = await client.conversation()
    turns = [{"role": "user", "content": "x", "metadata": {"n": "here"}}]
    arguments = {"conversation_id": conversation, "turns": turns}
    lines = [
        json.dumps(call("append_turns", arguments, name)).replace('"here"', value).encode()
        for name, (value, _, _) in enumerate(NOT_JSON)
    ]
    answers = {answer["id"]: answer for answer in await asyncio.to_thread(say, port, client.key, lines)}
    async with httpx.AsyncClient(timeout=60) as http:
        posted = [(await post(http, port, client.key, line)).json() for line in lines]
    expected = [(code, reason) for _, code, reason in NOT_JSON]
    assert [refusal(answers[name]) for name in range(len(lines))] == expected
    assert [refusal(answer) for answer in posted] == expected
    assert await client.history(conversation) == []


@pytest.mark.slow
async def test_bytes_that_are_no_text_are_refused_and_never_replaced(client: Client, port: int) -> None:
    conversation = await client.conversation()
    turns = [{"role": "user", "content": "@"}]
    line = json.dumps(call("append_turns", {"conversation_id": conversation, "turns": turns})).encode()
    answers = await asyncio.to_thread(say, port, client.key, [line.replace(b"@", b"\xff")])
    assert [answer["error"]["data"]["code"] for answer in answers] == ["malformed_json"]
    assert await client.history(conversation) == []


@pytest.mark.slow
async def test_an_id_that_is_none_is_answered_without_one_and_ends_nothing(client: Client, port: int) -> None:
    names = ["null", "1.5", "NaN", "1e400", "true", "[1]", '{"a": 1}', '"\\ud800"']
    lines = [f'{{"jsonrpc": "2.0", "method": "ping", "id": {name}}}'.encode() for name in names]
    lines.append(json.dumps(message("ping")).encode())
    answers = await asyncio.to_thread(say, port, client.key, lines)
    assert [answer["result"] for answer in answers if answer["id"] == 1] == [{}]
    refused = [answer["error"]["code"] for answer in answers if answer["id"] is None]
    assert sorted(refused) == [-32700] + [-32600] * 7


@pytest.mark.slow
async def test_a_refusal_of_a_message_carries_its_id(client: Client, port: int) -> None:
    lines = [json.dumps(call("recall", {"query": "x\0"}, 9)).encode()]
    answers = await asyncio.to_thread(say, port, client.key, lines)
    assert (answers[0]["id"], answers[0]["error"]["code"]) == (9, -32600)
    lines = [json.dumps(call("recall", {"query": "x" * 9_000_000}, 10)).encode()]
    answers = await asyncio.to_thread(say, port, client.key, lines)
    assert (answers[0]["id"], answers[0]["error"]["data"]["code"]) == (10, "body_too_large")


@pytest.mark.slow
async def test_an_odd_name_of_a_method_is_answered_and_ends_nothing(client: Client, port: int) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    methods = ["tools/cäll", "tools/c\nall", "雪", "\ud800"]
    lines = [json.dumps(message(method, {"_meta": meta}, name)).encode() for name, method in enumerate(methods, 7)]
    lines.append(json.dumps(message("ping")).encode())
    answers = {answer["id"]: answer for answer in await asyncio.to_thread(say, port, client.key, lines)}
    for name in (7, 8, 9):
        assert answers[name]["error"]["code"] == -32020  # no header says such a name as the message does
    assert answers[10]["error"]["code"] == -32600  # half of a pair is no text
    assert answers[1]["result"] == {}


@pytest.mark.slow
async def test_every_line_is_one_line_of_the_servers_log(client: Client, port: int) -> None:
    lines = [
        json.dumps(call("recall", {"query": MARKER}, 1)).encode(),
        json.dumps(call("recall", {"query": MARKER, "k": float("nan")}, 2)).encode(),
        json.dumps(call(MARKER, {}, 3)).encode(),
        MARKER.encode(),
    ]
    with listening_to_logs() as events:
        await asyncio.to_thread(say, port, client.key, lines)
    assert sorted(called(events), key=str) == [
        ("recall", "ok", None),
        ("unknown", "error", "malformed_json"),
        ("unknown", "error", "malformed_json"),
        ("unknown", "error", "unknown_tool"),
    ]


def heeds_interrupts() -> None:
    """A run in the background of a shell hands down that interrupts are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
async def test_an_interrupt_ends_it_though_standard_input_is_open(client: Client, port: int) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, env=environment(port, client.key), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=heeds_interrupts,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(message("ping")).encode() + b"\n")
    await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.stderr is not None
    assert b"Traceback" not in await process.stderr.read()


def test_the_configuration_is_printed_for_both_ways_in() -> None:
    key = "tk_x"
    done = subprocess.run(
        [*COMMAND, "--print-config", "--agent", "planner"], env=environment(80, key), cwd=ROOT, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    servers = json.loads(done.stdout)["mcpServers"]
    assert servers["turnkeep"]["args"] == ["mcp", "--agent", "planner"]
    assert Path(servers["turnkeep"]["command"]).is_absolute()
    assert servers["turnkeep"]["env"] == {"TURNKEEP_URL": "http://127.0.0.1:80", "TURNKEEP_API_KEY": key}
    assert servers["turnkeep-http"] == {
        "type": "http",
        "url": "http://127.0.0.1:80/mcp",
        "headers": {"Authorization": f"Bearer {key}", "X-Agent-Id": "planner"},
    }


def test_the_configuration_never_has_the_administrators_key(tmp_path: Path) -> None:
    admin = str(generate_key())
    (tmp_path / "admin-key").write_text(f"{admin}\n")
    for more in ({}, {"TURNKEEP_API_KEY": admin}, {"TURNKEEP_BOOTSTRAP_KEY": admin}):
        done = subprocess.run(
            [*COMMAND, "--print-config"], env={"TURNKEEP_DATA_DIR": str(tmp_path), **more}, cwd=ROOT,
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        servers = json.loads(done.stdout)["mcpServers"]
        assert servers["turnkeep"]["env"]["TURNKEEP_API_KEY"] == "YOUR_KEY"
        assert servers["turnkeep-http"]["headers"] == {"Authorization": "Bearer YOUR_KEY"}
        assert admin not in done.stdout + done.stderr
        assert "`turnkeep keys create --name editor` prints one with read and write." in done.stderr


def test_without_a_key_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        COMMAND, env={"TURNKEEP_DATA_DIR": str(tmp_path)}, cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert "TURNKEEP_API_KEY" in done.stderr
