"""A client that disconnects during an answer: `on_disconnect` says whether question and partial answer are kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.api import Client, Service, open_service
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, calls, open_fake_chat, says
from tests.support.live import serving
from tests.support.timing import PATIENT_S

ROUTES = ("generate", "completions", "responses")
by_route = pytest.mark.parametrize("route", ROUTES)
QUESTION = {"role": "user", "content": "Count for me."}


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture(scope="module")
async def modelled(service: Service, fake: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_service(
        service.database, tmp_path_factory.mktemp("modelled"), embedder="none", llm_model=CHAT_MODEL,
        llm_base_url=fake.url, llm_max_retries=0, stream_debounce_ms=20,
    ) as opened:  # fmt: skip
        yield opened


@pytest.fixture
async def port(modelled: Service) -> AsyncIterator[int]:
    async with serving(modelled.app, modelled.settings) as opened:
        yield opened


@pytest.fixture
async def tenant(modelled: Service, fake: FakeChat) -> AsyncIterator[Client]:
    fake.reply, fake.replies = says("Hello."), []
    fake.chats.clear()
    async with await modelled.new_tenant() as opened:
        yield opened
    fake.may_go_on.set()


def request_of(
    route: str, conversation: str, messages: list[dict[str, Any]], **more: Any
) -> tuple[str, dict[str, Any], dict[str, str]]:
    """The path, the body and the headers of a request for an answer in a conversation."""
    if route == "generate":
        return "/v1/generate", {"conversation_id": conversation, "messages": messages} | more, {}
    body = {"model": CHAT_MODEL} | more
    if route == "completions":
        return "/openai/v1/chat/completions", body | {"messages": messages, "conversation_id": conversation}, {}
    return "/openai/v1/responses", body | {"input": messages}, {"X-Conversation-Id": conversation}


async def cut(
    port: int, tenant: Client, fake: FakeChat, route: str, conversation: str, reply: Reply, *,
    messages: list[dict[str, Any]] | None = None, headers: dict[str, str] | None = None, **more: Any,
) -> str:  # fmt: skip
    """Ask for an answer that stops, and close the socket when all that the model says has arrived. Gives the text."""
    fake.reply, fake.may_go_on = reply, asyncio.Event()
    path, body, named = request_of(route, conversation, messages or [QUESTION], stream=True, **more)
    expected = (reply.text or "")[: max(0, (reply.stops_after or 1) - 1) * reply.piece]
    expected = expected.rsplit(" ", 1)[0] if route == "responses" else expected  # it sends whole words
    received = ""
    before = len(fake.chats)
    async with httpx.AsyncClient(headers=tenant.headers, timeout=PATIENT_S) as http:
        url = f"http://127.0.0.1:{port}{path}"
        async with http.stream("POST", url, json=body, headers=named | (headers or {})) as response:
            assert response.status_code == 200, await response.aread()
            lines = response.aiter_lines()
            has_event = route != "responses"  # it sends events before the model answers
            while not has_event or expected not in text_of(received) or len(fake.chats) == before:
                received += await anext(lines) + "\n"
                has_event = has_event or "data: {" in received
            await asyncio.sleep(0.3 if reply.tool_calls else 0.05)
    return received


def text_of(received: str) -> str:
    """The text of the events so far, of any route."""
    texts: list[str] = []
    for line in received.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        if event.get("type") in {"delta", "response.output_text.delta"}:
            texts.append(event.get("text", event.get("delta", "")))
        texts += [choice["delta"].get("content") or "" for choice in event.get("choices", [])]
    return "".join(texts)


async def ended(tenant: Client, conversation: str, count: int) -> list[dict[str, Any]]:
    """The history, when it has so many turns."""
    for _ in range(200):
        turns = await tenant.history(conversation)
        if len(turns) >= count:
            break
        await asyncio.sleep(0.05)
    assert [turn["seq"] for turn in turns] == sorted(turn["seq"] for turn in turns)
    return turns


async def answered(
    tenant: Client, fake: FakeChat, route: str, conversation: str, messages: list[dict[str, Any]], **more: Any
) -> None:
    fake.reply = says("one two three four five six")
    path, body, named = request_of(route, conversation, messages, **more)
    answer = await tenant.post(path, json=body, headers=named)
    assert answer.status_code == 200, answer.text


COUNTING = says("one two three four five six", stops_after=3)
PARTIAL = "one two th"


@by_route
async def test_a_partial_answer_is_kept_with_its_question_and_marked_as_incomplete(
    port: int, tenant: Client, fake: FakeChat, route: str
) -> None:
    conversation = await tenant.conversation()
    await cut(port, tenant, fake, route, conversation, COUNTING, on_disconnect="keep")
    question, answer = await ended(tenant, conversation, 2)
    assert (question["content"], answer["content"]) == ("Count for me.", PARTIAL)
    assert answer["metadata"]["incomplete"] is True
    assert "incomplete" not in question["metadata"]
    assert (answer["status"], answer["model"]) == ("committed", CHAT_MODEL)
    assert "on_disconnect" not in fake.chats[-1]
    body = {"token_budget": 1000, "format": "openai"}
    context = (await tenant.post(f"/v1/conversations/{conversation}/context", json=body)).json()
    assert [message["content"] for message in context["messages"]] == ["Count for me.", PARTIAL]
    lines = (await tenant.get(f"/v1/conversations/{conversation}/export")).text.splitlines()
    exported = [json.loads(line) for line in lines]
    assert any(record.get("content") == PARTIAL and record["metadata"]["incomplete"] is True for record in exported)


@by_route
@pytest.mark.parametrize("chosen", [{}, {"on_disconnect": "abort"}], ids=["not chosen", "abort"])
async def test_without_keep_question_and_partial_answer_are_aborted(
    port: int, tenant: Client, fake: FakeChat, route: str, chosen: dict[str, Any]
) -> None:
    conversation = await tenant.conversation()
    await cut(port, tenant, fake, route, conversation, COUNTING, **chosen)
    for _ in range(200):
        page = await tenant.get(f"/v1/conversations/{conversation}/turns", params={"status": "aborted"})
        if len(page.json()["data"]) == 2:
            break
        await asyncio.sleep(0.05)
    assert [turn["content"] for turn in page.json()["data"]] == ["Count for me.", PARTIAL]
    assert await tenant.history(conversation) == []


@by_route
async def test_before_the_first_token_the_question_alone_is_kept(
    port: int, tenant: Client, fake: FakeChat, route: str
) -> None:
    conversation = await tenant.conversation()
    await cut(port, tenant, fake, route, conversation, says("one two", stops_after=1), on_disconnect="keep")
    [question] = await ended(tenant, conversation, 1)
    assert question["content"] == "Count for me."
    await answered(tenant, fake, route, conversation, [QUESTION])
    turns = await tenant.history(conversation)
    assert [turn["content"] for turn in turns] == ["Count for me.", "one two three four five six"]


@pytest.mark.parametrize("stream", [True, False])
@by_route
async def test_a_client_that_disconnects_before_the_model_answers_leaves_its_question(
    port: int, tenant: Client, fake: FakeChat, route: str, *, stream: bool
) -> None:
    conversation = await tenant.conversation()
    fake.reply = says("late", delay_s=3.0)
    path, body, named = request_of(route, conversation, [QUESTION], stream=stream, on_disconnect="keep")
    async with httpx.AsyncClient(headers=tenant.headers, timeout=PATIENT_S) as http:
        asking = asyncio.create_task(http.post(f"http://127.0.0.1:{port}{path}", json=body, headers=named))
        while not fake.chats:  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0.02)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert [turn["content"] for turn in await ended(tenant, conversation, 1)] == ["Count for me."]


@by_route
@pytest.mark.parametrize("resent", ["the question", "question and partial answer"])
async def test_a_later_request_with_the_same_history_stores_nothing_twice(
    port: int, tenant: Client, fake: FakeChat, route: str, resent: str
) -> None:
    conversation = await tenant.conversation()
    await cut(port, tenant, fake, route, conversation, COUNTING, on_disconnect="keep")
    await ended(tenant, conversation, 2)
    if resent == "the question":
        await answered(tenant, fake, route, conversation, [QUESTION])
        expected = ["Count for me.", "one two three four five six"]
    else:
        more = {"role": "user", "content": "Go on."}
        await answered(tenant, fake, route, conversation, [QUESTION, {"role": "assistant", "content": PARTIAL}, more])
        expected = ["Count for me.", PARTIAL, "Go on.", "one two three four five six"]
    turns = await tenant.history(conversation)
    assert [turn["content"] for turn in turns] == expected
    assert "incomplete" not in turns[-1]["metadata"]
    assert (await tenant.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True


@by_route
@pytest.mark.parametrize("earlier", [[], ["yes"]])
async def test_a_client_that_drops_the_partial_answer_stores_only_its_next_question(
    port: int, tenant: Client, fake: FakeChat, route: str, earlier: list[str]
) -> None:
    conversation = await tenant.conversation()
    for said in earlier:
        await answered(tenant, fake, route, conversation, [{"role": "user", "content": said}])
    await cut(port, tenant, fake, route, conversation, COUNTING, on_disconnect="keep")
    await ended(tenant, conversation, 2 + 2 * len(earlier))
    await answered(tenant, fake, route, conversation, [QUESTION, {"role": "user", "content": "Are you there?"}])
    turns = await tenant.history(conversation)
    assert [turn["content"] for turn in turns[2 * len(earlier) :]] == [
        "Count for me.", PARTIAL, "Are you there?", "one two three four five six",
    ]  # fmt: skip


async def test_a_later_question_equal_to_an_earlier_one_is_a_new_one(port: int, tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    await answered(tenant, fake, "generate", conversation, [{"role": "user", "content": "yes"}])
    await cut(port, tenant, fake, "generate", conversation, COUNTING, on_disconnect="keep")
    await ended(tenant, conversation, 4)
    await answered(tenant, fake, "generate", conversation, [{"role": "user", "content": "yes"}])
    turns = await tenant.history(conversation)
    assert [turn["content"] for turn in turns[2:5]] == ["Count for me.", PARTIAL, "yes"]
    assert len(turns) == 6


ONE_CALL = ("search", {"query": "how many marsupials are there"})


@by_route
async def test_a_call_that_was_cut_is_dropped_and_its_text_stays(
    port: int, tenant: Client, fake: FakeChat, route: str
) -> None:
    conversation = await tenant.conversation()
    cut_call = calls(ONE_CALL, stops_after=4)
    await cut(port, tenant, fake, route, conversation, cut_call, on_disconnect="keep")
    assert [turn["kind"] for turn in await ended(tenant, conversation, 1)] == ["user_message"]
    with_text = Reply("Let me search. ", piece=15, tool_calls=cut_call.tool_calls, stops_after=4)
    question = {"role": "user", "content": "And with text?"}
    await cut(port, tenant, fake, route, conversation, with_text, messages=[question], on_disconnect="keep")
    *_, answer = await ended(tenant, conversation, 3)
    assert (answer["content"], answer["tool_calls"], answer["kind"]) == ("Let me search. ", [], "agent_message")
    assert answer["metadata"]["incomplete"] is True


async def test_of_two_calls_the_complete_one_is_kept(port: int, tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    two = calls(("clock", {}), ONE_CALL, stops_after=6)
    await cut(port, tenant, fake, "completions", conversation, two, on_disconnect="keep")
    *_, answer = await ended(tenant, conversation, 2)
    assert [call["function"]["name"] for call in answer["tool_calls"]] == ["clock"]
    await answered(tenant, fake, "completions", conversation, [{"role": "user", "content": "Never mind."}])
    assert len(await tenant.history(conversation)) == 4


@by_route
async def test_an_answer_whose_model_fails_is_aborted_though_the_client_would_keep_it(
    port: int, tenant: Client, fake: FakeChat, route: str
) -> None:
    conversation = await tenant.conversation()
    fake.reply = says("one two three", breaks_after=2)
    path, body, named = request_of(route, conversation, [QUESTION], stream=True, on_disconnect="keep")
    async with httpx.AsyncClient(headers=tenant.headers, timeout=PATIENT_S) as http:
        await http.post(f"http://127.0.0.1:{port}{path}", json=body, headers=named)
    assert await tenant.history(conversation) == []


async def test_a_response_that_was_kept_is_incomplete_with_its_items(port: int, tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    received = await cut(port, tenant, fake, "responses", conversation, COUNTING, on_disconnect="keep")
    response_id = json.loads(received.split("data: ", 1)[1].split("\n", 1)[0])["response"]["id"]
    await ended(tenant, conversation, 2)
    response = (await tenant.get(f"/openai/v1/responses/{response_id}")).json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", None)
    [item] = response["output"]
    assert (item["status"], item["content"][0]["text"]) == ("incomplete", PARTIAL)
    following = await tenant.get(f"/openai/v1/responses/{response_id}", params={"stream": "true"})
    assert "event: response.incomplete" in following.text
    fake.reply = says("seven")
    body = {"model": CHAT_MODEL, "input": "Go on.", "previous_response_id": response_id}
    assert (await tenant.post("/openai/v1/responses", json=body)).status_code == 200
    assert [message["content"] for message in fake.chats[-1]["messages"]] == ["Count for me.", PARTIAL, "Go on."]


async def test_a_response_without_any_text_is_cancelled_and_its_input_is_kept(
    port: int, tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    stopped = says("one two", stops_after=1)
    received = await cut(port, tenant, fake, "responses", conversation, stopped, on_disconnect="keep")
    response_id = json.loads(received.split("data: ", 1)[1].split("\n", 1)[0])["response"]["id"]
    await ended(tenant, conversation, 1)
    for _ in range(100):
        response = (await tenant.get(f"/openai/v1/responses/{response_id}")).json()
        if response["status"] != "in_progress":
            break
        await asyncio.sleep(0.05)
    assert (response["status"], response["output"]) == ("cancelled", [])
    items = (await tenant.get(f"/openai/v1/responses/{response_id}/input_items")).json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["Count for me."]


@pytest.mark.parametrize("named", [True, False], ids=["a named conversation", "a new conversation"])
async def test_a_repeated_request_under_the_same_key_is_answered_again_and_stores_its_question_once(
    port: int, tenant: Client, fake: FakeChat, *, named: bool
) -> None:
    name = {"external_id": "room"} if named else {}
    keyed = {"Idempotency-Key": "the same"}
    fake.reply, fake.may_go_on = COUNTING, asyncio.Event()
    body = {"messages": [QUESTION], "stream": True, "on_disconnect": "keep"} | name
    url = f"http://127.0.0.1:{port}/v1/generate"
    async with (
        httpx.AsyncClient(headers=tenant.headers, timeout=PATIENT_S) as http,
        http.stream("POST", url, json=body, headers=keyed) as response,
    ):
        conversation = response.headers["X-Conversation-Id"]
        lines, received = response.aiter_lines(), ""
        while PARTIAL not in text_of(received):
            received += await anext(lines) + "\n"
    await ended(tenant, conversation, 2)
    fake.reply = says("one two three")
    again = await tenant.post("/v1/generate", json=body, headers=keyed)
    assert (again.status_code, text_of(again.text)) == (200, "one two three")
    assert [turn["content"] for turn in await tenant.history(conversation)] == ["Count for me.", "one two three"]
    assert (await tenant.post("/v1/generate", json=body, headers=keyed)).headers["Idempotent-Replayed"] == "true"


async def test_two_tenants_keep_each_its_own_partial_answer(
    port: int, tenant: Client, modelled: Service, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    async with await modelled.new_tenant() as other:
        assert await other.conversation(id=conversation) == conversation
        await cut(port, tenant, fake, "generate", conversation, COUNTING, on_disconnect="keep")
        await ended(tenant, conversation, 2)
        assert await other.history(conversation) == []
        await cut(
            port, other, fake, "generate", conversation, says("uno dos tres", stops_after=2), on_disconnect="keep"
        )
        texts = [[turn["content"] for turn in await ended(one, conversation, 2)] for one in (tenant, other)]
        assert texts == [["Count for me.", PARTIAL], ["Count for me.", "uno d"]]


@pytest.mark.parametrize("route", ROUTES)
async def test_another_choice_than_abort_and_keep_is_refused(tenant: Client, fake: FakeChat, route: str) -> None:
    path, body, named = request_of(route, await tenant.conversation(), [QUESTION], on_disconnect="store")
    refused = await tenant.post(path, json=body, headers=named)
    assert refused.status_code in {400, 422}, refused.text
    assert "on_disconnect" in refused.text
    assert fake.chats == []


async def test_without_a_conversation_the_member_is_not_passed_on(tenant: Client, fake: FakeChat) -> None:
    body = {"model": CHAT_MODEL, "messages": [QUESTION], "on_disconnect": "keep"}
    assert (await tenant.post("/openai/v1/chat/completions", json=body)).status_code == 200
    assert "on_disconnect" not in fake.chats[-1]
