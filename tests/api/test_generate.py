"""`POST /v1/generate`: a stored answer, in one piece and as events."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import openai
import pytest

from app.agents.generation import answer as generation_answer
from app.conversations.drafts import Draft
from app.conversations.schemas.conversations import TurnInput
from app.conversations.streams.exchanges import open_answer_turn
from app.conversations.turns.placement import PreparedTurn
from app.conversations.turns.turn_writer import TurnWriter
from app.core.errors import Conflict
from app.core.ids import ConversationId, format_id, new_uuid, parse_id
from app.formats.schemas import Role
from app.tenancy.schemas import Caller
from tests.support.api import Client, Service, open_service, problem
from tests.support.fake_chat import CHAT_MODEL, FILTERED, FakeChat, Reply, open_fake_chat, says
from tests.support.live import serving

HI: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture(scope="module")
async def modelled(service: Service, fake: FakeChat, tmp_path_factory: Any) -> AsyncIterator[Service]:
    async with open_service(
        service.database, tmp_path_factory.mktemp("modelled"), embedder="none", llm_model=CHAT_MODEL,
        llm_base_url=fake.url, llm_max_retries=1,
    ) as opened:  # fmt: skip
        yield opened


@pytest.fixture
async def tenant(modelled: Service, fake: FakeChat) -> AsyncIterator[Client]:
    fake.reply, fake.replies = says("Hello."), []
    fake.chats.clear()
    async with await modelled.new_tenant() as opened:
        yield opened


async def generate(tenant: Client, **body: Any) -> dict[str, Any]:
    response = await tenant.post("/v1/generate", json={"messages": HI} | body)
    assert response.status_code == 200, response.text
    return response.json()


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_an_answer_is_stored_with_what_was_asked(tenant: Client, fake: FakeChat) -> None:
    first = await generate(tenant)
    assert first["response"] == "Hello."
    assert first["usage"] == {"prompt_tokens": 20, "completion_tokens": 10}
    assert [(turn["seq"], turn["content"]) for turn in first["turns"]] == [(1, "hi"), (2, "Hello.")]
    again = [*HI, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "more"}]
    second = await generate(tenant, conversation_id=first["conversation_id"], messages=again)
    assert [turn["seq"] for turn in second["turns"]] == [3, 4]
    assert len(await tenant.history(first["conversation_id"])) == 4
    assert fake.chats[-1]["model"] == CHAT_MODEL


async def test_a_conversation_of_the_callers_own_name_is_begun_once(tenant: Client) -> None:
    first = await generate(tenant, external_id="room", project="p")
    both = {"messages": HI, "external_id": "room", "conversation_id": first["conversation_id"]}
    problem(await tenant.post("/v1/generate", json=both), 422, "invalid_request", "/external_id")
    second = await generate(tenant, external_id="room", project="p")
    other = await generate(tenant, external_id="room")
    assert first["conversation_id"] == second["conversation_id"] != other["conversation_id"]


async def test_context_options_model_and_parameters_are_the_callers(tenant: Client, fake: FakeChat) -> None:
    conversation = await tenant.conversation()
    await tenant.append(conversation, *[f"turn {n}" for n in range(20)])
    await generate(
        tenant, conversation_id=conversation, token_budget=2000, model="other", parameters={"temperature": 1},
        context={"recent_turns": 4, "system": "Be kind."},
    )  # fmt: skip
    sent = fake.chats[-1]
    assert (sent["model"], sent["temperature"]) == ("other", 1)
    assert sent["messages"][0] == {"role": "system", "content": "Be kind."}
    # the system text, four of the stored turns or one more, and the new question
    assert 6 <= len(sent["messages"]) <= 7
    assert sent["messages"][-1] == HI[0]


async def test_events_bring_the_text_and_then_what_was_stored(tenant: Client, fake: FakeChat) -> None:
    fake.reply = says("one two three")
    response = await tenant.post("/v1/generate", json={"messages": HI, "stream": True})
    *deltas, (last, done) = events(response.text)
    assert "".join(data["text"] for _, data in deltas) == done["response"] == "one two three"
    assert last == "done"
    assert [turn["content"] for turn in await tenant.history(done["conversation_id"])] == ["hi", "one two three"]


async def test_a_long_stream_takes_work_in_proportion_to_its_length(
    tenant: Client, fake: FakeChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_through, storable = 0, generation_answer.storable

    def counting(value: Any) -> Any:
        nonlocal looked_through
        looked_through += len(value) if isinstance(value, str) else 0
        return storable(value)

    monkeypatch.setattr(generation_answer, "storable", counting)
    fake.reply = says("five!" * 400)
    response = await tenant.post("/v1/generate", json={"messages": HI, "stream": True})
    *deltas, (_, done) = events(response.text)
    assert "".join(data["text"] for _, data in deltas) == done["response"] == "five!" * 400
    assert len(deltas) == 400
    assert looked_through <= 3 * len(done["response"])


async def test_characters_that_were_split_are_sent_whole(tenant: Client, fake: FakeChat) -> None:
    fake.reply = says("a\ud83d\ude00\0b", piece=2)
    response = await tenant.post("/v1/generate", json={"messages": HI, "stream": True})
    *deltas, (_, done) = events(response.text)
    assert "".join(data["text"] for _, data in deltas) == done["response"] == "a\U0001f600b"


@pytest.mark.slow
async def test_while_the_model_is_silent_comments_keep_the_connection(
    service: Service, fake: FakeChat, tmp_path: Any
) -> None:
    fake.reply = says("one two", piece=4, pause_s=0.35)
    settings = {"embedder": "none", "llm_model": CHAT_MODEL, "llm_base_url": fake.url, "live_heartbeat_s": 0.1}
    async with (
        open_service(service.database, tmp_path, **settings) as opened,
        await opened.new_tenant() as tenant,
        serving(opened.app, opened.settings) as port,
    ):
        response = await tenant.post("/v1/generate", json={"messages": HI, "stream": True})
        comments = [block for block in response.text.split("\n\n") if block == ": keep-alive"]
        assert len(comments) >= 4
        *deltas, (_, done) = events(response.text.replace(": keep-alive\n\n", ""))
        assert "".join(data["text"] for _, data in deltas) == done["response"] == "one two"
        # OpenAI's own client passes over them
        base = f"http://127.0.0.1:{port}/openai/v1"
        async with openai.AsyncOpenAI(api_key=tenant.key, base_url=base, max_retries=0) as ai:
            body = {"conversation_id": done["conversation_id"]}
            stream = await ai.chat.completions.create(model=CHAT_MODEL, messages=HI, stream=True, extra_body=body)
            said = "".join([piece.choices[0].delta.content or "" async for piece in stream if piece.choices])
            raw = await ai.post(
                "/chat/completions", cast_to=str, body={"model": CHAT_MODEL, "messages": HI, "stream": True} | body
            )
        assert said == "one two"
        assert raw.count(": keep-alive\n\n") >= 4
        assert len(await tenant.history(done["conversation_id"])) == 6


async def test_a_stream_that_is_cut_ends_with_a_problem(tenant: Client, fake: FakeChat) -> None:
    fake.reply = says("one two three", breaks_after=2)
    response = await tenant.post("/v1/generate", json={"messages": HI, "stream": True})
    name, data = events(response.text)[-1]
    assert (name, data["code"]) == ("error", "model_unavailable")


async def test_it_is_tried_again_and_then_said_why_not(tenant: Client, fake: FakeChat) -> None:
    fake.replies = [Reply(mode="error")]
    assert (await generate(tenant))["response"] == "Hello."
    for mode, status, code in [
        ("rate_limited", 429, "model_rate_limited"), ("overloaded", 503, "model_overloaded"),
        ("too_long", 400, "model_context_exceeded"), ("wrong_json", 502, "model_invalid"),
    ]:  # fmt: skip
        fake.reply = Reply(mode=mode)
        problem(await tenant.post("/v1/generate", json={"messages": HI}), status, code)


@pytest.mark.slow
async def test_a_refusal_by_the_endpoint_keeps_its_status_and_its_error(tenant: Client, fake: FakeChat) -> None:
    fake.reply = Reply(mode="too_long")
    given = {"message": "maximum context length exceeded", "code": "context_length_exceeded"}
    for stream in (False, True):
        answer = await tenant.post("/v1/generate", json={"messages": HI, "stream": stream})
        assert problem(answer, 400, "model_context_exceeded")["error"] == given
    fake.reply, fake.retry_after = Reply(mode="rate_limited"), "7"
    answer = await tenant.post("/v1/generate", json={"messages": HI})
    assert problem(answer, 429, "model_rate_limited")["error"]["code"] == "rate_limit_exceeded"
    assert answer.headers["retry-after"] == "7"
    fake.retry_after = None


TOO_LONG = Reply("This model's maximum context length is 2048 tokens.", mode="refused_as")


@pytest.mark.parametrize(("stream", "stored"), [(False, True), (True, True), (False, False)])
async def test_after_a_refusal_as_too_long_the_context_is_built_again_for_the_window_that_it_named(
    tenant: Client, fake: FakeChat, *, stream: bool, stored: bool
) -> None:
    conversation = await tenant.conversation()
    await tenant.append(conversation, *[f"{number}: {'many words of a long evening ' * 12}" for number in range(60)])
    model = f"narrow-{stream}-{stored}"
    body = {"conversation_id": conversation, "messages": HI, "model": model, "stream": stream}
    if not stored:
        first = await tenant.post(
            "/openai/v1/responses", json={"model": "wide", "input": "Hi", "conversation": conversation}
        )
        body = {"model": model, "input": "Hi", "store": False, "previous_response_id": first.json()["id"]}
    fake.replies, fake.reply = [TOO_LONG], says("Hello.")
    answer = await tenant.post("/v1/generate" if stored else "/openai/v1/responses", json=body)
    assert answer.status_code == 200
    assert "Hello." in answer.text
    refused, answered = (len(json.dumps(chat["messages"])) // 4 for chat in fake.chats[-2:])
    assert refused > 4000
    assert 1000 < answered < 2048
    if stored:
        newest = (await tenant.get(f"/v1/conversations/{conversation}/turns?limit=3")).json()["data"]
        assert [turn["content"] for turn in newest[1:]] == ["hi", "Hello."]


async def test_a_request_that_is_too_long_again_or_whose_caller_chose_the_budget_is_refused(
    tenant: Client, fake: FakeChat
) -> None:
    conversation = await tenant.conversation()
    await tenant.append(conversation, *[f"{number}: {'many words of a long evening ' * 12}" for number in range(60)])
    body = {"conversation_id": conversation, "messages": HI, "model": "narrower"}
    for request, count in ((body | {"token_budget": 6000}, 1), (body | {"model": "narrowest"}, 2)):
        before = len(fake.chats)
        fake.reply = TOO_LONG
        problem(await tenant.post("/v1/generate", json=request), 400, "model_context_exceeded")
        assert len(fake.chats) - before == count
    fake.reply = says("Hello.")
    assert (await tenant.history(conversation))[-1]["content"].startswith("59:")


async def test_the_owner_is_that_of_a_conversation_that_is_created(tenant: Client) -> None:
    made = await generate(tenant, owner="ada")
    named = await generate(tenant, owner="ada", external_id="support-7")
    owned = (await tenant.get("/v1/conversations", params={"owner": "ada"})).json()["data"]
    assert {one["id"] for one in owned} == {made["conversation_id"], named["conversation_id"]}


async def test_integers_of_64_bits_pass_in_the_parameters_alone(tenant: Client, fake: FakeChat) -> None:
    await generate(tenant, parameters={"seed": 2**63 - 1, "tools": [{"maximum": 2**53}]})
    assert (fake.chats[-1]["seed"], fake.chats[-1]["tools"]) == (2**63 - 1, [{"maximum": 2**53}])
    for members in ({"token_budget": 2**60}, {"messages": [{"role": "user", "content": "x", "n": 2**60}]}):
        body = {"messages": HI, "parameters": {"seed": 2**60}} | members
        problem(await tenant.post("/v1/generate", json=body), 422, "number_not_interoperable")


async def test_tool_calls_are_in_the_turn(tenant: Client, fake: FakeChat) -> None:
    fake.reply = Reply(None, tool_calls=(("call_1", "weather", "{}"),))
    answer = await generate(tenant, parameters={"tools": []})
    assert answer["response"] == ""
    assert answer["turns"][-1]["tool_calls"][0]["id"] == "call_1"


async def test_a_budget_of_the_tenant_stops_it_before_anything_is_asked(
    service: Service, fake: FakeChat, tmp_path: Any
) -> None:
    async with (
        open_service(
            service.database, tmp_path, embedder="none", llm_model=CHAT_MODEL, llm_base_url=fake.url,
            llm_daily_tokens=10,
        ) as opened,
        await opened.new_tenant() as tenant,
    ):  # fmt: skip
        fake.reply = says("Hello.")
        conversation = (await generate(tenant))["conversation_id"]
        fake.chats.clear()
        refused = await tenant.post("/v1/generate", json={"messages": HI, "conversation_id": conversation})
        assert "resumes_at" in problem(refused, 429, "model_budget_exhausted")
        assert fake.chats == []
        assert len(await tenant.history(conversation)) == 2


async def test_a_key_without_read_gets_no_answer_of_a_model(tenant: Client, modelled: Service) -> None:
    key = (await tenant.post("/v1/admin/keys", json={"name": "w", "scopes": ["write"]})).json()["key"]
    async with modelled.client(key) as writer:
        problem(await writer.post("/v1/generate", json={"messages": HI}), 403, "forbidden")


async def test_without_a_model_these_calls_report_it_and_all_else_works(client: Client) -> None:
    conversation = await client.conversation()
    body = {"messages": HI, "conversation_id": conversation}
    problem(await client.post("/v1/generate", json=body), 503, "model_not_configured")
    for path, sent in [
        ("chat/completions", body), ("chat/completions", body | {"stream": True}), ("embeddings", {"input": "a"}),
    ]:  # fmt: skip
        refused = problem(await client.post(f"/openai/v1/{path}", json=sent), 503, "model_not_configured")
        assert refused["error"]["code"] == "model_not_configured"
    refused = await client.get("/openai/v1/models")
    assert (problem(refused, 503, "model_not_configured"), refused.headers["x-should-retry"])[1] == "false"
    await client.append(conversation, "still here")
    assert len(await client.history(conversation)) == 1


async def test_wrong_requests_are_refused_before_anything_is_stored(tenant: Client, fake: FakeChat) -> None:
    for body, pointer in [
        ({"messages": []}, "/messages"),
        ({"messages": [{"role": "user"}]}, "/messages/0/content"),
        ({"messages": HI, "context": {"format": "anthropic"}}, "/context/format"),
        ({"messages": HI, "token_budget": 0}, "/token_budget"),
    ]:
        problem(await tenant.post("/v1/generate", json=body), 422, "invalid_request", pointer)
    missing = {"messages": HI, "conversation_id": format_id(new_uuid())}
    problem(await tenant.post("/v1/generate", json=missing), 404, "not_found")
    assert fake.chats == []


async def test_a_tool_whose_result_is_sent_is_among_the_participants(tenant: Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    conversation = await tenant.conversation()
    await tenant.append(conversation, *HI, {"role": "assistant", "tool_calls": [call]})
    result = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
    await generate(tenant, messages=[result], conversation_id=conversation)
    found = (await tenant.get(f"/v1/conversations/{conversation}")).json()["participants"]
    assert {one["actor"]: one.get("role") for one in found} == {"user": None, "assistant": None, "tool": "tool"}


@pytest.mark.parametrize("stream", [False, True])
async def test_where_no_answer_begins_no_conversation_is_left(
    tenant: Client,
    fake: FakeChat,
    modelled: Service,
    stream: bool,  # noqa: FBT001
) -> None:
    history = [*HI, {"role": "assistant", "content": "Hello."}, *HI]
    orphan = {"role": "tool", "tool_call_id": "call_x", "content": "x"}
    fake.reply = FILTERED
    for body, status in [
        ({"messages": history}, 400), ({"messages": [orphan]}, 422), ({"messages": HI, "token_budget": 1}, 422),
    ]:  # fmt: skip
        refused = await tenant.post("/v1/generate", json=body | {"stream": stream})
        assert refused.status_code == status, refused.text
    fake.reply = says("late", delay_s=5)
    fake.asked.clear()
    async with (
        serving(modelled.app, modelled.settings) as port,
        httpx.AsyncClient(headers=tenant.headers, timeout=60) as gone,
    ):
        asking = asyncio.create_task(
            gone.post(f"http://127.0.0.1:{port}/v1/generate", json={"messages": HI, "stream": stream})
        )
        await fake.asked.wait()
        assert len((await tenant.get("/v1/conversations")).json()["data"]) == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        for _ in range(100):
            if not (left := (await tenant.get("/v1/conversations")).json()["data"]):
                break
            await asyncio.sleep(0.05)
        assert left == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_whole_is_stored_though_its_client_goes_away_meanwhile(
    tenant: Client,
    modelled: Service,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,  # noqa: FBT001
) -> None:
    whole, prepare_turns = asyncio.Event(), TurnWriter.prepare_turns

    async def slowly(self: TurnWriter, caller: Caller, drafts: Sequence[Draft]) -> list[PreparedTurn]:
        whole.set()
        await asyncio.sleep(0.3)
        return await prepare_turns(self, caller, drafts)

    monkeypatch.setattr(TurnWriter, "prepare_turns", slowly)
    conversation = await tenant.conversation()
    body = {"messages": HI, "conversation_id": conversation, "stream": stream}
    async with (
        serving(modelled.app, modelled.settings) as port,
        httpx.AsyncClient(headers=tenant.headers, timeout=60) as gone,
    ):
        asking = asyncio.create_task(gone.post(f"http://127.0.0.1:{port}/v1/generate", json=body, headers=KEYED))
        await whole.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        for _ in range(100):
            if turns := await tenant.history(conversation):
                break
            await asyncio.sleep(0.02)
    assert [turn["content"] for turn in turns] == ["hi", "Hello."]
    again = await tenant.post("/v1/generate", json=body, headers=KEYED)
    assert again.headers["Idempotent-Replayed"] == "true"


async def test_a_conversation_in_which_another_caller_has_appended_is_not_deleted(
    tenant: Client, fake: FakeChat
) -> None:
    fake.reply, fake.replies = says("late"), [Reply(mode="filtered", delay_s=0.5)]
    fake.asked.clear()
    asking = asyncio.create_task(tenant.post("/v1/generate", json={"messages": HI}))
    await fake.asked.wait()
    [only] = (await tenant.get("/v1/conversations")).json()["data"]
    await tenant.append(only["id"], "I have found you")
    assert (await asking).status_code == 400
    assert [turn["content"] for turn in await tenant.history(only["id"])] == ["I have found you"]
    # and one with a name is begun at first use, answered or not
    fake.replies = [FILTERED]
    problem(await tenant.post("/v1/generate", json={"messages": HI, "external_id": "x"}), 400, "model_refused")
    assert await tenant.conversation(external_id="x") != only["id"]
    assert len((await tenant.get("/v1/conversations")).json()["data"]) == 2


# requests that are sent again

KEYED = {"Idempotency-Key": "k"}


async def test_the_same_key_gives_the_stored_answer_and_asks_no_model(tenant: Client, fake: FakeChat) -> None:
    fake.replies = [says("First.")]
    first = await tenant.post("/v1/generate", json={"messages": HI}, headers=KEYED)
    assert "Idempotent-Replayed" not in first.headers
    again = await tenant.post("/v1/generate", json={"messages": HI}, headers=KEYED)
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
    other = [{"role": "user", "content": "other"}]
    for body, headers in [({"messages": other}, KEYED), ({"messages": HI}, KEYED | {"X-Agent-Id": "another"})]:
        problem(await tenant.post("/v1/generate", json=body, headers=headers), 409, "idempotency_mismatch")
    assert len(fake.chats) == 1
    conversation = first.json()["conversation_id"]
    assert [turn["content"] for turn in await tenant.history(conversation)] == ["hi", "First."]
    assert len((await tenant.get("/v1/conversations")).json()["data"]) == 1
    await tenant.delete(f"/v1/conversations/{conversation}")
    problem(await tenant.post("/v1/generate", json={"messages": HI}, headers=KEYED), 404, "not_found")


async def test_a_repeated_stream_returns_the_stored_answer(tenant: Client, fake: FakeChat) -> None:
    fake.replies = [says("one two three")]
    body = {"messages": HI, "stream": True, "external_id": "room"}
    first = await tenant.post("/v1/generate", json=body, headers=KEYED)
    again = await tenant.post("/v1/generate", json=body, headers=KEYED)
    assert ("Idempotent-Replayed" in first.headers, again.headers["Idempotent-Replayed"]) == (False, "true")
    done = events(first.text)[-1]
    assert events(again.text) == [("delta", {"type": "delta", "text": "one two three"}), done]
    assert first.headers["X-Conversation-Id"] == again.headers["X-Conversation-Id"] == done[1]["conversation_id"]
    assert len(fake.chats) == 1
    problem(
        await tenant.post("/v1/generate", json=body | {"stream": False}, headers=KEYED), 409, "idempotency_mismatch"
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_after_a_failure_a_repeat_is_answered_again_in_the_same_conversation(
    tenant: Client,
    fake: FakeChat,
    stream: bool,  # noqa: FBT001
) -> None:
    body = {"messages": HI, "stream": stream}
    fake.replies = [says("one two three", breaks_after=2), FILTERED]
    if not stream:
        fake.replies[0] = Reply(mode="wrong_json")
    for _ in range(2):
        failed = await tenant.post("/v1/generate", json=body, headers=KEYED)
        assert failed.status_code != 200 or events(failed.text)[-1][0] == "error"
    answered = await tenant.post("/v1/generate", json=body, headers=KEYED)
    assert answered.status_code == 200
    [only] = (await tenant.get("/v1/conversations")).json()["data"]
    assert [turn["content"] for turn in await tenant.history(only["id"])] == ["hi", "Hello."]


@pytest.mark.parametrize("stream", [False, True])
async def test_of_two_at_once_one_asks_the_model(
    tenant: Client,
    fake: FakeChat,
    stream: bool,  # noqa: FBT001
) -> None:
    fake.reply = says("Both.", delay_s=0.3)
    body = {"messages": HI, "stream": stream}
    both = await asyncio.gather(*(tenant.post("/v1/generate", json=body, headers=KEYED) for _ in range(3)))
    # on a busy machine, one may arrive after the end of the first
    [won] = [one for one in both if one.status_code == 200 and "Idempotent-Replayed" not in one.headers]
    for one in both:
        if one is not won and one.status_code != 200:
            assert problem(one, 409, "resource_busy")["retryable"]
            assert one.headers["Retry-After"] == "1"
    again = await tenant.post("/v1/generate", json=body, headers=KEYED)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert len(fake.chats) == 1
    [only] = (await tenant.get("/v1/conversations")).json()["data"]
    assert [turn["content"] for turn in await tenant.history(only["id"])] == ["hi", "Both."]


@pytest.mark.parametrize("stream", [False, True])
async def test_another_request_under_a_key_that_is_under_way_asks_no_model(
    tenant: Client,
    fake: FakeChat,
    stream: bool,  # noqa: FBT001
) -> None:
    fake.reply = says("First.", delay_s=0.5)
    fake.asked.clear()
    first = asyncio.create_task(tenant.post("/v1/generate", json={"messages": HI, "stream": stream}, headers=KEYED))
    await fake.asked.wait()
    other = {"messages": [{"role": "user", "content": "other"}], "stream": stream}
    problem(await tenant.post("/v1/generate", json=other, headers=KEYED), 409, "resource_busy")
    assert (await first).status_code == 200
    problem(await tenant.post("/v1/generate", json=other, headers=KEYED), 409, "idempotency_mismatch")
    assert len(fake.chats) == 1


async def test_a_request_of_a_dead_process_is_answered_again_when_its_lease_has_ended(
    tenant: Client, modelled: Service
) -> None:
    conversation = await tenant.conversation()
    body = json.dumps({"messages": HI, "conversation_id": conversation}).encode()
    headers = KEYED | {"Content-Type": "application/json"}
    tenancy, streams = modelled.container.tenancy, modelled.container.streams
    caller = await tenancy.authenticate(tenant.key)
    idempotency_key = tenancy.idempotency.key_of("k", b"POST", b"/v1/generate", body).for_agent(caller.agent)
    exchange = await streams.exchanges.open(
        caller,
        ConversationId(parse_id(conversation)),
        messages=[],
        answer=open_answer_turn(None),
        idempotency_key=idempotency_key,
    )
    problem(await tenant.post("/v1/generate", content=body, headers=headers), 409, "resource_busy")
    async with modelled.container.database.transaction(tenant.tenant_id) as tx:
        await tx.execute(
            "update turn_streams set renewed_at = now() - interval '1 hour' where tenant_id = $1 and turn_id = $2",
            tenant.tenant_id, exchange.answer_id,
        )  # fmt: skip
    answered = await tenant.post("/v1/generate", content=body, headers=headers)
    assert [turn["seq"] for turn in answered.json()["turns"]] == [1, 2]
    # and who was only slow has nothing more to say
    with pytest.raises(Conflict):
        await streams.exchanges.commit(caller, exchange, answer=TurnInput(role=Role.ASSISTANT, content="late"))
    assert len(await tenant.history(conversation)) == 2
    await streams.exchanges.abort(caller, exchange, reason="late")


# answers that no turn can hold

LIMIT = 40_000
LONG = "Ünd so weiter. " * 4000


@pytest.fixture
async def small(service: Service, fake: FakeChat, tmp_path: Any) -> AsyncIterator[Service]:
    """A service whose turns hold little."""
    fake.reply, fake.replies = says(LONG, piece=3000), []
    fake.chats.clear()
    async with open_service(
        service.database, tmp_path, embedder="none", llm_model=CHAT_MODEL, llm_base_url=fake.url, max_text_bytes=LIMIT
    ) as opened:
        yield opened


async def given_up(tenant: Client, told: dict[str, Any]) -> str:
    """What there is of an answer that a problem names; nothing else of its conversation is there."""
    path = f"/v1/conversations/{told['conversation_id']}"
    assert await tenant.history(told["conversation_id"]) == []
    turn = (await tenant.get(f"{path}/turns/{told['turn_id']}")).json()
    assert (turn["status"], turn["metadata"]) == ("aborted", {"abort_reason": "answer_too_large"})
    assert LONG.startswith(turn["content"])
    assert LIMIT // 2 < len(turn["content"].encode()) <= LIMIT
    return turn["content"]


async def test_an_answer_that_no_turn_can_hold_is_said_to_be_and_its_beginning_stays(
    small: Service, fake: FakeChat
) -> None:
    async with await small.new_tenant() as tenant:
        refused = await tenant.post("/v1/generate", json={"messages": HI})
        told = problem(refused, 502, "answer_too_large")
        assert (told["retryable"], "weiter" in refused.text) == (False, False)
        await given_up(tenant, told)
        # what it took is counted
        [day] = (await tenant.get("/v1/admin/usage")).json()["data"]
        assert (day["prompt_tokens"], day["completion_tokens"]) == (20, 10)
        fake.reply = says("Shorter.")
        again = await generate(tenant, conversation_id=told["conversation_id"])
        assert [turn["seq"] for turn in again["turns"]] == [1, 2]


@pytest.mark.parametrize("piece", [3000, 10**6])
async def test_a_stream_that_no_turn_can_hold_ends_with_all_that_was_seen_in_an_aborted_turn(
    small: Service, fake: FakeChat, piece: int
) -> None:
    fake.reply = says(LONG, piece=piece)
    async with await small.new_tenant() as tenant:
        response = await tenant.post("/v1/generate", json={"messages": HI, "stream": True})
        *deltas, (name, told) = events(response.text)
        assert (name, told["code"], told["status"]) == ("error", "answer_too_large", 502)
        kept = await given_up(tenant, told)
        assert kept.startswith("".join(data["text"] for _, data in deltas))
        [day] = (await tenant.get("/v1/admin/usage")).json()["data"]
        assert (day["calls"], day["failed"]) == (1, 1)
        assert day["completion_tokens"] > 1000


async def test_openais_client_does_not_ask_again_for_an_answer_that_no_turn_can_hold(
    small: Service, fake: FakeChat
) -> None:
    async with await small.new_tenant() as tenant, serving(small.app, small.settings) as port:
        base = f"http://127.0.0.1:{port}/openai/v1"
        async with openai.AsyncOpenAI(api_key=tenant.key, base_url=base, max_retries=2) as ai:
            with pytest.raises(openai.InternalServerError) as raised:
                await ai.chat.completions.create(model=CHAT_MODEL, messages=HI, extra_body={"conversation_id": "room"})
            assert (raised.value.status_code, raised.value.code) == (502, "answer_too_large")
            assert len(fake.chats) == 1
            stream = await ai.chat.completions.create(
                model=CHAT_MODEL, messages=HI, extra_body={"conversation_id": "room"}, stream=True
            )
            with pytest.raises(openai.APIError) as broken:
                [piece async for piece in stream]
            assert broken.value.code == "answer_too_large"
            # in no conversation there is nothing to hold it
            whole = await ai.chat.completions.create(model=CHAT_MODEL, messages=HI)
            assert whole.choices[0].message.content == LONG
