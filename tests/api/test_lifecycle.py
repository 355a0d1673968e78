"""The turn lifecycle: what each call promises, through the API."""

import asyncio
import base64
import json
import uuid
from datetime import UTC, datetime
from typing import Any

import asyncpg
import httpx
import jwt
import pytest

from app.agents.lifecycle.operation_tokens import PreparedOperation, sign_operation
from app.conversations.schemas.conversations import Turn
from app.core.ids import format_id
from app.formats.service import items_of
from app.providers.tokens import TiktokenCounter
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service, problem
from tests.support.postgres import TestDatabase

LONG = "a" * (2**20 + 1)
SESSION = {"project": "shop", "session_id": "session-1"}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def named(turn_id: str, **more: Any) -> dict[str, Any]:
    return {**SESSION, "user_id": "ann", "turn_id": turn_id, **more}


async def call(client: Client, name: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = await client.post(f"/v1/lifecycle/{name}", json=body)
    assert response.status_code == status, response.text
    return response.json()


async def before(client: Client, turn_id: str = "now", text: str = "and now?", **more: Any) -> dict[str, Any]:
    return await call(client, "before-turn", named(turn_id, current_input=[said("user", text)], **more))


async def after(
    client: Client, turn_id: str, asked: Any = "a question", answered: Any = "an answer", **more: Any
) -> None:
    body = named(turn_id, **more)
    body |= {"input_items": [said("user", asked)] if isinstance(asked, str) else asked}
    body |= {"output_items": [said("assistant", answered)] if isinstance(answered, str) else answered}
    assert await call(client, "after-turn", body) == {"ok": True}


async def session_of(client: Client, **session: Any) -> dict[str, Any]:
    wanted = SESSION | session
    params = {"project": wanted["project"], "external_id": wanted["session_id"]}
    [found] = (await client.get("/v1/conversations", params=params)).json()["data"]
    return found


async def turns_of(client: Client, **session: Any) -> list[dict[str, Any]]:
    return await client.history((await session_of(client, **session))["id"])


def texts(items: list[dict[str, Any]]) -> list[Any]:
    return [item.get("content") for item in items]


async def metrics(client: Client) -> dict[str, float]:
    lines = (await client.get("/metrics")).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("mcp_memory_"))
    return {name: float(value) for name, value in pairs}


# before


async def test_before_the_first_turn_there_are_the_instructions_and_the_input_and_nothing_is_stored(
    client: Client,
) -> None:
    for _ in range(2):
        answer = await before(client, text="hello", base_instructions="Be kind.")
        assert answer == {
            "input_items": [
                {"type": "message", "role": "system", "content": "Be kind."},
                {"type": "message", "role": "user", "content": "hello"},
            ],
            "recall_fact_ids": [],
            "context_token_count": answer["context_token_count"],
            "gap": None,
        }
    assert (await client.get("/v1/conversations")).json()["data"] == []


@pytest.mark.slow
async def test_before_a_turn_all_turns_come_back_verbatim_with_the_input_last_while_there_is_room(
    client: Client,
) -> None:
    for number in range(24):
        await after(client, f"t{number}", f"question {number}", f"answer {number}")
    answer = await before(client, text="and the last one?", base_instructions="Be brief.", max_input_tok=120_000)
    shown = texts(answer["input_items"])
    assert shown[0] == "Be brief."
    assert shown[-1] == "and the last one?"
    said = [text for number in range(24) for text in (f"question {number}", f"answer {number}")]
    assert [text for text in shown if text.startswith(("question", "answer"))] == said
    assert answer["gap"] is None
    assert len(await turns_of(client)) == 48


@pytest.mark.slow
async def test_before_a_turn_a_summary_and_at_least_the_newest_thirty_turns_are_the_whole_session(
    client: Client, service: Service
) -> None:
    for number in range(30):
        await after(
            client, f"t{number}", f"I paid {number} euros " + "for a long voyage. " * 9, f"noted {number} " * 20
        )
    await service.run_jobs()
    session = await session_of(client)
    assert session["summarized_through"] is not None
    answer = await before(client, text="well?")
    shown = [str(text) for text in texts(answer["input_items"])]
    assert sum("highlights turns=" in text for text in shown) == 1
    assert 30 <= sum(text.startswith(("I paid", "noted")) for text in shown) <= 37
    assert answer["gap"] is None
    little = await before(client, text="well?", max_input_tok=700)
    shown = [str(text) for text in texts(little["input_items"])]
    turns = sum(text.startswith(("I paid", "noted")) for text in shown)
    assert little["gap"]["turns"] > 0
    assert little["gap"]["to_position"] < 60 - turns + 1


