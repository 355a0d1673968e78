"""Facts go with what they rest on: emptied by retention, expired, deleted; and live clients hear of new ones."""

import os
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from app.core.database.transactions import Database, PoolOptions, Transaction
from app.core.ids import ConversationId, parse_id
from app.diagnostics.service import DataCheck
from app.governance import purge
from app.governance import service as governance
from app.memory.facts import store as memory_store
from app.tenancy.schemas import job_caller
from tests.api.test_facts import fact, facts, found, tell
from tests.api.test_retention import dump, word
from tests.api.test_ttl import age, left, sweep
from tests.support.api import Client, Service, open_service, problem
from tests.support.cutting import cut_off_everywhere
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.live import events_on, serving, socket_on
from tests.support.postgres import Servers, clone_template, drop_database, make_template

TRIGGERS = {"trigger_turns": 10, "trigger_tokens": 100_000}
ENABLED = {"owner": "ana", "facts": {"enabled": True}}
Root = "asyncpg.Connection[asyncpg.Record]"


def obliging(request: dict[str, Any]) -> Reply:
    """Each of the three questions a model is asked: every turn says what its speaker owns."""
    asked, shown = request["messages"][0]["content"], request["messages"][-1]["content"]
    if "personal data" in asked:
        return says({"found": []})
    if "plainly say" not in asked:
        return says({"summary": "They own insured things.", "abstract": "Things."})
    told = [
        {"turn": int(number), "subject": "I", "predicate": "owns", "object": thing, "confidence": 0.9,
         "valid_from": None, "negated": False, "hypothetical": False}
        for number, thing in re.findall(r"^\[(\d+)\] .*?I own (?:a )?(\w+)", shown, re.MULTILINE)
    ]  # fmt: skip
    return says({"facts": told})


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = obliging
        yield opened


