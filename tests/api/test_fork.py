"""Forks: a new conversation with copies of the live turns up to one."""

import asyncio
import hashlib
from typing import Any

import asyncpg
import httpx
import pytest

from app.core.ids import format_id, new_uuid
from tests.support.api import Client, Service, problem

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


async def fork(client: Client, conversation: str, **body: Any) -> httpx.Response:
    return await client.post(f"/v1/conversations/{conversation}/fork", json=body)


async def forked(client: Client, conversation: str, **body: Any) -> dict[str, Any]:
    answer = await fork(client, conversation, **body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def valid(client: Client, conversation: str) -> bool:
    return (await client.get(f"/v1/conversations/{conversation}/verify")).json()["valid"]


async def started(client: Client, *texts: str) -> tuple[str, list[dict[str, Any]]]:
    conversation = await client.conversation(
        external_id="parent", owner="ann", title="t", participants=["ann"], metadata={"a": 1}, ttl_s=1000
    )
    return conversation, (await client.append(conversation, *texts))["turns"]


async def test_a_fork_has_copies_of_the_live_turns_up_to_one(client: Client) -> None:
    conversation, turns = await started(client, "one", "two", "three", "four")
    path = f"/v1/conversations/{conversation}/turns"
    new = (await client.post(f"{path}/{turns[1]['id']}/revisions", json={"content": "zwei"})).json()["turn"]
    made = await forked(client, conversation, through=turns[2]["id"])
    assert (made["forked_from"], made["last_seq"], made["turn_count"], made["rev"]) == (conversation, 3, 3, 1)
    assert (made["owner"], made["title"], made["metadata"], made["ttl_s"]) == ("ann", "t", {"a": 1}, 1000)
    assert made["external_id"] is None
    copies = await client.history(made["id"], include_superseded=True)
    assert [(turn["content"], turn["seq"], turn["position"]) for turn in copies] == [
        ("one", 1, 1), ("zwei", 2, 2), ("three", 3, 3),
    ]  # fmt: skip
    assert [turn["origin_turn_id"] for turn in copies] == [turns[0]["id"], new["id"], turns[2]["id"]]
    originals = [turns[0], new, turns[2]]
    for copy, original in zip(copies, originals, strict=True):
        assert copy["occurred_at"] == original["occurred_at"]
        assert copy["content_hash"] != original["content_hash"]
        assert copy["supersedes"] is None
    assert made["token_count"] == sum(turn["content_tokens"] for turn in copies)
    assert [turn["content"] for turn in await client.history(conversation)] == ["one", "zwei", "three", "four"]


async def test_its_chain_starts_from_the_parents_at_that_turn(client: Client) -> None:
    conversation, turns = await started(client, "one", "two", "three")
    made = await forked(client, conversation, through_seq=2)
    copies = await client.history(made["id"])
    chain = bytes.fromhex(turns[1]["chain_hash"])
    for turn in copies:
        lines = [turn["id"], str(turn["seq"]), turn["role"], turn["kind"], turn["created_at"], turn["content_hash"]]
        chain = hashlib.sha256(chain + "\n".join(lines).encode()).digest()
        assert chain.hex() == turn["chain_hash"]
    assert made["head_hash"] == chain.hex()
    assert await valid(client, made["id"])
    # and it holds when the parent is gone
    await client.delete(f"/v1/conversations/{conversation}")
    assert await valid(client, made["id"])
    again = await forked(client, made["id"])
    assert await valid(client, again["id"])
    assert [turn["content"] for turn in await client.history(again["id"])] == ["one", "two"]


async def test_a_fork_is_recalled_without_being_embedded_again(client: Client, service: Service) -> None:
    conversation, _ = await started(client, "the parrot is green", "tea is hot", "the zebra sleeps")
    made = await forked(client, conversation)
    for query in ("green parrot", "striped animal"):
        for mode in ("text", "vector", "hybrid"):
            hits = [
                [(hit["text"], hit["score"]) for hit in await client.recall(where, query, mode=mode)]
                for where in (conversation, made["id"])
            ]
            assert hits[0] == hits[1]
    connection = await asyncpg.connect(service.database.superuser)
    same = await connection.fetchval(
        """
        select count(*) from vectors a join turns t on t.tenant_id = a.tenant_id and t.origin_turn_id = a.entry_id
        join vectors b on b.tenant_id = a.tenant_id and b.entry_id = t.id and a.embedding = b.embedding
        where a.tenant_id = $1
        """,
        client.tenant_id,
    )
    await connection.close()
    assert same == 3


async def test_a_fork_goes_its_own_way(client: Client) -> None:
    conversation, turns = await started(client, "one", "two")
    made = await forked(client, conversation, title="branch", owner=None, metadata={}, external_id="branch")
    assert (made["title"], made["owner"], made["metadata"], made["external_id"]) == ("branch", None, {}, "branch")
    copies = await client.history(made["id"])
    path = f"/v1/conversations/{made['id']}/turns"
    await client.post(f"{path}/{copies[1]['id']}/revisions", json={"content": "zwei", "truncate_after": True})
    await client.append(made["id"], "drei")
    await client.delete(f"{path}/{copies[0]['id']}")
    assert [turn["content"] for turn in await client.history(made["id"])] == [None, "zwei", "drei"]
    assert [turn["content"] for turn in await client.history(conversation)] == ["one", "two"]
    assert await valid(client, made["id"])
    assert await valid(client, conversation)
    hits = await client.recall(None, "two", mode="text", owner="ann")
    assert [hit["id"] for hit in hits] == [turns[1]["id"]]


async def test_tombstones_are_not_copied(client: Client) -> None:
    conversation, turns = await started(client, "one", "two", "three")
    await client.delete(f"/v1/conversations/{conversation}/turns/{turns[1]['id']}")
    made = await forked(client, conversation)
    assert [(turn["content"], turn["seq"]) for turn in await client.history(made["id"])] == [("one", 1), ("three", 2)]
    assert await valid(client, made["id"])


async def test_neighbours_hold_in_a_fork_after_a_truncation(client: Client) -> None:
    conversation, turns = await started(client, "alpha", "zebra question", "beta", "gamma")
    path = f"/v1/conversations/{conversation}/turns/{turns[1]['id']}/revisions"
    await client.post(path, json={"content": "where does the zebra sleep?", "truncate_after": True})
    await client.append(conversation, {"role": "assistant", "content": "under the oak"})
    made = await forked(client, conversation)
    hits = await client.recall(made["id"], "where does the zebra sleep", explain=True, neighbours=1)
    answer = next(hit for hit in hits if hit["text"] == "under the oak")
    assert answer["explain"]["terms"]["neighbour"] > 0
    assert [turn["content"] for turn in answer["neighbours"]] == ["where does the zebra sleep?"]


@pytest.mark.slow
async def test_many_turns_are_forked_in_batches(client: Client) -> None:
    conversation, _ = await started(client, *[f"turn {n}" for n in range(450)])
    await client.append(conversation, *[f"turn {n}" for n in range(450, 620)])
    made = await forked(client, conversation)
    assert [turn["content"] for turn in await client.history(made["id"])] == [f"turn {n}" for n in range(620)]
    found = (await client.get(f"/v1/conversations/{made['id']}/verify")).json()
    assert (found["valid"], found["verified_content"]) == (True, 620)


async def test_an_empty_conversation_may_be_forked(client: Client) -> None:
    made = await forked(client, await client.conversation())
    assert (made["turn_count"], made["head_hash"]) == (0, "0" * 64)
    assert (await client.append(made["id"], "one"))["seq"] == 1
    assert await valid(client, made["id"])


async def test_a_fork_sent_again_is_made_once(client: Client) -> None:
    conversation, _ = await started(client, "one")
    first = await fork(client, conversation, id=ULID, external_id="x")
    again = await fork(client, conversation, id=ULID, external_id="x")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    path = f"/v1/conversations/{conversation}/fork"
    keyed = [await client.post(path, json={}, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert keyed[0].json() == keyed[1].json()
    assert keyed[1].headers["Idempotent-Replayed"] == "true"
    assert len((await client.get("/v1/conversations")).json()["data"]) == 3


async def test_an_id_that_another_conversation_has_is_a_conflict(client: Client) -> None:
    conversation, _ = await started(client, "one")
    taken = await client.conversation(external_id="taken")
    problem(await fork(client, conversation, id=taken), 409, "conversation_conflict")
    problem(await fork(client, conversation, external_id="taken"), 409, "conversation_conflict")
    problem(await fork(client, conversation, id=conversation), 409, "conversation_conflict")


async def test_a_fork_ends_at_a_live_turn(client: Client) -> None:
    conversation, turns = await started(client, "one", "two")
    path = f"/v1/conversations/{conversation}/turns/{turns[0]['id']}/revisions"
    new = (await client.post(path, json={"content": "eins"})).json()["turn"]
    for through in ({"through": turns[0]["id"]}, {"through_seq": 1}):
        refused = problem(await fork(client, conversation, **through), 409, "already_superseded")
        assert refused["superseded_by"] == new["id"]
    problem(await fork(client, conversation, through=format_id(new_uuid())), 404, "not_found", "/through")
    problem(await fork(client, conversation, through_seq=99), 404, "not_found", "/through_seq")
    assert len((await client.get("/v1/conversations")).json()["data"]) == 1


@pytest.mark.parametrize(
    "body",
    [{"through": ULID, "through_seq": 1}, {"through_seq": 0}, {"through": "x"}, {"project": "x"}, {"metadata": []}],
)
async def test_a_fork_that_breaks_a_rule_is_refused(client: Client, body: dict[str, Any]) -> None:
    conversation, _ = await started(client, "one")
    problem(await fork(client, conversation, **body), 422, "invalid_request")


async def test_metadata_of_a_fork_has_the_limit_of_any_other(client: Client) -> None:
    conversation, _ = await started(client, "one")
    problem(await fork(client, conversation, metadata={"x": "y" * 17_000}), 422, "invalid_request", "/metadata")
    assert (await fork(client, conversation, metadata={"x": "y" * 15_000})).status_code == 201


async def test_forks_racing_appends_and_revisions_are_whole(client: Client) -> None:
    conversation, turns = await started(client, "one", "two")
    path = f"/v1/conversations/{conversation}/turns"
    answers = await asyncio.gather(
        *(fork(client, conversation) for _ in range(4)),
        *(client.post(path, json={"turns": [{"role": "user", "content": f"{n}"}]}) for n in range(4)),
        client.post(f"{path}/{turns[0]['id']}/revisions", json={"content": "eins"}),
        client.delete(f"{path}/{turns[1]['id']}"),
    )
    assert {answer.status_code for answer in answers} == {201, 204}
    for answer in answers[:4]:
        made = answer.json()
        assert await valid(client, made["id"])
        copies = await client.history(made["id"])
        assert [turn["seq"] for turn in copies] == list(range(1, made["turn_count"] + 1))
        assert len({turn["content"] for turn in copies} & {"one", "eins"}) == 1
