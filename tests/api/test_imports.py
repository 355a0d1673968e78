"""Imports: an export is restored exactly, or under new ids, once, and hostile files store nothing wrong."""

import gzip
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from app.core.ids import format_id, new_uuid
from app.governance.exports.records import ExportDigest, write_foreign, write_line
from app.governance.imports import upload
from tests.api.test_exports import CREATED_AT, export, records, stored
from tests.support.api import Client, Service, problem


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_CHUNK_BYTES", 2_000)


async def started(client: Client, body: bytes, **params: Any) -> dict[str, Any]:
    answer = await client.post("/v1/import", content=body, params=params)
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == f"/v1/operations/{answer.json()['id']}"
    return answer.json()


async def imported(service: Service, client: Client, body: bytes, **params: Any) -> dict[str, Any]:
    """Import, run the jobs, and return the result."""
    operation = await started(client, body, **params)
    await service.run_jobs()
    ended = (await client.get(f"/v1/operations/{operation['id']}")).json()
    assert ended["status"] == "succeeded", ended
    assert ended["progress"]["done"] == ended["progress"]["total"]
    return ended["result"]


def file_of(found: Iterable[dict[str, Any]], scope: str = "tenant") -> bytes:
    """A complete file of these records, with a right trailer."""
    header = {"type": "header", "format": "turnkeep-export", "version": 1, "scope": {"kind": scope}}
    digest = ExportDigest()
    lines = [write_line(header | {"created_at": CREATED_AT})]
    for one in found:
        lines.append(write_line(one))
        digest.add(one["type"], lines[-1])
    return b"\n".join([*lines, write_line(digest.trailer())]) + b"\n"


def foreign(*found: dict[str, Any]) -> bytes:
    return b"".join(write_foreign("chatgpt", list(found), created_at=CREATED_AT))


async def verified(client: Client) -> None:
    for one in (await client.get("/v1/conversations", params={"limit": 200})).json()["data"]:
        walk = (await client.get(f"/v1/conversations/{one['id']}/verify")).json()
        assert walk["valid"], walk


@pytest.mark.slow
async def test_export_import_export_gives_identical_bytes(service: Service, client: Client, other: Client) -> None:
    for owner, project in (("ana", "default"), ("ben", "two")):
        await stored(client, owner, project)
    before = await export(client)
    result = await imported(service, other, before)
    assert result["problems"] == []
    assert result["conversations"] == {"restored": 2, "existing": 0, "remapped": 0, "extended": 0, "refused": 0}
    assert result["mapping"] == []
    assert await export(other) == before
    await verified(other)
    assert (await other.recall(None, "ana likes tea", mode="text"))[0]["text"] == "ana likes tea"
    assert await export(client) == before


@pytest.mark.slow
async def test_the_same_file_twice_stores_nothing_twice(service: Service, client: Client, other: Client) -> None:
    await stored(client)
    before = await export(client)
    await imported(service, other, before)
    again = await imported(service, other, gzip.compress(before))
    assert again["conversations"]["existing"] == 1
    assert set(again["records"].values()) == {0}
    assert again["skipped_records"] == len(records(before))
    assert await export(other) == before
    into_its_own = await imported(service, client, before)
    assert set(into_its_own["records"].values()) == {0}
    assert await export(client) == before


async def test_a_restored_conversation_goes_on(service: Service, client: Client, other: Client) -> None:
    conversation = await stored(client)
    await imported(service, other, await export(client))
    added = await other.append(conversation, {"role": "user", "content": "on we go"})
    assert added["turns"][0]["seq"] == 7
    await verified(other)
    last = (await other.history(conversation))[0]
    assert (
        await other.post(f"/v1/conversations/{conversation}/turns/{last['id']}/revisions", json={"content": "x"})
    ).is_success
    fact = next(one for one in (await other.get("/v1/facts")).json()["data"] if one["object"] == "Oslo")
    assert (await other.post(f"/v1/facts/{fact['id']}/undo")).is_success
    assert (await other.get("/v1/facts", params={"predicate": "lives in"})).json()["data"][0]["object"] == "Rome"


@pytest.mark.slow
async def test_a_taken_id_gives_new_ids_and_links(service: Service, client: Client, other: Client) -> None:
    conversation = await stored(client)
    before = await export(client)
    await other.conversation(id=conversation, title="another")
    await other.append(conversation, {"role": "user", "content": "mine"})
    result = await imported(service, other, before)
    assert result["problems"] == []
    assert result["conversations"]["remapped"] == 1
    [mapped] = result["mapping"]
    assert mapped["id"] == conversation
    path = f"/v1/conversations/{mapped['stored_id']}"
    copy = (await other.get(path)).json()
    assert copy["metadata"]["origin_conversation_id"] == conversation
    originals = {turn["id"]: turn for turn in await client.history(conversation)}
    turns = await other.history(mapped["stored_id"])
    assert [turn["origin_turn_id"] for turn in turns] == list(originals)
    assert [turn["content"] for turn in turns] == [turn["content"] for turn in originals.values()]
    assert [turn["position"] for turn in turns] == [turn["position"] for turn in originals.values()]
    await verified(other)
    assert len((await other.get(f"{path}/summaries")).json()["data"]) == 1
    assert [turn["content"] for turn in await other.history(conversation)] == ["mine"]
    again = await imported(service, other, before)
    assert again["conversations"]["extended"] == 1
    assert again["records"]["turn"] == 0