async def test_before_a_turn_everything_is_read_only_repeatable_and_needs_the_scope_read_alone(
    client: Client, service: Service
) -> None:
    await after(client, "t1", "the parrot is called Kiki", "noted")
    key = await service.container.tenancy.create_key(client.tenant_id, name="reader", scopes=[Scope.READ])
    async with service.client(str(key)) as reader:
        reader.tenant_id, reader.key = client.tenant_id, str(key)
        first = await before(reader, text="what is the parrot called?", max_input_tok=200)
        assert await before(reader, text="what is the parrot called?", max_input_tok=200) == first
        problem(
            await reader.post("/v1/lifecycle/after-turn", json=named("t2", input_items=[said("user", "x")])),
            403,
            "forbidden",
        )
    assert await before(client, text="what is the parrot called?", max_input_tok=200) == first
    jobs = (await client.get("/v1/admin/jobs", params={"kind": "session.compact"})).json()["data"]
    assert jobs == []


async def test_facts_about_the_user_are_recalled_and_named(client: Client) -> None:
    await after(client, "t1")
    told = {"subject": "ann", "predicate": "likes", "object": "green tea", "owner": "ann"}
    fact = (await client.post("/v1/facts", json=told)).json()["fact"]["id"]
    answer = await before(client, text="what tea does ann like?")
    assert answer["recall_fact_ids"] == [fact]
    assert "green tea" in json.dumps(answer["input_items"])


async def test_what_was_said_long_before_is_recalled(client: Client) -> None:
    await after(client, "t0", "my parrot is called Kiki", "a fine name")
    for number in range(1, 25):
        await after(client, f"t{number}", f"the weather of day {number}", "noted")
    answer = await before(client, text="what is my parrot called?", max_input_tok=400)
    assert [text for text in texts(answer["input_items"]) if "Earlier turns" in text and "Kiki" in text]


async def test_memories_come_only_when_they_are_asked_for(client: Client) -> None:
    await after(client, "t1")
    await client.post("/v1/memories", json={"content": "ann parks on level three"})
    question = "where does ann park?"
    assert "level three" not in json.dumps(await before(client, text=question))
    asked = await before(client, text=question, include_memories=True, agent_id="default")
    assert "level three" in json.dumps(asked["input_items"])


@pytest.mark.parametrize("budget", [60, 120, 400, 2000])
async def test_the_count_is_that_of_the_items_and_never_over_what_was_allowed(client: Client, budget: int) -> None:
    for number in range(12):
        await after(client, f"t{number}", f"tell me of harbour {number}, please", "a harbour is a harbour " * number)
    answer = await before(
        client, text="which harbour was it?", base_instructions="You know ports.", max_input_tok=budget
    )
    assert answer["context_token_count"] <= budget
    counter = TiktokenCounter("o200k_base")
    plain = sum(counter.count(item["content"]) for item in answer["input_items"])
    assert plain < answer["context_token_count"] <= plain + 6 * len(answer["input_items"]) + 3


async def test_what_cannot_fit_says_how_much_would(client: Client) -> None:
    body = named("t", current_input=[said("user", "word " * 50)], base_instructions="Be kind.", max_input_tok=20)
    for _ in range(2):
        response = await client.post("/v1/lifecycle/before-turn", json=body)
        wrong = problem(response, 422, "budget_too_small", "/max_input_tok")
        assert (
            await client.post("/v1/lifecycle/before-turn", json=body | {"max_input_tok": wrong["minimum_budget"]})
        ).status_code == 200
        await after(client, "t0")  # and once more with a session
    response = await client.post("/v1/lifecycle/run-turn", json=body)
    problem(response, 422, "budget_too_small", "/max_input_tok")
    assert len(await turns_of(client)) == 2


async def test_a_tools_result_is_shown_with_its_call_from_before(client: Client) -> None:
    ask = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    await after(client, "t1", "look it up", [ask])
    result = {"type": "function_call_output", "call_id": "c1", "output": "it is blue"}
    body = named("t2", current_input=[result])
    shown = (await call(client, "before-turn", body))["input_items"]
    assert [item.get("type", "message") for item in shown] == ["message", "function_call", "function_call_output"]
    assert shown[-1]["output"] == "it is blue"


async def test_a_large_context_has_its_session_compacted_early(client: Client, service: Service) -> None:
    for number in range(12):
        await after(client, f"t{number}", f"harbour {number} " * 10, "noted " * 10)
    big = await before(client, max_input_tok=600)
    jobs = (await client.get("/v1/admin/jobs", params={"kind": "session.compact"})).json()["data"]
    if big["context_token_count"] > 480:
        assert len(jobs) == 1
        await service.run_jobs()
        assert (await session_of(client))["summarized_through"] is not None
    else:
        assert jobs == []


