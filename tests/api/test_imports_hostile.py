"""Imports of forged files, beside other imports, erasures, the trash, quotas and keys that are restricted."""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from app.core.ids import format_id, new_uuid
from app.tenancy.limits.schemas import Quotas
from app.tenancy.limits.store import Usage
from app.tenancy.restriction import Restriction
from app.tenancy.schemas import Scope
from app.transfer.imports import upload
from app.transfer.imports.upload import UploadReader
from tests.api.test_exports import export, records, stored
from tests.api.test_imports import file_of, foreign, imported, staged, started, verified
from tests.support.api import Client, Service, problem


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_CHUNK_BYTES", 2_000)


async def ended(service: Service, client: Client, operation: dict[str, Any], *, within_s: float = 0) -> dict[str, Any]:
    """Run the jobs that are due, and until the time is over again, if the operation waits for another one."""
    until = time.monotonic() + within_s
    while True:
        await service.run_jobs()
        shown: dict[str, Any] = (await client.get(f"/v1/operations/{operation['id']}")).json()
        if shown["ended_at"] is not None or time.monotonic() >= until:
            return shown
        await asyncio.sleep(0.1)


async def listed(client: Client, **params: Any) -> list[dict[str, Any]]:
    return (await client.get("/v1/conversations", params=params)).json()["data"]


async def test_archived_and_pinned_conversations_are_restored_as_they_were(
    service: Service, client: Client, other: Client
) -> None:
    conversation = await stored(client)
    assert (await client.patch(f"/v1/conversations/{conversation}", json={"archived": True, "pinned": True})).is_success
    before = await export(client)
    assert (records(before)[0]["archived"], records(before)[0]["pinned"]) == (True, True)
    await imported(service, other, before)
    assert await export(other) == before
    restored = (await other.get(f"/v1/conversations/{conversation}")).json()
    assert (restored["archived"], restored["pinned"]) == (True, True)


async def test_content_of_an_erased_turn_is_refused(service: Service, client: Client, other: Client) -> None:
    """The chain verifies: no hash covers what an erased turn has."""
    await stored(client)
    found = records(await export(client))
    place = next(number for number, one in enumerate(found) if one.get("erased_at"))
    found[place] |= {"content": "forged", "metadata": {"a": 1}, "model": "forged", "adapter": "forged"}
    for taken in (False, True):
        if taken:
            await other.conversation(id=found[0]["id"])
        result = await imported(service, other, file_of(found))
        assert result["conversations"]["refused"] == 1, result
        [refused] = result["problems"]
        assert refused["line"] == place + 2
        assert {error["pointer"] for error in refused["errors"]} == {"/content", "/metadata", "/model", "/adapter"}
        assert "forged" not in json.dumps(result)


async def test_a_turn_larger_than_an_append_stores_is_refused_although_its_hashes_are_right(
    service: Service, client: Client, other: Client
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "short")
    found = records(await export(client))
    found[1] |= {"content": "x" * (2**20 + 1)}
    result = await imported(service, other, file_of(found))
    assert result["conversations"]["refused"] == 1
    assert result["problems"][0]["errors"][0]["pointer"] == "/content"


async def test_a_conversation_that_went_into_the_trash_is_refused_and_the_others_are_stored(
    service: Service, client: Client, other: Client
) -> None:
    conversation = await stored(client)
    before = await export(client)
    await other.conversation(id=conversation, title="another")
    [mapped] = (await imported(service, other, before))["mapping"]
    chats = foreign({"type": "conversation", "external_id": "chat"}, turn("1"))
    await imported(service, other, chats)
    for one in await listed(other):
        assert (await other.post(f"/v1/conversations/{one['id']}/trash")).is_success
    for file, line in ((before, 2), (chats, 2)):
        result = await imported(service, other, file)
        assert result["conversations"]["refused"] == 1, result
        assert (result["problems"][0]["line"], result["records"]["turn"]) == (line, 0)
        assert "in the trash" in result["problems"][0]["errors"][0]["detail"]
    assert (await other.post(f"/v1/conversations/{mapped['stored_id']}/restore")).is_success
    assert (await imported(service, other, before))["conversations"]["extended"] == 1


def turn(external_id: str, **members: Any) -> dict[str, Any]:
    return {"type": "turn", "role": "user", "content": f"said {external_id}", "external_id": external_id} | members


async def test_a_foreign_conversation_with_an_id_and_no_external_id_is_stored_once(
    service: Service, other: Client
) -> None:
    head = {"type": "conversation", "id": format_id(new_uuid())}
    for turns in (1, 2):
        await imported(service, other, foreign(head, *[turn(str(number)) for number in range(turns)]))
    [found] = await listed(other)
    assert found["turn_count"] == 2
    await verified(other)


