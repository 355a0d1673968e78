"""Other spellings of fields are taken, and what metadata says of policies takes effect."""

from typing import Any

import httpx
import pytest

from tests.support.api import Client, Service, problem
from tests.support.live import serving, socket_on

COMPACTION = {"triggerTurns": 10, "triggerTokens": 900, "summarizerModel": "fast", "strategy": "hierarchical"}
KEPT = {
    "trigger_turns": 10,
    "trigger_tokens": 900,
    "summarizer_model": "fast",
    "strategy": "hierarchical",
    "summaries": None,
}


def details(response: httpx.Response) -> dict[str, str]:
    status = 400 if response.url.path.startswith("/openai/") else 422
    return {error["pointer"]: error["detail"] for error in problem(response, status, "invalid_request")["errors"]}


async def test_k_and_top_k_are_one_field_everywhere(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "Mia likes ferries.", "Ferries leave at nine.", "The ferries are blue.")
    for content in ("Mia likes ferries.", "Ferries leave at nine."):
        await client.post("/v1/memories", json={"content": content})
    for name in ("k", "top_k"):
        assert len(await client.recall(conversation, "ferries", **{name: 2})) == 2
        assert len(await client.recall(None, "ferries", **{name: 2})) == 2
        found = await client.post("/v1/memories/search", json={"query": "ferries", name: 1})
        assert len(found.json()["entries"]) == 1
        context = await client.context(conversation, 500, recent_turns=1, semantic_recall={name: 1}, explain=True)
        assert context["usage"]["sections"]["recalled"]["requested"] > 0
    both = await client.post("/v1/recall", json={"query": "x", "k": 1, "top_k": 1})
    assert details(both) == {"/top_k": "`top_k` is another name of `k`. Give one of them."}
    for name in ("topK", "topk", "K"):
        near = await client.post("/v1/recall", json={"query": "x", name: 1})
        assert details(near) == {f"/{name}": f"Unknown field `{name}`. Did you mean `k`?"}
    wrong = await client.post("/v1/recall", json={"query": "x", "top_k": 0})
    assert details(wrong) == {"/top_k": "at least 1"}


async def test_the_names_of_the_first_documents_are_taken_in_a_context(client: Client) -> None:
    conversation = await client.conversation()
    turns = [{"role": "user", "actor": actor, "content": f"{actor} likes ferries"} for actor in ("mia", "leo")]
    await client.append(conversation, *turns)
    path = f"/v1/conversations/{conversation}/context"
    ours = {
        "token_budget": 500, "recent_turns": 1, "semantic_recall": {"k": 5, "threshold": 0.0}, "include_facts": True,
        "filter_participants": ["mia"],
    }  # fmt: skip
    theirs = {
        "tokenBudget": 500, "recentTurns": 1, "semanticRecall": {"k": 5, "threshold": 0.0}, "includeFacts": True,
        "filterParticipants": ["mia"],
    }  # fmt: skip
    given = [(await client.post(path, json=body)).json() for body in (ours, theirs)]
    assert given[0] == given[1]
    assert [message["content"] for message in given[0]["messages"]] == ["mia likes ferries"]
    wrong = await client.post(path, json=theirs | {"tokenBudget": 0, "recentTurn": 1})
    assert details(wrong) == {
        "/tokenBudget": "at least 1",
        "/recentTurn": "Unknown field `recentTurn`. Did you mean `recent_turns`?",
    }


async def test_ttl_and_compaction_are_taken_under_their_first_names(client: Client) -> None:
    made = (await client.post("/v1/conversations", json={"ttl": 60, "compaction": COMPACTION})).json()
    assert (made["ttl_s"], made["compaction"]) == (60, KEPT)
    changed = await client.patch(f"/v1/conversations/{made['id']}", json={"ttl": 90, "retention": "audit-only"})
    assert (changed.json()["ttl_s"], changed.json()["retention"]) == (90, "audit_only")
    stored = await client.post("/v1/memories", json={"content": "Mia likes ferries.", "ttl": 60})
    assert stored.status_code == 201
    [memory] = (await client.get("/v1/memories")).json()["data"]
    assert memory["expires_at"] is not None


async def test_tokens_are_the_usage_of_a_turn(client: Client, service: Service) -> None:
    conversation = await client.conversation()
    said = {"role": "assistant", "content": "x", "tokens": {"prompt": 7, "completion": 3}}
    [turn] = (await client.append(conversation, said))["turns"]
    assert turn["usage"] == {"prompt_tokens": 7, "completion_tokens": 3}
    assert (await client.append(conversation, {**said, "id": turn["id"]}))["turns"][0] == turn, "a repeat is one turn"
    kept = {"prompt_tokens": 7, "completion_tokens": 3, "cached": {"a": 1}}
    [other] = (await client.append(conversation, {"role": "assistant", "content": "x", "usage": kept}))["turns"]
    assert other["usage"] == kept
    body = {"turns": [said | {"usage": {}}]}
    twice = await client.post(f"/v1/conversations/{conversation}/turns", json=body)
    assert details(twice) == {"/turns/0/tokens": "`tokens` is another name of `usage`. Give one of them."}
    async with serving(service.app, service.settings) as port, socket_on(port, conversation, client.key) as socket:
        turn_id = await socket.open_turn()
        ended = await socket.ask("commit", turn_id=turn_id, tokens={"prompt": 1, "completion": 2})
        assert ended["turn"]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2}


