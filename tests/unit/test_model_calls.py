"""A chat model that calls tools: what it is offered, what is read of its calls, and what they cost."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.errors import Unavailable
from app.core.ids import TenantId, new_uuid
from app.providers.calling import MAX_CALLS
from app.providers.chat import ChatModel
from app.providers.schemas import ChatMessage, ModelAnswer, ModelCall, ModelPurpose, ModelReply, ModelUsage, ToolOffer
from app.settings.models import ChatSettings, Endpoint
from tests.support.fake_chat import CHAT_MODEL, FILTERED, FakeChat, Reply, calls, open_fake_chat, says

TENANT = TenantId(new_uuid())
LOOK = ToolOffer("look", "Look something up.", {"type": "object", "properties": {"at": {"type": "string"}}})
ASKED = [ChatMessage("system", "You look."), ChatMessage("user", "What is there?")]


class Book:
    def __init__(self) -> None:
        self.rows: list[tuple[ModelPurpose, ModelUsage, bool]] = []

    async def check(self, _tenant_id: TenantId, _purpose: ModelPurpose) -> None:
        return

    async def record(
        self, _tenant_id: TenantId, purpose: ModelPurpose, *, model: str, usage: ModelUsage, failed: bool
    ) -> None:
        assert model == CHAT_MODEL
        self.rows.append((purpose, usage, failed))


@pytest.fixture
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
async def model(fake: FakeChat, book: Book) -> AsyncIterator[ChatModel]:
    settings = ChatSettings(llm_timeout_ms=2000, llm_max_retries=1, llm_concurrency=1, llm_max_output_tokens=100)
    endpoint = Endpoint(fake.url, "sk-test", CHAT_MODEL)
    opened = ChatModel(endpoint, settings=settings, ledger=book, guard=lambda: None)
    yield opened
    await opened.close()


async def converse(
    model: ChatModel, messages: list[ChatMessage] | None = None, tools: tuple[ToolOffer, ...] = (LOOK,)
) -> ModelAnswer[ModelReply]:
    return await model.converse(messages or ASKED, tools=tools, tenant_id=TENANT, purpose=ModelPurpose.AGENT)


async def test_tools_are_offered_and_calls_are_read(model: ChatModel, fake: FakeChat, book: Book) -> None:
    fake.reply = calls(("look", {"at": "é"}), ("other", "not json"))
    answer = await converse(model)
    assert answer.value == ModelReply(
        "", (ModelCall("0", "look", '{"at": "\\u00e9"}'), ModelCall("1", "other", "not json"))
    )
    function = {"name": "look", "description": "Look something up.", "parameters": LOOK.parameters}
    assert fake.chats[0]["tools"] == [{"type": "function", "function": function}]
    assert book.rows == [(ModelPurpose.AGENT, ModelUsage(20, 10), False)]


async def test_calls_and_what_they_gave_are_sent_back(model: ChatModel, fake: FakeChat) -> None:
    fake.reply = says("A tree.")
    made = (ModelCall("7", "look", "{}"), ModelCall("8", "look", "{}"))
    given = [ChatMessage("tool", "a tree", call_id="7"), ChatMessage("tool", "no", call_id="8")]
    answer = await converse(model, [*ASKED, ChatMessage("assistant", "", calls=made), *given], tools=())
    assert answer.value == ModelReply("A tree.", ())
    assert "tools" not in fake.chats[0]
    assistant, *results = fake.chats[0]["messages"][2:]
    assert assistant["content"] is None
    assert [call["id"] for call in assistant["tool_calls"]] == ["call_7", "call_8"]
    assert [(one["role"], one["tool_call_id"], one["content"]) for one in results] == [
        ("tool", "call_7", "a tree"),
        ("tool", "call_8", "no"),
    ]


async def test_no_more_calls_are_read_than_a_few(model: ChatModel, fake: FakeChat) -> None:
    fake.reply = calls(*[("look", {})] * (MAX_CALLS + 5))
    assert len((await converse(model)).value.calls) == MAX_CALLS


@pytest.mark.parametrize("wrong", [{"x": 1}, "text", [None], [{"function": None}], [{"function": {"name": 7}}], [[]]])
async def test_calls_that_are_none_are_no_answer(
    model: ChatModel, fake: FakeChat, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(writer: Any, status: int, body: Any, **more: Any) -> bool:
        if "choices" in body:
            body["choices"][0]["message"]["tool_calls"] = wrong
        return await FakeChat._send(fake, writer, status, body, **more)  # noqa: SLF001 - the fake's own way out

    monkeypatch.setattr(fake, "_send", send)
    fake.reply = Reply(None)
    with pytest.raises(Unavailable) as refusal:
        await converse(model)
    assert refusal.value.code == "model_invalid"


async def test_an_endpoint_that_gives_arguments_as_an_object_is_understood(
    model: ChatModel, fake: FakeChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(writer: Any, status: int, body: Any, **more: Any) -> bool:
        function = {"name": "look", "arguments": {"at": "x"}}
        body["choices"][0]["message"]["tool_calls"] = [{"id": "", "type": "function", "function": function}]
        return await FakeChat._send(fake, writer, status, body, **more)  # noqa: SLF001

    monkeypatch.setattr(fake, "_send", send)
    assert (await converse(model)).value.calls == (ModelCall("0", "look", '{"at": "x"}'),)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply("", finish_reason="stop"), "model_invalid"),
        (Reply("half", finish_reason="length"), "model_invalid"),
        (calls(("look", {}), mode="error"), "model_unavailable"),
        (FILTERED, "model_refused"),
    ],
)
async def test_failures_are_those_of_every_call(model: ChatModel, fake: FakeChat, reply: Reply, code: str) -> None:
    fake.reply = reply
    with pytest.raises(Unavailable) as refusal:
        await converse(model)
    assert refusal.value.code == code


async def test_a_failure_that_passes_is_tried_again(model: ChatModel, fake: FakeChat, book: Book) -> None:
    fake.replies = [Reply(mode="overloaded"), calls(("look", {}))]
    assert len((await converse(model)).value.calls) == 1
    assert len(fake.chats) == 2
    assert len(book.rows) == 1


async def test_where_the_endpoint_reports_no_usage_tools_and_calls_are_in_the_estimate(
    model: ChatModel, fake: FakeChat, book: Book
) -> None:
    fake.reply = calls(("look", {"at": "the end of a long and winding road"}), usage=None)
    await converse(model)
    fake.reply = says("Yes.", usage=None)
    await converse(model, tools=())
    (_, with_tools, _), (_, without, _) = book.rows
    assert with_tools.prompt_tokens > without.prompt_tokens + 10
    assert with_tools.completion_tokens > 8
