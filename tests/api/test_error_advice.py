"""What an error says to a reader who sees only its `detail`: the first wrong field, its rule, and what to do."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.api import Client, Service, problem
from tests.support.live import serving, socket_on

MARKER = "s3cret!marker"
ID = "an id is a ULID (26 characters) or a UUID"
EXTERNAL = f"{ID}. An external_id is none: POST /v1/conversations with it returns the id."
NAMED = f"{ID}. An external_id is none: give it as `external_id`."
OF_A_TURN = f"{ID}. For an id of another system give the UUIDv5 of it, or leave it out and send an Idempotency-Key."
TIME = "a time is RFC 3339 text with an offset, such as 2026-11-20T08:30:00Z"


@pytest.fixture(scope="module")
async def port(service: Service) -> AsyncIterator[int]:
    async with serving(service.app, service.settings) as listening:
        yield listening


@pytest.mark.parametrize(
    ("turn", "pointer", "detail"),
    [
        ({"content": 5}, "/turns/0/content", "a text or a list is expected"),
        ({"content": {MARKER: 1}}, "/turns/0/content", "a text or a list is expected"),
        ({"occurred_at": "2026-11-20T08:30:00"}, "/turns/0/occurred_at", TIME),
        ({"occurred_at": "2026-11-20"}, "/turns/0/occurred_at", TIME),
        ({"occurred_at": "2026-13-20T08:30:00Z"}, "/turns/0/occurred_at", TIME),
        ({"occurred_at": 1700000000}, "/turns/0/occurred_at", TIME),
        ({"actor": 5}, "/turns/0/actor", "a text is expected"),
        ({"actor": ""}, "/turns/0/actor", "at least 1 character"),
        ({"actor": "x" * 257}, "/turns/0/actor", "at most 256 characters"),
        ({"metadata": []}, "/turns/0/metadata", "an object is expected"),
        ({"role": "human"}, "/turns/0/role", "'user', 'assistant', 'system' or 'tool' is expected"),
        ({"id": "msg-1"}, "/turns/0/id", OF_A_TURN),
        ({"id": "V1StGXR8_Z5jdHi6B-myT"}, "/turns/0/id", OF_A_TURN),
        ({"id": 5}, "/turns/0/id", OF_A_TURN),
    ],
)
async def test_the_detail_of_a_wrong_turn_is_one_error_with_its_place(
    client: Client, turn: dict[str, Any], pointer: str, detail: str
) -> None:
    path = f"/v1/conversations/{await client.conversation()}/turns"
    response = await client.post(path, json={"turns": [{"role": "user", "content": "x", **turn}]})
    wrong = problem(response, 422, "invalid_request")
    assert [(error["pointer"], error["detail"]) for error in wrong["errors"]] == [(pointer, detail)]
    assert wrong["detail"] == f"{pointer}: {detail}"
    assert MARKER not in response.text


async def test_the_detail_says_how_many_errors_there_are_besides(client: Client) -> None:
    path = f"/v1/conversations/{await client.conversation()}/context"
    response = await client.post(path, json={"token_budget": 0, "recent_turn": 1, "format": 7, f"{MARKER}": 1})
    wrong = problem(response, 422, "invalid_request")
    assert wrong["detail"].endswith(" (3 more in `errors`)")
    assert wrong["detail"].startswith(f"{wrong['errors'][0]['pointer']}: {wrong['errors'][0]['detail']}")
    assert MARKER not in response.text


async def test_a_wrong_parameter_of_several_types_is_one_error_at_its_name(client: Client) -> None:
    response = await client.post("/v1/import", params={"source": "none"}, content=b"[]")
    assert response.status_code == 422
    errors = response.json()["errors"]
    assert [(error["in"], error["pointer"]) for error in errors] == [("query", "/source")]
    assert "'chatgpt'" in errors[0]["detail"]
    assert "'auto'" in errors[0]["detail"]


async def test_rules_that_are_checked_after_the_schema_are_in_the_detail_too(client: Client) -> None:
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}/turns"
    for turns, code, detail in (
        ([{"role": "user"}], "invalid_request", "/turns/0/content: a turn has content, tool_calls or tool_results"),
        ([{"role": "tool", "tool_call_id": "c", "content": "x"}], "tool_call_unknown", "/turns/0/tool_call_id: "),
        ([{"role": "user", "content": [{"type": "text"}]}], "invalid_request", "/turns/0/content/0/text: "),
    ):
        assert detail in problem(await client.post(path, json={"turns": turns}), 422, code)["detail"]
    since = problem(await client.get(path, params={"since_rev": 99}), 422, "invalid_request")
    assert since["detail"] == "/since_rev in the query: the conversation is at rev 0; read the history again"
    mine = {"format": "openai", "turns": [{"role": "user", "content": 5}]}
    shaped = problem(await client.post(path, json=mine), 422, "invalid_request")
    assert shaped["detail"].startswith("/turns/0/content: ")


async def test_an_external_id_in_place_of_an_id_is_answered_with_the_call_that_finds_it(client: Client) -> None:
    await client.conversation(external_id="trip")
    for method, path in (
        ("GET", "/v1/conversations/trip"),
        ("GET", "/v1/conversations/trip/turns"),
        ("POST", "/v1/conversations/trip/turns"),
        ("PATCH", "/v1/conversations/trip"),
        ("DELETE", "/v1/conversations/trip"),
        ("POST", "/v1/conversations/trip/context"),
        ("GET", "/v1/conversations/trip/events"),
    ):
        response = await client.request(method, path, json={} if method in {"POST", "PATCH"} else None)
        wrong = problem(response, 422, "invalid_request", "/conversation_id")
        assert f"/conversation_id in the path: {EXTERNAL}" in wrong["detail"], path
    for path, body, sentence in (
        ("/v1/recall", {"query": "x", "conversation_ids": ["trip"]}, EXTERNAL),
        ("/v1/facts", {"subject": "a", "predicate": "b", "object": "c", "conversation_id": "trip"}, EXTERNAL),
        ("/v1/conversations", {"id": "trip"}, NAMED),
    ):
        assert problem(await client.post(path, json=body), 422, "invalid_request")["detail"].endswith(sentence)
    of_a_turn = await client.get(f"/v1/conversations/{await client.conversation()}/turns/trip")
    assert of_a_turn.json()["detail"] == f"/turn_id in the path: {ID}"


async def test_the_message_of_an_error_in_openais_shape_is_the_detail(client: Client) -> None:
    response = await client.post("/openai/v1/conversations", json={"items": 5})
    error, wrong = response.json()["error"], response.json()
    assert error["message"] == wrong["detail"]
    assert wrong["detail"].startswith(f"{wrong['errors'][0]['pointer']}: {wrong['errors'][0]['detail']}")
    assert wrong["errors"][0]["pointer"] == "/items"


async def test_frames_of_a_websocket_say_the_first_error(client: Client, port: int) -> None:
    async with socket_on(port, await client.conversation(), client.key) as socket:
        wrong = await socket.ask("open", turn={"role": "robot"}, writer="w")
        assert wrong["detail"] == "/turn/role: 'user', 'assistant', 'system' or 'tool' is expected"
        wrong = await socket.ask("open", turn={"role": "assistant", "id": "msg-1"}, writer="w")
        assert wrong["detail"] == f"/turn/id: {OF_A_TURN}"
        wrong = await socket.ask("open", turn={"role": "assistant", MARKER: 1}, writer="w")
        assert wrong["detail"] == "/turn: Unknown field: number 2 of this object."
        assert MARKER not in json.dumps(wrong)


async def test_a_wrong_key_is_answered_with_the_command_that_makes_one(service: Service, client: Client) -> None:
    _, _, rest = client.key.partition("_")
    for key in ("tk_nonsense", client.key[:-4] + "0000", f"tk_{rest[::-1]}"):
        async with service.client(key) as stranger:
            wrong = problem(await stranger.get("/v1/conversations"), 401, "unauthenticated")
            assert wrong["detail"] == "Invalid API key. `turnkeep keys create` prints a new one."


async def test_a_repeated_idempotency_key_with_another_body_is_answered_with_both_ways_out(client: Client) -> None:
    path, headers = f"/v1/conversations/{await client.conversation()}/turns", {"Idempotency-Key": "event-1"}
    for text, status in (("one", 201), ("one", 201), ("two", 409)):
        body = {"turns": [{"role": "user", "content": text}]}
        response = await client.post(path, json=body, headers=headers)
        assert response.status_code == status
    wrong = problem(response, 409, "idempotency_mismatch")
    assert wrong["detail"] == (
        "This Idempotency-Key was used for another request: use a new key, or repeat that request unchanged."
    )


async def test_a_body_that_is_too_large_is_answered_with_several_appends(client: Client, port: int) -> None:
    path = f"http://127.0.0.1:{port}/v1/conversations/{await client.conversation()}/turns"
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {client.key}"}, timeout=60) as http:
        response = await http.post(path, content=b"x" * (8 * 2**20 + 1), headers={"Content-Type": "application/json"})
    wrong = problem(response, 413, "body_too_large")
    assert wrong["detail"] == "A request body may have up to 8388608 bytes: send several appends."
