"""The chat route for the AI SDK, run by node with the SDK and a model of its own tests, against a real server."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.node import needs_typescript, scenario
from tests.support.api import Client, Service

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


async def test_a_message_is_answered_after_any_number_of_failures_and_the_calls_stay_few(run: Run) -> None:
    result = await run("failedOften")
    assert (result["texts"], result["modelCalls"]) == (["All of it."] * 2, 1)
    first, repeated = result["calls"]
    assert first < 50, "130 failed attempts are not read one by one"
    assert repeated < 40


async def test_a_message_is_answered_after_any_number_of_edits_of_an_earlier_one(run: Run) -> None:
    assert await run("editedOften") == "Yes."


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


async def test_of_requests_with_one_message_at_one_moment_one_calls_the_model(run: Run) -> None:
    result = await run("together")
    text = "It is a long answer, and there is one of it."
    assert (result["calls"], result["ids"]) == (1, 1)
    assert (result["texts"], result["ends"]) == ([text] * 6, ["finish"] * 6)
    assert (result["callsAfter"], result["again"]) == (2, ["Another."] * 6)
    assert result["stored"] == [["user", "Tell me.", 0], ["assistant", "Another.", 0]]
    assert [content for content, _, is_superseded in result["all"] if is_superseded] == ["Tell me.", text]


async def test_an_answer_is_stopped_at_another_process(run: Run) -> None:
    result = await run("stoppedElsewhere")
    text = "One two three four five "
    assert (result["idle"], result["resume"]) == (204, 204)
    assert (result["shown"], result["followed"], result["again"]) == ([text, "abort"], [text, "finish"], text)
    assert result["isStopped"] == [True]
    assert (result["empty"], result["later"]) == (["", "abort"], "Now.")
    assert [content for _, content, _ in result["stored"]] == ["Tell me.", text, "And now?", "Now."]


async def test_an_edited_message_is_revised_and_its_old_text_is_not_answered(run: Run) -> None:
    result = await run("edited")
    assert (result["soup"], result["old"], result["prompt"]) == ("Soup it is.", "abort", False)
    assert result["last"][:2] == ["I eat no nuts.", "Noted."]
    said, answer = result["last"][2:]
    assert said in {"Bread?", "Rice?"}
    assert answer in result["both"]
    assert (result["reloaded"], result["back"], result["gone"]) == ("No eggs.", "No nuts.", "A cake.")
    assert result["stored"] == ["I eat no nuts.", "No nuts.", "A cake?", "A cake."]


async def test_a_message_that_is_edited_before_its_answer_begins_is_not_answered(run: Run) -> None:
    assert await run("editedMeanwhile") == [[["error", 0], ["error", 0]], ["New?", "New.", "New?", "New."]]


async def test_an_answer_to_the_old_text_that_is_committed_during_an_edit_is_removed(run: Run) -> None:
    result = await run("editedAtCommit")
    assert result == ["One two three four five six.", "New.", ["New?", "New."], ["user"]]


async def test_of_many_edits_and_stops_at_one_moment_no_page_gets_the_answer_to_another_text(run: Run) -> None:
    result = await run("storm")
    assert result["wrong"] == []
    text = "You said last, and nothing else."
    assert (result["last"], result["stored"], result["running"]) == (text, ["last", text], 204)


async def test_two_tenants_have_chats_and_messages_of_the_same_ids(
    package: Path, url: str, tenant: Client, served: tuple[Service, int]
) -> None:
    async with await served[0].new_tenant() as other:
        result = await scenario(package, url, tenant.key, "tenants", program="ai.mjs", otherKey=other.key)
    mine = ["It is mine.", "Whose is it?", "It is still mine."]
    assert result == [*mine, "It is yours.", "Whose is it?", "It is still yours."]


async def test_an_answer_goes_on_while_a_later_message_of_another_author_is_edited(run: Run) -> None:
    text = "One two three four five six."
    assert await run("beside") == [text, ["Tell me.", "And us?", "All.", text]]


async def test_a_message_of_another_author_cannot_be_edited(run: Run) -> None:
    said = ["I am Mia.", "Hello Mia.", "I am Jonas.", "Hello Jonas.", "I am nobody.", "Hello."]
    assert await run("room") == said


async def test_tools_that_the_page_runs_send_their_outputs_in_the_next_request(run: Run) -> None:
    result = await run("pageTools")
    assert result["seen"] == [["user", "Where am I?"], ["assistant", "You are in Lisbon."]]
    assert [state for kind, state in result["states"] if kind == "tool-place"] == ["output-available", "output-error"]
    assert "lacks the output" in result["refused"]
    assert "Pass the newest message" in result["foreign"]
    assert [output for kind, output in result["prompt"] if kind == "tool-result"] == ['{"city":"Lisbon"}', "No signal."]
    assert (result["calls"], result["ids"]) == (2, 1)
    assert (result["repeats"], result["resent"]) == (["You are in Lisbon."] * 2, "You are in Lisbon.")
    assert result["other"] == "So be it."
    assert [role for role, _, _ in result["stored"]][:5] == ["user", "assistant", "tool", "tool", "assistant"]


async def test_calls_wait_for_approvals_that_a_page_gives_after_a_reload_at_another_process(run: Run) -> None:
    result = await run("approvals")
    weather = ["w", "output-available", None, {"degrees": 21}]
    waiting = [weather, ["pay-1", "approval-requested", None, None], ["pay-2", "approval-requested", None, None]]
    assert result["asked"] == [waiting, waiting]
    assert [name for name, _ in result["forged"]] == ["TypeError"] * 3
    assert all("request for approval" in said for _, said in result["forged"])
    assert result["ranBefore"] == ["weather"]
    assert result["ran"] == ["weather", {"euros": 5}]
    ended = [weather, ["pay-1", "output-available", True, {"paid": 5}], ["pay-2", "output-denied", False, None]]
    assert result["page"] == result["reloaded"] == ended
    assert result["repeated"] == [ended, "Paid five."]
    assert sorted(result["prompt"]) == [
        ["pay-1", "json", {"paid": 5}],
        ["pay-2", "text", "The user denied this call: too much"],
        ["w", "text", '{"degrees":21}'],
    ]
    assert (result["calls"], result["ids"], result["messages"]) == (2, 1, [2, 2])
    assert result["stored"] == ["user", "assistant", "tool", "tool", "tool", "assistant"]


async def test_of_pages_that_answer_at_one_moment_one_decides_and_the_call_runs_once(run: Run) -> None:
    alike, apart = await run("approvedTogether")
    paid = [["pay-1", "output-available", True, {"paid": 5}]]
    assert (alike["ran"], alike["calls"], alike["texts"]) == (1, 2, ["Done."] * 3)
    assert alike["tools"] == [paid] * 3
    assert alike["shown"] == paid
    assert (apart["calls"], apart["texts"]) == (2, ["Done."] * 4)
    decided = paid if apart["ran"] else [["pay-1", "output-denied", False, None]]
    assert (apart["shown"], apart["tools"]) == (decided, [decided] * 4)
    assert apart["ran"] <= 1
    assert len(apart["prompt"]) == 1


async def test_the_result_of_an_approved_call_stays_if_the_model_fails_after_it(run: Run) -> None:
    result = await run("approvedAndFailed")
    paid = [["pay-1", "output-available", True, {"paid": 5}]]
    assert (result["ran"], result["failed"]) == (1, [paid, True])
    assert result["again"] == [paid, "Paid."]
    assert [one[0] for one in result["prompt"]] == ["pay-1"]


async def test_a_process_that_is_late_does_not_run_an_approved_call_again(run: Run) -> None:
    result = await run("approvedAndStopped")
    assert (result["ran"], result["calls"]) == (1, 2)
    assert result["page"] == [[["pay-1", "output-available", True, {"paid": 5}]], "It may be paid."]
    assert result["late"] in {"abort", "error", "turn_id_conflict", "finish"}
    assert result["stored"] == ["user", "assistant", "tool", "assistant"]


async def test_rules_approve_and_deny_calls_and_a_new_message_ends_an_open_request(run: Run) -> None:
    result = await run("ruled")
    paid, limited = ["pay-1", "output-available", True, {"paid": 5}], ["pay-2", "output-denied", False, None]
    assert result["page"] == [paid, limited]
    assert result["shown"] == [paid, limited, ["pay-3", "approval-requested", None, None]]
    assert (result["ran"], result["last"]) == (1, "So be it.")
    assert result["lastPrompt"] == ["pay-1", "pay-2"]


async def test_signed_requests_changed_inputs_and_repeated_ids_are_approved(run: Run) -> None:
    result = await run("approvedAgain")
    assert (result["ran"], result["texts"]) == ([5, 6], ["One.", "Two."])
    assert len(set(result["ids"])) == 2


async def test_a_page_of_the_sdk_edits_regenerates_and_reloads(run: Run) -> None:
    result = await run("page")
    asked = ["A town?", "A town?", "A town by the sea?", "A town by the sea?"]
    for (seen, stored), said, answer in zip(
        result["steps"], asked, ["Lisbon.", "Porto.", "Faro.", "Evora."], strict=True
    ):
        assert seen == stored == [["user", said], ["assistant", answer]]
    assert (result["calls"], result["all"]) == (4, 8), "nothing is overwritten"


async def test_results_after_the_last_step_are_in_a_repeated_answer(run: Run) -> None:
    pages, calls, stored = await run("lastStep")
    assert pages == [["output-available", "finish"]] * 2
    assert calls == 1
    assert [role for role, _, _ in stored] == ["user", "assistant", "tool"]


async def test_an_answer_that_was_erased_is_given_again(run: Run) -> None:
    assert await run("erased") == ["Berta.", ["A name?", "Berta."]]


async def test_a_prompt_stays_within_its_budget(run: Run) -> None:
    words = await run("budget")
    assert 300 < words <= 600, "each word is a token; the format's tokens are estimated, so not all of them are used"
