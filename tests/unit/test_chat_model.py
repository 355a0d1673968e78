"""What a chat model promises, held by the `openai` client against a fake endpoint, and against a real one if named.

`TURNKEEP_TEST_LLM_BASE_URL`, `…_MODEL` and `…_API_KEY` name it.
"""

import asyncio
import io
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import openai
import pytest
from pydantic import BaseModel, ValidationError

from app.core.errors import AppError, RateLimited, Unavailable
from app.core.ids import TenantId, new_uuid
from app.core.telemetry import configure_logging, error_stack
from app.providers.chat import ChatModel, probe
from app.providers.endpoint import require_model
from app.providers.schemas import ChatMessage, ModelPurpose, ModelUsage
from app.settings import Settings, api_root
from app.settings.models import ChatSettings, Endpoint
from tests.support.fake_chat import CHAT_MODEL, FILTERED, FakeChat, Reply, open_fake_chat, says

TENANT = TenantId(new_uuid())
REAL = os.environ.get("TURNKEEP_TEST_LLM_BASE_URL")
UNNAMED = "no chat model is named: set TURNKEEP_TEST_LLM_BASE_URL, and _API_KEY and _MODEL likewise"
SECRET = "quokkasecret"
ASKED = [ChatMessage("system", "You add."), ChatMessage("user", f"What is two and three? {SECRET}")]


class Sum(BaseModel):
    result: int
    words: str


GOOD = says({"result": 5, "words": "five"})


@dataclass
class Book:
    """A ledger in memory."""

    rows: list[tuple[TenantId, ModelPurpose, str, ModelUsage, bool]] = field(default_factory=list)
    refusal: AppError | None = None
    checks: int = 0
    delay_s: float = 0.0

    async def check(self, _tenant_id: TenantId, _purpose: ModelPurpose) -> None:
        self.checks += 1
        if self.refusal is not None:
            raise self.refusal

    async def record(
        self, tenant_id: TenantId, purpose: ModelPurpose, *, model: str, usage: ModelUsage, failed: bool
    ) -> None:
        await asyncio.sleep(self.delay_s)
        self.rows.append((tenant_id, purpose, model, usage, failed))

    @property
    def tokens(self) -> list[tuple[int, int, bool]]:
        return [(usage.prompt_tokens, usage.completion_tokens, failed) for _, _, _, usage, failed in self.rows]


def allowed() -> None:
    """Nothing forbids to ask here."""


def endpoint(fake: FakeChat, **more: str) -> Endpoint:
    return replace(Endpoint(fake.url, "sk-test", CHAT_MODEL), **more)


def settings(*, timeout_s: float = 5.0, max_retries: int = 2, concurrency: int = 2) -> ChatSettings:
    return ChatSettings(
        llm_timeout_ms=round(timeout_s * 1000),
        llm_job_timeout_s=timeout_s,
        llm_max_retries=max_retries,
        llm_concurrency=concurrency,
        llm_max_output_tokens=100,
    )


def chat(fake: FakeChat, book: Book | None = None, **more: Any) -> ChatModel:
    return ChatModel(endpoint(fake), settings=settings(**more), ledger=book or Book(), guard=allowed)


async def add(model: ChatModel, **more: Any) -> Sum:
    asked = {"shape": Sum, "tenant_id": TENANT, "purpose": ModelPurpose.FACTS} | more
    return (await model.answer(ASKED, **asked)).value


async def say(model: ChatModel, **more: Any) -> str:
    asked = {"tenant_id": TENANT, "purpose": ModelPurpose.SUMMARY} | more
    return (await model.text(ASKED, **asked)).value


@pytest.fixture
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


@pytest.fixture
def book() -> Book:
    return Book()


