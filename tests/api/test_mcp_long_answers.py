"""Answers of the tools are short, however long the turns are, and say how to read on."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client as McpClient

from app.agents.tools.service import all_tools
from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, open_fake_chat, says
from tests.support.live import serving
from tests.support.mcp import mcp_client
from tests.support.postgres import TestDatabase
from tests.support.timing import PATIENT_MS

MAX_BYTES = 32 * 2**10
MEBIBYTE = 2**20
FACT = "The deposit of the Lisbon flat is 1,450 euros."
QUERY = "How much is the deposit of the Lisbon flat?"


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


def long_text(seed: int, characters: int = MEBIBYTE) -> str:
    filler = " ".join(f'Paragraph {n} of part {seed} is about lamps, "rivers" and stone.' for n in range(20_000))
    return f"{filler[: characters // 3]}. {FACT} {filler}"[:characters]


async def use(mcp: McpClient, tool: str, **arguments: Any) -> Any:
    """The structured answer of a tool, of which the whole answer is short."""
    result = await mcp.call_tool(tool, arguments)
    assert not result.is_error, result.content[0]
    members = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert len(json.dumps(members, ensure_ascii=False).encode()) <= MAX_BYTES, tool  # as the server sends it
    assert json.loads(result.content[0].model_dump()["text"]) == result.structured_content
    return result.structured_content


async def large(client: Client, turns: int = 6) -> str:
    conversation = await client.conversation(external_id="large", owner="mia")
    for n in range(turns):
        role = "assistant" if n % 2 else "user"
        await client.append(conversation, {"role": role, "content": long_text(n)})
    await client.append(conversation, {"role": "user", "content": QUERY})
    return conversation


@pytest.mark.slow
async def test_no_answer_about_turns_of_a_mebibyte_is_long(client: Client, port: int) -> None:
    conversation = await large(client)
    session = {"project": "default", "session_id": "large", "user_id": "mia"}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUERY}]}
    turn = session | {"turn_id": "t1", "current_input": [item]}
    named = {"conversation_id": conversation}
    calls: dict[str, dict[str, Any]] = {
        "store_memory": {"content": long_text(1, 30_000)},
        "recall_memory": {"query": QUERY, "top_k": 20},
        "recall": {"query": QUERY, "k": 10, "conversation_ids": [conversation], "neighbours": 2, "content": "full"},
        "build_context": named | {"token_budget": 100_000, "query": QUERY, "semantic_recall": {"k": 10}},
        "append_turns": named | {"turns": [{"role": "user", "content": long_text(9)}]},
        "get_history": named,
        "create_conversation": {"external_id": "large"},
        "find_conversations": {"owner": "mia"},
        "summarize": named,
        "list_facts": named,
        "assert_fact": named | {"subject": "Mia", "predicate": "has", "object": "a lamp"},
        "memory_before_turn": turn,
        "memory_run_turn": turn,
        "memory_after_turn": session | {"turn_id": "t2", "input_items": [item]},
        "memory_run_maintenance": {"project": "default", "session_id": "large"},
        "memory_list_dir_with_abstract": {"project": "default", "session_id": "large"},
    }
    assert calls.keys() == {tool.name for tool in all_tools()} - {"ask_agent"}
    async with mcp_client(port, client.key) as mcp:
        for tool, arguments in calls.items():
            await use(mcp, tool, **arguments)
        for path in ("context/recent", "context/summary", "meta"):
            read = (await mcp.read_resource(f"memory://default/large/{path}")).contents[0].model_dump()["text"]
            assert len(read.encode()) <= MAX_BYTES, path


async def test_recall_shows_the_passage_and_the_turn_is_read_on_in_parts(client: Client, port: int) -> None:
    conversation, text = await client.conversation(), long_text(0, 100_000)
    await client.append(conversation, text)
    async with mcp_client(port, client.key) as mcp:
        answer = await use(mcp, "recall", query=QUERY, conversation_ids=[conversation], k=1)
        hit = answer["data"][0]
        assert "cut" not in answer
        assert FACT in hit["text"]
        named = {"conversation_id": conversation, "turn_id": hit["turn"]["id"]}
        start, whole = 0, ""
        while start < len(text):
            answer = await use(mcp, "get_history", **named, start=start, length=50_000)
            part = answer["part"]
            assert (part["start"], part["length"]) == (start, len(text))
            assert answer["data"][0]["id"] == named["turn_id"]
            whole += part["text"]
            assert part["end"] == len(whole) > start
            start = part["end"]
            assert ("cut" in answer) == (start < len(text))
        assert whole == text
        passage = hit["passage"]
        around = await use(
            mcp, "get_history", **named, start=passage["start"], length=passage["end"] - passage["start"]
        )
        assert around["part"]["text"] == hit["text"]
        beyond = await use(mcp, "get_history", **named, start=10**9)
        assert beyond["part"]["text"] == ""


async def test_arguments_of_a_call_are_read_on_in_parts(client: Client, port: int) -> None:
    conversation, text = await client.conversation(), long_text(0, 100_000)
    call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": json.dumps({"text": text})}}
    messages = [
        {"role": "user", "content": "Write it."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    body = {"format": "openai", "turns": messages}
    answer = await client.post(f"/v1/conversations/{conversation}/turns", json=body)
    assert answer.is_success, answer.text
    named = {"conversation_id": conversation, "turn_id": answer.json()["turns"][1]["id"]}
    whole, length = "", 1
    async with mcp_client(port, client.key) as mcp:
        while len(whole) < length:
            part = (await use(mcp, "get_history", **named, start=len(whole), length=50_000))["part"]
            whole, length = whole + part["text"], part["length"]
    assert whole.endswith(f"write {call['function']['arguments']}")


async def test_a_fact_in_the_middle_of_a_long_memory_is_read(client: Client, port: int) -> None:
    async with mcp_client(port, client.key) as mcp:
        await use(mcp, "store_memory", content=long_text(1, 56_000))
        found = await use(mcp, "recall_memory", query=QUERY, top_k=1)
    assert FACT in found["entries"][0]["content"]
    assert "search for other words" in found["cut"]


async def test_a_history_of_long_turns_has_all_of_them_on_short_pages(client: Client, port: int) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *(long_text(n, 3_000 + n * 500) for n in range(40)))
    positions: list[int] = []
    async with mcp_client(port, client.key) as mcp:
        cursor: str | None = None
        while True:
            more = {} if cursor is None else {"cursor": cursor}
            page = await use(mcp, "get_history", conversation_id=conversation, **more)
            positions = [turn["position"] for turn in page["data"]] + positions
            assert "turn_id" in page["cut"]
            assert all("read on with get_history" in turn["content"] for turn in page["data"])
            cursor = page["next_cursor"]
            if cursor is None:
                break
    assert positions == list(range(1, 41))


async def test_a_cut_answer_says_what_was_cut(client: Client, port: int) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *(long_text(n, 20_000) for n in range(20)))
    async with mcp_client(port, client.key) as mcp:
        answer = await use(mcp, "recall", query=QUERY, conversation_ids=[conversation], k=20)
        assert f"The best {len(answer['data'])} of 20 hits" in answer["cut"]
        assert all(FACT in hit["text"] for hit in answer["data"])
        await client.append(conversation, *(long_text(n, 3_000) for n in range(50)))
        context = await use(mcp, "build_context", conversation_id=conversation, token_budget=60_000)
        assert "it was built for" in context["cut"]
        assert context["usage"]["used"] <= context["usage"]["budget"] < 60_000
        for n in range(5):
            await use(mcp, "store_memory", content=long_text(n, 30_000))
        memories = await use(mcp, "recall_memory", query=QUERY, top_k=5)
        assert "top_k" in memories["cut"]
        assert all(FACT in entry["content"] for entry in memories["entries"])


async def test_arguments_of_a_part_need_a_turn(client: Client, port: int) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "Hello.")
    async with mcp_client(port, client.key) as mcp:
        turn_id = (await use(mcp, "get_history", conversation_id=conversation))["data"][0]["id"]
        for arguments in ({"start": 5}, {"turn_id": turn_id, "limit": 3}):
            refused = await mcp.call_tool("get_history", {"conversation_id": conversation} | arguments)
            assert refused.is_error
        foreign = await mcp.call_tool(
            "get_history", {"conversation_id": await client.conversation(), "turn_id": turn_id}
        )
        assert foreign.structured_content == foreign.structured_content | {"code": "not_found"}


async def test_an_operator_chooses_the_length_of_answers(
    client: Client, database: TestDatabase, tmp_path: Path
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, long_text(0, 40_000))
    async with (
        open_service(database, tmp_path, mcp_answer_kb=256) as opened,
        serving(opened.app, opened.settings) as listening,
        mcp_client(listening, client.key) as mcp,
    ):
        page = await mcp.call_tool("get_history", {"conversation_id": conversation})
        assert page.structured_content is not None
        assert len(page.structured_content["data"][0]["content"]) == 40_000


async def test_the_reasons_for_a_context_leave_it_its_room(client: Client, port: int) -> None:
    conversation = await client.conversation()
    for part in range(2):
        await client.append(conversation, *[f"Turn {number} of part {part} is about lamps." for number in range(400)])
    async with mcp_client(port, client.key) as mcp:
        asked = {"conversation_id": conversation, "token_budget": 100_000, "recent_turns": 800}
        context = await use(mcp, "build_context", **asked, explain=True)
    assert context["usage"]["used"] > 500
    assert len(context["explain"]) > 10
    assert "rows of `explain` are shown" in context["cut"]


async def test_lists_have_as_many_items_as_fit_and_lead_on(client: Client, port: int) -> None:
    names = [await client.conversation(external_id=f"x{n}", metadata={"n": str(n) * 3000}) for n in range(12)]
    for number in range(60):
        body = {"subject": f"s{number}", "predicate": "likes", "object": f"{number} {'x' * 400}"}
        assert (await client.post("/v1/facts", json=body)).is_success
    async with mcp_client(port, client.key) as mcp:
        assert {item["id"] for item in await list_all(mcp, "find_conversations")} == set(names)
        assert len({item["id"] for item in await list_all(mcp, "list_facts")}) == 60


async def test_the_tree_of_a_long_session_is_a_short_answer(client: Client, port: int) -> None:
    conversation = await client.conversation(external_id="long")
    for year in range(2010, 2018):
        days = [f"{year}-{1 + number % 12:02d}-{1 + number % 28:02d}T10:00:00Z" for number in range(84)]
        turns = [{"role": "user", "content": f"{day} {'lamp ' * 60}", "occurred_at": day} for day in days]
        await client.append(conversation, *turns)
    async with mcp_client(port, client.key) as mcp:
        asked = {"session_id": "long", "limit": 200}
        tree = await use(mcp, "memory_list_dir_with_abstract", **asked)
    assert len(tree["summaries"]) > 20
    assert "of 200 are shown. Narrow it with path" in tree["cut"]


async def list_all(mcp: McpClient, tool: str) -> list[Any]:
    """All items of a list, a page at a time, each of which is a short answer."""
    items: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = await use(mcp, tool, limit=200, **cursor)
        items += page["data"]
        if page["next_cursor"] is None:
            return items
        cursor = {"cursor": page["next_cursor"]}


async def test_the_answer_of_the_agent_is_whole_beside_a_history_of_long_turns(
    database: TestDatabase, tmp_path: Path
) -> None:
    response = "The deposit is 1,450 euros, and this is why. " * 200
    async with open_fake_chat() as fake:
        fake.reply = says(response)
        more = {"llm_base_url": fake.url, "llm_model": CHAT_MODEL, "llm_timeout_ms": PATIENT_MS}
        async with (
            open_service(database, tmp_path, **more, enable_internal_agent=True, embedder="none") as service,
            await service.new_tenant() as user,
            serving(service.app, service.settings) as port,
            mcp_client(port, user.key) as mcp,
        ):
            conversation = await user.conversation()
            await user.append(conversation, *(long_text(n, 20_000) for n in range(7)))
            answer = await use(mcp, "ask_agent", query=QUERY, conversation_id=conversation)
    assert answer["response"] == response.strip()
    assert len(answer["history"]) == 9
    assert all("more characters" in turn["content"] for turn in answer["history"][:6])


PARTS: dict[str, Any] = {
    "many strings": [{"type": "board", "cells": [f"cell {n}" for n in range(30_000)]}],
    "many members": [{"type": "board", "cells": {f"cell {n}": n for n in range(30_000)}}],
    "many long names": [{"type": "board", "cells": {f"{'n' * 2_000}{n}": n for n in range(200)}}],
    "a long name": [{"type": "board", "name": "n" * 60_000}],
    "nested lists": [{"type": "board", "cells": [[[[[n] * 8] * 8] * 8] * 8 for n in range(8)]}],
    "deep lists": [{"type": "board", "cells": json.loads("[" * 24 + "1," * 30_000 + "1" + "]" * 24)}],
    "long parts of other letters": [{"type": "text", "text": "😀ж" * 3_000} for _ in range(5)],
    "parts": [{"type": "text", "text": f"Part {n} of the story of the lamp."} for n in range(499)],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
async def test_no_answer_about_a_turn_of_many_small_members_is_long(client: Client, port: int, parts: Any) -> None:
    text = {"type": "text", "text": QUERY}
    conversation = await client.conversation()
    turn = (await client.append(conversation, {"role": "user", "content": [*parts, text]}))["turns"][0]
    named = {"conversation_id": conversation}
    async with mcp_client(port, client.key) as mcp:
        page = await use(mcp, "get_history", **named)
        assert page["data"][0]["id"] == turn["id"]
        assert "get_history, turn_id, start and length" in page["cut"]
        shown = page["data"][0]["content"]
        assert (len(shown) == len(parts) + 1) or "the first members are shown" in page["cut"]
        for form in ("canonical", "openai", "anthropic"):
            context = await use(mcp, "build_context", **named, token_budget=400_000, format=form)
            shown = json.dumps(context["messages"])
            assert QUERY in shown or (len(parts) > 1 and parts[0]["text"] in shown), form
        await use(mcp, "recall", query=QUERY, conversation_ids=[conversation], content="full")
        for uri in (f"conversation://{conversation}", f"conversation://{conversation}/turns/{turn['id']}"):
            read = (await mcp.read_resource(uri)).contents[0].model_dump()["text"]
            assert len(read.encode()) <= MAX_BYTES
            assert turn["id"] in read
            assert "To keep the answer short" in json.loads(read)["cut"]


async def test_no_answer_about_wide_metadata_is_long(client: Client, port: int) -> None:
    wide = {f"n{number}": number for number in range(1_300)}
    conversation = await client.conversation(external_id="wide", owner="mia", metadata=wide)
    await client.append(conversation, {"role": "user", "content": QUERY, "metadata": wide})
    named = {"conversation_id": conversation}
    async with mcp_client(port, client.key) as mcp:
        assert (await use(mcp, "create_conversation", external_id="wide"))["id"] == conversation
        assert (await use(mcp, "find_conversations", owner="mia"))["data"][0]["id"] == conversation
        assert (await use(mcp, "recall", query=QUERY, conversation_ids=[conversation]))["data"][0]["text"] == QUERY
        assert (await use(mcp, "get_history", **named))["data"][0]["content"] == QUERY


async def test_the_answer_to_many_appended_turns_is_short_and_says_how_to_read_them(client: Client, port: int) -> None:
    conversation = await client.conversation()
    turns = [{"role": "user", "content": f"Turn {n} is about lamps."} for n in range(500)]
    async with mcp_client(port, client.key) as mcp:
        answer = await use(mcp, "append_turns", conversation_id=conversation, turns=turns)
    assert answer["seq"] == 500
    assert [turn["position"] for turn in answer["turns"]] == [*range(1, len(answer["turns"]) + 1)]
    assert f"The first {len(answer['turns'])} of 500 are shown. All are stored" in answer["cut"]


async def test_the_answer_to_appended_turns_has_the_small_ones_beside_large_ones(client: Client, port: int) -> None:
    conversation = await client.conversation()
    large = [{"type": "text", "text": f"Part {n} of the story of the lamp."} for n in range(499)]
    turns = [{"role": "user", "content": content} for content in ("One.", large, "Three.", large)]
    async with mcp_client(port, client.key) as mcp:
        answer = await use(mcp, "append_turns", conversation_id=conversation, turns=turns)
    assert [turn["position"] for turn in answer["turns"]] == [1, 2, 3, 4]
    assert [turn["content"] for turn in answer["turns"]][::2] == ["One.", "Three."]
    assert len(answer["turns"][1]["content"]) > 20
    assert "the first members are shown" in answer["cut"]


async def test_the_resource_of_a_conversation_of_long_turns_has_its_newest(client: Client, port: int) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *(long_text(n, 5_000) for n in range(50)))
    async with mcp_client(port, client.key) as mcp:
        read = (await mcp.read_resource(f"conversation://{conversation}")).contents[0].model_dump()["text"]
    contents = json.loads(read)
    assert len(read.encode()) <= MAX_BYTES
    assert contents["has_earlier"]
    assert [turn["position"] for turn in contents["turns"]][-1] == 50
    assert contents["turns"][-1]["content"] == long_text(49, 5_000)