# after


async def test_a_turn_makes_its_session_and_is_stored_in_order(client: Client) -> None:
    await after(client, "t1", "hello", "hi")
    session = await session_of(client)
    assert (session["owner"], session["external_id"], session["turn_count"]) == ("ann", "session-1", 2)
    first, second = await turns_of(client)
    assert (first["role"], first["actor"], first["content"], first["seq"]) == ("user", "ann", "hello", 1)
    assert (second["role"], second["actor"], second["content"], second["seq"]) == ("assistant", "assistant", "hi", 2)
    assert {first["adapter"], second["adapter"]} == {"openai_responses"}
    # ids follow from the names: version 5
    assert {uuid.UUID(int=int.from_bytes(_ulid_bytes(turn["id"]))).version for turn in (first, second)} == {5}


def _ulid_bytes(text: str) -> bytes:
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    value = 0
    for character in text:
        value = value * 32 + alphabet.index(character)
    return value.to_bytes(16)


async def test_a_repeat_stores_nothing_and_the_first_body_stands(client: Client) -> None:
    await after(client, "t1", "hello", "hi")
    counted = await metrics(client)
    await after(client, "t1", "hello", "hi")
    same = await metrics(client)
    conflicts = "mcp_memory_idempotency_conflicts_total"
    assert same[conflicts] == counted[conflicts]
    longer = [said("assistant", "hi"), said("assistant", "and more")]
    for asked, answered in (("hello", "another"), ("other", "hi"), ("hello", longer), ("hello", []), ([], "hi")):
        await after(client, "t1", asked, answered)
    assert (await metrics(client))[conflicts] == counted[conflicts] + 5
    assert [turn["content"] for turn in await turns_of(client)] == ["hello", "hi"]


async def test_a_turn_that_was_erased_stays_erased(client: Client) -> None:
    await after(client, "t1", "a secret", "indeed")
    session = (await session_of(client))["id"]
    ids = [turn["id"] for turn in await turns_of(client)]
    await client.delete(f"/v1/conversations/{session}/turns", params={"ids": ids})
    await after(client, "t1", "a secret", "indeed")
    assert [turn["content"] for turn in await turns_of(client)] == [None, None]


async def test_turns_of_the_same_name_in_other_sessions_and_projects_are_others(client: Client) -> None:
    places = [{}, {"session_id": "session-2"}, {"project": "other"}]
    for place in places:
        await after(client, "t1", **place)
    for place in places:
        assert len(await turns_of(client, **place)) == 2


REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "x/y+=",
}
ITEMS = [
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "hé \U0001f98a"},
            {"type": "input_image", "image_url": "https://a.example/b.png", "detail": "low"},
        ],
    },
    {"role": "developer", "content": "short"},
    {"type": "message", "role": "user", "content": ""},
    {"type": "item_reference", "id": "msg_9"},
    {"id": "msg_10"},
]
OUTPUT = [
    REASONING,
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "foxes"}},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "look",
        "arguments": '{"a": 1.50, "b": [ ]}',
        "status": "completed",
    },
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "c2", "name": "run", "input": "x = 1\n"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "found"}]},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "1"},
    {
        "type": "not_known_yet",
        "id": "n_1",
        "deep": {"list": [1, 1.0, 1e22, True, None, "", {}], "turnkeep.given": {"a": 1}},
    },
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "phase": "final_answer",
        "content": [
            {
                "type": "output_text",
                "text": "a fox",
                "annotations": [{"type": "url_citation", "url": "https://a.example"}],
                "logprobs": [],
            }
        ],
    },
]


async def test_every_item_comes_back_as_it_was(client: Client) -> None:
    await after(client, "t1", ITEMS, OUTPUT)
    stored = [Turn.model_validate(turn | {"occurred_at": turn["occurred_at"]}) for turn in await turns_of(client)]
    back = [item for turn in stored for item in items_of(turn)]
    as_json = [json.dumps(item, sort_keys=True) for item in back]
    assert as_json == [json.dumps(item, sort_keys=True) for item in [*ITEMS, *OUTPUT]]


async def test_reasoning_comes_before_the_answer_that_followed_it(client: Client) -> None:
    await after(client, "t1", ITEMS[:1], OUTPUT)
    shown = [item.get("type", "message") for item in (await before(client))["input_items"]]
    assert shown == [
        "message", "reasoning", "web_search_call", "function_call", "custom_tool_call", "function_call_output",
        "custom_tool_call_output", "message", "message",
    ]  # fmt: skip