# what every chat model does


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.skipif(REAL is None, reason=UNNAMED))])
async def any_model(request: pytest.FixtureRequest, fake: FakeChat, book: Book) -> AsyncIterator[ChatModel]:
    fake.reply = lambda asked: GOOD if "response_format" in asked else says("five")
    more: dict[str, Any] = {}
    if request.param == "real":
        named = {name: os.environ.get(f"TURNKEEP_TEST_LLM_{name.upper()}") for name in ("api_key", "model")}
        more = named | {"base_url": api_root(REAL or ""), "timeout_s": 60.0, "max_output_tokens": 1000}
    model = chat(fake, book, **more)
    yield model
    await model.close()


async def test_it_answers_with_a_value_of_the_shape_and_says_what_it_took(any_model: ChatModel, book: Book) -> None:
    answer = await any_model.answer(ASKED, shape=Sum, tenant_id=TENANT, purpose=ModelPurpose.FACTS)
    assert answer.value.result == 5
    assert answer.model == any_model.model
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.completion_tokens > 0
    assert book.rows == [(TENANT, ModelPurpose.FACTS, any_model.model, answer.usage, False)]


async def test_it_answers_with_text(any_model: ChatModel, book: Book) -> None:
    answer = await any_model.text(ASKED, tenant_id=TENANT, purpose=ModelPurpose.SUMMARY)
    assert answer.value.strip() == answer.value != ""
    assert book.rows == [(TENANT, ModelPurpose.SUMMARY, any_model.model, answer.usage, False)]


async def test_an_answer_that_is_cut_off_is_not_given(any_model: ChatModel, fake: FakeChat, book: Book) -> None:
    fake.reply = says("Once upon a", finish_reason="length")
    with pytest.raises(Unavailable) as refusal:
        await any_model.text(
            [ChatMessage("user", "Tell a long story.")],
            tenant_id=TENANT,
            purpose=ModelPurpose.SUMMARY,
            max_output_tokens=16,
        )
    assert refusal.value.code == "model_invalid"
    assert [failed for _, _, failed in book.tokens] == [True]


# failures

FAILURES = [
    (Reply(mode="rate_limited"), "model_rate_limited", True),
    (Reply(mode="no_quota"), "model_rate_limited", False),
    (Reply(mode="overloaded"), "model_overloaded", True),
    (Reply(mode="error"), "model_unavailable", True),
    (Reply(mode="bad_gateway"), "model_unavailable", True),
    (Reply(mode="timeout"), "model_timeout", True),
    (Reply(mode="late"), "model_timeout", True),
    (Reply(mode="reset"), "model_unavailable", True),
    (Reply(mode="cut"), "model_unavailable", True),
    (Reply(mode="unauthorized"), "model_unavailable", False),
    (Reply(mode="forbidden"), "model_unavailable", False),
    (Reply(mode="no_model"), "model_unavailable", False),
    (Reply(mode="too_long"), "model_context_exceeded", False),
    (Reply(mode="echo"), "model_unavailable", False),
    (FILTERED, "model_refused", False),
    (says("", refusal="I must not."), "model_refused", False),
    (says("half of it", finish_reason="content_filter"), "model_refused", False),
    (Reply(mode="garbage"), "model_invalid", True),
    (Reply(mode="html"), "model_invalid", True),
    (Reply(mode="wrong_json"), "model_invalid", True),
    (says(""), "model_invalid", True),
    (Reply(None, finish_reason="tool_calls"), "model_invalid", True),
    (says("half of it", finish_reason="length"), "model_invalid", True),
]


@pytest.mark.parametrize("asking", [add, say])
@pytest.mark.parametrize(("reply", "code", "retryable"), FAILURES)
async def test_every_failure_has_its_code_and_repeats_nothing(
    fake: FakeChat, reply: Reply, code: str, retryable: object, asking: Any
) -> None:
    log = io.StringIO()
    configure_logging(Settings(log_level="debug").telemetry, log)
    try:
        model = chat(fake, max_retries=0, timeout_s=0.3 if reply.mode == "timeout" else 5.0)
        fake.reply = reply
        with pytest.raises(AppError) as refusal:
            await asking(model)
        await model.close()
    finally:
        configure_logging(Settings(log_level="error").telemetry)
    assert refusal.value.code == code
    assert refusal.value.retryable is retryable
    shown = f"{refusal.value.detail}{refusal.value.extra}{refusal.value.fields}{log.getvalue()}"
    for secret in (SECRET, "half", "must not", "secret", "sk-", "prompt", "two and three"):
        assert secret not in shown
    assert SECRET not in str(error_stack(refusal.value))


