"""Turns that stand where they were opened (`position: "opened"`), though others were committed before them."""

import asyncio
import json
from typing import Any

import pytest

from tests.api.test_imports import imported
from tests.support.api import Client, Service, problem
from tests.support.live import serving, socket_on


async def opened(
    client: Client, conversation: str, *, position: str | None = "opened", role: str = "user", **turn: Any
) -> dict[str, Any]:
    body: dict[str, Any] = {"turn": {"role": role} | turn, "writer": "w"}
    if position is not None:
        body["position"] = position
    answer = await client.post(f"/v1/conversations/{conversation}/turns/open", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["turn"]


async def committed(client: Client, conversation: str, turn: dict[str, Any], text: str) -> dict[str, Any]:
    path = f"/v1/conversations/{conversation}/turns/{turn['id']}"
    await client.post(f"{path}/chunks", json={"offset": 0, "delta": text})
    answer = await client.post(f"{path}/commit", json={"length": len(text)})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def texts(client: Client, conversation: str) -> list[str]:
    return [turn["content"] for turn in await client.history(conversation)]


@pytest.fixture
async def conversation(client: Client) -> str:
    created = await client.conversation()
    await client.append(created, "Hello.")
    return created


async def said(client: Client, conversation: str, text: str) -> dict[str, Any]:
    body = {"turns": [{"role": "assistant", "content": text}]}
    return (await client.post(f"/v1/conversations/{conversation}/turns", json=body)).json()["turns"][0]


async def test_a_late_transcript_stands_before_the_answer_that_it_caused(client: Client, conversation: str) -> None:
    transcript = await opened(client, conversation)
    answer = await said(client, conversation, "From eight o'clock.")
    stored = await committed(client, conversation, transcript, "Is table nine free?")
    assert (stored["seq"], answer["seq"]) == (3, 2)
    assert transcript["position"] == stored["position"] < answer["position"]
    assert await texts(client, conversation) == ["Hello.", "Is table nine free?", "From eight o'clock."]
    await said(client, conversation, "Anything else?")
    turns = await client.history(conversation)
    assert [turn["seq"] for turn in turns] == [1, 3, 2, 4]
    positions = [turn["position"] for turn in turns]
    assert positions == sorted(set(positions))
    assert (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True


async def test_without_it_turns_stand_in_the_order_of_their_commits(client: Client, conversation: str) -> None:
    for position in (None, "committed"):
        transcript = await opened(client, conversation, position=position)
        assert transcript["position"] is None
        await said(client, conversation, "answer")
        stored = await committed(client, conversation, transcript, "question")
        assert stored["position"] == stored["seq"]
    assert (await texts(client, conversation))[1:] == ["answer", "question"] * 2


async def test_several_turns_stand_in_the_order_of_their_opening(client: Client, conversation: str) -> None:
    turns = [await opened(client, conversation) for _ in range(3)]
    await said(client, conversation, "last")
    for number in (2, 0, 1):
        await committed(client, conversation, turns[number], f"turn {number}")
    assert await texts(client, conversation) == ["Hello.", "turn 0", "turn 1", "turn 2", "last"]


async def test_an_aborted_turn_leaves_its_place_empty(client: Client, conversation: str) -> None:
    turn = await opened(client, conversation)
    await said(client, conversation, "one")
    aborted = await client.post(f"/v1/conversations/{conversation}/turns/{turn['id']}/abort", json={})
    assert (aborted.json()["status"], aborted.json()["position"]) == ("aborted", None)
    await said(client, conversation, "two")
    turns = await client.history(conversation)
    assert [(turn["content"], turn["seq"]) for turn in turns] == [("Hello.", 1), ("one", 2), ("two", 3)]
    context = await client.post(f"/v1/conversations/{conversation}/context", json={"token_budget": 1000})
    assert (context.json()["gap"], context.json()["as_of_seq"]) == (None, 3)


async def test_pages_and_cursors_of_a_history_run_by_the_place(client: Client, conversation: str) -> None:
    transcript = await opened(client, conversation)
    answer = await said(client, conversation, "answer")
    path = f"/v1/conversations/{conversation}/turns"
    await committed(client, conversation, transcript, "question")
    before = (await client.get(path, params={"before": answer["position"]})).json()["data"]
    assert [turn["content"] for turn in before] == ["Hello.", "question"]
    after = (await client.get(path, params={"after": transcript["position"], "order": "asc"})).json()["data"]
    assert [turn["content"] for turn in after] == ["answer"]
    read: list[str] = []
    cursor = None
    while cursor is not None or not read:
        params: dict[str, Any] = {"limit": 1, "order": "asc"} | ({} if cursor is None else {"cursor": cursor})
        page = (await client.get(path, params=params)).json()
        read += [turn["content"] for turn in page["data"]]
        cursor = page["next_cursor"]
    assert read == ["Hello.", "question", "answer"]
    changed = (await client.get(path, params={"since_rev": 2})).json()["data"]
    assert [turn["content"] for turn in changed] == ["question"]


@pytest.mark.parametrize("while_open", [True, False], ids=["while it is open", "after its commit"])
async def test_a_context_shows_every_turn_in_its_place(client: Client, conversation: str, *, while_open: bool) -> None:
    transcript = await opened(client, conversation)
    for number in range(30):
        await said(client, conversation, f"answer {number}")
    if not while_open:
        await committed(client, conversation, transcript, "question")
    body = {"token_budget": 4000, "format": "openai", "recent_turns": 100}
    context = (await client.post(f"/v1/conversations/{conversation}/context", json=body)).json()
    expected = ["Hello.", *([] if while_open else ["question"]), *(f"answer {number}" for number in range(30))]
    contents = "\n".join(str(message["content"]) for message in context["messages"])
    assert [contents.find(text) for text in expected] == sorted(contents.find(text) for text in expected)
    assert all(text in contents for text in expected)
    assert (context["gap"], context["as_of_seq"]) == (None, 31 if while_open else 32)
    small = body | {"token_budget": 60, "recent_turns": 3}
    short = (await client.post(f"/v1/conversations/{conversation}/context", json=small)).json()
    shown = len(short["included"]["turn_ids"])
    assert (short["gap"]["turns"] if short["gap"] else 0) + shown == len(expected)


async def test_a_summary_over_the_place_is_made_again(client: Client, conversation: str) -> None:
    transcript = await opened(client, conversation)
    for number in range(8):
        await client.append(conversation, f"On day {number} we met Ada in Oslo at {number + 8} o'clock.")
    path = f"/v1/conversations/{conversation}"
    through = (await client.history(conversation))[-2]["id"]
    done = await client.post(f"{path}/compact", json={"through": through})
    assert done.status_code in {200, 202}, done.text
    before = (await client.get(f"{path}/summaries")).json()["data"]
    assert before
    stored = await committed(client, conversation, transcript, "Who is Ada?")
    assert before[0]["from_position"] <= stored["position"] <= before[0]["to_position"]
    after = (await client.get(f"{path}/summaries")).json()["data"]
    assert {summary["id"] for summary in before}.isdisjoint(summary["id"] for summary in after)
    context = await client.post(f"{path}/context", json={"token_budget": 4000, "format": "openai"})
    assert "Who is Ada?" in json.dumps(context.json()["messages"])
    assert context.json()["gap"] is None


async def test_neighbours_and_the_index_follow_the_place(client: Client, service: Service, conversation: str) -> None:
    transcript = await opened(client, conversation)
    await said(client, conversation, "The ferry leaves at noon.")
    await said(client, conversation, "Bring a coat.")
    await committed(client, conversation, transcript, "When does the boat to the archipelago leave?")
    body = {"query": "archipelago", "k": 1, "neighbours": 1}
    [hit] = (await client.post(f"/v1/conversations/{conversation}/recall", json=body)).json()["data"]
    assert [turn["content"] for turn in hit["neighbours"]] == ["Hello.", "The ferry leaves at noon."]
    async with service.container.database.transaction(client.tenant_id) as tx:
        rows = await tx.fetch(
            "select t.content #>> '{}' as content, e.position from index_entries e join turns t"
            " on t.tenant_id = e.tenant_id and t.id = coalesce(e.source_id, e.entry_id)"
            " where e.tenant_id = $1 and e.kind = 'turn' order by e.position",
            client.tenant_id,
        )
    assert [row["position"] for row in rows] == [1, 2, 3, 4]
    assert rows[1]["content"].startswith("When does the boat")


async def test_a_fork_and_an_import_keep_the_order(client: Client, service: Service, conversation: str) -> None:
    transcript = await opened(client, conversation)
    await said(client, conversation, "answer")
    await committed(client, conversation, transcript, "question")
    await said(client, conversation, "more")
    expected = ["Hello.", "question", "answer", "more"]
    fork = await client.post(f"/v1/conversations/{conversation}/fork", json={})
    assert await texts(client, fork.json()["id"]) == expected
    exported = (await client.get(f"/v1/conversations/{conversation}/export")).content
    async with await service.new_tenant() as other:
        await imported(service, other, exported)
        assert await texts(other, conversation) == expected
        await said(other, conversation, "after the import")
        assert await texts(other, conversation) == [*expected, "after the import"]
        assert (await other.get(f"/v1/conversations/{conversation}/verify")).json()["valid"] is True
    async with await service.new_tenant() as third:
        await third.append(await third.conversation(id=conversation), "taken")  # so the turns get new ids
        result = await imported(service, third, exported)
        assert result["conversations"]["remapped"] == 1, result
        listed = (await third.get("/v1/conversations")).json()["data"]
        [copy] = [one["id"] for one in listed if one["id"] != conversation]
        assert await texts(third, copy) == expected


async def test_after_an_import_no_turn_takes_the_place_of_a_removed_one(
    client: Client, service: Service, conversation: str
) -> None:
    path = f"/v1/conversations/{conversation}/turns"
    for _ in range(2):
        transcript = await opened(client, conversation)
        assert (await client.post(f"{path}/{transcript['id']}/abort", json={})).status_code == 200
    edited, removed = await said(client, conversation, "first"), await said(client, conversation, "removed")
    revision = {"content": "edited", "truncate_after": True}
    assert (await client.post(f"{path}/{edited['id']}/revisions", json=revision)).status_code == 201
    exported = (await client.get(f"/v1/conversations/{conversation}/export")).content
    async with await service.new_tenant() as other:
        await imported(service, other, exported)
        await said(other, conversation, "after the import")
        erased = (await other.delete(f"{path}?ids={removed['id']}")).json()["erased"]
        assert erased == [removed["id"]]
        assert await texts(other, conversation) == ["Hello.", "edited", "after the import"]


async def test_a_turn_that_supersedes_another_has_no_other_place(client: Client, conversation: str) -> None:
    [first] = await client.history(conversation)
    body = {"turn": {"role": "user", "supersedes": first["id"]}, "position": "opened"}
    refused = await client.post(f"/v1/conversations/{conversation}/turns/open", json=body)
    problem(refused, 422, "invalid_request", "/position")
    wrong = {"turn": {"role": "user"}, "position": "first"}
    refused = await client.post(f"/v1/conversations/{conversation}/turns/open", json=wrong)
    problem(refused, 422, "invalid_request", "/position")


async def test_the_result_of_a_call_needs_the_call_before_its_place(client: Client, conversation: str) -> None:
    result = await opened(client, conversation, role="tool", tool_call_id="call_1")
    call = {"id": "call_1", "name": "clock", "arguments": "{}"}
    body = {"turns": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert (await client.post(f"/v1/conversations/{conversation}/turns", json=body)).status_code == 201
    path = f"/v1/conversations/{conversation}/turns/{result['id']}"
    await client.post(f"{path}/chunks", json={"offset": 0, "delta": "noon"})
    problem(await client.post(f"{path}/commit", json={}), 422, "tool_call_unknown")


async def test_a_revision_keeps_the_place_of_a_turn_that_was_opened(client: Client, conversation: str) -> None:
    transcript = await opened(client, conversation)
    await said(client, conversation, "answer")
    stored = await committed(client, conversation, transcript, "kwestion")
    path = f"/v1/conversations/{conversation}/turns/{stored['id']}/revisions"
    revised = (await client.post(path, json={"content": "question"})).json()["turn"]
    assert revised["position"] == stored["position"]
    assert await texts(client, conversation) == ["Hello.", "question", "answer"]


async def test_the_list_shows_the_last_turn_by_its_place(client: Client, conversation: str) -> None:
    transcript = await opened(client, conversation)
    await said(client, conversation, "answer")
    await committed(client, conversation, transcript, "question")
    [listed] = (await client.get("/v1/conversations")).json()["data"]
    assert listed["last_message"]["text"] == "answer"


async def test_the_title_follows_the_first_question_by_its_place(client: Client) -> None:
    for title, expected in ((None, "Where is my parcel?"), ("Mine", "Mine")):
        conversation = await client.conversation(title=title)
        transcript = await opened(client, conversation)
        later = await opened(client, conversation)
        await said(client, conversation, "answer")
        await client.append(conversation, "And the bill?")
        await committed(client, conversation, transcript, "Where is my parcel?")
        await committed(client, conversation, later, "Hello?")
        assert (await client.get(f"/v1/conversations/{conversation}")).json()["title"] == expected


async def test_subscribers_get_the_place_with_the_turn(client: Client, service: Service, conversation: str) -> None:
    async with (
        serving(service.app, service.settings) as port,
        socket_on(port, conversation, client.key) as writer,
        socket_on(port, conversation, client.key) as follower,
    ):
        await follower.ask("subscribe")
        ack = await writer.ask("open", turn={"role": "user"}, writer="w", position="opened")
        frame = await follower.until("turn.opened")
        assert frame["turn"]["position"] == 2
        answer = await said(client, conversation, "answer")
        await writer.ask("chunk", turn_id=ack["turn_id"], offset=0, delta="question")
        done = await writer.ask("commit", turn_id=ack["turn_id"], length=8)
        assert done["turn"]["position"] == 2 < answer["position"]
        while (frame := await follower.until("turn.committed"))["turn"]["id"] != ack["turn_id"]:
            pass
        assert frame["turn"]["position"] == 2
    async with serving(service.app, service.settings) as port, socket_on(port, conversation, client.key) as late:
        await late.send("subscribe")
        snapshot = await late.until("snapshot")
        positions = {turn["content"]: turn["position"] for turn in snapshot["turns"]}
        assert positions["question"] < positions["answer"]


async def test_two_tenants_with_the_same_ids_have_each_its_own_places(client: Client, service: Service) -> None:
    async with await service.new_tenant() as other:
        conversation = await client.conversation()
        assert await other.conversation(id=conversation) == conversation
        first = await opened(client, conversation)
        await said(other, conversation, "theirs")
        second = await opened(other, conversation, id=first["id"])
        assert (first["position"], second["position"]) == (1, 2)
        await said(client, conversation, "ours")
        await asyncio.gather(
            committed(client, conversation, first, "alpha"), committed(other, conversation, second, "bravo")
        )
        assert await texts(client, conversation) == ["alpha", "ours"]
        assert await texts(other, conversation) == ["theirs", "bravo"]
