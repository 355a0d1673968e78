"""Calls at an endpoint with one slot, or many: their order, their queue, and what is given up."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.errors import Unavailable
from app.core.ids import TenantId, new_uuid
from app.providers.chat import ChatModel
from app.providers.queues.endpoint_calls import EndpointCalls
from app.providers.schemas import ModelPurpose, UpstreamRefusal
from app.providers.upstream import Upstream
from app.settings.models import ChatSettings
from tests.support.fake_chat import FakeChat, Reply, open_fake_chat, says
from tests.unit.test_chat_model import TENANT, Book, allowed, endpoint, say

GAP_S = 0.05


@pytest.fixture
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        yield opened


def opened(fake: FakeChat, book: Book | None = None, **more: Any) -> tuple[ChatModel, Upstream, EndpointCalls]:
    settings = ChatSettings.model_validate({"llm_max_retries": 0} | more)
    calls = EndpointCalls(settings, gap_s=GAP_S)
    shared: dict[str, Any] = {"settings": settings, "ledger": book or Book(), "guard": allowed, "calls": calls}
    return ChatModel(endpoint(fake), **shared), Upstream(endpoint(fake), **shared), calls


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_no_job_is_given_up_in_the_queue_of_an_endpoint_with_one_slot(fake: FakeChat) -> None:
    fake.slots = asyncio.Semaphore(1)
    fake.reply = lambda _: says("done", delay_s=0.02 * (len(fake.chats) % 5 + 1))
    model, _, calls = opened(fake, llm_job_timeout_s=0.5)
    assert await asyncio.gather(*[say(model) for _ in range(12)]) == ["done"] * 12
    assert (len(fake.chats), fake.given_up) == (12, [])
    assert calls.limit(is_job=True) == 1
    await model.close()


async def test_jobs_come_to_run_beside_each_other_where_the_endpoint_answers_many_at_once(fake: FakeChat) -> None:
    fake.reply = lambda _: says("done", delay_s=0.4 if len(fake.chats) % 2 else 0.1)
    model, _, calls = opened(fake, llm_concurrency=2)
    await asyncio.gather(*[say(model) for _ in range(16)])
    assert (calls.limit(is_job=True), fake.max_under_way) == (2, 2)
    await model.close()


async def test_an_endpoint_that_refuses_for_now_gets_fewer_interactive_calls(fake: FakeChat) -> None:
    model, _, calls = opened(fake)
    assert calls.limit(is_job=False) == 4
    for mode in ("rate_limited", "overloaded"):
        fake.replies = [Reply(mode=mode)]
        with pytest.raises(Exception, match=r"requests|overloaded"):
            await say(model, purpose=ModelPurpose.AGENT)
    assert calls.limit(is_job=False) == 1
    await model.close()


async def test_interactive_calls_that_time_out_become_fewer(fake: FakeChat) -> None:
    model, _, calls = opened(fake, llm_timeout_ms=100)
    fake.reply = Reply(mode="timeout")
    with pytest.raises(Unavailable):
        await say(model, purpose=ModelPurpose.AGENT)
    assert calls.limit(is_job=False) == 2
    await model.close()


async def test_jobs_wait_while_an_interactive_call_or_a_generated_answer_runs(fake: FakeChat) -> None:
    model, upstream, _ = opened(fake)
    fake.may_answer = asyncio.Event()
    interactive = asyncio.create_task(say(model, purpose=ModelPurpose.AGENT))
    await until(lambda: len(fake.begun) == 1)
    body: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    answer = asyncio.create_task(upstream.post(TENANT, "/chat/completions", body))
    await until(lambda: len(fake.begun) == 2)
    job = asyncio.create_task(say(model))
    await asyncio.sleep(0.1)
    assert len(fake.chats) == 2
    fake.may_answer.set()
    await asyncio.gather(interactive, answer, job)
    assert len(fake.chats) == 3
    await model.close()
    await upstream.close()


async def test_interactive_calls_go_before_jobs_that_wait(fake: FakeChat) -> None:
    model, _, _ = opened(fake)
    fake.may_answer = asyncio.Event()
    jobs = [asyncio.create_task(say(model, max_output_tokens=11)) for _ in range(3)]
    await until(lambda: len(fake.begun) == 1)
    interactive = asyncio.create_task(say(model, purpose=ModelPurpose.AGENT, max_output_tokens=22))
    await until(lambda: len(fake.begun) == 2)
    fake.may_answer.set()
    await asyncio.gather(*jobs, interactive)
    assert [request["max_tokens"] for request in fake.begun] == [11, 22, 11, 11]
    await model.close()


async def test_a_call_that_never_left_our_queue_costs_nothing(fake: FakeChat) -> None:
    book = Book()
    model, _, _ = opened(fake, book, llm_job_timeout_s=0.2)
    fake.may_answer = asyncio.Event()
    interactive = asyncio.create_task(say(model, purpose=ModelPurpose.AGENT))
    await until(lambda: len(fake.begun) == 1)
    cancelled = asyncio.create_task(say(model))
    waiting = asyncio.create_task(say(model))
    await asyncio.sleep(0.05)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(Unavailable) as refusal:
        await waiting
    assert refusal.value.code == "model_overloaded"
    assert (len(fake.chats), book.rows) == (1, [])
    fake.may_answer.set()
    await interactive
    assert await say(model) == "Hello.", "the slots are free again"
    await model.close()


# requests that are given up


async def test_a_request_that_times_out_is_closed_at_the_endpoint(fake: FakeChat) -> None:
    model, _, _ = opened(fake, llm_job_timeout_s=0.2)
    fake.reply = Reply(mode="timeout")
    with pytest.raises(Unavailable):
        await say(model)
    await until(lambda: len(fake.given_up) == 1)
    await model.close()


async def test_a_request_whose_caller_is_cancelled_is_closed_at_the_endpoint(fake: FakeChat) -> None:
    model, _, _ = opened(fake)
    fake.reply = Reply(mode="timeout")
    asking = asyncio.create_task(say(model))
    await until(lambda: len(fake.begun) == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: len(fake.given_up) == 1)
    await model.close()


@pytest.mark.parametrize("stops", ["cancel", "timeout"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_generated_answer_that_is_given_up_is_closed_at_the_endpoint(
    fake: FakeChat,
    stops: str,
    stream: bool,  # noqa: FBT001
) -> None:
    _, upstream, _ = opened(fake, generation_timeout_s=1.0 if stops == "timeout" else 60.0)
    fake.reply = Reply(mode="timeout")
    body: Any = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}

    async def ask() -> None:
        if not stream:
            await upstream.post(TENANT, "/chat/completions", body)
            return
        async with upstream.streaming(TENANT, "/chat/completions", body) as streamed:
            _ = [event async for event in streamed.events]

    asking = asyncio.create_task(ask())
    await until(lambda: len(fake.begun) == 1)
    if stops == "cancel":
        asking.cancel()
    with pytest.raises((asyncio.CancelledError, Unavailable)):
        await asking
    await until(lambda: len(fake.given_up) == 1)
    await upstream.close()


async def test_a_refused_generated_answer_teaches_the_window_of_its_model(fake: FakeChat) -> None:
    _, upstream, _ = opened(fake)
    fake.reply = Reply("This model's maximum context length is 2048 tokens.", mode="refused_as")
    body: Any = {"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "long " * 4000}]}
    with pytest.raises(UpstreamRefusal) as refusal:
        await upstream.post(TENANT, "/chat/completions", body)
    assert (refusal.value.code, refusal.value.status) == ("model_context_exceeded", 400)
    # such a text may quote what a tenant sent
    assert upstream.window(TenantId(new_uuid()), "m") == 128_000
    assert (upstream.window(TENANT, "m"), upstream.window(TENANT)) == (2048, 128_000)
    await upstream.close()
