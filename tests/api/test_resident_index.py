"""Entries in process memory: what notices, changes and errors do to them, and how much memory they take."""

import asyncio
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.core.ids import parse_id
from app.index.schemas import EntryKind, SearchScope
from app.index.search import resident as resident_module
from app.index.search import segment_store
from app.index.search.removals import apply_removal
from app.index.search.resident import ResidentIndex
from tests.support.api import Client, Service, open_service

_SEGMENT = 8192
"""The least that a segment takes."""


def removal_message(client: Client, *entry_ids: str) -> dict[str, Any]:
    """The message about deleted entries that a process receives."""
    return {"k": "removals", "t": str(client.tenant_id), "e": [str(parse_id(entry_id)) for entry_id in entry_ids]}


async def test_a_fact_stored_again_is_found_after_a_late_message_of_its_deletion(
    service: Service, client: Client
) -> None:
    body = {"subject": "ana", "predicate": "plays", "object": "the violin", "owner": "ana"}
    found: list[str] = []
    for project in ("home", "work"):  # known in two projects: its entry is deleted and written again
        answer = await client.post("/v1/facts", json=body | {"project": project})
        assert answer.is_success, answer.text
        found = [hit["id"] for hit in await client.recall(None, "violin", kinds=["fact"])]
        assert found == [answer.json()["fact"]["id"]]
    apply_removal(service.container.index.resident, removal_message(client, *found))
    assert [hit["id"] for hit in await client.recall(None, "violin", kinds=["fact"])] == found


@pytest.mark.parametrize("role", ["app", "ops"])
async def test_entries_deleted_with_their_conversation_are_recorded(
    service: Service, client: Client, role: str
) -> None:
    """A deletion that cascades runs as the owner of the table, whom row-level security binds, too."""
    conversation = await client.conversation()
    turns = (await client.append(conversation, "my violin teacher is Ann"))["turns"]
    await client.recall(None, "violin")
    connection = await asyncpg.connect(getattr(service.database, role))
    try:
        async with connection.transaction():
            await connection.execute(f"set local app.tenant = '{client.tenant_id}'")
            deleted = await connection.execute("delete from conversations where id = $1", parse_id(conversation))
        assert deleted == "DELETE 1"
    finally:
        await connection.close()
    assert await removed_ids(service, client) == {parse_id(turns[0]["id"])}
    assert await client.recall(None, "violin") == []


async def removed_ids(service: Service, client: Client) -> set[UUID]:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        rows = await connection.fetch("select removed_id from index_removals where tenant_id = $1", client.tenant_id)
    finally:
        await connection.close()
    return {row["removed_id"] for row in rows}


async def test_scopes_that_are_not_kept_take_no_memory(service: Service, tmp_path: Path) -> None:
    async with (
        open_service(service.database, tmp_path, resident_index_mb=0) as opened,
        await opened.new_tenant() as client,
    ):
        resident = opened.container.index.resident
        for number in range(3):
            conversation = await client.conversation()
            assert await client.recall(conversation, "violin") == []
            await client.append(conversation, f"my violin teacher number {number} is Ann", "the weather is fine")
            assert len(await client.recall(conversation, "violin")) == 2
        assert (len(resident), resident.nbytes) == (0, 0)


async def test_what_grows_beyond_the_memory_is_not_kept(service: Service, tmp_path: Path) -> None:
    async with (
        open_service(service.database, tmp_path, exact_scope_entries=5, compact_entry_bytes=2**28) as opened,
        await opened.new_tenant() as client,
    ):
        resident = opened.container.index.resident
        conversation = await client.conversation()
        await client.append(conversation, *[f"the violin number {number}" for number in range(4)])
        assert len(await client.recall(conversation, "violin")) == 4
        assert resident.nbytes > _SEGMENT
        await client.append(conversation, *[f"the violin number {number}" for number in range(4, 8)])
        assert len(await client.recall(conversation, "violin", k=20)) == 8
        assert resident.nbytes < _SEGMENT


@pytest.mark.slow
async def test_an_entry_with_many_vectors_takes_no_more_than_the_limit(service: Service, tmp_path: Path) -> None:
    async with (
        open_service(service.database, tmp_path, resident_index_mb=1) as opened,
        await opened.new_tenant() as client,
    ):
        resident = opened.container.index.resident
        conversation = await client.conversation()
        await client.append(conversation, "my violin teacher is Ann", "the weather is fine")
        await opened.run_jobs()
        connection = await asyncpg.connect(service.database.superuser)
        await connection.execute(
            "insert into vectors (tenant_id, entry_id, space_id, part, embedding)"
            " select tenant_id, entry_id, space_id, part + n, embedding from vectors, generate_series(1, 2000) n"
            " where tenant_id = $1",
            client.tenant_id,
        )
        await connection.close()
        assert len(await client.recall(conversation, "violin")) == 2
        assert resident.nbytes < _SEGMENT