async def test_an_answer_of_another_shape_is_neither_returned_nor_logged(fake: FakeChat, book: Book) -> None:
    log = io.StringIO()
    configure_logging(Settings(log_level="debug").telemetry, log)
    try:
        model = chat(fake, book)
        fake.reply = says({"result": SECRET})
        with pytest.raises(Unavailable) as refusal:
            await add(model)
    finally:
        configure_logging(Settings(log_level="error").telemetry)
    assert refusal.value.code == "model_invalid"
    assert refusal.value.__cause__ is None
    assert len(fake.chats) == 2
    assert book.tokens == [(40, 20, True)]
    assert "model.repair" in log.getvalue()
    assert SECRET not in log.getvalue() + refusal.value.detail
    await model.close()


@pytest.mark.slow
async def test_what_fails_for_a_moment_is_sent_again_a_few_times(fake: FakeChat, book: Book) -> None:
    model = chat(fake, book)
    fake.replies = [Reply(mode="error"), Reply(mode="reset")]
    assert await say(model) == "Hello."
    assert len(fake.chats) == 3
    assert book.tokens == [(20, 10, False)]
    fake.reply = Reply(mode="error")
    with pytest.raises(Unavailable):
        await say(model)
    assert len(fake.chats) == 3 + 3
    assert len(book.rows) == 1, "nothing was spent"
    await model.close()


@pytest.mark.parametrize("mode", ["unauthorized", "no_quota", "no_model", "filtered", "garbage", "too_long", "late"])
async def test_a_request_that_a_retry_cannot_correct_is_sent_once(fake: FakeChat, mode: str) -> None:
    model = chat(fake)
    fake.reply = Reply(mode=mode)
    with pytest.raises(AppError):
        await say(model)
    assert len(fake.chats) == 1
    await model.close()


async def test_retry_after_is_honoured_unless_it_is_too_long(fake: FakeChat) -> None:
    model = chat(fake)
    loop = asyncio.get_running_loop()
    fake.replies, fake.retry_after = [Reply(mode="rate_limited")], "1"
    started = loop.time()
    await say(model)
    assert loop.time() - started >= 1
    fake.replies, fake.retry_after = [Reply(mode="overloaded")], "60"
    started = loop.time()
    with pytest.raises(AppError) as refusal:
        await say(model)
    assert loop.time() - started < 0.5
    assert (refusal.value.code, refusal.value.retry_after_s) == ("model_overloaded", 60)
    await model.close()


async def test_a_call_ends_in_time_with_all_its_tries_and_its_repair(fake: FakeChat) -> None:
    model = chat(fake, timeout_s=0.5, max_retries=9)
    loop = asyncio.get_running_loop()
    for reply, code in ((Reply(mode="error", delay_s=0.2), "model_unavailable"), (says("no JSON", delay_s=0.3), "")):
        fake.reply = reply
        started = loop.time()
        with pytest.raises(AppError) as refusal:
            await add(model)
        assert refusal.value.code in {code, "model_timeout"}
        assert loop.time() - started < 1
    await model.close()


# shapes


async def test_the_schema_is_asked_for_strictly(fake: FakeChat) -> None:
    model = chat(fake)
    fake.reply = GOOD
    assert (await add(model)).result == 5
    (request,) = fake.chats
    assert request["response_format"]["type"] == "json_schema"
    assert request["response_format"]["json_schema"]["strict"] is True
    assert request["response_format"]["json_schema"]["schema"]["required"] == ["result", "words"]
    assert (request["max_tokens"], request["temperature"]) == (100, 0)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert fake.headers[-1]["authorization"] == "Bearer sk-test"
    await model.close()


