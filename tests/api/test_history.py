"""The history of a conversation: which page is answered, where its cursor leads, and what a poller hears of."""

from typing import Any

import httpx
import pytest

from tests.support.api import Client, problem


async def talk(client: Client, count: int) -> str:
    """A conversation whose turns say their positions."""
    conversation = await client.conversation()
    await client.append(conversation, *[str(number) for number in range(1, count + 1)])
    return conversation


async def page(client: Client, conversation: str, **params: Any) -> dict[str, Any]:
    response = await client.get(f"/v1/conversations/{conversation}/turns", params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def pages(client: Client, conversation: str, **params: Any) -> list[list[str]]:
    """What the turns of each page say, following the cursors."""
    found: list[list[str]] = []
    while True:
        answer = await page(client, conversation, **params)
        found.append([turn["content"] for turn in answer["data"]])
        assert answer["has_more"] == (answer["next_cursor"] is not None)
        if not answer["has_more"]:
            return found
        params["cursor"] = answer["next_cursor"]


async def test_a_history_answers_the_newest_page_in_chronological_order_first(client: Client) -> None:
    conversation = await talk(client, 120)
    numbers = [str(number) for number in range(1, 121)]
    assert await pages(client, conversation) == [numbers[70:], numbers[20:70], numbers[:20]]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"before": 10, "limit": 3}, ["7 8 9", "4 5 6", "1 2 3"]),
        ({"after": 3, "limit": 3}, ["4 5 6", "7 8 9", "10 11"]),
        ({"after": 3, "before": 8, "limit": 3}, ["4 5 6", "7"]),
        ({"order": "asc", "limit": 5}, ["1 2 3 4 5", "6 7 8 9 10", "11"]),
        ({"order": "desc", "limit": 5}, ["11 10 9 8 7", "6 5 4 3 2", "1"]),
        ({"order": "asc", "before": 5, "limit": 3}, ["1 2 3", "4"]),
        ({"order": "desc", "after": 7, "limit": 3}, ["11 10 9", "8"]),
        ({"before": 1}, [""]),
        ({"after": 11}, [""]),
    ],
)
async def test_positions_and_order_choose_the_page(client: Client, params: dict[str, Any], expected: list[str]) -> None:
    conversation = await talk(client, 11)
    assert [" ".join(some) for some in await pages(client, conversation, **params)] == expected


async def test_versions_are_read_from_the_newest_page_too(client: Client) -> None:
    conversation = await talk(client, 4)
    path = f"/v1/conversations/{conversation}/turns"
    last = (await page(client, conversation, limit=1))["data"][0]["id"]
    await client.post(f"{path}/{last}/revisions", json={"content": "4b"})
    found = await pages(client, conversation, include_superseded=True, limit=3)
    assert found == [["3", "4", "4b"], ["1", "2"]]


async def test_turns_appended_between_pages_do_not_move_the_pages_before(client: Client) -> None:
    conversation = await talk(client, 6)
    first = await page(client, conversation, limit=2)
    await client.append(conversation, "7", "8")
    second = await page(client, conversation, limit=2, cursor=first["next_cursor"])
    assert [turn["content"] for turn in second["data"]] == ["3", "4"]


# what a poller hears of


async def poll(client: Client, conversation: str, rev: int, **params: Any) -> tuple[list[dict[str, Any]], int]:
    """The turns that have changed since a rev, over all pages, and the rev to go on from."""
    turns: list[dict[str, Any]] = []
    params["since_rev"] = rev
    while True:
        answer = await page(client, conversation, **params)
        turns += answer["data"]
        if not answer["has_more"]:
            return turns, answer["rev"]
        params["cursor"] = answer["next_cursor"]


async def test_a_poller_gets_edits_erasures_and_truncations_and_a_place_to_continue(client: Client) -> None:
    conversation = await talk(client, 4)
    path = f"/v1/conversations/{conversation}/turns"
    first = await page(client, conversation)
    known = {turn["id"]: turn for turn in first["data"]}
    ids, rev = list(known), first["rev"]
    assert await poll(client, conversation, rev) == ([], rev)

    edited = (await client.post(f"{path}/{ids[1]}/revisions", json={"content": "2b"})).json()["turn"]
    changed, rev = await poll(client, conversation, rev)
    assert {turn["id"]: turn["superseded_by"] for turn in changed} == {ids[1]: edited["id"], edited["id"]: None}

    await client.delete(f"{path}/{ids[0]}")
    changed, rev = await poll(client, conversation, rev)
    assert [(turn["id"], turn["content"], turn["erased_at"] is None) for turn in changed] == [(ids[0], None, False)]

    body = {"content": "3b", "truncate_after": True}
    truncated = (await client.post(f"{path}/{ids[2]}/revisions", json=body)).json()["turn"]
    changed, rev = await poll(client, conversation, rev)
    assert {turn["id"]: turn["superseded_by"] for turn in changed} == {
        ids[2]: truncated["id"], ids[3]: truncated["id"], truncated["id"]: None,
    }  # fmt: skip

    await client.append(conversation, "5")
    changed, rev = await poll(client, conversation, rev)
    assert [turn["content"] for turn in changed] == ["5"]
    assert await poll(client, conversation, rev) == ([], rev)


