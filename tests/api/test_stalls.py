"""What takes long does so in a thread: while one caller's text is worked on, everybody else is answered."""

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from app.context.compaction import drafts as compaction
from app.conversations import drafts
from app.conversations.turns import append as appender
from app.index.write import batch_analyser, entry_languages
from app.routers.http.routing import strict_route
from tests.support.api import Client


@pytest.fixture
def threads_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType, str], list[threading.Thread]]:
    """Record in which thread each call of a function runs, as one module calls it."""

    def record(module: ModuleType, name: str) -> list[threading.Thread]:
        ran_in: list[threading.Thread] = []
        original = getattr(module, name)

        def recording(*args: Any, **more: Any) -> Any:
            ran_in.append(threading.current_thread())
            return original(*args, **more)

        monkeypatch.setattr(module, name, recording)
        return ran_in

    return record


ThreadRecorder = Callable[[ModuleType, str], list[threading.Thread]]


@pytest.mark.slow
async def test_long_texts_are_looked_through_for_dates_in_a_thread(client: Client, threads_of: ThreadRecorder) -> None:
    appended, copied = threads_of(batch_analyser, "may_have_dates"), threads_of(entry_languages, "may_have_dates")
    conversation = await client.conversation()
    await client.append(conversation, *["last day x " * 1000] * 3)
    fork = await client.post(f"/v1/conversations/{conversation}/fork", json={})
    assert fork.status_code == 201, fork.text
    assert (len(appended), len(copied)) == (3, 3)
    assert threading.current_thread() not in [*appended, *copied]


@pytest.mark.slow
async def test_an_append_of_many_tool_calls_is_read_checked_and_hashed_in_threads_once(
    client: Client, threads_of: ThreadRecorder
) -> None:
    ran_in = [
        threads_of(strict_route, "parse_json"),
        threads_of(appender, "make_drafts"),
        threads_of(drafts, "canonical_form"),
    ]
    call = {"name": "look", "arguments": '{"at": "the parrot"}'}
    turn = {"role": "assistant", "tool_calls": [call | {"id": f"c{n}"} for n in range(32)]}
    conversation = await client.conversation()
    for one in ran_in:
        one.clear()
    await client.append(conversation, *[turn] * 60)
    assert [len(one) for one in ran_in] == [1, 1, 60]
    assert all(threading.current_thread() not in one for one in ran_in)


async def test_large_parts_that_have_no_text_are_hashed_in_a_thread_too(
    client: Client, threads_of: ThreadRecorder
) -> None:
    ran_in = threads_of(drafts, "canonical_form")
    conversation = await client.conversation()
    await client.append(conversation, {"role": "user", "content": [{"type": "x", "data": list(range(20_000))}]})
    assert len(ran_in) == 1
    assert threading.current_thread() not in ran_in


async def test_highlights_are_chosen_in_a_thread(client: Client, threads_of: ThreadRecorder) -> None:
    ran_in = threads_of(compaction, "candidates")
    conversation = await client.conversation()
    await client.append(conversation, *["I paid 5 euros to Maria. " * 700] * 3)
    answer = await client.post(f"/v1/conversations/{conversation}/summaries", json={})
    assert answer.status_code == 200, answer.text
    assert len(ran_in) == 1
    assert threading.current_thread() not in ran_in


async def test_a_short_append_takes_no_thread(client: Client, threads_of: ThreadRecorder) -> None:
    ran_in = [
        threads_of(strict_route, "parse_json"),
        threads_of(appender, "make_drafts"),
        threads_of(drafts, "canonical_form"),
    ]
    await client.append(await client.conversation(), "hello", "there")
    assert all(set(one) == {threading.current_thread()} for one in ran_in)
