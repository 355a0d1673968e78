"""Participants: all that the schema of the OpenAPI document allows is accepted, and lists of large ones are bounded."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from app.conversations.schemas.conversations import ConversationCreate, ConversationUpdate
from tests.support.api import Client, Service, open_service, problem
from tests.support.live import events_on, serving
from tests.support.postgres import TestDatabase
from tests.support.shared import api_document

DOCUMENT: dict[str, Any] = api_document()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
BODIES = {"ConversationCreate": ConversationCreate, "ConversationUpdate": ConversationUpdate}
ANSWER_BYTES = 100_000
QUIET = settings(max_examples=100, database=None, suppress_health_check=list(HealthCheck))
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(SCHEMAS[name]["properties"]["participants"] | {"components": DOCUMENT["components"]})


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMAS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema allows, often as large as it allows. Fails for what is in none of the schemas here."""
    schema = resolved(schema)
    if "anyOf" in schema:
        return st.one_of([values(one) for one in schema["anyOf"]])
    if "const" in schema:
        return st.just(schema["const"])
    match schema["type"]:
        case "null":
            return st.none()
        case "string":
            assert schema["pattern"] == r"^[^\x00]*$"
            low, high = schema["minLength"], schema["maxLength"]
            return st.text(CHARACTERS, min_size=low, max_size=12) | CHARACTERS.map(lambda one: one * high)
        case "array":
            few = st.lists(values(schema["items"]), max_size=3)
            return few | values(schema["items"]).map(lambda one: [one] * schema["maxItems"])
        case "object":
            members = {name: values(shape) for name, shape in schema["properties"].items()}
            needed = {name: members.pop(name) for name in schema["required"]}
            return st.fixed_dictionaries(needed, optional=members)
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("name", sorted(BODIES))
@pytest.mark.slow
def test_each_value_that_the_schema_allows_is_accepted(name: str) -> None:
    strategy, valid = values(SCHEMAS[name]["properties"]["participants"]), validator(name)

    @QUIET
    @given(participants=strategy)
    def accepts(participants: Any) -> None:
        valid.validate(participants)
        BODIES[name].model_validate({"participants": participants})

    accepts()


@pytest.mark.parametrize("name", sorted(BODIES))
def test_each_value_that_the_schema_refuses_is_refused(name: str) -> None:
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["tool", "x" * 257, "a\0b"]),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["actor", "name", "aliases", "role", "other"]), inner, max_size=3)
            | inner.map(lambda one: [one] * 21)
            | inner.map(lambda one: [one] * 201)
        ),
        max_leaves=5,
    )

    @QUIET
    @given(participants=anything)
    def agrees(participants: Any) -> None:
        allowed = validator(name).is_valid(participants)
        try:
            BODIES[name].model_validate({"participants": participants})
        except ValidationError:
            accepted = False
        else:
            accepted = True
        assert accepted == allowed, participants

    agrees()


@pytest.fixture(scope="module")
def largest() -> list[dict[str, Any]]:
    """As many participants with as many and as long names as the schema allows."""
    numbers = [f"{number:03}" for number in range(200)]
    return [
        {"actor": one.ljust(256, "€"), "name": one.ljust(256, "n"), "aliases": [one.ljust(256, "x")] * 20}
        for one in numbers
    ]


async def test_the_most_and_longest_participants_are_stored_and_given_back(
    client: Client, largest: list[dict[str, Any]]
) -> None:
    made = await client.post("/v1/conversations", json={"participants": largest})
    assert (made.status_code, made.json()["participants"]) == (201, largest)
    path = f"/v1/conversations/{made.json()['id']}"
    changed = await client.patch(path, json={"participants": ["ann", *largest[1:]]})
    assert changed.json()["participants"] == [{"actor": "ann", "name": None, "aliases": []}, *largest[1:]]
    appended = await client.append(made.json()["id"], {"role": "user", "actor": "somebody new", "content": "hello"})
    assert appended["seq"] == 1
    hits = await client.recall(made.json()["id"], "hello")
    assert [hit["turn"]["content"] for hit in hits] == ["hello"]
    for wrong in ([*largest, "one more"], ["x" * 257], [""], [{"actor": "a", "aliases": ["b"] * 21}]):
        refused = problem(await client.patch(path, json={"participants": wrong}), 422, "invalid_request")
        assert refused["errors"][0]["pointer"].startswith("/participants")


@pytest.fixture
async def narrow(words_database: TestDatabase, tmp_path: Path) -> AsyncIterator[Service]:
    """An app whose answers have little text."""
    async with open_service(words_database, tmp_path, embedder="none", max_answer_bytes=ANSWER_BYTES) as opened:
        yield opened


async def test_a_page_of_conversations_ends_where_it_has_enough_text(
    narrow: Service, largest: list[dict[str, Any]]
) -> None:
    some = largest[:5]
    one = len(json.dumps(some, ensure_ascii=False).encode())
    assert one < ANSWER_BYTES / 3
    async with await narrow.new_tenant() as client:
        small = [await client.conversation(title=str(number)) for number in range(2)]
        large = [await client.conversation(participants=some) for _ in range(8)]
        for order, wanted in (("desc", [*large[::-1], *small[::-1]]), ("asc", [*small, *large])):
            pages: list[list[str]] = []
            params: dict[str, Any] = {"limit": 200, "order": order}
            while True:
                response = await client.get("/v1/conversations", params=params)
                page = response.json()
                pages.append([found["id"] for found in page["data"]])
                assert len(response.content) < ANSWER_BYTES + 2 * one
                if not page["has_more"]:
                    break
                params["cursor"] = page["next_cursor"]
            assert [found for page in pages for found in page] == wanted
            assert len(pages) > 1


async def test_subscribers_of_a_list_get_reread_where_a_conversation_is_too_large_for_an_event(
    service: Service, client: Client, largest: list[dict[str, Any]]
) -> None:
    async with serving(service.app, service.settings) as port, events_on(port, "/v1/events", client.key) as events:
        conversation = await client.conversation(participants=largest[:20])
        assert (await events.next() or {})["type"] == "reread"
        await client.patch(f"/v1/conversations/{conversation}", json={"participants": ["ann"]})
        event = await events.next() or {}
        while event["type"] == "reread":  # a busy server may ask for it more than once
            event = await events.next() or {}
        assert event["conversation"]["participants"][0]["actor"] == "ann"
