"""Chat completions through Turnkeep, by OpenAI's own client over a real connection, with a fake model behind it."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest

from app.agents.generation import preparation
from app.agents.generation.align import align
from app.agents.tools.service import all_tools
from app.core.ids import parse_id
from tests.support.api import Client, Service, problem
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, says
from tests.support.live import serving, socket_on
from tests.support.modelled import UPSTREAM_KEY, open_modelled

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
async def ai(port: int, tenant: Client, modelled: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    base = f"http://127.0.0.1:{port}/openai/v1"
    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [modelled.check]})
    async with openai.AsyncOpenAI(api_key=tenant.key, base_url=base, max_retries=0, http_client=http) as opened:
        yield opened


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str) -> Any:
    return {"role": "assistant", "content": text}


async def chat(ai: openai.AsyncOpenAI, conversation: str | None, *messages: Any, **more: Any) -> Any:
    body = {} if conversation is None else {"conversation_id": conversation}
    given = [user(one) if isinstance(one, str) else one for one in messages]
    return await ai.chat.completions.create(model=CHAT_MODEL, messages=given, extra_body=body, **more)


async def streamed(ai: openai.AsyncOpenAI, conversation: str | None, *messages: Any, **more: Any) -> list[Any]:
    return [piece async for piece in await chat(ai, conversation, *messages, stream=True, **more)]


def text_of(pieces: list[Any]) -> str:
    return "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)


async def said(tenant: Client, conversation: str) -> list[tuple[str, Any]]:
    return [(turn["role"], turn["content"]) for turn in await tenant.history(conversation)]


async def rows(modelled: Service, tenant: Client, conversation: str) -> list[tuple[str, str]]:
    """Role and status of all turns of a conversation, pending and aborted ones too."""
    async with modelled.container.database.transaction(tenant.tenant_id) as tx:
        found = await tx.fetch(
            "select role, status from turns where tenant_id = $1 and conversation_id = $2 order by created_at, id",
            tenant.tenant_id, parse_id(conversation),
        )  # fmt: skip
    return [(row["role"], row["status"]) for row in found]


async def until(check: Callable[[], Any], *, seconds: float = 60) -> None:
    for _ in range(int(seconds / 0.05)):
        if await check():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come about in time")


async def nothing_is_pending(modelled: Service, tenant: Client, conversation: str) -> None:
    async def check() -> bool:
        return "pending" not in {status for _, status in await rows(modelled, tenant, conversation)}

    await until(check)


# plain answers


async def test_a_conversation_is_kept_and_the_model_is_sent_its_context(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    fake.replies = [says("Hello Ada."), says("Ada.")]
    first = await chat(ai, conversation, "I am Ada.")
    assert first.choices[0].message.content == "Hello Ada."
    assert first.usage.prompt_tokens == 20
    second = await chat(ai, f"conv_{conversation}", "Who am I?")  # only what is new
    assert second.choices[0].message.content == "Ada."
    assert fake.chats[-1]["messages"] == [user("I am Ada."), assistant("Hello Ada."), user("Who am I?")]
    assert "conversation_id" not in fake.chats[-1]
    assert await said(tenant, conversation) == [
        ("user", "I am Ada."), ("assistant", "Hello Ada."), ("user", "Who am I?"), ("assistant", "Ada.")
    ]  # fmt: skip
    answer = (await tenant.history(conversation))[-1]
    assert (answer["usage"]["completion_tokens"], answer["model"], answer["adapter"]) == (10, CHAT_MODEL, "openai")


async def test_a_client_that_sends_the_whole_history_stores_nothing_twice(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    history: list[Any] = [{"role": "system", "content": "Be brief."}]
    for number in range(4):
        fake.reply = says(f"answer {number}")
        history.append(user(f"question {number}"))
        given = await chat(ai, conversation, *history)
        # as the client gives it back: with null members
        history.append(given.choices[0].message.model_dump())
    expected = [pair for n in range(4) for pair in (("user", f"question {n}"), ("assistant", f"answer {n}"))]
    assert await said(tenant, conversation) == expected
    assert fake.chats[-1]["messages"][0] == {"role": "system", "content": "Be brief."}


async def test_a_window_of_the_history_and_trimmed_answers_are_known_again(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    fake.reply = says("<think>hm</think> one")
    await chat(ai, conversation, "a")
    fake.reply = says("two")
    await chat(ai, conversation, "a", assistant("one"), "b")
    fake.reply = says("three")
    await chat(ai, conversation, "b", assistant("two"), "c")
    assert [content for _, content in await said(tenant, conversation)] == [
        "a", "<think>hm</think> one", "b", "two", "c", "three"
    ]  # fmt: skip


async def test_an_answer_asked_for_again_takes_the_place_of_the_last(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    fake.replies = [says("one"), says("two"), says("better")]
    await chat(ai, conversation, "a")
    await chat(ai, conversation, "a", assistant("one"), "b")
    await streamed(ai, conversation, "a", assistant("one"), "b")
    assert fake.chats[-1]["messages"] == [user("a"), assistant("one"), user("b")]
    assert [content for _, content in await said(tenant, conversation)] == ["a", "one", "b", "better"]
    versions = await tenant.history(conversation, include_superseded=True)
    assert [turn["content"] for turn in versions] == ["a", "one", "b", "two", "better"]
    assert (await tenant.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True


async def test_an_edited_question_is_added_and_nothing_goes(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    fake.replies = [says("one"), says("two"), says("three"), says("four")]
    await chat(ai, conversation, "a")
    await chat(ai, conversation, "a", assistant("one"), "b")
    await chat(ai, conversation, "a", assistant("one"), "b, or rather c")
    await chat(ai, conversation, "a", assistant("one"), "b, or rather c", assistant("three"), "d")
    assert [content for _, content in await said(tenant, conversation)] == [
        "a", "one", "b", "two", "b, or rather c", "three", "d", "four"
    ]  # fmt: skip


async def test_the_same_words_said_again_are_said_again(ai: openai.AsyncOpenAI, tenant: Client) -> None:
    conversation = await tenant.conversation()
    for _ in range(3):
        await chat(ai, conversation, "go on")
    assert len(await said(tenant, conversation)) == 6


async def test_a_request_that_the_client_sends_again_by_itself_is_stored_once(
    ai: openai.AsyncOpenAI, tenant: Client
) -> None:
    conversation = await tenant.conversation()
    await chat(ai, conversation, "once")
    await chat(ai, conversation, "once", extra_headers={"x-stainless-retry-count": "1"})
    assert await said(tenant, conversation) == [("user", "once"), ("assistant", "Hello.")]


async def test_a_conversation_is_named_in_metadata_in_a_header_or_by_a_name_of_its_own(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation(external_id="room 1")
    await chat(ai, None, "a", metadata={"conversation_id": conversation})
    assert "metadata" not in fake.chats[-1]
    await chat(ai, None, "b", metadata={"conversation_id": conversation, "team": "x"})
    assert fake.chats[-1]["metadata"] == {"team": "x"}
    raw = await ai.chat.completions.with_raw_response.create(
        model=CHAT_MODEL, messages=[user("c")], extra_headers={"X-Conversation-Id": "room 1"}
    )
    assert raw.headers["x-conversation-id"] == conversation
    assert [content for role, content in await said(tenant, conversation) if role == "user"] == ["a", "b", "c"]
    await chat(ai, "room 2", "d")
    found = (await tenant.get("/v1/conversations", params={"external_id": "room 2"})).json()["data"]
    assert await said(tenant, found[0]["id"]) == [("user", "d"), ("assistant", "Hello.")]


async def test_every_parameter_goes_to_the_model_and_no_key_of_ours(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    more = {"conversation_id": conversation, "token_budget": 500, "context": {"include_summary": False}, "odd": [1]}
    await ai.chat.completions.create(
        model="another", messages=[user("a")], temperature=0.3, seed=7, n=1, extra_body=more, max_completion_tokens=9
    )
    sent = fake.chats[-1]
    assert {name: sent[name] for name in sent if name != "messages"} == {
        "model": "another", "temperature": 0.3, "seed": 7, "n": 1, "odd": [1], "max_completion_tokens": 9
    }  # fmt: skip
    assert fake.headers[-1]["authorization"] == f"Bearer {UPSTREAM_KEY}"
    assert tenant.key not in str(fake.headers)


PAGE = {"type": "object", "properties": {"at": {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1}}}
LARGE = {"seed": 2**63 - 1, "tools": [{"type": "function", "function": {"name": "page", "parameters": PAGE}}]}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_integers_of_64_bits_pass_in_what_goes_to_the_model_alone(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat, *, named: bool, stream: bool
) -> None:
    conversation = await tenant.conversation() if named else None
    await (streamed if stream else chat)(ai, conversation, "hi", **LARGE)
    assert {name: fake.chats[-1][name] for name in LARGE} == LARGE


async def test_what_is_stored_of_a_request_is_checked_all_the_same(tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    path = "/openai/v1/chat/completions"
    for members, code, pointer in [
        ({"messages": [user("hi") | {"n": 2**60}]}, "number_not_interoperable", None),
        ({"messages": [user("a\0b")]}, "text_not_storable", "/messages/0/content"),
        ({"messages": [user("hi")], "user": "a\0b"}, "text_not_storable", "/user"),
        ({"messages": [user("hi")], "metadata": {"n": 2**60}}, "number_not_interoperable", None),
        ({"messages": [user("hi")], "seed": 2**64}, "number_not_interoperable", None),
        ({"messages": [user("hi")], "seed": -(2**63) - 1}, "number_not_interoperable", None),
    ]:
        body = {"model": CHAT_MODEL, "conversation_id": conversation} | members
        problem(await tenant.post(path, json=body), 400, code, pointer)
    twice = b'{"messages":[{"role":"user","content":"hi"}],"seed":9007199254740993,"stop":{"a":1,"a":2}}'
    problem(await tenant.post(path, content=twice, headers={"Content-Type": "application/json"}), 400, "duplicate_key")
    plain = await tenant.post(path, json={"messages": [user("a\0b")], "seed": 2**60})
    assert plain.status_code == 200
    assert fake.chats[-1] == {"model": CHAT_MODEL, "messages": [user("a\0b")], "seed": 2**60}


async def test_the_schemas_of_our_own_tools_pass_as_tools_of_a_request(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    functions = [
        {"name": one.name, "description": one.description, "parameters": one.input_schema} for one in all_tools()
    ]
    tools = [{"type": "function", "function": one} for one in functions]
    await chat(ai, None, "hi", tools=tools)
    assert fake.chats[-1]["tools"] == tools


async def test_the_user_is_the_owner_of_a_conversation_that_is_created(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    await chat(ai, "support-7", "hi", user="ada")
    assert fake.chats[-1]["user"] == "ada"
    with pytest.raises(openai.ConflictError, match="another owner"):
        await chat(ai, "support-7", "and?", user="eve")
    await chat(ai, "support-7", "and?")
    [kept] = (await tenant.get("/v1/conversations", params={"owner": "ada"})).json()["data"]
    assert (kept["external_id"], kept["turn_count"]) == ("support-7", 4)
    assert (await tenant.get("/v1/conversations", params={"owner": "eve"})).json()["data"] == []
    body = {"conversation_id": "support-8", "messages": [user("hi")], "user": "x" * 257}
    problem(await tenant.post("/openai/v1/chat/completions", json=body), 400, "invalid_request", "/user")


def refusal(answer: httpx.Response, pointer: str) -> str:
    """Return the sentence of a refusal of a field of the request."""
    assert answer.status_code in {400, 422}, answer.text
    body = problem(answer, answer.status_code, "invalid_request", pointer)
    return str(body["errors"][0]["detail"])


@pytest.mark.parametrize("name", [
    "conversation_idd", "conversationid", "conversationId", "Conversation_ID", "conversation-id", "convesation_id",
    "conversation_di", "conversation_ids", "xconversation_id",
])  # fmt: skip
async def test_a_name_that_is_almost_conversation_id_is_refused(tenant: Client, fake: FakeChat, name: str) -> None:
    body: dict[str, Any] = {"messages": [user("hi")], "model": CHAT_MODEL}
    path = "/openai/v1/chat/completions"
    for sent, pointer in (({name: "trip"}, f"/{name}"), ({"metadata": {name: "trip"}}, f"/metadata/{name}")):
        assert "`conversation_id`" in refusal(await tenant.post(path, json=body | sent), pointer)
    sent = {"input": "hi", "model": CHAT_MODEL, name: "trip"}
    assert "`conversation`" in refusal(await tenant.post("/openai/v1/responses", json=sent), f"/{name}")
    assert fake.chats == []


@pytest.mark.parametrize("path", ["/openai/v1/chat/completions", "/openai/v1/responses"])
@pytest.mark.parametrize("name", ["X-Conversation-Idd", "X-Converstion-Id", "Conversation-Id", "X_Conversation_Id"])
async def test_a_header_that_is_almost_the_right_one_is_refused(
    tenant: Client, fake: FakeChat, name: str, path: str
) -> None:
    body = {"input": "hi"} if path.endswith("responses") else {"messages": [user("hi")]}
    answer = await tenant.post(path, json=body | {"model": CHAT_MODEL}, headers={name: "trip"})
    assert "X-Conversation-Id" in refusal(answer, f"/{name.lower()}")
    assert fake.chats == []


async def test_an_answer_says_that_nothing_is_stored(tenant: Client) -> None:
    chat_body = {"messages": [user("hi")], "model": CHAT_MODEL, "metadata": {"conversation": "x", "id": "y"}}
    unstored: list[tuple[str, dict[str, Any]]] = [
        ("chat/completions", chat_body),
        ("chat/completions", chat_body | {"stream": True}),
        ("responses", {"input": "hi", "model": CHAT_MODEL, "store": False}),
        ("responses", {"input": "hi", "model": CHAT_MODEL, "store": False, "stream": True}),
    ]
    for path, body in unstored:
        answer = await tenant.post(f"/openai/v1/{path}", json=body)
        assert (answer.status_code, answer.headers["X-Turnkeep-Stored"]) == (200, "false"), answer.text
    for path, body in (
        ("chat/completions", chat_body | {"conversation_id": "trip"}),
        ("responses", {"input": "hi", "model": CHAT_MODEL}),
    ):
        answer = await tenant.post(f"/openai/v1/{path}", json=body)
        assert "X-Turnkeep-Stored" not in answer.headers
        assert answer.headers["X-Conversation-Id"]
    assert (await tenant.get("/openai/v1/models")).headers["X-Turnkeep-Stored"] == "false"


async def test_without_a_conversation_it_is_a_proxy_that_stores_nothing(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    messages = [{"role": "system", "content": "x"}, user("a")]
    answer = await chat(ai, None, *messages, extra_headers={"X-Agent-Id": "a"})
    assert answer.choices[0].message.content == "Hello."
    assert fake.chats[-1] == {"model": CHAT_MODEL, "messages": messages}
    pieces = await streamed(ai, None, *messages)
    assert text_of(pieces) == "Hello."
    assert not any(piece.usage for piece in pieces)
    assert (await tenant.get("/v1/conversations")).json()["data"] == []


async def test_the_context_stays_within_the_budget(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    await tenant.append(conversation, *[f"number {n} " + "word " * 50 for n in range(30)])
    more = {"conversation_id": conversation, "token_budget": 400}
    await ai.chat.completions.create(model=CHAT_MODEL, messages=[user("and?")], extra_body=more)
    assert 1 < len(fake.chats[-1]["messages"]) < 10
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.chat.completions.create(
            model=CHAT_MODEL, messages=[{"role": "system", "content": "word " * 900}, user("and?")], extra_body=more
        )
    assert refused.value.code == "budget_too_small"
    await ai.chat.completions.create(model=CHAT_MODEL, messages=[user("word " * 900)], extra_body=more)
    assert "tokens left out …]" in fake.chats[-1]["messages"][-1]["content"]


# streamed answers


async def test_a_streamed_answer_comes_as_it_is_said_and_is_stored_once(ai: openai.AsyncOpenAI, tenant: Client) -> None:
    conversation = await tenant.conversation()
    pieces = await streamed(ai, conversation, "hi")
    assert text_of(pieces) == "Hello."
    assert len(pieces) > 2
    assert not any("usage" in piece.model_dump(exclude_unset=True) for piece in pieces)
    assert await said(tenant, conversation) == [("user", "hi"), ("assistant", "Hello.")]
    turn = (await tenant.history(conversation))[-1]
    assert turn["usage"] == {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
    assert turn["seq"] == 2


async def test_usage_is_shown_to_who_asks_for_it(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    pieces = await streamed(ai, conversation, "hi", stream_options={"include_usage": True})
    assert pieces[-1].usage.total_tokens == 30
    fake.stream_options = False  # an endpoint that does not know them
    pieces = await streamed(ai, conversation, "again")
    assert text_of(pieces) == "Hello."
    assert len(await said(tenant, conversation)) == 4


async def test_followers_see_the_answer_while_it_is_written(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat, port: int
) -> None:
    conversation = await tenant.conversation()
    fake.reply = says("one two three four", pause_s=0.02)
    async with socket_on(port, conversation, tenant.key) as socket:
        await socket.send("subscribe")
        await socket.until("snapshot")
        asking = asyncio.create_task(streamed(ai, conversation, "count"))
        opened = await socket.until("turn.opened")
        assert opened["turn"]["content"] == "count"
        answer = await socket.until("turn.opened")
        text = ""
        while len(text) < len("one two three four"):
            delta = await socket.until("turn.delta")
            assert (delta["turn_id"], delta["offset"]) == (answer["turn"]["id"], len(text))
            text += delta["delta"]
        committed = await socket.until("turn.committed")
        assert committed["turn"]["content"] == "count"
        committed = await socket.until("turn.committed")
        assert committed["turn"]["content"] == text == "one two three four"
        await asking


@pytest.mark.slow
async def test_tool_calls_and_their_results_are_kept(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    call = ("call_1", "weather", '{"city": "Rome"}')
    fake.replies = [Reply("", tool_calls=(call, ("call_2", "weather", "{}"))), says("Sunny.")]
    pieces = await streamed(ai, conversation, "weather?", tools=TOOLS)
    arguments = "".join(
        one.function.arguments or ""
        for piece in pieces if piece.choices
        for one in piece.choices[0].delta.tool_calls or [] if one.index == 0
    )  # fmt: skip
    assert arguments == '{"city": "Rome"}'
    calls = [
        {"id": key, "type": "function", "function": {"name": name, "arguments": text}}
        for key, name, text in (call, ("call_2", "weather", "{}"))
    ]
    results = [{"role": "tool", "tool_call_id": key, "content": f"result of {key}"} for key in ("call_1", "call_2")]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    answer = await chat(ai, conversation, "weather?", asked, *results, tools=TOOLS)
    assert answer.choices[0].message.content == "Sunny."
    assert fake.chats[-1]["messages"] == [user("weather?"), asked, *results]
    turns = await tenant.history(conversation)
    assert [turn["kind"] for turn in turns] == [
        "user_message", "tool_call_request", "tool_result", "tool_result", "agent_message"
    ]  # fmt: skip
    assert turns[1]["tool_calls"] == calls


async def test_what_the_model_says_beyond_text_is_kept(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    fake.reply = Reply("Yes\0\ud800.", more=(("reasoning_content", "because"),))
    await streamed(ai, conversation, "hm?")
    await chat(ai, conversation, "hm?", assistant("Yes."), "and?")
    turns = [turn for turn in await tenant.history(conversation) if turn["role"] == "assistant"]
    for turn in turns:
        assert turn["content"][0] == {"type": "text", "text": "Yes."}
        assert turn["content"][1]["members"] == {"reasoning_content": "because"}


# what goes wrong


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("mode", "error", "status"),
    [
        ("rate_limited", openai.RateLimitError, 429),
        ("error", openai.InternalServerError, 500),
        ("overloaded", openai.InternalServerError, 503),
        ("too_long", openai.BadRequestError, 400),
        ("no_model", openai.NotFoundError, 404),
        ("unauthorized", openai.InternalServerError, 503),
        ("garbage", openai.InternalServerError, 502),
        ("html", openai.InternalServerError, 502),
        ("reset", openai.InternalServerError, 503),
        ("timeout", openai.InternalServerError, 503),
    ],
)
@pytest.mark.sampled
async def test_a_failure_of_the_endpoint_keeps_its_status_and_commits_nothing(
    ai: openai.AsyncOpenAI, tenant: Client, modelled: Service, fake: FakeChat, mode: str, error: Any, status: int,
    stream: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    conversation = await tenant.conversation()
    fake.reply, fake.retry_after = Reply(mode=mode), "7"
    with pytest.raises(error) as raised:
        await (streamed if stream else chat)(ai, conversation, "hi")
    assert raised.value.status_code == status
    if mode == "rate_limited":
        assert raised.value.response.headers["retry-after"] == "7"
        assert raised.value.body == {"message": "slow down", "code": "rate_limit_exceeded"}
    if mode == "unauthorized":
        assert "sk-" not in str(raised.value.body)
    assert await rows(modelled, tenant, conversation) == [("user", "aborted"), ("assistant", "aborted")]
    aborted = await said(tenant, conversation)
    assert aborted == []
    fake.reply = says("Better.")
    await chat(ai, conversation, "hi")
    assert await said(tenant, conversation) == [("user", "hi"), ("assistant", "Better.")]


async def test_a_stream_that_is_cut_ends_in_an_error_and_keeps_what_there_was_as_aborted(
    ai: openai.AsyncOpenAI, tenant: Client, modelled: Service, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    fake.reply = says("one two three", breaks_after=2)
    with pytest.raises(openai.APIError) as raised:
        await streamed(ai, conversation, "hi")
    assert raised.value.code == "model_unavailable"
    assert await said(tenant, conversation) == []
    assert await rows(modelled, tenant, conversation) == [("user", "aborted"), ("assistant", "aborted")]
    async with modelled.container.database.transaction(tenant.tenant_id) as tx:
        kept = await tx.fetch(
            "select content, metadata from turns where tenant_id = $1 order by role", tenant.tenant_id
        )
    assert [row["content"] for row in kept] == ['"one t"', '"hi"']
    assert all("model_unavailable" in row["metadata"] for row in kept)


async def test_who_hangs_up_in_the_middle_stores_nothing(
    ai: openai.AsyncOpenAI, tenant: Client, modelled: Service, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    fake.reply = says("one two three", stops_after=2)
    stream = await chat(ai, conversation, "hi", stream=True)
    async for _ in stream:
        break
    await stream.close()
    await nothing_is_pending(modelled, tenant, conversation)
    assert await rows(modelled, tenant, conversation) == [("user", "aborted"), ("assistant", "aborted")]


async def test_who_hangs_up_before_the_answer_stores_nothing(
    ai: openai.AsyncOpenAI, tenant: Client, modelled: Service, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    fake.reply = Reply(mode="timeout")
    fake.asked.clear()
    asking = asyncio.create_task(chat(ai, conversation, "hi"))
    await fake.asked.wait()
    assert await rows(modelled, tenant, conversation) == [("user", "pending"), ("assistant", "pending")]
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await nothing_is_pending(modelled, tenant, conversation)
    assert await rows(modelled, tenant, conversation) == [("user", "aborted"), ("assistant", "aborted")]


@pytest.mark.slow
async def test_an_answer_may_take_longer_than_a_lease(
    ai: openai.AsyncOpenAI, tenant: Client, modelled: Service, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    fake.reply = says("late", delay_s=2.6)
    asking = asyncio.create_task(streamed(ai, conversation, "hi"))
    await asyncio.sleep(2.4)
    await modelled.container.streams.abort_expired()  # what other tests have left, too
    await asking
    assert await said(tenant, conversation) == [("user", "hi"), ("assistant", "late")]


async def test_several_at_once_in_one_conversation_are_each_stored_whole(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    fake.reply = lambda request: says("re: " + request["messages"][-1]["content"], pause_s=0.01)
    await asyncio.gather(*(streamed(ai, conversation, f"question {n}") for n in range(6)))
    contents = [content for _, content in await said(tenant, conversation)]
    assert len(contents) == 12
    for question, answer in zip(contents[::2], contents[1::2], strict=True):
        assert answer == f"re: {question}"
    assert (await tenant.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True


async def test_errors_of_our_own_are_the_clients_own_exceptions(
    ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat
) -> None:
    other = ai.with_options(api_key="tk_wrong")
    with pytest.raises(openai.AuthenticationError):
        await chat(other, None, "hi")
    with pytest.raises(openai.NotFoundError) as missing:
        await chat(ai, "01JZZZZZZZZZZZZZZZZZZZZZZZ", "hi")
    assert (missing.value.code, missing.value.type) == ("not_found", "not_found_error")
    conversation = await tenant.conversation()
    with pytest.raises(openai.BadRequestError) as wrong:
        await chat(ai, conversation, {"role": "narrator", "content": "x"})
    assert wrong.value.param == "messages.0.role"
    orphan = {"role": "tool", "tool_call_id": "call_x", "content": "x"}
    with pytest.raises(openai.BadRequestError) as wrong:
        await chat(ai, conversation, orphan)
    assert (wrong.value.code, wrong.value.param) == ("tool_call_unknown", "messages.0.tool_call_id")
    for message, param in (
        ({"role": "function", "name": "f", "content": "x"}, "messages.1.name"),
        ({"role": "assistant", "content": None, "function_call": {"arguments": "{}"}}, "messages.1.function_call.name"),
    ):
        with pytest.raises(openai.BadRequestError) as wrong:
            await chat(ai, conversation, {"role": "system", "content": "Be brief."}, message)
        assert wrong.value.param == param
    assert fake.chats == []


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("temperature", "1"), ("temperature", True), ("top_p", "1"), ("max_tokens", "5"),
        ("max_completion_tokens", 5.5), ("n", "1"), ("seed", "7"), ("stream", "true"), ("stream", 1), ("store", 1),
        ("service_tier", 7), ("parallel_tool_calls", "no"), ("stop", 7), ("reasoning_effort", 1), ("tools", {}),
        ("response_format", "json"), ("metadata", []), ("user", 7), ("logprobs", "yes"),
    ],
)  # fmt: skip
async def test_a_parameter_of_another_type_is_refused(
    tenant: Client, fake: FakeChat, member: str, value: Any, *, named: bool
) -> None:
    body = {"messages": [user("hi")], member: value}
    body |= {"conversation_id": await tenant.conversation()} if named else {}
    refused = await tenant.post("/openai/v1/chat/completions", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["param"]) == (400, "invalid_request_error", member)
    assert fake.chats == []


async def test_a_temperature_may_be_a_whole_number(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    await chat(ai, await tenant.conversation(), "hi", temperature=1)
    await ai.responses.create(model=CHAT_MODEL, input="hi", temperature=1)
    assert [sent["temperature"] for sent in fake.chats] == [1, 1]


async def test_a_call_is_in_the_ledger(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    await chat(ai, None, "a")
    await streamed(ai, await tenant.conversation(), "b")
    fake.reply = says("one two three", breaks_after=2)
    with pytest.raises(openai.APIError):
        await streamed(ai, None, "b")

    async def counted() -> bool:  # a stream is counted after its last event
        [day] = (await tenant.get("/v1/admin/usage")).json()["data"]
        return (day["purpose"], day["calls"], day["failed"], day["prompt_tokens"] >= 40) == ("generation", 3, 1, True)

    await until(counted)


async def test_the_synchronous_client_streams_and_answers(port: int, tenant: Client) -> None:
    conversation = await tenant.conversation()

    def talk() -> tuple[str, str]:
        body = {"conversation_id": conversation}
        with openai.OpenAI(api_key=tenant.key, base_url=f"http://127.0.0.1:{port}/openai/v1") as client:
            plain = client.chat.completions.create(model=CHAT_MODEL, messages=[user("a")], extra_body=body)
            stream = client.chat.completions.create(
                model=CHAT_MODEL, messages=[user("b")], extra_body=body, stream=True
            )
            return str(plain.choices[0].message.content), text_of(list(stream))

    assert await asyncio.to_thread(talk) == ("Hello.", "Hello.")
    assert [content for _, content in await said(tenant, conversation)] == ["a", "Hello.", "b", "Hello."]


async def test_embeddings_and_models_are_passed_through(ai: openai.AsyncOpenAI, fake: FakeChat) -> None:
    found = await ai.embeddings.create(model="fake-embedding", input=["a", "b"])
    assert [len(one.embedding) for one in found.data] == [fake.dimensions] * 2
    assert [model.id async for model in ai.models.list()] == [CHAT_MODEL]
    assert (await ai.models.retrieve(CHAT_MODEL)).id == CHAT_MODEL
    with pytest.raises(openai.NotFoundError):
        await ai.models.retrieve("none")


async def test_another_tenants_conversation_is_not_there(
    ai: openai.AsyncOpenAI, tenant: Client, modelled: Service, fake: FakeChat
) -> None:
    async with await modelled.new_tenant() as other:
        theirs = await other.conversation(external_id="room")
        await other.append(theirs, "the quokka is asleep")
        for ask in (chat, streamed):
            with pytest.raises(openai.NotFoundError):
                await ask(ai, theirs, "what is asleep?")
        response = await tenant.post("/v1/generate", json={"conversation_id": theirs, "messages": [user("what?")]})
        assert response.status_code == 404
        assert fake.chats == []
        await chat(ai, "room", "what is asleep?")  # of the same name, and one's own
        assert "quokka" not in str(fake.chats)
        assert [turn["content"] for turn in await other.history(theirs)] == ["the quokka is asleep"]


async def test_limits_of_bodies_hold_here_too(tenant: Client) -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    for path in ("chat/completions", "conversations"):
        response = await tenant.post(f"/openai/v1/{path}", json={"messages": [], "deep": deep})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "json_too_deep")
        response = await tenant.post(f"/openai/v1/{path}", content=b" " * (8 * 2**20 + 1))
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.slow
async def test_any_replica_answers_in_any_conversation(
    service: Service, fake: FakeChat, ai: openai.AsyncOpenAI, tenant: Client, tmp_path: Any
) -> None:
    conversation = await tenant.conversation()
    async with (
        open_modelled(service, fake, tmp_path) as second,
        serving(second.app, second.settings) as port,
        openai.AsyncOpenAI(api_key=tenant.key, base_url=f"http://127.0.0.1:{port}/openai/v1") as there,
    ):
        history: list[Any] = []
        for number, asking in enumerate((ai, there, ai, there)):
            fake.reply = says(f"answer {number}")
            history.append(user(f"question {number}"))
            history.append(assistant(text_of(await streamed(asking, conversation, *history))))
        assert [content for _, content in await said(tenant, conversation)] == [one["content"] for one in history]
        # what one replica gives up while it waits, the other's sweep leaves alone, and takes when it is dead
        fake.reply = says("one two three", stops_after=3)
        stream = await chat(there, conversation, "and?", stream=True)
        async for piece in stream:
            if text_of([piece]):
                break
        await second.container.streams.abort_expired()
        assert await tenant.history(conversation, status="aborted") == []
        await stream.close()


@pytest.mark.parametrize("model", ["../files", "..", "%2e%2e/files", "a/../../chat/completions", "."])
async def test_the_name_of_a_model_leads_to_no_other_path_of_the_endpoint(
    port: int, tenant: Client, fake: FakeChat, model: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET /openai/v1/models/{model} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tenant.key}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert fake.headers == []


async def test_too_much_system_text_is_refused(tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    messages = [{"role": "system", "content": "x " * 300_000}] * 2
    body = {"conversation_id": conversation, "messages": [*messages, user("hi")], "token_budget": 5_000_000}
    response = await tenant.post("/openai/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["code"]) == (413, "text_too_large")
    assert fake.chats == []


async def test_too_many_messages_are_refused_before_they_are_compared(tenant: Client) -> None:
    conversation = await tenant.conversation()
    body = {"conversation_id": conversation, "messages": [user("a")] * 10_001}
    response = await tenant.post("/openai/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (400, "/messages")


async def test_long_histories_are_compared_beside_all_else(
    ai: openai.AsyncOpenAI, tenant: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def compared(*given: Any, **more: Any) -> Any:
        threads.append(threading.current_thread())
        return align(*given, **more)

    monkeypatch.setattr(preparation, "align", compared)
    conversation = await tenant.conversation()
    await tenant.append(conversation, *["a"] * 499, "b")
    await chat(ai, conversation, *[user("a")] * 600, user("b"), user("c"))
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("ask", [chat, streamed])
@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"prompt_tokens": 10**18, "completion_tokens": 2}, {"prompt_tokens": None, "completion_tokens": 2}),
        ({"prompt_tokens": float("nan")}, {"prompt_tokens": None}),
        ({"prompt_tokens": 1, "more": "x" * 20_000}, {"prompt_tokens": 1}),
    ],
)
async def test_a_usage_that_cannot_be_kept_does_not_cost_the_answer(
    tenant: Client, ai: openai.AsyncOpenAI, fake: FakeChat, monkeypatch: pytest.MonkeyPatch, ask: Any, told: Any,
    kept: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(fake, "_usage", lambda _: told)
    conversation = await tenant.conversation()
    await ask(ai, conversation, "hi")
    assert (await tenant.history(conversation))[-1]["usage"] == kept


@pytest.mark.slow
async def test_a_stream_may_say_all_at_once(ai: openai.AsyncOpenAI, tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    long = "Ünd so weiter. " * 10_000
    calling = Reply(None, tool_calls=(("c", "weather", json.dumps({"a": long})),), piece=10**6)
    fake.replies = [says(long, piece=10**6), calling]
    assert text_of(await streamed(ai, conversation, "tell me")) == long
    await streamed(ai, conversation, "and call", tools=TOOLS)
    turns = await tenant.history(conversation)
    assert turns[1]["content"] == long
    assert json.loads(turns[3]["tool_calls"][0]["function"]["arguments"]) == {"a": long}