@pytest.mark.parametrize(
    ("formats", "tried"),
    [({"json_object"}, ["json_schema", "json_object"]), (set(), ["json_schema", "json_object", None])],
)
async def test_a_format_that_is_refused_gives_way_to_the_next_and_the_good_one_is_remembered(
    fake: FakeChat, formats: Any, tried: list[str | None]
) -> None:
    model = chat(fake, max_retries=0)
    fake.formats, fake.reply = formats, GOOD
    assert (await add(model)).words == "five"
    assert [request.get("response_format", {}).get("type") for request in fake.chats] == tried
    assert '"result"' in fake.chats[-1]["messages"][0]["content"]
    fake.chats.clear()
    await add(model)
    assert [request.get("response_format", {}).get("type") for request in fake.chats] == tried[-1:]
    await model.close()


async def test_other_parameters_that_are_refused_are_left_out_or_called_otherwise(fake: FakeChat) -> None:
    model = chat(fake, max_retries=0)
    fake.limit, fake.temperature = "max_completion_tokens", False
    assert await say(model) == "Hello."
    assert len(fake.chats) == 3
    assert fake.chats[-1]["max_completion_tokens"] == 100
    assert not {"temperature", "max_tokens"} & set(fake.chats[-1])
    await say(model, max_output_tokens=7)
    assert len(fake.chats) == 4
    assert fake.chats[-1]["max_completion_tokens"] == 7
    await model.close()


async def test_a_complaint_that_quotes_the_messages_teaches_nothing(fake: FakeChat) -> None:
    model = chat(fake, max_retries=0)
    about = [ChatMessage("user", "What is a response_format with max_tokens and temperature?")]
    fake.reply = Reply(mode="echo")
    with pytest.raises(AppError):
        await model.answer(about, shape=Sum, tenant_id=TENANT, purpose=ModelPurpose.FACTS)
    assert len(fake.chats) == 5
    fake.reply = GOOD
    await add(model)
    assert fake.chats[-1]["response_format"]["type"] == "json_schema"
    assert "temperature" in fake.chats[-1]
    await model.close()


async def test_an_answer_of_another_shape_is_sent_back_once_with_what_is_wrong(fake: FakeChat, book: Book) -> None:
    model = chat(fake, book)
    fake.replies = [says({"result": "many", "words": "five"}), GOOD]
    answer = await model.answer(ASKED, shape=Sum, tenant_id=TENANT, purpose=ModelPurpose.FACTS)
    assert answer.value.result == 5
    first, second = (request["messages"] for request in fake.chats)
    assert second[: len(first)] == first
    assert [message["role"] for message in second[len(first) :]] == ["assistant", "user"]
    assert "many" in second[-2]["content"]
    assert "at /result: Input should be a valid integer" in second[-1]["content"]
    assert answer.usage == ModelUsage(40, 20)
    assert book.tokens == [(40, 20, False)]
    await model.close()


async def test_an_endpoint_that_ignores_the_schema_gets_it_in_words(fake: FakeChat) -> None:
    model = chat(fake)
    fake.replies = [says("It is five."), GOOD, GOOD]
    await add(model)
    await add(model)
    assert len(fake.chats) == 3
    assert fake.chats[-1]["response_format"]["type"] == "json_object"
    assert '"result"' in fake.chats[-1]["messages"][0]["content"]
    await model.close()


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_a_shape_that_needed_a_repair_is_described_from_then_on(fake: FakeChat, ends: str) -> None:
    model = chat(fake)
    wrong = says({"description": "What a model wrote.", "properties": {"result": 5}})
    fake.replies = [wrong, GOOD if ends == "well" else wrong, GOOD]
    if ends == "well":
        await add(model)
    else:
        with pytest.raises(Unavailable):
            await add(model)
    await add(model)
    first, repair, second = (request["messages"] for request in fake.chats)
    example = '{"result":1,"words":"…"}'
    assert example not in first[0]["content"]
    assert example in repair[-1]["content"]
    assert "properties" not in repair[-1]["content"], "small models copy a schema"
    assert example in second[0]["content"]
    await say(model)
    assert example not in fake.chats[-1]["messages"][0]["content"], "only for this shape"
    await model.close()