@pytest.mark.slow
async def test_a_broken_chain_gives_new_hashes_that_verify(service: Service, client: Client, other: Client) -> None:
    conversation = await stored(client)
    found = records(await export(client))
    for number, forged in enumerate(
        [{"content": "forged"}, {"content_hash": "0" * 64}, {"chain_hash": "0" * 64}, {"salt": None}]
    ):
        lines = [one | forged if one.get("seq") == 2 else one for one in found]
        lines[0] = lines[0] | {"head_hash": f"{number:064}"} if number == 0 else lines[0]
        result = await imported(service, other, file_of(lines), dry_run=number > 0)
        assert result["conversations"]["restored"] == 0, forged
        assert result["conversations"]["remapped"] == 1, (forged, result)
    assert (await other.get(f"/v1/conversations/{conversation}")).status_code == 404
    await verified(other)


async def test_turns_without_the_line_of_their_conversation_go_into_no_other(
    service: Service, client: Client, other: Client
) -> None:
    for name in ("first", "second"):
        await client.append(await client.conversation(title=name), {"role": "user", "content": name})
    found = records(await export(client))
    [place] = [number for number, one in enumerate(found) if one["type"] == "conversation" and number > 0]
    result = await imported(service, other, file_of(found[:place] + found[place + 1 :]))
    assert result["conversations"]["refused"] == 1
    [refused] = result["problems"]
    assert [error["pointer"] for error in refused["errors"]] == ["/seq"]
    assert records(await export(other)) == []


async def test_a_dry_run_stores_nothing(service: Service, client: Client, other: Client) -> None:
    await stored(client)
    result = await imported(service, other, await export(client), dry_run=True)
    assert result["dry_run"]
    assert result["conversations"]["restored"] == 1
    assert result["records"]["turn"] == 7
    assert records(await export(other)) == []
    assert await staged(service, other) == 0


async def staged(service: Service, client: Client) -> int:
    async with service.container.database.transaction(client.tenant_id) as tx:
        row = await tx.fetchrow("select count(*) as n from import_chunks where tenant_id = $1", client.tenant_id)
        assert row is not None
        return row["n"]


def wrong(found: list[dict[str, Any]], place: int, **members: Any) -> bytes:
    return file_of([one | members if number == place else one for number, one in enumerate(found)])


