"""Finding conversations by what is known of them."""

import asyncio
from typing import Any

import pytest

from tests.support.api import Client, problem

SEARCH = "/v1/conversations/search"


async def found(client: Client, **body: Any) -> list[str]:
    answer = await client.post(SEARCH, json=body)
    assert answer.status_code == 200, answer.text
    return [item["external_id"] for item in answer.json()["data"]]


@pytest.fixture
async def three(client: Client) -> Client:
    await client.conversation(
        external_id="a",
        owner="ann",
        title="Trip to Oslo 100%",
        participants=["ann"],
        metadata={"n": 1, "x": {"y": [1, 2]}},
    )
    await client.conversation(external_id="b", owner="bob", project="work", title="oslo_notes", metadata={"n": 2})
    await client.conversation(external_id="c", participants=["ann", "bob"], title="ČESKÝ koutek \\ end")
    return client


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "cba"),
        ({"order": "asc"}, "abc"),
        ({"project": "work"}, "b"),
        ({"external_id": "c"}, "c"),
        ({"owner": "ann"}, "a"),
        ({"participant": "ann"}, "ca"),
        ({"metadata": {"n": 1}}, "a"),
        ({"metadata": {"x": {"y": [2]}}}, "a"),
        ({"metadata": {"n": 3}}, ""),
        ({"metadata": {}}, "cba"),
        ({"title": "OSLO"}, "ba"),
        ({"title": "český"}, "c"),
        ({"title": "%"}, "a"),
        ({"title": "_"}, "b"),
        ({"title": "\\"}, "c"),
        ({"title": "o_l"}, ""),
        ({"title": "oslo", "owner": "ann", "metadata": {"n": 1}}, "a"),
        ({"title": "oslo", "owner": "ann", "metadata": {"n": 2}}, ""),
    ],
)
async def test_all_that_is_given_must_hold(three: Client, body: dict[str, Any], expected: str) -> None:
    assert await found(three, **body) == list(expected)


async def test_times_bound_on_both_sides_exclusively(client: Client) -> None:
    for name in "abc":
        await client.conversation(external_id=name)
        await asyncio.sleep(0.005)
    times = {item["external_id"]: item["created_at"] for item in (await client.post(SEARCH, json={})).json()["data"]}
    for kind in ("created", "active"):
        assert await found(client, **{f"{kind}_after": times["a"]}) == ["c", "b"]
        assert await found(client, **{f"{kind}_before": times["c"]}) == ["b", "a"]
        assert await found(client, **{f"{kind}_after": times["a"], f"{kind}_before": times["c"]}) == ["b"]


async def test_pages_go_on_where_the_one_before_ended(three: Client) -> None:
    for order, expected in (("desc", ["c", "b", "a"]), ("asc", ["a", "b", "c"])):
        seen: list[str] = []
        body: dict[str, Any] = {"limit": 1, "order": order, "title": "o"}
        while True:
            page = (await three.post(SEARCH, json=body)).json()
            seen += [item["external_id"] for item in page["data"]]
            if not page["has_more"]:
                break
            body["cursor"] = page["next_cursor"]
        assert seen == expected
    body["title"] = "oslo"
    problem(await three.post(SEARCH, json=body), 422, "cursor_invalid", "/cursor")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"limit": 0}, "/limit"),
        ({"limit": 201}, "/limit"),
        ({"title": ""}, "/title"),
        ({"title": "x" * 513}, "/title"),
        ({"created_after": "yesterday"}, "/created_after"),
        ({"metadata": [1]}, "/metadata"),
        ({"order": "up"}, "/order"),
        ({"participant": 1}, "/participant"),
    ],
)
async def test_a_search_that_breaks_a_rule_is_refused_and_named(
    client: Client, body: dict[str, Any], pointer: str
) -> None:
    problem(await client.post(SEARCH, json=body), 422, "invalid_request", pointer)