@pytest.mark.slow
async def test_two_imports_of_one_file_at_once_store_it_once(service: Service, client: Client, other: Client) -> None:
    for owner in ("ana", "ben", "cem"):
        await stored(client, owner)
    before = await export(client)
    operations = [await started(other, before) for _ in range(2)]
    await asyncio.gather(service.run_jobs(), service.run_jobs())
    results = [(await ended(service, other, one))["result"] for one in operations]
    assert sum(one["conversations"]["restored"] for one in results) == 3
    assert sum(one["conversations"]["existing"] for one in results) == 3
    assert await export(other) == before


async def test_an_erasure_ends_the_imports_of_its_tenant_that_wait(
    service: Service, client: Client, other: Client
) -> None:
    """Else what is erased would come back."""
    await stored(client)
    before = await export(client)
    erasure = (await other.post("/v1/erasures", json={"owner": "ana"})).json()
    operation = await started(other, before)
    async with await service.new_tenant() as third:
        beside = await started(third, before)
        # both jobs run at the same time: an import that has ended before the erasure begins is erased as well
        result = await ended(service, other, operation, within_s=60)
        assert result["status"] == "succeeded" or result["error"]["code"] == "import_incomplete"
        assert (await ended(service, other, erasure, within_s=60))["status"] == "succeeded"
        assert await staged(service, other) == 0
        assert await listed(other) == []
        assert (await ended(service, third, beside, within_s=60))["status"] == "succeeded"


@pytest.mark.slow
async def test_the_sweep_keeps_the_lines_of_an_import_that_waits_for_days(
    service: Service, client: Client, other: Client
) -> None:
    await stored(client)
    before = await export(client)
    operation = await started(other, before)
    broken_off = new_uuid()
    async with service.container.database.transaction(other.tenant_id) as tx:
        await tx.execute(
            "insert into import_chunks (tenant_id, import_id, number, first_line, data) values ($1, $2, 0, 1, '')",
            other.tenant_id,
            broken_off,
        )
        await tx.execute(
            "update import_chunks set created_at = now() - interval '3 days' where tenant_id = $1", other.tenant_id
        )
    kept = await staged(service, other) - 1
    await service.container.imports.sweep()
    assert await staged(service, other) == kept > 0
    assert (await ended(service, other, operation))["status"] == "succeeded"
    assert await export(other) == before


async def test_an_import_whose_lines_are_lost_fails_and_stores_no_part_of_a_conversation(
    service: Service, client: Client, other: Client
) -> None:
    await stored(client)
    operation = await started(other, await export(client))
    async with service.container.database.transaction(other.tenant_id) as tx:
        await tx.execute("delete from import_chunks where tenant_id = $1 and number > 0", other.tenant_id)
    result = await ended(service, other, operation)
    assert (result["status"], result["error"]["code"]) == ("failed", "import_incomplete")
    assert await staged(service, other) == 0
    assert await listed(other) == []


async def test_a_restricted_key_imports_nothing(service: Service, client: Client) -> None:
    restriction = Restriction(projects=frozenset({"default"}))
    scopes = [Scope.READ, Scope.WRITE]
    key = await service.container.tenancy.create_key(client.tenant_id, name="k", scopes=scopes, restriction=restriction)
    async with service.client(str(key)) as narrow:
        problem(await narrow.post("/v1/import", content=b"{}"), 403, "forbidden")
        problem(await narrow.post("/v1/export", json={}), 403, "forbidden")
    assert await staged(service, client) == 0


async def test_an_import_over_the_quota_stores_up_to_it(service: Service, other: Client) -> None:
    chats = [one for name in "abc" for one in ({"type": "conversation", "external_id": name}, turn("1"), turn("2"))]
    operation = await started(other, foreign(*chats))
    quotas = service.container.tenancy.quotas
    usage = Usage(turns=0, bytes=0, vectors=0, day=datetime.now(UTC).date())
    quotas.observe(other.tenant_id, quotas=Quotas(daily_turns=3, daily_bytes=0, daily_vectors=0), usage=usage)
    result = await ended(service, other, operation)
    assert result["status"] == "running"
    assert len(await listed(other)) == 2
    quotas.observe(other.tenant_id, quotas=Quotas(daily_turns=0, daily_bytes=0, daily_vectors=0), usage=usage)


def test_millions_of_checkpoints_need_no_memory() -> None:
    reader = UploadReader(max_bytes=2**30, max_line_bytes=2**20, max_depth=32)
    head = foreign().splitlines(keepends=True)[0]
    record = b'{"type":"memory"}\n'
    body = head + (record + b'{"type":"checkpoint"}\n' * 5_000) * 3
    chunks = [*reader.chunks_of(body), *reader.chunks_of(record * 2)]
    assert [chunk.first_line for chunk in chunks] == [2, 5_003, 10_004]