async def test_one_append_larger_than_a_page_is_polled_completely(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *[str(number) for number in range(7)])
    changed, rev = await poll(client, conversation, 0, limit=2)
    assert ([turn["content"] for turn in changed], rev) == ([str(number) for number in range(7)], 1)


async def test_what_changes_while_pages_are_read_is_in_the_next_poll_or_a_later_page(client: Client) -> None:
    conversation = await talk(client, 4)
    path = f"/v1/conversations/{conversation}/turns"
    first = await page(client, conversation, limit=2)
    await client.post(f"{path}/{first['data'][0]['id']}/revisions", json={"content": "3b"})
    second = await page(client, conversation, limit=2, cursor=first["next_cursor"])
    assert second["rev"] == first["rev"]
    changed, _ = await poll(client, conversation, second["rev"])
    assert [turn["content"] for turn in changed] == ["3", "3b"]


async def test_a_change_of_no_turn_moves_the_rev_of_a_poller(client: Client) -> None:
    conversation = await talk(client, 4)
    before = (await page(client, conversation))["rev"]
    await client.post(f"/v1/conversations/{conversation}/summaries", json={})
    changed, rev = await poll(client, conversation, before)
    assert (changed, rev > before) == ([], True)


async def test_a_rev_that_the_conversation_has_not_reached_is_refused(client: Client) -> None:
    conversation = await talk(client, 1)
    refused = await client.get(f"/v1/conversations/{conversation}/turns", params={"since_rev": 99})
    problem(refused, 422, "invalid_request", "/since_rev")


async def test_members_that_mean_nothing_together_are_named(client: Client) -> None:
    conversation = await talk(client, 1)
    path = f"/v1/conversations/{conversation}/turns"
    for params in (
        {"since_rev": 0, "before": 3}, {"since_rev": 0, "after": 3}, {"since_rev": 0, "order": "desc"},
        {"status": "aborted", "before": 3}, {"status": "aborted", "after": 3}, {"status": "aborted", "since_rev": 0},
    ):  # fmt: skip
        problem(await client.get(path, params=params), 422, "invalid_request", f"/{list(params)[1]}")


# aborted turns


async def aborted(client: Client, conversation: str, text: str) -> str:
    path = f"/v1/conversations/{conversation}/turns"
    turn = (await client.post(f"{path}/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
    await client.post(f"{path}/{turn}/chunks?durable=true", json={"offset": 0, "delta": text})
    assert (await client.post(f"{path}/{turn}/abort", json={})).status_code == 200
    return turn


async def test_aborted_turns_are_listed_in_the_order_they_were_opened(client: Client) -> None:
    conversation = await talk(client, 2)
    for number in range(5):
        await aborted(client, conversation, f"draft {number}")
    drafts = [f"draft {number}" for number in range(5)]
    assert await pages(client, conversation, status="aborted") == [drafts]
    assert await pages(client, conversation, status="aborted", limit=2) == [drafts[3:], drafts[1:3], drafts[:1]]
    assert await pages(client, conversation, status="aborted", limit=3, order="asc") == [drafts[:3], drafts[3:]]
    found = (await page(client, conversation, status="aborted", limit=1))["data"][0]
    assert (found["status"], found["seq"], found["position"]) == ("aborted", None, None)
    assert await pages(client, conversation) == [["1", "2"]]
    assert await pages(client, conversation, status="aborted", actors=["nobody"]) == [[]]


async def test_an_unknown_conversation_has_no_history_in_any_form(client: Client, other: Client) -> None:
    conversation = await talk(client, 1)
    for params in ({}, {"since_rev": 0}, {"status": "aborted"}, {"order": "asc"}):
        answer: httpx.Response = await other.get(f"/v1/conversations/{conversation}/turns", params=params)
        problem(answer, 404, "not_found")