async def test_policies_in_metadata_take_effect_and_are_not_kept_there(client: Client) -> None:
    metadata = {"topic": "ferries", "retention": "audit-only", "compaction": COMPACTION}
    made = (await client.post("/v1/conversations", json={"metadata": metadata})).json()
    assert (made["metadata"], made["retention"], made["compaction"]) == ({"topic": "ferries"}, "audit_only", KEPT)
    path = f"/v1/conversations/{made['id']}"
    change = {"topic": "trains", "retention": "ephemeral", "compaction": {"triggerTurns": 20}}
    changed = (await client.patch(path, json={"metadata": change})).json()
    assert (changed["metadata"], changed["retention"]) == ({"topic": "trains"}, "ephemeral")
    assert changed["compaction"] == KEPT | {"trigger_turns": 20}
    untouched = (await client.patch(path, json={"metadata": {"topic": "buses"}})).json()
    assert (untouched["retention"], untouched["compaction"]) == ("ephemeral", changed["compaction"])
    same = {"retention": "full", "metadata": {"retention": "full"}}
    assert (await client.post("/v1/conversations", json=same)).json()["retention"] == "full"
    official = await client.post("/openai/v1/conversations", json={"metadata": {"retention": "ephemeral", "a": "b"}})
    assert official.json()["metadata"] == {"a": "b"}
    ours = await client.get(f"/v1/conversations/{official.json()['id'].removeprefix('conv_')}")
    assert ours.json()["retention"] == "ephemeral"


@pytest.mark.parametrize(
    ("metadata", "pointer"),
    [
        ({"retention": "some"}, "/metadata/retention"),
        ({"retention": None}, "/metadata/retention"),
        ({"retention": {"days": 7}}, "/metadata/retention"),
        ({"compaction": "never"}, "/metadata/compaction"),
        ({"compaction": {"strategy": "often"}}, "/metadata/compaction/strategy"),
        ({"compaction": {"triggerTurns": 0}}, "/metadata/compaction/triggerTurns"),
        ({"compaction": {"triggerTurn": 9}}, "/metadata/compaction/triggerTurn"),
        ({"retention": "ephemeral"}, ""),
    ],
)
async def test_policies_in_metadata_that_cannot_take_effect_are_refused(
    client: Client, metadata: dict[str, Any], pointer: str
) -> None:
    conversation = await client.conversation()
    contradiction = {"retention": "full"} if pointer == "" else {}
    body = {"metadata": metadata} | contradiction
    assert pointer in details(await client.post("/v1/conversations", json=body))
    assert pointer in details(await client.patch(f"/v1/conversations/{conversation}", json=body))
    if not contradiction:  # OpenAI's metadata has texts alone
        member = "/".join(pointer.split("/")[:3])
        assert member in details(await client.post("/openai/v1/conversations", json=body))
    fork = await client.post(f"/v1/conversations/{conversation}/fork", json={"metadata": metadata})
    assert details(fork) == {
        "/metadata": "A fork has the retention and compaction of its parent. Change them with PATCH."
    }


async def test_under_openai_what_is_not_known_passes(client: Client) -> None:
    body = {"metadata": {"a": "b"}, "frobnicate": 1}
    made = await client.post("/openai/v1/conversations", params={"beta": "true"}, json=body)
    assert made.status_code == 200
    path = f"/openai/v1/conversations/{made.json()['id']}"
    assert (await client.get(f"{path}/items", params={"frobnicate": "1"})).json()["data"] == []


async def test_a_query_that_is_not_known_closes_a_websocket_and_says_why(client: Client, service: Service) -> None:
    conversation = await client.conversation()
    async with (
        serving(service.app, service.settings) as port,
        socket_on(port, conversation, client.key, query="?after_rev=3") as socket,
    ):
        assert await socket.closed() == (4400, "invalid_request")
        [error] = socket.received[-1]["errors"]
        assert error == {"pointer": "/after_rev", "in": "query", "detail": "Unknown query parameter `after_rev`."}


async def test_a_caller_without_a_key_learns_no_parameters(service: Service) -> None:
    async with service.client(None) as stranger:
        problem(await stranger.get("/v1/conversations", params={"limt": "1"}), 401, "unauthenticated")


async def test_a_name_that_may_be_content_is_described_by_its_place(client: Client) -> None:
    for name in ("a b", "é", "x" * 65, "<b>", ""):
        answer = await client.get("/v1/conversations", params=[("limit", "1"), (name, "1")])
        [error] = problem(answer, 422, "invalid_request")["errors"]
        assert error == {"pointer": "", "in": "query", "detail": "Unknown query parameter: number 2 of this query."}