@pytest.fixture(scope="module")
async def service(servers: Servers, fake: FakeChat, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service with a model and an embedder, on a database that nothing else uses."""
    name = f"turnkeep_fact_lifetimes_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    database = await clone_template(servers, name)
    model = {"llm_model": CHAT_MODEL, "llm_base_url": fake.url, "llm_max_retries": 0}
    async with open_service(database, tmp_path_factory.mktemp("fact_lifetimes"), **model) as opened:
        yield opened
    await drop_database(servers, name)


@pytest.fixture
async def connection(service: Service) -> AsyncIterator[Root]:
    opened = await asyncpg.connect(service.database.superuser)
    yield opened
    await opened.close()


@pytest.fixture
async def ops(service: Service) -> AsyncIterator[Database]:
    database = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor"))
    await database.open()
    yield database
    await database.close()


async def sound(ops: Database, client: Client) -> None:
    check = DataCheck(ops, client.tenant_id)
    assert [fault async for some in check.conversations(limit=None) for fault in some] == []
    assert await check.references() == []


async def converse(client: Client, name: str, count: int, **body: Any) -> tuple[str, list[str]]:
    """A conversation in which each turn says of one thing that its speaker owns it, and all are facts."""
    conversation = await client.conversation(**ENABLED, **body)
    said = [f"I own a {word(f'{name} {number}')}, insured." for number in range(count)]
    turns = [turn["id"] for turn in (await client.append(conversation, *said))["turns"]]
    answer = await client.post(f"/v1/conversations/{conversation}/facts/extract", json={})
    assert answer.json()["recorded"] == count, answer.text
    return conversation, turns


async def owned(client: Client) -> set[str]:
    return {one["object"] for one in await facts(client, limit=200, include_retracted=True)}


@pytest.mark.parametrize("retention", ["audit_only", "ephemeral"])
async def test_facts_of_turns_that_retention_empties_go_with_them(
    service: Service, client: Client, ops: Database, connection: Any, retention: str
) -> None:
    conversation, turns = await converse(client, retention, 11, retention=retention, compaction=TRIGGERS)
    # corrected, so that there is something to take back; said again by a turn that stays
    [first] = [one for one in await facts(client, limit=200) if one["source_turn_ids"] == turns[:1]]
    corrected = word(f"{retention} corrected")
    assert (await client.patch(f"/v1/facts/{first['id']}", json={"object": corrected})).status_code == 200
    twice = await tell(client, "I", "likes", "tea", source_turn_ids=[turns[1]])
    await tell(client, "I", "likes", "tea", source_turn_ids=[turns[10]])
    gone = {word(f"{retention} {number}") for number in range(6)} | {corrected}
    kept = {word(f"{retention} {number}") for number in range(6, 11)}
    before = await dump(service)
    assert all(one in before for one in gone | kept)
    vectors = await connection.fetch(
        "select v.embedding::text from vectors v join index_entries e using (tenant_id, entry_id)"
        " where v.tenant_id = $1 and e.kind = 'fact'", client.tenant_id,
    )  # fmt: skip
    assert len(vectors) == 12

    await service.run_jobs()
    assert {turn["position"] for turn in await client.history(conversation) if turn["erased_at"]} == set(range(1, 7))
    after = await dump(service)
    assert [one for one in gone if one in after] == []
    assert all(one in after for one in kept)
    assert await owned(client) == kept | {"tea"}
    left_over = await fact(client, twice["id"])
    assert (left_over["source_turn_ids"], left_over["evidence_count"]) == ([turns[10]], 1)
    assert len(await found(client, "what does ana own", k=50)) == 6
    # neither extraction nor retention finds anything to do again
    await client.post(f"/v1/conversations/{conversation}/facts/extract", json={})
    caller = job_caller(client.tenant_id)
    assert await service.container.governance.retain(caller, ConversationId(parse_id(conversation))) == 0
    assert await owned(client) == kept | {"tea"}
    await sound(ops, client)


async def test_facts_of_a_conversation_whose_time_is_over_go_with_it(
    service: Service, client: Client, ops: Database, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge, "_ROWS", 3)
    over, turns = await converse(client, "over", 7, ttl_s=3600)
    other, (kept,) = await converse(client, "other", 1)
    await tell(client, "I", "visited", word("of no turn"), conversation_id=over)
    tea = await tell(client, "I", "likes", "tea", source_turn_ids=turns[:1])
    await tell(client, "I", "likes", "tea", source_turn_ids=[kept])
    await age(connection, over)
    said = {word(f"over {number}") for number in range(7)} | {word("of no turn")}
    before = await dump(service)
    assert all(one in before for one in said)

    # hidden, and not gone yet: nobody finds what rests on it alone
    with monkeypatch.context() as patched:
        patched.setattr(purge.Purger, "purge", _nothing)
        assert (await sweep(service))["expired"] == 1
    assert await owned(client) == {"tea", word("other 0")}
    assert set(await found(client, "what does ana own", k=50)) == {"ana likes tea", f"ana owns {word('other 0')}"}
    context = await client.context(other, 2000, include_facts=True)
    assert len(context["included"]["fact_ids"]) == 2
    [hidden] = await connection.fetch("select id from facts where tenant_id = $1 and object = $2", client.tenant_id,
                                      word("over 3"))  # fmt: skip
    for method in ("GET", "PATCH", "DELETE"):
        path = f"/v1/facts/{hidden['id']}"
        problem(await client.request(method, path, json={"object": "x"} if method == "PATCH" else None), 404,
                "not_found")  # fmt: skip

    swept = await sweep(service)
    assert (swept["turns"], swept["conversations"]) == (7, 1)
    assert swept["facts"] == 8
    assert await left(connection, client.tenant_id, over) == {}
    after = await dump(service)
    assert [one for one in said if one in after] == []
    assert (await fact(client, tea["id"]))["source_turn_ids"] == [kept]
    await sound(ops, client)


async def _nothing(*_args: object) -> dict[str, int]:
    return {}


async def test_cut_off_at_any_statement_no_fact_is_left_without_what_it_rests_on(
    service: Service, client: Client, ops: Database, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge, "_ROWS", 4)
    gone, _ = await converse(client, "cut", 6, ttl_s=3600)
    await tell(client, "I", "visited", "Lisbon", conversation_id=gone)
    await age(connection, gone)
    cuts = await cut_off_everywhere(
        lambda: sweep(service), after_each=lambda: sound(ops, client), maximum=60, again_from=50
    )
    assert cuts > 20
    assert await left(connection, client.tenant_id, gone) == {}
    assert await owned(client) == set()


async def test_no_deletion_holds_keys_of_facts_twice_in_a_transaction(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who held some and then wanted more could wait for one who holds those and wants the first."""
    over, _ = await converse(client, "twice", 2, ttl_s=3600)
    await tell(client, "I", "visited", "Lisbon", conversation_id=over)
    await age(connection, over)
    original, held = memory_store.lock_keys, list[Transaction]()

    async def counting(tx: Transaction, *args: Any) -> Any:
        held.append(tx)
        return await original(tx, *args)

    monkeypatch.setattr(memory_store, "lock_keys", counting)
    assert (await sweep(service))["facts"] == 3
    assert len(held) == len(set(map(id, held))) > 1
    assert await left(connection, client.tenant_id, over) == {}


async def test_a_large_conversation_is_deleted_with_its_facts_in_steps(
    service: Service, client: Client, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governance, "_AT_ONCE", 5)
    monkeypatch.setattr(purge, "_ROWS", 3)
    conversation, _ = await converse(client, "large", 11)
    assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    assert await left(connection, client.tenant_id, conversation) == {}
    assert await owned(client) == set()
    after = await dump(service)
    assert not any(word(f"large {number}") in after for number in range(11))


# live


async def test_subscribers_receive_facts_unless_they_have_a_token(service: Service, client: Client) -> None:
    conversation = await client.conversation(**ENABLED)
    path = f"/v1/conversations/{conversation}"
    token = (await client.post(f"{path}/tokens", json={"access": "read"})).json()["token"]
    async with (
        serving(service.app, service.container.settings) as port,
        socket_on(port, conversation, client.key) as keyed,
        socket_on(port, conversation, token) as tokened,
        events_on(port, f"{path}/events", client.key) as events,
    ):
        for socket in (keyed, tokened):
            await socket.send("subscribe")
            await socket.until("snapshot")
        await events.until("snapshot")
        turn = (await client.append(conversation, "I own a bike."))["turns"][0]["id"]
        await service.run_jobs()
        heard = await keyed.until("fact.recorded")
        [held] = await facts(client)
        assert heard["fact"] == held
        assert heard["fact"]["source_turn_ids"] == [turn]
        assert heard["rev"] == (await client.get(path)).json()["rev"]
        assert (await events.until("fact.recorded"))["fact"] == held
        # more evidence is told too, with the fact as it stands then; what a caller asserts like what is extracted
        await tell(client, "I", "owns", "a bike", conversation_id=conversation)
        assert (await keyed.until("fact.recorded"))["fact"]["evidence_count"] == 2
        await client.append(conversation, "the end")
        told = [(await tokened.until("turn.committed"))["turn"]["content"] for _ in range(2)]
        assert told == ["I own a bike.", "the end"]
        assert "fact.recorded" not in {frame["type"] for frame in tokened.received}
