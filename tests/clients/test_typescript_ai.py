"""The chat route for the AI SDK, run by node with the SDK and a model of its own tests, against a real server."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.node import needs_typescript, scenario
from tests.support.api import Client

TEXT = "Héllo 👋🏽, trams of 東京\u2028and Lisbon: " + "words and 🌊 " * 25

pytestmark = [pytest.mark.slow, needs_typescript]
Run = Callable[..., Awaitable[Any]]


@pytest.fixture
def run(package: Path, url: str, tenant: Client) -> Run:
    async def started(name: str, **given: Any) -> Any:
        return await scenario(package, url, tenant.key, name, program="ai.mjs", **given)

    return started


async def test_a_second_session_knows_the_first_and_a_message_sent_again_is_answered_once(run: Run) -> None:
    result = await run("chat")
    assert result["texts"] == ["Noted.", "Risotto, then.", "Risotto, then."]
    assert (result["sameMessage"], result["last"]) == (True, "finish")
    assert [role for role, _ in result["prompt"]] == ["system", "user", "assistant", "user"]
    assert "You cook." in result["prompt"][0][1]
    assert "peanuts" in result["prompt"][1][1]
    said = ["I eat no peanuts.", "Noted.", "What may I cook?", "Risotto, then."]
    assert result["stored"] == [[role, text, 0] for role, text in zip(["user", "assistant"] * 2, said, strict=True)]
    assert result["shown"] == [[role, text] for role, text, _ in result["stored"]]


async def test_calls_of_tools_and_their_results_are_stored_shown_and_in_the_next_prompt(run: Run) -> None:
    result = await run("tools")
    assert result["stored"] == [
        ["user", "And in Lisbon?", 0], ["assistant", None, 1], ["tool", '{"degrees":21}', 0],
        ["assistant", "It is 21 degrees.", 0], ["user", "Is it warm?", 0], ["assistant", "Yes.", 0],
    ]  # fmt: skip
    call = {
        "type": "tool-weather", "input": {"city": "Lisbon"}, "output": {"degrees": 21}, "state": "output-available",
    }  # fmt: skip
    step, text = {"type": "step-start"}, {"type": "text", "text": "It is 21 degrees."}
    assert result["page"] == result["shown"] == [step, call, step, text]
    assert [part for part in result["repeated"] if part.get("text") != ""] == result["page"]
    assert ["tool-result", "weather", '{"degrees":21}'] in result["prompt"]


async def test_a_page_that_comes_back_continues_the_answer_from_its_beginning(run: Run) -> None:
    result = await run("resumed", text=TEXT)
    assert (result["text"], result["stored"], result["sameMessage"]) == (TEXT, TEXT, True)
    assert result["types"][:3] == ["start", "start-step", "text-start"]
    assert result["later"] == 204


async def test_a_model_that_fails_leaves_no_answer_and_the_message_can_be_sent_again(run: Run) -> None:
    result = await run("failed")
    assert "error" in result["types"]
    assert result["after"] == [["user", "Tell me.", 0]]
    assert result["text"] == "All of it."
    assert result["stored"] == [["user", "Tell me.", 0], ["assistant", "All of it.", 0]]


async def test_an_answer_that_the_user_stopped_stays_as_far_as_it_was_shown(run: Run) -> None:
    assert await run("stopped") == ["One two three four five ", "One two three four five "]


async def test_an_answer_is_replaced_by_another_one(run: Run) -> None:
    text, roles, stored = await run("regenerated")
    assert (text, roles[-1]) == ("Berta.", "user")
    assert stored == [["user", "A name?", 0], ["assistant", "Berta.", 0]]


async def test_a_message_of_another_user_is_no_answer(run: Run) -> None:
    assert await run("meanwhile") == ["For you.", ["One?", "Two?", "For you."]]


async def test_a_picture_is_kept_and_is_in_the_prompt(run: Run) -> None:
    parts, prompt = await run("file")
    assert parts == [["text", None], ["file", "data:image/png;base64,iVBORw0KGgo="]]
    assert prompt == ["text", "file"]


async def test_a_prompt_stays_within_its_budget(run: Run) -> None:
    words = await run("budget")
    assert 300 < words <= 600, "each word is a token; the format's tokens are estimated, so not all of them are used"
