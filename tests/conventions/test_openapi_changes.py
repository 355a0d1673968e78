"""The OpenAPI document breaks no client of a release without a listed reason. The check finds each kind of break."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.compatibility.__main__ import main, read
from scripts.compatibility.operations import breaking_changes

FOLDER = Path(__file__).parents[2] / "openapi"
CONVERSATIONS, CONVERSATION = "/v1/conversations", "/v1/conversations/{conversation_id}"
TURNS, RECALL = f"{CONVERSATION}/turns", "/v1/recall"

Document = dict[str, Any]


@pytest.fixture(scope="module")
def current() -> Document:
    """The present document, with few of its paths, so that comparisons are quick."""
    document = dict(read(FOLDER / "openapi.json"))
    document["paths"] = {path: document["paths"][path] for path in (CONVERSATIONS, CONVERSATION, TURNS, RECALL)}  # type: ignore[index]
    document["webhooks"] = {}
    return document


def schema(document: Document, name: str) -> Document:
    return document["components"]["schemas"][name]


def set_member(name: str, member: str, **words: Any) -> Callable[[Document], None]:
    """Plant other words in the schema of a member."""
    return lambda document: schema(document, name)["properties"][member].update(words)


def parameter(document: Document, place: str, name: str) -> Document:
    method, path = place.split()
    return next(one for one in document["paths"][path][method]["parameters"] if one["name"] == name)


# each at a place of its own, so that all are planted in one document
FAULTS: dict[str, tuple[Callable[[Document], Any], str]] = {
    "an operation is removed": (
        lambda document: document["paths"][CONVERSATION].pop("delete"),
        f"DELETE {CONVERSATION}: the operation is removed",
    ),
    "an operation is renamed": (
        lambda document: document["paths"][RECALL]["post"].update(operationId="search_all"),
        f"POST {RECALL}: the operation id is 'search_all', and was",
    ),
    "a response loses a member": (
        lambda document: schema(document, "Conversation")["properties"].pop("owner"),
        f"GET {CONVERSATION} 200/owner: the member is removed",
    ),
    "a member of a response can be missing": (
        lambda document: schema(document, "Conversation")["required"].remove("title"),
        f"GET {CONVERSATION} 200/title: the member can be missing",
    ),
    "a member of a response can be null": (
        set_member("Conversation", "last_seq", anyOf=[{"type": "integer"}, {"type": "null"}]),
        f"GET {CONVERSATION} 200/last_seq: the type null can be returned",
    ),
    "a member of a response has another type": (
        set_member("Conversation", "turn_count", type="string"),
        f"GET {CONVERSATION} 200/turn_count: the type is string, and was integer",
    ),
    "a request needs a member": (
        lambda document: schema(document, "TurnInput")["required"].append("actor"),
        f"POST {TURNS} body/turns/*/actor: the member is required",
    ),
    "a request loses a member": (
        lambda document: schema(document, "TurnInput")["properties"].pop("occurred_at"),
        f"POST {TURNS} body/turns/*/occurred_at: the member is removed",
    ),
    "a request may hold less": (
        lambda document: schema(document, "EvaluatedRecall")["properties"]["k"].update(maximum=5),
        f"POST {RECALL} body/k: maximum is 5, and was",
    ),
    "a default changes": (
        lambda document: schema(document, "EvaluatedRecall")["properties"]["k"].update(default=3),
        f"POST {RECALL} body/k: the default is 3, and was",
    ),
    "a parameter is removed": (
        lambda document: parameter(document, f"get {TURNS}", "since_rev").update(name="since"),
        f"GET {TURNS} query since_rev: the parameter is removed",
    ),
    "a parameter is required": (
        lambda document: parameter(document, f"get {TURNS}", "limit").update(required=True),
        f"GET {TURNS} query limit: the parameter is required",
    ),
    "a status is not returned any more": (
        lambda document: document["paths"][TURNS]["post"]["responses"].pop("201"),
        f"POST {TURNS} 201: the status is not returned any more",
    ),
    "a media type is removed": (
        lambda document: document["paths"][RECALL]["post"]["responses"]["200"]["content"].pop("application/x-ndjson"),
        f"POST {RECALL} 200: the media type application/x-ndjson is removed",
    ),
}


def test_each_planted_break_is_found_at_its_place(current: Document) -> None:
    planted = copy.deepcopy(current)
    for plant, _ in FAULTS.values():
        plant(planted)
    found = [str(change) for change in breaking_changes(current, planted)]
    for name, (_, expected) in FAULTS.items():
        assert any(line.startswith(expected) for line in found), name


def test_what_the_policy_calls_an_addition_is_no_break(current: Document) -> None:
    grown = copy.deepcopy(current)
    conversation, turn = schema(grown, "Conversation"), schema(grown, "TurnInput")
    conversation["properties"]["colour"] = {"type": "string"}
    conversation["required"].append("colour")
    turn["properties"]["mood"] = {"type": "string"}
    schema(grown, "EvaluatedRecall")["properties"]["k"]["maximum"] = 100_000
    parameter(grown, f"get {TURNS}", "limit")["schema"].update(anyOf=[{"type": "integer"}, {"type": "string"}])
    grown["paths"]["/v1/colours"] = grown["paths"][RECALL]
    assert breaking_changes(current, grown) == []


def test_every_break_since_a_release_is_listed_and_nothing_else_is() -> None:
    assert main(FOLDER) == 0


def test_the_check_fails_on_a_planted_break_and_on_an_entry_without_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FOLDER / "released", tmp_path / "released")
    document = json.loads((FOLDER / "openapi.json").read_text())
    del document["paths"][CONVERSATION]["delete"]
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    with (tmp_path / "released/exceptions.toml").open("a") as file:
        file.write('[[exception]]\nsince = "0.1.0"\nreason = "none"\nchanges = ["GET /v1/x: the colour is removed"]\n')
    assert main(tmp_path) == 1
    said = capsys.readouterr().err
    assert f"breaks clients of 0.1.0: DELETE {CONVERSATION}: the operation is removed" in said
    assert "there is no such change: GET /v1/x: the colour is removed" in said


def test_a_released_document_is_named_by_its_version() -> None:
    released = sorted((FOLDER / "released").glob("*.json"))
    assert released
    for path in released:
        assert read(path)["info"]["version"] == path.stem  # type: ignore[index, call-overload]
