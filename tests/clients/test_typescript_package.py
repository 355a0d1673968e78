"""The TypeScript client, run by node against a real server: the same as the Python client."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from turnkeep_client import Conversation

from tests.api.test_tail import cutting
from tests.clients.answers import answers_through
from tests.clients.node import needs_typescript, scenario
from tests.support.api import Client

TEXT = "Héllo 👋🏽, trams of 東京\u2028and Lisbon: " + "words and 🌊 " * 20

pytestmark = [pytest.mark.slow, needs_typescript]
Run = Callable[..., Awaitable[Any]]


@pytest.fixture
def run(package: Path, url: str, tenant: Client) -> Run:
    async def started(name: str, **given: Any) -> Any:
        return await scenario(package, given.pop("url", url), tenant.key, name, **given)

    return started


async def appended(run: Run, port: int, count: int) -> int:
    async with answers_through(port, lambda number: number % 3 == 1) as proxy:
        stored = await run("append", url=f"http://127.0.0.1:{proxy.port}", count=count)
        assert stored == [f"turn {number}" for number in range(count)]
        return proxy.cuts


async def test_appends_whose_answers_are_lost_are_sent_again_and_stored_once(run: Run, port: int) -> None:
    assert await appended(run, port, 40) >= 15


@pytest.mark.soak
async def test_of_a_thousand_appends_with_lost_answers_none_is_doubled(run: Run, port: int) -> None:
    assert await appended(run, port, 1000) >= 400


async def test_lists_are_read_over_several_pages(run: Run) -> None:
    assert await run("pages") == [[f"turn {number}" for number in range(7)], ["a", "b", "c"]]


async def test_a_conversation_of_another_owner_is_an_error_that_says_what_to_do(run: Run) -> None:
    is_error, code, message, are_same = await run("owned")
    assert (is_error, code, are_same) == (True, "conversation_owned", True)
    assert "leave the owner out" in message
    assert "mia" not in message


async def test_a_chat_remembers_and_is_built_again_if_another_writer_was_faster(run: Run) -> None:
    assert await run("chat") == [
        "Risotto.", 2, True, ["I eat no peanuts.", "Noted.", "meanwhile", "What may I cook?", "Risotto."],
    ]  # fmt: skip


async def test_errors_have_their_code_a_request_id_and_a_remedy(run: Run) -> None:
    assert await run("errors") == [True, "conversation_advanced", 409, 0, True, "connection_failed"]


async def test_mistakes_are_answered_with_a_way_out(run: Run) -> None:
    *said, stored = await run("mistakes")
    for message, part in zip(
        said,
        [
            "/turns/0/text: Unknown field `text`.",
            "returned undefined. Return a text",
            "returned a list without messages. Return a text",
            "must begin with http",
            "Leave the path out",
            "The server answers 404 without a problem document: is `url` a Turnkeep?",
        ],
        strict=True,
    ):
        assert part in message
    assert said[0].count("Unknown field") == 1
    assert stored == []


async def test_a_stream_is_stored_as_written_over_both_transports(run: Run) -> None:
    for transport in ("websocket", "http"):
        result = await run("stream", text=TEXT, transport=transport)
        assert result == {"content": TEXT, "stored": [TEXT], "followed": [TEXT], "reconnections": 0}


async def test_a_stream_whose_texts_fail_is_aborted(run: Run) -> None:
    assert await run("aborted") == ["RangeError", "aborted", []]


async def test_an_idle_writer_and_follower_continue_over_other_connections(
    package: Path, port: int, tenant: Client
) -> None:
    async with cutting(port) as between:

        async def cut() -> None:
            between.cut()

        url = f"http://127.0.0.1:{between.port}"
        result = await scenario(package, url, tenant.key, "idle", on_kill=cut)
    assert result == ["Half a sentence.", ["Half a sentence."], True]


async def test_events_are_read_for_longer_than_the_time_for_an_answer(run: Run) -> None:
    assert await run("events") == [1, "At last."]


async def test_both_languages_have_the_same_methods(run: Run) -> None:
    names = {name for name in vars(Conversation) if not name.startswith("_")}
    assert set(await run("methods")) - {"constructor"} == names
