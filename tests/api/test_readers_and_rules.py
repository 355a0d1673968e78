"""Single summaries and memories, kinds of turns, results of calls, and policies that are changed."""

import io
import json
from typing import Any

import pytest

from app.core.telemetry import configure_logging
from app.settings import Settings
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, problem

UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
CALL = {"role": "assistant", "tool_calls": [{"id": "call_1", "name": "clock", "arguments": {}}]}
RESULT = {"role": "tool", "actor": "clock", "tool_call_id": "call_1", "content": "nine"}


async def append(client: Client, conversation: str, *turns: dict[str, Any]) -> Any:
    return await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": list(turns)})


async def summaries_made(client: Client) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("mcp_memory_compaction_total "))


async def test_one_summary_is_read_by_its_id(client: Client, other: Client, service: Service) -> None:
    conversation, another = await client.conversation(), await client.conversation()
    await client.append(conversation, *(f"I paid {number} euros in Lisbon." for number in range(8)))
    made = await client.post(f"/v1/conversations/{conversation}/summaries", json={})
    [summary] = made.json()["summaries"]
    path = f"/v1/conversations/{conversation}/summaries/{summary['id']}"
    assert (await client.get(path)).json() == summary
    token = (await client.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read"})).json()["token"]
    async with service.client(token) as browser:
        assert (await browser.get(path)).json() == summary
    for reader, wrong in (
        (client, f"/v1/conversations/{another}/summaries/{summary['id']}"),
        (client, f"/v1/conversations/{conversation}/summaries/{UNKNOWN}"),
        (other, path),
    ):
        problem(await reader.get(wrong), 404, "not_found")


async def test_one_memory_is_read_by_its_agent_and_by_an_administrator(
    client: Client, other: Client, service: Service
) -> None:
    stored = await client.post("/v1/memories", json={"content": "Mia likes ferries."}, headers={"X-Agent-Id": "a"})
    path = f"/v1/memories/{stored.json()['id']}"
    read = await client.get(path)
    assert (read.json()["content"], read.json()["agent_id"]) == ("Mia likes ferries.", "a")
    problem(await client.get(f"/v1/memories/{UNKNOWN}"), 404, "not_found")
    problem(await other.get(path), 404, "not_found")
    create = service.container.tenancy.create_key
    plain = await create(client.tenant_id, name="plain", scopes=[Scope.READ])
    without = await create(client.tenant_id, name="without", scopes=[Scope.READ], long_term_enabled=False)
    async with service.client(str(plain)) as reader:
        assert (await reader.get(path, headers={"X-Agent-Id": "a"})).json() == read.json()
        problem(await reader.get(path, headers={"X-Agent-Id": "b"}), 404, "not_found")
    async with service.client(str(without)) as reader:
        problem(await reader.get(path), 403, "long_term_disabled")


@pytest.mark.parametrize(
    ("role", "kind"),
    [
        ("user", "agent_message"), ("user", "tool_result"), ("user", "tool_call_request"),
        ("assistant", "user_message"), ("assistant", "tool_result"), ("system", "user_message"),
    ],
)  # fmt: skip
async def test_a_kind_that_is_of_another_role_is_refused(client: Client, role: str, kind: str) -> None:
    conversation = await client.conversation()
    wrong = await append(client, conversation, {"role": role, "kind": kind, "content": "x"})
    problem(wrong, 422, "invalid_request", "/turns/0/kind")
    for own in ({"role": "user", "kind": "user_message"}, {"role": "system", "kind": "compaction"}):
        assert (await append(client, conversation, own | {"content": "x"})).status_code == 201


async def test_a_second_result_of_one_call_is_refused(client: Client) -> None:
    conversation = await client.conversation()
    twice = await append(client, conversation, CALL, RESULT, RESULT)
    problem(twice, 422, "tool_call_answered", "/turns/2/tool_call_id")
    [_, result] = (await client.append(conversation, CALL, RESULT))["turns"]
    problem(await append(client, conversation, RESULT), 422, "tool_call_answered", "/turns/0/tool_call_id")
    listed = {"role": "tool", "tool_results": [{"tool_call_id": "call_1", "content": "ten"}]}
    problem(
        await append(client, conversation, listed), 422, "tool_call_answered", "/turns/0/tool_results/0/tool_call_id"
    )
    revised = await client.post(
        f"/v1/conversations/{conversation}/turns/{result['id']}/revisions",
        json={"content": "ten", "tool_call_id": "call_1"},
    )
    assert revised.status_code == 201, revised.text
    # some providers count calls from the same number in every message
    assert (await append(client, conversation, CALL, RESULT)).status_code == 201
    problem(await append(client, conversation, {**RESULT, "tool_call_id": "call_2"}), 422, "tool_call_unknown")


async def test_a_result_that_is_sent_again_under_its_id_is_no_second_one(client: Client) -> None:
    conversation = await client.conversation()
    result = {**RESULT, "id": "01KAXXQ7J0ZK5ZK5ZK5ZK5ZK5Z"}
    await client.append(conversation, CALL, result)
    assert (await append(client, conversation, result)).status_code == 200
    more = await append(client, conversation, result, {"role": "user", "content": "thanks"})
    assert more.status_code == 201, more.text
    assert len(await client.history(conversation)) == 3


async def test_a_policy_that_is_changed_from_never_starts_compaction(client: Client, service: Service) -> None:
    triggers = {"trigger_turns": 6, "trigger_tokens": 100_000}
    conversation = await client.conversation(compaction=triggers | {"strategy": "never"})
    await client.append(conversation, *(f"I paid {number} euros in Lisbon." for number in range(10)))
    await service.run_jobs()
    path = f"/v1/conversations/{conversation}"
    assert (await client.get(f"{path}/summaries")).json()["data"] == []
    before = await summaries_made(client)
    await client.patch(path, json={"compaction": {"strategy": "rolling"}})
    await service.run_jobs()
    assert len((await client.get(f"{path}/summaries")).json()["data"]) == 1
    assert await summaries_made(client) == before + 1, "what a job has made counts"


async def test_what_the_lifecycle_stores_is_logged_with_the_names_of_project_session_and_turn(client: Client) -> None:
    item = {"role": "user", "content": "hello"}
    lines = io.StringIO()
    configure_logging(Settings(log_level="info", log_format="json").telemetry, lines)
    try:
        for session, turn in (("session-1", "t.1"), ("mia@example.com", "a turn")):
            body = {"project": "p_1", "session_id": session, "user_id": "mia", "turn_id": turn, "input_items": [item]}
            assert (await client.post("/v1/lifecycle/after-turn", json=body)).status_code == 200
    finally:
        configure_logging(Settings(log_level="error").telemetry)
    stored = [json.loads(line) for line in lines.getvalue().splitlines() if "lifecycle.stored" in line]
    names = [(line["project"], line["session_id"], line["turn_id"]) for line in stored]
    assert names == [("p_1", "session-1", "t.1"), ("p_1", None, None)]
    assert "example.com" not in lines.getvalue()


async def test_a_summarising_that_is_sent_again_under_its_key_gives_the_first_answer(
    client: Client, service: Service
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *(f"I paid {number} euros in Lisbon." for number in range(8)))
    path, headers = f"/v1/conversations/{conversation}/summaries", {"Idempotency-Key": "k1"}
    first = await client.post(path, json={}, headers=headers)
    assert "Idempotent-Replayed" not in first.headers
    assert len(first.json()["summaries"]) == 1
    await client.append(conversation, *(f"I paid {number} euros in Porto." for number in range(8)))
    again = await client.post(path, json={}, headers=headers)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert [one["id"] for one in again.json()["summaries"]] == [one["id"] for one in first.json()["summaries"]]
    assert again.json()["summarized_through"] == first.json()["summarized_through"], "nothing more was summarised"
    other = await client.post(path, json={"through": first.json()["summarized_through"]}, headers=headers)
    problem(other, 409, "idempotency_mismatch")
    writer = await service.container.tenancy.create_key(client.tenant_id, name="writer", scopes=[Scope.WRITE])
    async with service.client(str(writer)) as blind:
        shown = (await blind.post(path, json={}, headers=headers)).json()["summaries"]
        assert "euros" not in json.dumps(shown)


async def test_a_system_text_may_be_a_list(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "hello")
    one = await client.context(conversation, 500, system="Be brief.\n\nBe kind.")
    for given in (["Be brief.", "Be kind."], [{"type": "text", "text": "Be brief."}, "Be kind."]):
        for shape in ("openai", "anthropic", "openai_responses"):
            several = await client.context(conversation, 500, system=given, format=shape)
            assert several["system"] == (None if shape == "openai" else one["messages"][0]["content"])
            if shape == "openai":
                assert several["messages"] == one["messages"]
    for system in (["Be brief.", {"type": "image"}], ["x"] * 101):
        wrong = {"token_budget": 500, "system": system}
    problem(
        await client.post(f"/v1/conversations/{conversation}/context", json=wrong), 422, "invalid_request", "/system"
    )


async def test_a_list_of_participants_hides_no_author(client: Client) -> None:
    conversation = await client.conversation(participants=[{"actor": "ann", "name": "Ann"}, "zoe"])
    turns = [{"role": "user", "actor": actor, "content": "hello"} for actor in ("ann", "bob")]
    [said, _] = (await client.append(conversation, *turns))["turns"]
    path = f"/v1/conversations/{conversation}"
    changed = await client.patch(path, json={"participants": ["mia"]})
    shown = [(one["actor"], one["name"]) for one in changed.json()["participants"]]
    assert shown == [("mia", None), ("ann", "Ann"), ("bob", None)]
    renamed = await client.patch(path, json={"participants": [{"actor": "bob", "name": "Bob"}]})
    assert [(one["actor"], one["name"]) for one in renamed.json()["participants"]] == [("bob", "Bob"), ("ann", "Ann")]
    await client.delete(f"{path}/turns/{said['id']}")
    left = await client.patch(path, json={"participants": ["bob"]})
    assert [one["actor"] for one in left.json()["participants"]] == ["bob"]