async def test_a_result_of_an_unknown_call_is_stored_and_shown_as_a_result_to_no_model(client: Client) -> None:
    lost = {"type": "function_call_output", "call_id": "never", "output": "found it"}
    await after(client, "t1", [said("user", "go on"), lost], "thanks")
    turns = await turns_of(client)
    assert [turn["tool_call_id"] for turn in turns] == [None, "never", None]
    shown = (await before(client))["input_items"]
    assert [item["type"] for item in shown if item.get("type", "message") != "message"] == []


async def test_a_turn_without_items_is_refused(client: Client) -> None:
    for body in (named("t", input_items=[], output_items=[]), named("t")):
        problem(await client.post("/v1/lifecycle/after-turn", json=body), 422, "invalid_request", "/output_items")
    response = await client.post("/v1/lifecycle/before-turn", json=named("t", current_input=[]))
    problem(response, 422, "invalid_request", "/current_input")
    response = await client.post("/v1/lifecycle/run-turn", json=named("t", current_input=[]))
    problem(response, 422, "invalid_request", "/current_input")
    assert (await client.get("/v1/conversations")).json()["data"] == []


@pytest.mark.parametrize(
    ("items", "status", "code", "pointer"),
    [
        ([{"type": "message", "role": "judge", "content": "x"}], 422, "invalid_request", "/input_items/0/role"),
        ([said("user", "a"), {"type": 1}], 422, "invalid_request", "/input_items/1/type"),
        ([{"type": "function_call", "call_id": "c"}], 422, "invalid_request", "/input_items/0/name"),
        ([said("user", LONG)], 413, "text_too_large", "/input_items/0/content"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": LONG}]}],
            413,
            "text_too_large",
            "/input_items/0/content/0/text",
        ),
        (
            [{"type": "function_call", "call_id": "c", "name": "f", "arguments": LONG}],
            413,
            "text_too_large",
            "/input_items/0/arguments",
        ),
        (
            [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}] * 1001}],
            422,
            "invalid_request",
            "/input_items/0/output",
        ),
        (
            [{"type": "local_shell_call_output", "id": "c", "output": LONG}],
            413,
            "text_too_large",
            "/input_items/0/output",
        ),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 1001}],
            422,
            "invalid_request",
            "/input_items/0/content",
        ),
        ([said("user", "a")] * 501, 422, "invalid_request", "/input_items"),
        (["a"], 422, "invalid_request", "/input_items/0"),
    ],
    ids=[
        "role",
        "type",
        "name",
        "text",
        "part",
        "arguments",
        "parts of a result",
        "output",
        "parts",
        "items",
        "no object",
    ],
)
async def test_a_wrong_item_is_named_and_nothing_is_stored(
    client: Client, items: Any, status: int, code: str, pointer: str
) -> None:
    response = await client.post("/v1/lifecycle/after-turn", json=named("t", input_items=items))
    problem(response, status, code, pointer)
    assert (await client.get("/v1/conversations")).json()["data"] == []


async def test_a_session_is_its_users_alone(client: Client) -> None:
    await after(client, "t1")
    other = {"user_id": "bob"}
    item = [said("user", "what does ann like?")]
    for name, more in (
        ("before-turn", {"current_input": item}),
        ("after-turn", {"input_items": item}),
        ("run-turn", {"current_input": item}),
    ):
        response = await client.post(f"/v1/lifecycle/{name}", json=named("t2", **more) | other)
        problem(response, 409, "conversation_owned", "/user_id")
    assert len(await turns_of(client)) == 2
    # a conversation without an owner takes whoever comes
    await client.conversation(project="shop", external_id="free")
    for user in ("ann", "bob"):
        await after(client, user, session_id="free", user_id=user)
    assert [turn["actor"] for turn in await turns_of(client, session_id="free")] == [
        "ann",
        "assistant",
        "bob",
        "assistant",
    ]


# at once


async def patiently(client: Client, name: str, body: dict[str, Any]) -> int:
    """Send until it is taken, as an agent does; says how often it was busy."""
    for attempt in range(200):
        response = await client.post(f"/v1/lifecycle/{name}", json=body)
        if response.status_code == 200:
            return attempt
        problem(response, 409, "resource_busy")
        assert response.json()["retryable"] is True
        assert int(response.headers["Retry-After"]) >= 1
        await asyncio.sleep(0.02)
    raise AssertionError("never taken")


