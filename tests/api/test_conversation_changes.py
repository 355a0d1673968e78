"""Changes of one conversation at once: metadata is merged, and `If-Match` keeps a change from undoing another."""

import asyncio
from typing import Any

import pytest

from tests.support.api import Client, problem


async def changed(client: Client, conversation: str, body: dict[str, Any], tag: str | None = None) -> Any:
    headers = {} if tag is None else {"If-Match": tag}
    return await client.patch(f"/v1/conversations/{conversation}", json=body, headers=headers)


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1}, {"missing": None}, {"a": 1}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": None, "z": 3}}, {"a": {"x": 1, "z": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": "text"}, {"a": {"x": {"y": None, "z": 1}}}, {"a": {"x": {"z": 1}}}),
        ({"a": {"x": 1}}, {"a": "text"}, {"a": "text"}),
        ({"a": 1}, {"retention": "audit_only"}, {"a": 1}),
    ],
)
async def test_metadata_is_merged_and_null_removes_a_member(
    client: Client, before: dict[str, Any], patch: dict[str, Any], after: dict[str, Any]
) -> None:
    conversation = await client.conversation(metadata=before)
    answer = await changed(client, conversation, {"metadata": patch})
    assert (answer.status_code, answer.json()["metadata"]) == (200, after)
    assert (await client.get(f"/v1/conversations/{conversation}")).json()["metadata"] == after


async def test_the_limit_of_metadata_is_that_of_what_is_merged(client: Client) -> None:
    conversation = await client.conversation(metadata={"a": "x" * 9_000})
    refused = await changed(client, conversation, {"metadata": {"b": "y" * 9_000}})
    problem(refused, 422, "invalid_request", "/metadata")
    replaced = await changed(client, conversation, {"metadata": {"a": None, "b": "y" * 9_000}})
    assert list(replaced.json()["metadata"]) == ["b"]


async def test_changes_of_different_members_at_once_are_all_kept(client: Client) -> None:
    conversation = await client.conversation()
    await asyncio.gather(*(changed(client, conversation, {"metadata": {f"m{n}": n}}) for n in range(8)))
    shown = (await client.get(f"/v1/conversations/{conversation}")).json()
    assert shown["metadata"] == {f"m{n}": n for n in range(8)}


async def test_answers_with_one_conversation_carry_its_rev_as_an_entity_tag(client: Client) -> None:
    made = await client.post("/v1/conversations", json={"external_id": "chat"})
    path = f"/v1/conversations/{made.json()['id']}"
    await client.append(made.json()["id"], "hello")
    answers = [
        made,
        await client.get(path),
        await client.patch(path, json={"title": "ours"}),
        await client.post("/v1/conversations", json={"external_id": "chat"}),
        await client.post(f"{path}/fork", json={}),
    ]
    assert [one.headers["ETag"] for one in answers] == [f'"{one.json()["rev"]}"' for one in answers]
    assert answers[2].json()["rev"] == answers[1].json()["rev"] + 1


async def test_a_change_of_another_rev_than_the_one_asked_for_is_refused(client: Client, other: Client) -> None:
    conversation = await client.conversation(metadata={"count": 1})
    path = f"/v1/conversations/{conversation}"
    tag = (await client.get(path)).headers["ETag"]
    done = await changed(client, conversation, {"metadata": {"count": 2}}, tag)
    assert done.status_code == 200, done.text
    refused = problem(await changed(client, conversation, {"metadata": {"count": 3}}, tag), 412, "revision_changed")
    assert (refused["rev"], refused["errors"][0]["in"], refused["retryable"]) == (done.json()["rev"], "header", False)
    assert (await client.get(path)).json()["metadata"] == {"count": 2}
    await client.append(conversation, "hello")
    problem(await changed(client, conversation, {"title": "x"}, done.headers["ETag"]), 412, "revision_changed")
    now = (await client.get(path)).headers["ETag"]
    for form in ("*", "{}", '"none", {}', " {} "):
        answer = await changed(client, conversation, {"title": "x"}, form.format(now))
        assert answer.status_code == 200, answer.text
        now = answer.headers["ETag"]
    for tags in (f"W/{now}", '"abc"', '""'):
        problem(await changed(client, conversation, {"title": "y"}, tags), 412, "revision_changed")
    for tags in (now.strip('"'), f"{now},", '"7', "abc"):
        problem(await changed(client, conversation, {"title": "y"}, tags), 422, "invalid_request", "/If-Match")
    assert (await client.get(path)).json()["title"] == "x"
    problem(await changed(other, conversation, {"title": "y"}, "*"), 404, "not_found")


async def test_of_changes_with_the_same_entity_tag_at_once_one_happens(client: Client) -> None:
    conversation = await client.conversation()
    tag = (await client.get(f"/v1/conversations/{conversation}")).headers["ETag"]
    answers = await asyncio.gather(*(changed(client, conversation, {"metadata": {"winner": n}}, tag) for n in range(6)))
    assert sorted(one.status_code for one in answers) == [200, 412, 412, 412, 412, 412]
    (winner,) = [n for n, one in enumerate(answers) if one.status_code == 200]
    assert (await client.get(f"/v1/conversations/{conversation}")).json()["metadata"] == {"winner": winner}
