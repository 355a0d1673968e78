"""Compaction: summaries come to stand for older turns; nothing is lost, shown twice or left out unseen."""

from itertools import pairwise
from typing import Any

import pytest

from tests.support.api import Client, Service, problem

TRIGGERS = {"trigger_turns": 10, "trigger_tokens": 100_000}


async def talk(client: Client, turns: int, *, start: int = 0, **body: Any) -> str:
    """A conversation of so many turns, each with a fact of its own."""
    conversation = await client.conversation(compaction=TRIGGERS | body.pop("compaction", {}), **body)
    await say(client, conversation, turns, start=start)
    return conversation


async def say(client: Client, conversation: str, turns: int, *, start: int = 0) -> None:
    said = [
        {"role": "user" if number % 2 else "assistant", "content": f"I paid {number} euros to Maria in Lisbon."}
        for number in range(start, start + turns)
    ]
    await client.append(conversation, *said)


async def summaries(client: Client, conversation: str, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/conversations/{conversation}/summaries", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def compact(client: Client, conversation: str, path: str = "compact", **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/v1/conversations/{conversation}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def covered(client: Client, conversation: str, budget: int, **body: Any) -> tuple[set[int], set[int]]:
    """The positions that lie under the summaries of a context, and those it shows verbatim; the gap has all others."""
    context = await client.context(conversation, budget, **body)
    assert context["usage"]["used"] <= budget
    included = context["included"]
    ranges = [one for one in await summaries(client, conversation) if one["id"] in included["summary_ids"]]
    told = {place for one in ranges for place in range(one["from_position"], one["to_position"] + 1)}
    turns = await client.history(conversation)
    positions = {turn["id"]: turn["position"] for turn in turns}
    shown = {positions[turn_id] for turn_id in included["turn_ids"]}
    left_out = [turn["position"] for turn in turns if turn["erased_at"] is None]
    left_out = sorted(set(left_out) - told - shown)
    gap = {"turns": len(left_out), "from_position": left_out[0], "to_position": left_out[-1]} if left_out else None
    assert context["gap"] == gap
    return told, shown


async def test_a_job_replaces_the_oldest_half_by_highlights(client: Client, service: Service) -> None:
    conversation = await talk(client, 11)
    assert await summaries(client, conversation) == []
    await service.run_jobs()
    (one,) = await summaries(client, conversation)
    assert (one["kind"], one["from_position"], one["to_position"], one["valid"]) == ("highlights", 1, 6, True)
    turns = await client.history(conversation)
    assert one["lines"]
    assert one["text"] == "\n".join(line["text"] for line in one["lines"])
    for line in one["lines"]:
        (turn,) = [turn for turn in turns if turn["id"] == line["turn_id"]]
        assert line["text"].endswith(turn["content"])
        assert turn["actor"] in line["text"]
    head = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert head["summarized_through"] == turns[5]["id"]
    assert head["rev"] == one["rev"]


async def test_nothing_is_due_below_the_triggers_or_where_the_policy_is_never(client: Client, service: Service) -> None:
    few = await talk(client, 10)
    never = await talk(client, 30, compaction={"strategy": "never"})
    await service.run_jobs()
    assert await summaries(client, few) == []
    assert await summaries(client, never) == []
    assert (await compact(client, few))["summaries"] == []
    assert (await compact(client, never))["summaries"] == []


async def test_tokens_trigger_too(client: Client, service: Service) -> None:
    conversation = await client.conversation(compaction={"trigger_turns": 1000, "trigger_tokens": 200})
    await client.append(conversation, *["I have 12 cats and 3 dogs in Porto, and moved there in 2021."] * 20)
    await service.run_jobs()
    head = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert head["summarized_through"] is not None
    turns, (one,) = await client.history(conversation), await summaries(client, conversation)
    left = sum(turn["content_tokens"] for turn in turns if turn["position"] > one["to_position"])
    assert left <= 200


@pytest.mark.parametrize(
    ("strategy", "budget"),
    [("rolling", 300), ("rolling", 1000), ("rolling", 16_000), ("hierarchical", 1000), ("hierarchical", 16_000)],
)
@pytest.mark.slow
async def test_every_turn_is_shown_or_covered_or_counted_as_left_out(
    client: Client, service: Service, strategy: str, budget: int
) -> None:
    conversation = await talk(client, 0 + 1, compaction={"strategy": strategy})
    for start in range(1, 66, 13):
        await say(client, conversation, 13, start=start)
        await service.run_jobs()
        for body in ({}, {"recent_turns": 3}, {"recent_turns": 12}, {"include_summary": False}):
            told, verbatim = await covered(client, conversation, budget, **body)
            if budget == 16_000 and body != {"include_summary": False} and "recent_turns" not in body:
                assert told | verbatim == set(range(1, start + 14))


async def test_rolling_goes_on_with_one_summary_and_keeps_the_last_to_be_undone(
    client: Client, service: Service
) -> None:
    conversation = await talk(client, 11)
    await service.run_jobs()
    await say(client, conversation, 11, start=11)
    await service.run_jobs()
    (standing,) = await summaries(client, conversation)
    replaced, again = await summaries(client, conversation, include_replaced=True)
    assert again == standing
    assert (replaced["to_position"], replaced["valid"], replaced["replaced_by"]) == (6, False, standing["id"])
    undone = (await client.post(f"/v1/conversations/{conversation}/compact/undo")).json()
    assert (undone["undone"], undone["restored"]) == (standing["id"], [replaced["id"]])
    (back,) = await summaries(client, conversation)
    assert back["id"] == replaced["id"]
    assert back["valid"]
    await client.post(f"/v1/conversations/{conversation}/compact/undo")
    assert await summaries(client, conversation, include_replaced=True) == []
    assert (await client.get(f"/v1/conversations/{conversation}")).json()["summarized_through"] is None
    problem(await client.post(f"/v1/conversations/{conversation}/compact/undo"), 409, "nothing_to_undo")


async def test_hierarchical_folds_four_of_a_level(client: Client, service: Service) -> None:
    conversation = await talk(client, 1, compaction={"strategy": "hierarchical"})
    for start in range(1, 66, 11):
        await say(client, conversation, 11, start=start)
        await service.run_jobs()
    standing = await summaries(client, conversation)
    assert {one["level"] for one in standing} >= {1}
    assert standing[0]["from_position"] == 1
    for one, other in pairwise(standing):
        assert one["to_position"] + 1 == other["from_position"]


async def test_summarising_through_a_turn_leaves_the_newest(client: Client) -> None:
    conversation = await talk(client, 8)
    turns = await client.history(conversation)
    made = await compact(client, conversation, "summaries", through=turns[2]["id"])
    assert [one["to_position"] for one in made["summaries"]] == [3]
    assert made["summarized_through"] == turns[2]["id"]
    assert made["remaining_turns"] == 5
    assert (await compact(client, conversation, "summaries", through=turns[1]["id"]))["summaries"] == []
    everything = await compact(client, conversation, "summaries")
    assert [one["to_position"] for one in everything["summaries"]] == [7]
    assert (await compact(client, conversation, "summaries"))["summaries"] == []


async def test_a_call_is_never_separated_from_its_result(client: Client, service: Service) -> None:
    conversation = await client.conversation(compaction=TRIGGERS)
    turns: list[Any] = [f"I owe {number} to Ann" for number in range(5)]
    call = {"role": "assistant", "tool_calls": [{"id": "c", "name": "look", "arguments": "{}"}]}
    await client.append(conversation, *turns, call, {"role": "tool", "tool_call_id": "c", "content": "42"}, *turns)
    await service.run_jobs()
    (one,) = await summaries(client, conversation)
    assert one["to_position"] == 7
    made = await compact(client, conversation, "compact/undo")
    assert made["restored"] == []
    turns_now = await client.history(conversation)
    through = await compact(client, conversation, through=turns_now[5]["id"])
    assert through["summaries"][0]["to_position"] == 7


async def test_a_revised_turn_loses_its_line_and_an_erased_one_too(client: Client, service: Service) -> None:
    conversation = await talk(client, 11)
    await service.run_jobs()
    (one,) = await summaries(client, conversation)
    first, second = (line["turn_id"] for line in one["lines"][:2])
    await client.post(f"/v1/conversations/{conversation}/turns/{first}/revisions", json={"content": "never mind"})
    await client.delete(f"/v1/conversations/{conversation}/turns/{second}")
    (after,) = await summaries(client, conversation)
    assert {first, second}.isdisjoint(line["turn_id"] for line in after["lines"])
    assert len(after["lines"]) == len(one["lines"]) - 2
    told, verbatim = await covered(client, conversation, 4000)
    erased = {turn["position"] for turn in await client.history(conversation) if turn["erased_at"] is not None}
    assert told | verbatim | erased == set(range(1, 12))


async def test_a_truncation_takes_summaries_behind_it(client: Client, service: Service) -> None:
    conversation = await talk(client, 30)
    await service.run_jobs()
    turns = await client.history(conversation)
    path = f"/v1/conversations/{conversation}/turns/{turns[3]['id']}/revisions"
    answer = await client.post(path, json={"content": "from here anew", "truncate_after": True})
    assert answer.status_code == 201, answer.text
    assert await summaries(client, conversation, include_replaced=True) == []
    head = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert head["summarized_through"] is None
    context = await client.context(conversation, 4000)
    assert len(context["included"]["turn_ids"]) == 4


async def test_what_does_not_exist_is_not_summarised(client: Client) -> None:
    conversation = await talk(client, 3)
    other = (await client.history(await talk(client, 3)))[0]["id"]
    for path in ("compact", "summaries"):
        answer = await client.post(f"/v1/conversations/{conversation}/{path}", json={"through": other})
        problem(answer, 404, "not_found")
        answer = await client.post(f"/v1/conversations/{other}/{path}", json={})
        problem(answer, 404, "not_found")
    problem(await client.get(f"/v1/conversations/{other}/summaries"), 404, "not_found")
    problem(await client.post(f"/v1/conversations/{other}/compact/undo"), 404, "not_found")


async def test_a_context_with_room_for_every_turn_asked_for_shows_the_turns_themselves(
    client: Client, service: Service
) -> None:
    conversation = await talk(client, 11)
    await service.run_jobs()
    context = await client.context(conversation, 4000, recent_turns=100, explain=True)
    assert len(context["included"]["turn_ids"]) == 11
    assert context["included"]["summary_ids"] == []
    assert "there is room for the turns themselves" in {row["reason"] for row in context["explain"]}
    assert context["gap"] is None


@pytest.mark.slow
async def test_a_summary_is_shown_only_where_it_is_shorter_than_the_turns_that_it_replaces(
    client: Client, service: Service
) -> None:
    short = await client.conversation()
    await client.append(short, *[f"I paid {number} euros." for number in range(1, 55)])
    await service.run_jobs()
    assert len(await summaries(client, short)) == 1
    context = await client.context(short, 8000)
    assert len(context["included"]["turn_ids"]) == 54
    assert (context["included"]["summary_ids"], context["gap"]) == ([], None)
    assert context["usage"]["used"] == (await client.context(short, 8000, recent_turns=54))["usage"]["used"]
    long = await client.conversation()
    said = [
        f"I paid {number} euros to Maria. " + "It was a long day, and all went home late. " * 6 for number in range(80)
    ]
    await client.append(long, *said)
    await service.run_jobs()
    (one,) = await summaries(client, long)
    context = await client.context(long, 16_000, recent_turns=4)
    assert context["included"]["summary_ids"] == [one["id"]]
    assert len(context["included"]["turn_ids"]) == 80 - one["to_position"]
    assert context["gap"] is None


async def test_a_turn_that_fits_is_not_displaced_by_highlights_and_their_lines_of_it_are_dropped(
    client: Client, service: Service
) -> None:
    conversation = await client.conversation()
    said = [
        f"I paid {number} euros to Maria. " + "It was a long day, and all went home late. " * 6 for number in range(80)
    ]
    await client.append(conversation, *said)
    await service.run_jobs()
    (one,) = await summaries(client, conversation)
    assert one["to_position"] == 40
    quoted = {line["turn_id"] for line in one["lines"]}
    context = await client.context(conversation, 16_000, recent_turns=60)
    shown = context["included"]["turn_ids"]
    assert 60 <= len(shown) <= 75
    (note,) = [text for message in context["messages"] if (text := message["content"]).startswith("<highlights")]
    assert quoted & set(shown)
    assert note.count("[") == len(quoted - set(shown))
    assert context["gap"] is None


async def test_highlights_that_quote_nothing_stand_for_nothing(client: Client, service: Service) -> None:
    conversation = await client.conversation(compaction=TRIGGERS)
    await client.append(conversation, *[f"word {number}" for number in range(30)])
    await service.run_jobs()
    (one,) = await summaries(client, conversation)
    assert one["lines"] == []
    context = await client.context(conversation, 4000)
    assert len(context["included"]["turn_ids"]) == 30
    context = await client.context(conversation, 4000, recent_turns=4)
    assert context["gap"] == {"turns": 25, "from_position": 1, "to_position": 25}