async def test_the_same_turn_at_once_makes_one_session_and_one_turn(client: Client) -> None:
    body = named("t1", input_items=[said("user", "hello")], output_items=[said("assistant", "hi")])
    await asyncio.gather(*(patiently(client, "after-turn", body) for _ in range(20)))
    assert [turn["content"] for turn in await turns_of(client)] == ["hello", "hi"]


async def test_different_turns_at_once_are_stored_once_each_and_whole(client: Client) -> None:
    bodies = [
        named(f"t{n}", input_items=[said("user", f"q{n}")], output_items=[said("assistant", f"a{n}")])
        for n in range(12)
    ]
    await asyncio.gather(*(patiently(client, "after-turn", body) for body in bodies * 2))
    turns = await turns_of(client)
    pairs = [(turns[at]["content"], turns[at + 1]["content"]) for at in range(0, len(turns), 2)]
    assert sorted(pairs) == sorted((f"q{n}", f"a{n}") for n in range(12))
    assert [turn["seq"] for turn in turns] == list(range(1, 25))
    session = (await session_of(client))["id"]
    assert (await client.get(f"/v1/conversations/{session}/verify")).json()["valid"] is True


async def test_a_turn_that_waits_200_ms_for_its_session_gets_resource_busy(client: Client, service: Service) -> None:
    await after(client, "t1")
    connection = await asyncpg.connect(service.database.superuser)
    try:
        async with connection.transaction():
            await connection.execute(
                "select 1 from conversation_heads where tenant_id = $1 for update", client.tenant_id
            )
            started = asyncio.get_running_loop().time()
            body = named("t2", input_items=[said("user", "x")])
            for name, sent in (("after-turn", body), ("maintenance", SESSION)):
                problem(await client.post(f"/v1/lifecycle/{name}", json=sent), 409, "resource_busy")
            assert 0.3 < asyncio.get_running_loop().time() - started < 3
            # reading waits for nobody
            await before(client)
            await after_nothing(client)
    finally:
        await connection.close()
    await after(client, "t2")


async def after_nothing(client: Client) -> None:
    assert (await client.post("/v1/lifecycle/tree", json=SESSION)).status_code == 200


# run


async def prepare(client: Client, turn_id: str = "t1", text: str = "hello", **more: Any) -> dict[str, Any]:
    return await call(client, "run-turn", named(turn_id, current_input=[said("user", text)], **more))


async def end(client: Client, token: str, text: str = "hi") -> httpx.Response:
    return await client.post(
        "/v1/lifecycle/run-turn", json={"operation_token": token, "output_items": [said("assistant", text)]}
    )


async def test_a_turn_is_prepared_and_ended(client: Client) -> None:
    await after(client, "t0", "earlier", "yes")
    prepared = await prepare(client, base_instructions="Be kind.")
    assert texts(prepared["input_items"]) == ["Be kind.", "earlier", "yes", "hello"]
    assert [turn["content"] for turn in await turns_of(client)] == ["earlier", "yes", "hello"]
    for text in ("hi", "hi", "another"):
        answer = await end(client, prepared["operation_token"], text)
        assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert [turn["content"] for turn in await turns_of(client)] == ["earlier", "yes", "hello", "hi"]


async def test_a_turn_prepared_again_shows_and_stores_its_input_once(client: Client) -> None:
    await after(client, "t0", "earlier", "yes")
    first = await prepare(client)
    assert texts((await prepare(client))["input_items"]) == texts(first["input_items"]) == ["earlier", "yes", "hello"]
    assert texts((await before(client, "t1", "hello"))["input_items"]) == ["earlier", "yes", "hello"]
    assert len(await turns_of(client)) == 3
    await end(client, first["operation_token"])
    again = await prepare(client)
    assert texts(again["input_items"]) == ["earlier", "yes", "hello"]
    assert (await end(client, again["operation_token"])).status_code == 200
    await after(client, "t1", "hello", "hi")
    assert [turn["content"] for turn in await turns_of(client)] == ["earlier", "yes", "hello", "hi"]


async def test_a_prepared_turn_may_be_ended_by_after_turn(client: Client) -> None:
    prepared = await prepare(client)
    await after(client, "t1", "hello", "by another way")
    assert (await end(client, prepared["operation_token"], "too late")).status_code == 200
    assert [turn["content"] for turn in await turns_of(client)] == ["hello", "by another way"]


async def test_a_turn_that_is_stored_already_may_be_prepared_and_stays_as_it_is(client: Client) -> None:
    await after(client, "t1", "hello", "hi")
    prepared = await prepare(client)
    assert texts(prepared["input_items"]) == ["hello"]
    assert (await end(client, prepared["operation_token"], "other")).status_code == 200
    assert [turn["content"] for turn in await turns_of(client)] == ["hello", "hi"]