HOSTILE: dict[str, tuple[Callable[[list[dict[str, Any]]], bytes], int, str]] = {
    "an unknown member": (lambda found: wrong(found, 1, secret_member=1), 3, "/secret_member"),
    "a wrong type": (lambda found: wrong(found, 2, seq="two"), 4, "/seq"),
    "a missing member": (lambda found: wrong(found, 1, rev=None), 3, "/rev"),
    "a position far after its seq": (lambda found: wrong(found, 1, position=2_000_000), 3, "/position"),
    "a seq that does not rise": (lambda found: wrong(found, 2, seq=1), 4, "/seq"),
    "a pending turn": (lambda found: wrong(found, 1, status="pending"), 3, "/status"),
    "deep JSON": (lambda found: wrong(found, 2, metadata=json.loads('{"a":' * 60 + "1" + "}" * 60)), 4, ""),
    "a cycle of revisions": (lambda found: wrong(found, 6, superseded_by=found[5]["id"]), 2, ""),
    "a successor elsewhere": (lambda found: wrong(found, 1, superseded_by=format_id(new_uuid())), 2, ""),
    "a turn of another conversation": (
        lambda found: wrong(found, 1, conversation_id=format_id(new_uuid())),
        3,
        "/conversation_id",
    ),
    "a summary of nothing": (lambda found: wrong(found, 8, from_position=0), 10, "/from_position"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.sampled
async def test_a_record_that_breaks_a_rule_leaves_its_conversation_out_and_is_named(
    name: str, service: Service, client: Client, other: Client
) -> None:
    await stored(client)
    good = await other.conversation(title="of another file")
    build, line, pointer = HOSTILE[name]
    found = records(await export(client))
    result = await imported(service, other, build(found))
    assert result["conversations"]["refused"] == 1, result
    assert result["problem_count"] == 1
    [refused] = result["problems"]
    assert refused["line"] == line
    assert any(error["pointer"].startswith(pointer) for error in refused["errors"]), refused
    assert result["records"]["turn"] == result["records"]["summary"] == 0
    assert [one["id"] for one in (await other.get("/v1/conversations")).json()["data"]] == [good]


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (lambda good: good[: len(good) // 2], "import_incomplete"),
        (lambda good: good.replace(b"tea", b"gin"), "import_incomplete"),
        (lambda good: b"\n".join(good.splitlines()[1:]), "import_unreadable"),
        (lambda good: good.replace(b'"version":1', b'"version":2'), "import_unsupported"),
        (lambda good: gzip.compress(good)[:-20], "import_incomplete"),
        (lambda _good: b"\x1f\x8bnot gzip at all", "import_unreadable"),
        (lambda _good: b"", "import_unreadable"),
        (lambda _good: b"{", "import_unreadable"),
    ],
)  # fmt: skip
@pytest.mark.sampled
async def test_an_upload_that_is_no_whole_file_is_refused_and_leaves_nothing(
    build: Callable[[bytes], bytes], code: str, service: Service, client: Client, other: Client
) -> None:
    await stored(client)
    problem(await other.post("/v1/import", content=build(await export(client))), 422, code)
    assert await staged(service, other) == 0


async def test_limits_of_an_upload_are_its_own(
    service: Service, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = service.settings.requests.model_copy(update={"import_max_bytes": 2**21, "import_max_line_bytes": 2**16})
    monkeypatch.setattr(service.container.imports, "_settings", limits)
    long = {"type": "conversation", "external_id": "a", "title": "x" * 2**17}
    for body in (foreign(long), gzip.compress(foreign(long))):
        assert problem(await other.post("/v1/import", content=body), 413, "import_line_too_long")["line"] == 2
    bomb = gzip.compress(foreign(*[{"type": "turn", "content": " " * 2**15}] * 100))
    assert len(bomb) < 2**15
    problem(await other.post("/v1/import", content=bomb), 413, "import_too_large")
    problem(await other.post("/v1/import", content=gzip.compress(b"\n" * 2**20)), 422, "import_unreadable")
    assert await staged(service, other) == 0


async def test_lines_of_another_system_are_stored_once_and_a_newer_file_adds_its_new_turns(
    service: Service, other: Client
) -> None:
    turns = [
        {"type": "turn", "external_id": str(number), "role": role, "content": f"words {number}",
         "occurred_at": f"2026-01-0{number + 1}T00:00:00Z", "actor": "ana" if role == "user" else "gpt"}
        for number, role in enumerate(["user", "assistant", "user"])
    ]  # fmt: skip
    head = {"type": "conversation", "external_id": "chat-1", "owner": "ana", "title": "Words"}
    fact = {"type": "fact", "subject": "ana", "predicate": "likes", "object": "words", "owner": "ana"}
    memory = {"type": "memory", "agent_id": "gpt", "content": "Ana likes words."}
    first = foreign(head, *turns, fact, memory)
    result = await imported(service, other, first)
    assert result["problems"] == []
    assert {kind: count for kind, count in result["records"].items() if count} == {
        "conversation": 1, "turn": 3, "fact": 1, "memory": 1,
    }  # fmt: skip
    assert (await imported(service, other, first))["records"]["turn"] == 0
    [conversation] = (await other.get("/v1/conversations")).json()["data"]
    assert (conversation["external_id"], conversation["turn_count"]) == ("chat-1", 3)
    assert {one["actor"] for one in conversation["participants"]} == {"ana", "gpt"}
    more = {"type": "turn", "external_id": "3", "role": "user", "content": "more words"}
    edit = {"type": "turn", "external_id": "4", "role": "user", "content": "better", "supersedes_external_id": "2"}
    result = await imported(service, other, foreign(head, *turns, more, edit))
    assert result["records"]["turn"] == 2
    history = await other.history(conversation["id"])
    assert [turn["content"] for turn in history] == ["words 0", "words 1", "better", "more words"]
    await verified(other)
    assert len((await other.get("/v1/facts")).json()["data"]) == 1
    assert len((await other.get("/v1/memories")).json()["data"]) == 1
    hits = await other.recall(conversation["id"], "better words", mode="text", k=10)
    assert {hit["text"] for hit in hits} == {"words 0", "words 1", "better", "more words"}


async def test_two_tenants_with_the_same_ids_import_apart(service: Service, client: Client, other: Client) -> None:
    await stored(client)
    before = await export(client)
    async with await service.new_tenant() as third:
        for one in (other, third):
            await imported(service, one, before)
        conversation = records(before)[0]["id"]
        await other.append(conversation, {"role": "user", "content": "only here"})
        assert await export(third) == before == await export(client)
        assert (await third.delete(f"/v1/conversations/{conversation}")).is_success
        assert (await other.get(f"/v1/conversations/{conversation}")).json()["last_seq"] == 7
        assert records(await export(client)) == records(before)


async def test_only_administrators_import(service: Service, client: Client) -> None:
    from app.tenancy.schemas import Scope  # noqa: PLC0415

    key = await service.container.tenancy.create_key(client.tenant_id, name="k", scopes=[Scope.READ, Scope.WRITE])
    async with service.client(str(key)) as narrow:
        problem(await narrow.post("/v1/import", content=b"{}"), 403, "forbidden")


async def test_a_cancelled_import_keeps_what_it_stored_and_no_lines(
    service: Service, client: Client, other: Client
) -> None:
    await stored(client)
    operation = await started(other, await export(client))
    assert await staged(service, other) > 0
    assert (await other.post(f"/v1/operations/{operation['id']}/cancel")).is_success
    await service.run_jobs()
    assert (await other.get(f"/v1/operations/{operation['id']}")).json()["status"] == "cancelled"
    assert await staged(service, other) == 0
