"""Filters by names of persons can be sent in a body: access logs keep addresses, and get no personal data."""

from typing import Any

import pytest

from tests.support.api import Client, problem
from tests.support.shared import api_document

DOCUMENT: dict[str, Any] = api_document()
NAMES = {
    "owner",
    "actor",
    "actors",
    "participant",
    "participants",
    "subject",
    "user",
    "user_id",
    "external_id",
    "title",
}
"""Query parameters that may name a person."""
WITH_BODY = {
    "list_conversations": "search_conversations",
    "list_facts": "search_facts",
    "list_memories": "filter_memories",
    "list_turns": "search_turns",
}


def _operations() -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        operation["operationId"]: (path, operation)
        for path, item in DOCUMENT["paths"].items()
        for operation in item.values()
    }


def _query(operation: dict[str, Any]) -> set[str]:
    return {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}


def _body(operation: dict[str, Any]) -> set[str]:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return set(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"])


def test_every_filter_by_the_name_of_a_person_can_be_sent_in_a_body() -> None:
    operations = _operations()
    named = {name for name, (_, operation) in operations.items() if _query(operation) & NAMES}
    assert named == set(WITH_BODY), "give the new operation a POST variant with the filters in the body"
    for name, variant in WITH_BODY.items():
        assert _query(operations[name][1]) <= _body(operations[variant][1]), name


def test_no_path_has_the_name_of_a_person() -> None:
    for path, _ in _operations().values():
        inside = {part.partition("}")[0] for part in path.split("{")[1:]}
        assert all(name.endswith("_id") or name == "model" for name in inside), path
        assert not inside & NAMES


async def test_facts_and_memories_are_listed_by_an_owner_in_the_body(client: Client) -> None:
    for owner in ("ann", "bob"):
        fact = {"subject": owner, "predicate": "likes", "object": "tea", "owner": owner}
        for index in range(2):
            assert (await client.post("/v1/facts", json=fact | {"object": f"tea {index}"})).status_code == 201
            memory = {"content": f"{owner} likes tea {index}", "owner": owner}
            assert (await client.post("/v1/memories", json=memory)).status_code == 201
    for listed, searched in (("/v1/facts", "/v1/facts/search"), ("/v1/memories", "/v1/memories/list")):
        expected = (await client.get(listed, params={"owner": "ann"})).json()
        first = (await client.post(searched, json={"owner": "ann", "limit": 1})).json()
        second = (await client.post(searched, json={"owner": "ann", "limit": 1, "cursor": first["next_cursor"]})).json()
        assert first["data"] + second["data"] == expected["data"]
        assert (first["has_more"], second["has_more"]) == (True, False)
        assert {item["owner"] for item in expected["data"]} == {"ann"}
        backwards = (await client.post(searched, json={"owner": "ann", "order": "asc"})).json()
        assert backwards["data"] == expected["data"][::-1]
        other = await client.post(searched, json={"owner": "bob", "limit": 1, "cursor": first["next_cursor"]})
        problem(other, 422, "cursor_invalid")


async def test_a_history_is_read_by_actors_in_the_body(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(
        conversation, *({"role": "user", "actor": who, "content": who} for who in ("ann", "bob", "ann"))
    )
    path = f"/v1/conversations/{conversation}/turns"
    expected = (await client.get(path, params={"actors": "ann", "order": "asc"})).json()
    found = (await client.post(f"{path}/search", json={"actors": ["ann"], "order": "asc"})).json()
    assert found == expected
    assert [turn["actor"] for turn in found["data"]] == ["ann", "ann"]
    page = (await client.post(f"{path}/search", json={"actors": ["ann"], "order": "asc", "limit": 1})).json()
    rest = {"actors": "ann", "order": "asc", "cursor": page["next_cursor"]}
    # a cursor goes on in either of the two calls
    assert (await client.get(path, params=rest)).json()["data"] == expected["data"][1:]


@pytest.mark.parametrize("body", [{"actors": "ann"}, {"limit": 0}, {"after": -1}, {"since_rev": 1, "order": "asc"}])
async def test_a_wrong_filter_in_a_body_is_refused(client: Client, body: dict[str, Any]) -> None:
    conversation = await client.conversation()
    problem(await client.post(f"/v1/conversations/{conversation}/turns/search", json=body), 422, "invalid_request")