async def test_a_turn_of_the_longest_names_is_ended_by_its_token(client: Client) -> None:
    names = {"project": "\U0001f35d" * 128, "session_id": "\U0001f35d" * 512, "turn_id": "\U0001f35d" * 256}
    prepared = await call(client, "run-turn", {**names, "user_id": "ann", "current_input": [said("user", "q")]})
    ended = {"operation_token": prepared["operation_token"], "output_items": [said("assistant", "a")]}
    assert await call(client, "run-turn", ended) == {"ok": True}
    project, session_id = names["project"], names["session_id"]
    assert texts(await turns_of(client, project=project, session_id=session_id)) == ["q", "a"]


async def test_an_operation_token_that_does_not_hold_is_refused(
    client: Client, other: Client, service: Service
) -> None:
    token = (await prepare(client))["operation_token"]
    head, payload, _ = token.removeprefix("tko_").split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    unsigned = f"{head}.{payload}."
    forged = jwt.encode(claims | {"turn": "t2"}, "x" * 32, algorithm="HS256")
    for wrong in (
        "tko_",
        "nonsense",
        token[:-2] + "AA",
        f"tko_{unsigned}",
        f"tko_{forged}",
        token.removeprefix("tko_"),
        "tko_é.é.é",
    ):
        problem(await end(client, wrong), 422, "operation_token_invalid", "/operation_token")
    problem(await end(other, token), 422, "operation_token_invalid", "/operation_token")
    secret = service.container.tenancy.secret_for("operation-tokens")
    over = PreparedOperation(
        tenant=format_id(client.tenant_id), project="shop", session="session-1", turn="t1", asked=1,
        exp=int(datetime.now(UTC).timestamp()) - 1,
    )  # fmt: skip
    problem(await end(client, sign_operation(secret, over)), 422, "operation_token_expired", "/operation_token")
    assert [turn["content"] for turn in await turns_of(client)] == ["hello"]
    assert (await end(client, token)).status_code == 200
    assert claims["exp"] - datetime.now(UTC).timestamp() == pytest.approx(900, abs=30)


async def test_a_token_of_a_session_that_is_gone_makes_none(client: Client) -> None:
    token = (await prepare(client))["operation_token"]
    await client.delete(f"/v1/conversations/{(await session_of(client))['id']}")
    problem(await end(client, token), 404, "not_found")
    await after(client, "t9")
    problem(await end(client, token), 404, "not_found")
    assert len(await turns_of(client)) == 2


async def test_run_turn_says_what_it_misses(client: Client) -> None:
    response = await client.post("/v1/lifecycle/run-turn", json={"session_id": "s"})
    body = problem(response, 422, "invalid_request", "/user_id")
    assert [error["pointer"] for error in body["errors"]] == ["/user_id", "/turn_id", "/current_input"]
    response = await client.post("/v1/lifecycle/run-turn", json={"output_items": [said("assistant", "x")]})
    problem(response, 422, "invalid_request", "/operation_token")
    token = (await prepare(client))["operation_token"]
    response = await client.post("/v1/lifecycle/run-turn", json={"operation_token": token})
    problem(response, 422, "invalid_request", "/output_items")
    mixed = named("t1") | {"operation_token": token, "output_items": [said("assistant", "x")]}
    problem(await client.post("/v1/lifecycle/run-turn", json=mixed), 422, "invalid_request", "/project")


async def test_members_that_are_null_are_left_out_in_both_halves(client: Client) -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("base_instructions", "max_input_tok", "include_memories", "agent_id", "operation_token", "output_items")
    )
    prepared = await call(client, "run-turn", nothing | named("t1", current_input=[said("user", "hello")]))
    ended = nothing | dict.fromkeys(("project", "session_id", "user_id", "turn_id", "current_input"))
    ended |= {"operation_token": prepared["operation_token"], "output_items": [said("assistant", "hi")]}
    assert await call(client, "run-turn", ended) == {"ok": True}
    assert texts(await turns_of(client)) == ["hello", "hi"]


async def test_repeats_of_both_halves_at_once_store_each_once(client: Client) -> None:
    body = named("t1", current_input=[said("user", "hello")])
    await asyncio.gather(*(patiently(client, "run-turn", body) for _ in range(8)))
    token = (await prepare(client))["operation_token"]
    ending = {"operation_token": token, "output_items": [said("assistant", "hi")]}
    await asyncio.gather(*(patiently(client, "run-turn", ending) for _ in range(8)))
    assert [turn["content"] for turn in await turns_of(client)] == ["hello", "hi"]