async def test_many_conversations_of_a_search_count_as_memory(service: Service, client: Client) -> None:
    conversations = [await client.conversation() for _ in range(20)]
    resident = service.container.index.resident
    before = resident.nbytes
    for first in range(10):
        await client.recall(None, "violin", conversation_ids=conversations[first:])
    assert resident.nbytes - before > 10 * (_SEGMENT + 10 * 100)


async def test_a_segment_that_is_evicted_while_a_search_waits_for_it_is_not_counted(
    service: Service, client: Client
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "my violin teacher is Ann")
    space, scope = (
        service.container.ann.space,
        SearchScope((EntryKind.TURN,), conversation_ids=(parse_id(conversation),)),
    )
    resident = ResidentIndex(max_bytes=2**20)

    async def load() -> bool:
        async with service.container.database.transaction(client.tenant_id, read_only=True) as tx:
            return await resident.load(tx, client.tenant_id, scope, space, max_entries=100) is not None

    [cached] = [resident._find_or_add((client.tenant_id, scope, space.id))]  # noqa: SLF001
    await cached.lock.acquire()
    waiting = asyncio.create_task(load())
    await asyncio.sleep(0.2)
    cached.lock.release()
    resident._max_bytes = 0  # noqa: SLF001
    resident._evict_surplus((client.tenant_id, scope, -1))  # noqa: SLF001
    resident._max_bytes = 2**20  # noqa: SLF001
    assert await waiting
    assert (len(resident), resident.nbytes) == (0, 0)


async def test_what_is_deleted_during_a_failing_search_is_not_kept(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "my violin teacher is Ann")
    await client.recall(conversation, "violin")
    resident = service.container.index.resident

    async def fail(*_args: Any, **_options: Any) -> Any:
        resident.evict_tenant(client.tenant_id)
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(segment_store, "list_changes", fail)
        assert (await client.post(f"/v1/conversations/{conversation}/recall", json={"query": "violin"})).is_error
    kept = [cached.segment for key, cached in resident._cached.items() if key[0] == client.tenant_id]  # noqa: SLF001
    assert kept == []
    assert len(await client.recall(conversation, "violin")) == 1


async def test_a_message_during_a_search_removes_the_entry_and_keeps_the_others(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await client.conversation()
    turns = (await client.append(conversation, "my violin teacher is Ann", "the weather is fine"))["turns"]
    await client.recall(conversation, "violin")
    index, list_changes = service.container.index, segment_store.list_changes

    async def list_and_remove(*args: Any, **options: Any) -> Any:
        found = await list_changes(*args, **options)
        apply_removal(index.resident, removal_message(client, turns[0]["id"]))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(segment_store, "list_changes", list_and_remove)
        await client.recall(conversation, "violin")
    [segment] = [cached.segment for key, cached in index.resident._cached.items() if key[0] == client.tenant_id]  # noqa: SLF001
    assert segment is not None
    assert segment.live_count == 1
    assert len(await client.recall(conversation, "violin")) == 2


async def test_a_search_that_is_cancelled_while_a_thread_changes_the_segment_leaves_it_to_be_read_again(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "my violin teacher is Ann")
    await client.recall(conversation, "violin")
    await client.append(conversation, "the violin is old")
    change, begun, ended = vars(resident_module)["_change"], threading.Event(), threading.Event()

    def change_late(*args: Any) -> None:
        begun.set()
        ended.wait(10)
        change(*args)

    space = service.container.ann.space
    [(_, scope, _)] = [key for key in service.container.index.resident._cached if key[0] == client.tenant_id]  # noqa: SLF001

    async def load() -> None:
        async with service.container.database.transaction(client.tenant_id, read_only=True) as tx:
            index = service.container.index.resident
            await index.load(tx, client.tenant_id, scope, space, max_entries=100)

    with monkeypatch.context() as patch:
        patch.setattr(resident_module, "_CHANGED_INLINE", 0)
        patch.setattr(resident_module, "_change", change_late)
        search = asyncio.create_task(load())
        assert await asyncio.to_thread(begun.wait, 10)
        search.cancel()
        await asyncio.gather(search, return_exceptions=True)
    assert len(await client.recall(conversation, "violin")) == 2
    ended.set()
    assert len(await client.recall(conversation, "violin")) == 2


async def test_the_only_turn_of_a_scope_is_explained_by_itself(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "my violin teacher is Ann")
    [hit] = await client.recall(conversation, "violin teacher", explain=True)
    assert "session" not in hit["explain"]["reason"]
    assert hit["explain"]["terms"]["session"] > 0
