"""The process of a chat route for the AI SDK is killed while the model writes: the next request answers the message."""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.node import PROGRAMS, needs_typescript, scenario
from tests.support.command import migrated_data
from tests.support.process import Process, process_folder

pytestmark = [pytest.mark.slow, needs_typescript]


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with process_folder() as made:
        migrated_data(made / "data")
        process = Process(made / "data", embedder="none", stream_lease_s="4")
        yield process.start().wait()
        process.stop()


async def die(folder: Path, url: str, key: str, where: str) -> None:
    """Run the route in a process of its own, and kill it when it has written half of an answer."""
    program = shutil.copy(PROGRAMS / "ai.mjs", folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    running = await asyncio.create_subprocess_exec(
        "node", "--experimental-websocket", "--no-warnings", program, "dying", json.dumps({"where": where}),
        env=kept | {"TURNKEEP_URL": url, "TURNKEEP_API_KEY": key, "NO_PROXY": "127.0.0.1"},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert running.stderr is not None
    async with asyncio.timeout(120):
        assert await running.stderr.readline() == b"kill\n"
    running.kill()
    await running.wait()


@pytest.mark.parametrize(
    ("where", "result_of_tool", "aborted"),
    [
        ("first", None, "It is one two three "),
        ("second", '{"degrees":21}', "It is one two three "),
        ("results", "The call was interrupted.", ""),
    ],
)
async def test_the_answer_of_a_killed_route_is_aborted_by_its_lease_and_the_next_request_answers(
    server: Process, package: Path, where: str, result_of_tool: str | None, aborted: str
) -> None:
    url = f"http://127.0.0.1:{server.port}"
    await die(package, url, server.key, where)
    result = await scenario(package, url, server.key, "survived", program="ai.mjs", where=where)
    # a request within the lease follows the answer, and learns that it has ended
    assert (result["followed"], result["resumed"], result["running"]) == (["", "error"], "error", 0)
    assert (result["calls"], result["runs"]) == (1, 0), "no tool runs twice"
    said = [["user", None], ["assistant", None], ["tool", result_of_tool]]
    assert result["prompt"] == (said if result_of_tool else said[:1])
    assert (result["pages"], result["ids"]) == (["It is warm."] * 2, 1 if result_of_tool else 2)
    roles = ["user", "assistant", "tool", "assistant"]
    assert [role for role, _, _ in result["stored"]] == (roles if result_of_tool else roles[:2])
    (content,) = result["aborted"]
    assert (content or "").startswith(aborted)


@pytest.mark.parametrize("where", ["approved", "approvedModel"])
async def test_an_approved_call_whose_process_is_killed_is_not_run_again_and_not_lost(
    server: Process, package: Path, where: str
) -> None:
    url = f"http://127.0.0.1:{server.port}"
    await die(package, url, server.key, where)
    result = await scenario(package, url, server.key, "survivedApproval", program="ai.mjs", where=where)
    assert result["ran"] == 0, "it ran in the process that was killed"
    ended = ["pay-1", "output-available", True, {"paid": 5}]
    unknown = "The user approved this call. Its result is unknown: it may have run, or not."
    if where == "approved":
        assert result["during"] == [["pay-1", "approval-responded", True, None]]
        ended = ["pay-1", "output-error", True, unknown]
    else:
        assert result["during"] == [ended]
    said = [["user", "Pay.", []], ["assistant", "It may be paid.", [ended]]]
    assert result["messages"] == [*said, ["user", "And?", []], ["assistant", "Bye.", []]]
    for results in result["results"]:
        [(call, _, value)] = results
        assert call == "pay-1"
        assert (value == unknown) == (where == "approved"), "the model reads what is known of the call"