# looking after


async def test_maintenance_does_what_is_due_and_counts_it(client: Client, service: Service) -> None:
    for number in range(30):
        await after(client, f"t{number}", f"the ship {number} sails on day {number}", "noted")
    told = {"subject": "ann", "predicate": "likes", "object": "tea", "owner": "ann"}
    await client.post("/v1/facts", json=told)
    nothing = {"summaries": 0, "refreshed": 0, "turns_erased": 0, "facts_expired": 0}
    connection = await asyncpg.connect(service.database.superuser)
    await connection.execute(
        "update facts set due_at = now(), expires_at = now() where tenant_id = $1", client.tenant_id
    )
    await connection.execute(
        "update turns set committed_at = now() - interval '2 days' where tenant_id = $1", client.tenant_id
    )
    await connection.close()
    done = await call(client, "maintenance", SESSION)
    assert done["ok"] is True
    assert done["counts"]["summaries"] >= 1
    assert done["counts"]["facts_expired"] == 1
    session = await session_of(client)
    assert session["summarized_through"] is not None
    assert (await call(client, "maintenance", SESSION)) == {"ok": True, "counts": nothing}
    # the newest thirty stay as they are
    shown = texts((await before(client))["input_items"])
    assert "the ship 29 sails on day 29" in shown
    assert "the ship 16 sails on day 16" in shown
    assert (await client.get("/v1/facts")).json()["data"] == []