async def test_a_fenced_answer_is_read(fake: FakeChat) -> None:
    model = chat(fake)
    fake.reply = says('```json\n{"result": 5, "words": "five"}\n```')
    assert (await add(model)).result == 5
    assert len(fake.chats) == 1
    await model.close()


# limits


async def test_jobs_and_people_have_slots_of_their_own(fake: FakeChat, book: Book) -> None:
    model = chat(fake, book)
    fake.reply = says("slowly", delay_s=0.05)
    await asyncio.gather(*[say(model) for _ in range(3)])
    assert fake.max_under_way == 1, "of jobs, until the endpoint has shown that it answers several at once"
    await asyncio.gather(*[say(model, purpose=purpose) for purpose in ModelPurpose for _ in range(4)])
    assert fake.max_under_way == 3, "a job, and two interactive calls"
    assert len(book.rows) == 3 + 4 * len(ModelPurpose)
    await model.close()


async def test_who_waits_too_long_for_a_turn_is_refused(fake: FakeChat, book: Book) -> None:
    model = chat(fake, book, concurrency=1, timeout_s=0.3)
    book.delay_s = 0.5
    first = asyncio.create_task(say(model, purpose=ModelPurpose.AGENT))
    await asyncio.sleep(0.05)
    with pytest.raises(Unavailable) as refusal:
        await say(model, purpose=ModelPurpose.AGENT)
    assert (refusal.value.code, refusal.value.retry_after_s) == ("model_overloaded", 1)
    assert await first == "Hello."
    await model.close()


async def test_it_refuses_before_anything_where_the_guard_forbids(fake: FakeChat, book: Book) -> None:
    def forbidden() -> None:
        raise RuntimeError("a transaction is open")

    model = ChatModel(endpoint(fake), settings=settings(), ledger=book, guard=forbidden)
    for asking in (add, say):
        with pytest.raises(RuntimeError, match="transaction"):
            await asking(model)
    assert (fake.chats, book.checks) == ([], 0)
    await model.close()


# the ledger


async def test_nothing_is_asked_once_the_budget_is_spent(fake: FakeChat, book: Book) -> None:
    model = chat(fake, book)
    book.refusal = RateLimited("model_budget_exhausted", "Spent.", retry_after_s=60)
    with pytest.raises(RateLimited) as refusal:
        await say(model)
    assert refusal.value is book.refusal
    assert (fake.chats, book.rows) == ([], [])
    await model.close()


async def test_usage_that_is_not_reported_is_estimated(fake: FakeChat, book: Book) -> None:
    model = chat(fake, book)
    for usage in (None, (-5, 10**12)):
        fake.reply = says("x" * 300, usage=usage)
        await say(model)
    ((prompt, completion, _), again) = book.tokens
    assert 10 <= prompt <= 30
    assert completion == 100
    assert again == (prompt, completion, False)
    await model.close()


async def test_a_call_that_is_given_up_is_counted_by_what_was_read(fake: FakeChat, book: Book) -> None:
    model = chat(fake, book, timeout_s=0.2)
    fake.reply = Reply(mode="timeout")
    with pytest.raises(Unavailable):
        await say(model)
    going = asyncio.create_task(say(chat(fake, book)))
    await asyncio.sleep(0.1)
    book.delay_s = 0.05
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert [(10 <= prompt <= 30, said, failed) for prompt, said, failed in book.tokens] == [(True, 0, True)] * 2
    await model.close()