async def test_maintenance_of_several_at_once_and_of_no_session(client: Client) -> None:
    problem(await client.post("/v1/lifecycle/maintenance", json=SESSION), 404, "not_found")
    for number in range(30):
        await after(client, f"t{number}")
    answers = await asyncio.gather(*(client.post("/v1/lifecycle/maintenance", json=SESSION) for _ in range(4)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert await patiently(client, "maintenance", SESSION) >= 0


@pytest.mark.slow
async def test_maintenance_erases_what_the_session_does_not_keep(database: TestDatabase, tmp_path: Any) -> None:
    async with (
        open_service(database, tmp_path, erase_without_summary=True) as service,
        await service.new_tenant() as client,
    ):
        for number in range(30):
            await after(client, f"t{number}", f"question {number}", "noted")
        session = (await session_of(client))["id"]
        await client.patch(f"/v1/conversations/{session}", json={"retention": "ephemeral"})
        counts = (await call(client, "maintenance", SESSION))["counts"]
        assert counts["summaries"] >= 1
        assert counts["turns_erased"] >= 1
        erased = [turn for turn in await turns_of(client) if turn["erased_at"] is not None]
        assert len(erased) == counts["turns_erased"]


# the tree


@pytest.fixture
async def remembered(client: Client) -> Client:
    await after(client, "t1", "the first question", "the first answer")
    told = {"subject": "ann", "predicate": "likes", "object": "tea", "owner": "ann"}
    await client.post("/v1/facts", json=told)
    session = (await session_of(client))["id"]
    await client.append(
        session,
        {"role": "user", "content": [{"type": "text", "text": "long  ago"}], "occurred_at": "2020-02-29T12:00:00Z"},
    )
    await client.post(f"/v1/conversations/{session}/summaries", json={})
    return client


async def listed(client: Client, **more: Any) -> dict[str, dict[str, Any]]:
    answer = await call(client, "tree", SESSION | more)
    return {entry["path"].removeprefix("/memory/session-1/"): entry for entry in answer["summaries"]}


async def test_the_tree_shows_days_context_facts_and_what_the_session_is(remembered: Client) -> None:
    today = datetime.now(UTC).date().isoformat()
    tree = await listed(remembered)
    assert list(tree) == [
        "events", f"events/{today}", "events/2020-02-29", "context", "context/summary", "context/recent",
        "memory_tiers", "memory_tiers/l1", "memory_tiers/l2", "memory_tiers/l3", "meta",
    ]  # fmt: skip
    assert tree[f"events/{today}"]["abstract"] == "2 turns of ann, assistant: the first question"
    assert tree["events/2020-02-29"]["abstract"] == "1 turns of user: long ago"
    assert tree["events/2020-02-29"]["updated_at"] == "2020-02-29T12:00:00.000Z"
    assert "ann likes tea" in " ".join(entry["abstract"] for entry in tree.values())
    assert not tree["events"]["has_overview"]
    assert tree["meta"]["has_overview"]
    for path in ("events", "/memory/session-1/events", "/memory/session-1/events/", "/events"):
        assert list(await listed(remembered, path=path)) == ["events", f"events/{today}", "events/2020-02-29"]
    assert list(await listed(remembered, depth=1)) == ["events", "context", "memory_tiers", "meta"]
    assert list(await listed(remembered, path="memory_tiers/l1")) == ["memory_tiers/l1"]
    assert list(await listed(remembered, limit=2)) == ["events", f"events/{today}"]


async def test_a_path_that_is_none_or_leads_nowhere_is_refused(remembered: Client) -> None:
    for path in ("../x", "events//x", "events/..", "ev ents", "/memory/session-2/meta", "meta/\u202e", "." * 5):
        response = await remembered.post("/v1/lifecycle/tree", json=SESSION | {"path": path})
        problem(response, 422, "invalid_request", "/path")
    for path in ("nothing", "events/1999-01-01", "memory_tiers/l4", "meta/more", "context/summary/1"):
        problem(await remembered.post("/v1/lifecycle/tree", json=SESSION | {"path": path}), 404, "not_found")
    problem(await remembered.post("/v1/lifecycle/tree", json={"session_id": "none"}), 404, "not_found")


async def test_every_place_of_the_tree_can_be_read(remembered: Client, service: Service) -> None:
    caller = await service.container.tenancy.authenticate(remembered.key)
    today = datetime.now(UTC).date().isoformat()

    async def read(path: str) -> str:
        found = await service.container.lifecycle.read(caller, project="shop", session_id="session-1", path=path)
        return found.text

    for path, entry in (await listed(remembered)).items():
        text = await read(path)
        assert text, path
        assert entry["path"] == f"/memory/session-1/{path}"
    assert "ann] the first question" in await read(f"events/{today}")
    assert "long  ago" in await read("/memory/session-1/events/2020-02-29")
    assert "the first answer" in await read("context/recent")
    assert "ann likes tea" in await read("memory_tiers/l1") + await read("memory_tiers/l2") + await read(
        "memory_tiers/l3"
    )
    assert "owner: ann" in await read("meta")
    assert "/memory/session-1/meta: " in await read("")


async def test_metrics_count_calls_by_how_they_ended(client: Client) -> None:
    start = await metrics(client)

    async def grown(name: str) -> float:
        return (await metrics(client)).get(name, 0) - start.get(name, 0)

    await before(client)
    await after(client, "t1")
    await after(client, "t1")
    await call(client, "after-turn", named("t1"), 422)
    await call(client, "maintenance", SESSION)
    await client.post("/v1/facts", json={"subject": "a", "predicate": "b", "object": "c"})
    assert await grown('mcp_memory_before_turn_total{status="ok"}') == 1
    assert await grown('mcp_memory_after_turn_total{status="ok"}') == 2
    assert await grown('mcp_memory_after_turn_total{status="invalid_request"}') == 1
    assert await grown('mcp_memory_maintenance_total{status="ok"}') == 1
    assert await grown("mcp_memory_after_turn_duration_ms_count") == 3
    assert sum([await grown(f'mcp_memory_fact_write_total{{tier="{tier}"}}') for tier in ("l1", "l2", "l3")]) == 1
    assert "mcp_memory_compaction_total" in start


@pytest.mark.slow
async def test_what_was_answered_is_there_after_a_restart_and_a_repeat_still_stores_nothing(
    database: TestDatabase, tmp_path: Any
) -> None:
    async with open_service(database, tmp_path) as service:
        client = await service.new_tenant()
        await after(client, "t1", "hello", "hi")
        token = (await prepare(client, "t2", "and then?"))["operation_token"]
        shown = await before(client)
        key, tenant = client.key, client.tenant_id
    async with open_service(database, tmp_path) as service, service.client(key) as client:
        client.key, client.tenant_id = key, tenant
        assert await before(client) == shown
        await after(client, "t1", "hello", "hi")
        assert (await end(client, token, "then this")).status_code == 200
        assert [turn["content"] for turn in await turns_of(client)] == ["hello", "hi", "and then?", "then this"]


async def test_a_turn_id_that_is_used_in_another_conversation_is_a_conflict(client: Client) -> None:
    await after(client, "t1")
    taken = (await turns_of(client))[0]["id"]
    session = (await session_of(client))["id"]
    await client.delete(f"/v1/conversations/{session}")
    elsewhere = await client.conversation()
    await client.append(elsewhere, {"id": taken, "role": "user", "content": "mine"})
    response = await client.post("/v1/lifecycle/after-turn", json=named("t1", input_items=[said("user", "x")]))
    problem(response, 409, "turn_id_conflict")
    assert format_id(uuid.UUID(int=0)) != taken