async def test_a_caller_that_is_cancelled_twice_does_not_prevent_the_record_in_the_ledger(
    fake: FakeChat, book: Book
) -> None:
    model = chat(fake, book)
    book.delay_s = 0.1
    going = asyncio.create_task(say(model))
    while not model._recording:  # noqa: ASYNC110, SLF001
        await asyncio.sleep(0.01)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    await model.close()
    assert book.tokens == [(20, 10, False)]


async def test_the_model_that_a_call_names_is_asked_and_counted(fake: FakeChat, book: Book) -> None:
    model = chat(fake, book)
    answer = await model.text(ASKED, tenant_id=TENANT, purpose=ModelPurpose.GENERATION, model="other")
    assert (answer.model, fake.chats[-1]["model"], book.rows[-1][2]) == ("other", "other", "other")
    await model.close()


# being there


async def test_the_endpoint_can_be_asked_whether_it_is_there_for_nothing(fake: FakeChat) -> None:
    assert (await probe(endpoint(fake), timeout_s=5.0)).listed is True
    assert (await probe(endpoint(fake, model="other"), timeout_s=5.0)).listed is False
    fake.models_mode = "unauthorized"
    assert (await probe(endpoint(fake), timeout_s=5.0)).refused
    fake.models_mode = "forbidden"
    assert (await probe(endpoint(fake), timeout_s=5.0)).refused
    fake.models_mode = "no_model"
    assert (
        (await probe(endpoint(fake), timeout_s=5.0)).trouble,
        (await probe(endpoint(fake), timeout_s=5.0)).listed,
    ) == ("", None)
    fake.models_mode = "error"
    assert "500" in (await probe(endpoint(fake), timeout_s=5.0)).trouble
    assert (
        await probe(endpoint(fake, base_url="http://127.0.0.1:9/v1"), timeout_s=5.0)
    ).trouble == "it does not answer"
    assert fake.chats == []


def test_where_there_is_no_model_its_absence_has_a_code(fake: FakeChat) -> None:
    with pytest.raises(Unavailable) as refusal:
        require_model(None)
    assert (refusal.value.code, refusal.value.retryable) == ("model_not_configured", False)
    model = chat(fake)
    assert require_model(model) is model


def test_only_a_named_model_switches_it_on_and_openais_key_goes_to_openai_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-bare")
    assert Settings().chat.endpoint is None
    named = Settings(llm_model="m").chat.endpoint
    assert named is not None
    assert (named.base_url, named.api_key) == ("https://api.openai.com/v1", "sk-bare")
    assert Settings().chat.llm_timeout_s == 12.0
    other = Settings(llm_model="m", llm_base_url="http://127.0.0.1:11434/v1/chat/completions").chat.endpoint
    for path in ("", "/v1", "/v1/", "/v1/responses", "/v1/responses/", "/v1/chat/completions", "/v1/embeddings"):
        assert (
            Settings(llm_model="m", llm_base_url=f"http://127.0.0.1:11434{path}").chat.llm_base_url
            == "http://127.0.0.1:11434/v1"
        )
    assert other is not None
    assert (other.base_url, other.api_key) == ("http://127.0.0.1:11434/v1", None)
    own = Settings.model_validate({"llm_model": "m", "llm_base_url": "http://x", "llm_api_key": "own"})
    assert own.chat.key_of_llm == "own"


@pytest.mark.parametrize(
    "given",
    [
        {"llm_base_url": "http://x"},
        {"llm_api_key": "k"},
        {"llm_model": "m"},
        {"llm_model": ""},
        {"llm_daily_cost": 1.0},
        {"llm_price_prompt": float("nan")},
    ],
)
def test_half_a_chat_model_stops_the_start(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValidationError):
        Settings.model_validate(given)


async def test_the_fake_streams_as_endpoints_do(fake: FakeChat) -> None:
    fake.reply = says("slowly but surely")
    client = openai.AsyncOpenAI(api_key="x", base_url=fake.url, max_retries=0)
    stream = await client.chat.completions.create(
        model=CHAT_MODEL,
        messages=[{"role": "user", "content": "x"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == "slowly but surely"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 30
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    fake.reply = says("slowly but surely", breaks_after=2)
    stream = await client.chat.completions.create(
        model=CHAT_MODEL, messages=[{"role": "user", "content": "x"}], stream=True
    )
    with pytest.raises(Exception, match=r"(?i)peer|closed|connection|read"):
        _ = [chunk async for chunk in stream]
    await client.close()


# time-outs and windows


@pytest.mark.parametrize(
    ("purpose", "setting"),
    [
        (ModelPurpose.SUMMARY, "TURNKEEP_LLM_JOB_TIMEOUT_S"),
        (ModelPurpose.FACTS, "TURNKEEP_LLM_JOB_TIMEOUT_S"),
        (ModelPurpose.REDACTION, "TURNKEEP_LLM_JOB_TIMEOUT_S"),
        (ModelPurpose.TITLE, "TURNKEEP_LLM_JOB_TIMEOUT_S"),
        (ModelPurpose.AGENT, "TURNKEEP_LLM_TIMEOUT_MS"),
    ],
)
async def test_a_time_out_names_the_setting_that_limits_the_call(
    fake: FakeChat, purpose: ModelPurpose, setting: str
) -> None:
    model = chat(fake, timeout_s=0.2)
    fake.reply = Reply(mode="timeout")
    with pytest.raises(Unavailable) as refusal:
        await say(model, purpose=purpose)
    assert refusal.value.code == "model_timeout"
    assert setting in refusal.value.detail
    assert len(fake.chats) == 1
    await model.close()


async def test_calls_of_jobs_have_a_longer_limit_than_interactive_ones(fake: FakeChat) -> None:
    limits = ChatSettings(llm_timeout_ms=200, llm_job_timeout_s=5.0)
    model = ChatModel(endpoint(fake), settings=limits, ledger=Book(), guard=allowed)
    fake.reply = says("slowly", delay_s=0.4)
    assert await say(model, purpose=ModelPurpose.SUMMARY) == "slowly"
    assert await say(model, purpose=ModelPurpose.AGENT, timeout_s=2.0) == "slowly"
    with pytest.raises(Unavailable):
        await say(model, purpose=ModelPurpose.AGENT)
    assert ChatSettings().llm_job_timeout_s == 180.0
    await model.close()


async def test_a_refusal_as_too_long_teaches_the_window_of_that_model(fake: FakeChat) -> None:
    model = chat(fake)
    long = [ChatMessage("user", "a fairly long question " * 2000)]
    assert model.window(TENANT) == model.window(TENANT, "other") == 128_000
    fake.reply = Reply("maximum context length is 4,096 tokens, and you asked for more", mode="refused_as")
    with pytest.raises(Unavailable) as refusal:
        await model.text(long, tenant_id=TENANT, purpose=ModelPurpose.SUMMARY)
    assert (refusal.value.code, refusal.value.retryable) == ("model_context_exceeded", False)
    assert (model.window(TENANT), model.window(TENANT, "other"), len(fake.chats)) == (4096, 128_000, 1)
    assert model.window(TenantId(new_uuid())) == 128_000
    fake.reply = says("Hello.")
    await say(model, max_output_tokens=4000)
    assert fake.chats[-1]["max_tokens"] == 1024
    await model.close()


async def test_a_refusal_that_names_max_tokens_and_the_window_is_not_tried_in_other_forms(fake: FakeChat) -> None:
    model = chat(fake)
    text = "'max_tokens' is too large: 4000. This model's maximum context length is 512 tokens"
    fake.reply = Reply(text, mode="refused_as")
    with pytest.raises(Unavailable) as refusal:
        await model.text(
            [ChatMessage("user", "x " * 1000)], tenant_id=TENANT, purpose=ModelPurpose.FACTS, max_output_tokens=4000
        )
    assert (refusal.value.code, model.window(TENANT), len(fake.chats)) == ("model_context_exceeded", 512, 1)
    await model.close()
