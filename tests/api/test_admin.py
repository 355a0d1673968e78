"""Administration: keys of one's own tenant, tenants by operators, figures."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.core.ids import format_id, parse_id
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service, problem


@pytest.fixture
async def operator(service: Service, client: Client) -> AsyncIterator[Client]:
    """The client's tenant, by a key with every scope."""
    key = await service.container.tenancy.create_key(client.tenant_id, name="operator", scopes=list(Scope))
    async with service.client(str(key)) as opened:
        opened.tenant_id, opened.key = client.tenant_id, str(key)
        yield opened


async def make(client: Client, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/admin/keys", json={"name": "k", **body})
    assert response.status_code == 201, response.text
    return response.json()


async def status_of(service: Service, key: str) -> int:
    async with service.client(key) as holder:
        return (await holder.get("/v1/conversations")).status_code


@pytest.mark.slow
async def test_a_key_is_made_works_and_is_listed_without_its_secret(service: Service, client: Client) -> None:
    expires_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    made = await make(client, name="reader", scopes=["read", "read"], agent_id="planner", expires_at=expires_at)
    assert (made["scopes"], made["state"], made["agent_id"]) == (["read"], "valid", "planner")
    assert await status_of(service, made["key"]) == 200
    async with service.client(made["key"]) as reader:
        problem(await reader.post("/v1/conversations", json={}), 403, "forbidden")
        problem(await reader.get("/v1/admin/keys"), 403, "forbidden")
        problem(await reader.post("/v1/admin/keys", json={"name": "x", "scopes": ["read"]}), 403, "forbidden")
    listed = await client.get("/v1/admin/keys")
    assert made["key"].split("_", 3)[3] not in listed.text
    assert listed.json()["data"][0] == {name: value for name, value in made.items() if name != "key"}


@pytest.mark.slow
async def test_a_key_may_expire_at_the_end_of_all_times(client: Client) -> None:
    made = await make(client, expires_at="9999-12-31T23:59:59.999999Z")
    assert made["expires_at"] == "9999-12-31T23:59:59.999Z"
    listed = (await client.get("/v1/admin/keys")).json()["data"]
    assert listed[0]["expires_at"] == made["expires_at"]


async def test_keys_are_paged(client: Client) -> None:
    made = [(await make(client, name=str(n)))["id"] for n in range(5)]
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": 2, "order": "asc"} | ({"cursor": cursor} if cursor else {})
        page = (await client.get("/v1/admin/keys", params=params)).json()
        seen += [key["id"] for key in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen[1:] == made
    first = (await client.get("/v1/admin/keys", params={"limit": 2})).json()
    assert [key["id"] for key in first["data"]] == made[:2:-1]
    problem(
        await client.get("/v1/admin/keys", params={"order": "asc", "cursor": first["next_cursor"]}),
        422, "cursor_invalid",
    )  # fmt: skip


async def test_no_caller_grants_more_scopes_than_it_has(service: Service, client: Client) -> None:
    problem(await client.post("/v1/admin/keys", json={"name": "x", "scopes": ["operator"]}), 403, "forbidden")
    only_admin = await make(client, scopes=["admin"])
    async with service.client(only_admin["key"]) as keeper:
        problem(await keeper.post("/v1/admin/keys", json={"name": "x", "scopes": ["read"]}), 403, "forbidden")
        assert (await keeper.post("/v1/admin/keys", json={"name": "x", "scopes": ["admin"]})).status_code == 201
    problem(await client.post("/v1/admin/keys", json={"name": "x", "scopes": []}), 422, "invalid_request", "/scopes")
    past = {"name": "x", "expires_at": "2020-01-01T00:00:00Z"}
    problem(await client.post("/v1/admin/keys", json=past), 422, "invalid_request", "/expires_at")


async def test_a_key_with_more_scopes_is_neither_rotated_nor_revoked(service: Service, client: Client) -> None:
    strong = await service.container.tenancy.create_key(client.tenant_id, name="op", scopes=list(Scope))
    path = f"/v1/admin/keys/{format_id(strong.key_id)}"
    problem(await client.post(f"{path}/rotate", json={}), 403, "forbidden")
    problem(await client.delete(path, params={"force": True}), 403, "forbidden")
    assert await status_of(service, str(strong)) == 200


async def test_a_repeated_request_is_refused_since_the_secret_is_shown_once(client: Client, operator: Client) -> None:
    headers = {"Idempotency-Key": "once"}
    made = await client.post("/v1/admin/keys", json={"name": "x"}, headers=headers)
    assert made.status_code == 201
    again = await client.post("/v1/admin/keys", json={"name": "x"}, headers=headers)
    assert problem(again, 409, "secret_shown_once")["id"] == made.json()["id"]
    assert made.json()["key"] not in again.text
    problem(await client.post("/v1/admin/keys", json={"name": "y"}, headers=headers), 409, "idempotency_mismatch")
    assert len((await client.get("/v1/admin/keys")).json()["data"]) == 3
    rotate = f"/v1/admin/keys/{made.json()['id']}/rotate"
    assert (await client.post(rotate, json={}, headers={"Idempotency-Key": "turn"})).status_code == 200
    problem(await client.post(rotate, json={}, headers={"Idempotency-Key": "turn"}), 409, "secret_shown_once")
    tenant = await operator.post("/v1/admin/tenants", json={"name": "t"}, headers={"Idempotency-Key": "t"})
    again = await operator.post("/v1/admin/tenants", json={"name": "t"}, headers={"Idempotency-Key": "t"})
    assert problem(again, 409, "secret_shown_once")["id"] == tenant.json()["id"]


async def test_a_rotated_key_has_a_new_secret_and_the_old_one_a_time_of_grace(service: Service, client: Client) -> None:
    made = await make(client)
    path = f"/v1/admin/keys/{made['id']}/rotate"
    second = (await client.post(path, json={"grace_s": 60})).json()
    assert second["id"] == made["id"]
    assert second["key"] != made["key"]
    assert second["previous_expires_at"] is not None
    assert [await status_of(service, key) for key in (made["key"], second["key"])] == [200, 200]
    third = (await client.post(path, json={})).json()
    assert third["previous_expires_at"] is None
    assert [await status_of(service, key["key"]) for key in (made, second, third)] == [401, 401, 200]
    for grace_s in (-1, 86_401, 1.5, "1"):
        problem(await client.post(path, json={"grace_s": grace_s}), 422, "invalid_request", "/grace_s")


async def test_an_old_secret_in_its_grace_does_everything_but_administer_keys(
    service: Service, client: Client, operator: Client
) -> None:
    victim = await make(client)
    own = f"/v1/admin/keys/{operator.key.split('_')[2]}"
    rotated = (await operator.post(f"{own}/rotate", json={"grace_s": 60})).json()
    assert (await operator.post("/v1/conversations", json={})).status_code == 201
    assert (await operator.get("/v1/admin/keys")).status_code == 200
    for refused in (
        await operator.post(f"{own}/rotate", json={"grace_s": 0}),
        await operator.post(f"/v1/admin/keys/{victim['id']}/rotate", json={}),
        await operator.post("/v1/admin/keys", json={"name": "spare", "scopes": ["admin"]}),
        await operator.delete(own, params={"force": True}),
        await operator.delete(f"/v1/admin/keys/{victim['id']}"),
        await operator.post("/v1/admin/tenants", json={"name": "spare"}),
    ):
        problem(refused, 403, "secret_replaced")
    assert await status_of(service, victim["key"]) == 200
    async with service.client(rotated["key"]) as renewed:
        assert (await renewed.post(f"{own}/rotate", json={})).status_code == 200


@pytest.mark.parametrize(("grace_s", "status", "code"), [(60, 403, "secret_replaced"), (0, 401, "unauthenticated")])
async def test_a_secret_that_another_replica_replaced_changes_no_key_in_the_moment_it_is_still_trusted(
    service: Service, client: Client, tmp_path: Path, grace_s: int, status: int, code: str
) -> None:
    made = await make(client, scopes=["read", "write", "admin"])
    replica = open_service(service.database, tmp_path, embedder="none", key_cache_s=60)
    async with replica as slow, slow.client(made["key"]) as holder:
        assert (await holder.get("/v1/conversations")).status_code == 200
        path = f"/v1/admin/keys/{made['id']}/rotate"
        rotated = (await client.post(path, json={"grace_s": grace_s})).json()
        problem(await holder.post(path, json={}), status, code)
    assert await status_of(service, rotated["key"]) == 200


async def test_a_revoked_key_is_refused_at_once_and_stays_listed(service: Service, client: Client) -> None:
    made = await make(client)
    path = f"/v1/admin/keys/{made['id']}"
    assert await status_of(service, made["key"]) == 200
    assert (await client.delete(path)).status_code == 204
    async with service.client(made["key"]) as holder:
        problem(await holder.get("/v1/conversations"), 401, "key_revoked")
    assert (await client.delete(path)).status_code == 204, "revoking again changes nothing"
    problem(await client.post(f"{path}/rotate", json={}), 409, "key_not_valid")
    listed = (await client.get("/v1/admin/keys")).json()["data"]
    assert [key["state"] for key in listed if key["id"] == made["id"]] == ["revoked"]


async def test_a_key_that_is_revoked_while_a_body_arrives_stores_nothing(service: Service, client: Client) -> None:
    made = await make(client, scopes=["read", "write"])

    async def body() -> AsyncIterator[bytes]:
        yield b'{"external_id":'
        answer = await client.delete(f"/v1/admin/keys/{made['id']}")
        assert answer.status_code == 204
        yield b' "late"}'

    async with service.client(made["key"]) as holder:
        await holder.get("/v1/conversations")
        kind = {"Content-Type": "application/json"}
        problem(await holder.post("/v1/conversations", content=body(), headers=kind), 401, "key_revoked")
    listed = await client.get("/v1/conversations", params={"external_id": "late"})
    assert listed.json()["data"] == []


async def test_a_key_that_another_replica_revoked_changes_no_key_in_the_moment_it_is_still_trusted(
    service: Service, client: Client
) -> None:
    victim = await make(client)
    made = await make(client, scopes=["read", "write", "admin"])
    assert await status_of(service, made["key"]) == 200
    connection = await asyncpg.connect(service.database.superuser)
    await connection.execute("update api_keys set revoked_at = now() where id = $1", parse_id(made["id"]))
    await connection.close()
    async with service.client(made["key"]) as holder:
        for answer in await asyncio.gather(
            holder.post("/v1/admin/keys", json={"name": "spare", "scopes": ["admin"]}),
            holder.post(f"/v1/admin/keys/{victim['id']}/rotate", json={}),
            holder.delete(f"/v1/admin/keys/{victim['id']}"),
        ):
            problem(answer, 401, "key_revoked")
    assert await status_of(service, victim["key"]) == 200


async def test_the_last_admin_key_is_not_revoked_by_mistake(service: Service, client: Client) -> None:
    own = client.key.split("_")[2]
    await make(client, scopes=["read", "write"])
    problem(await client.delete(f"/v1/admin/keys/{own}"), 409, "last_admin_key")
    second = await make(client, scopes=["read", "write", "admin"])
    assert (await client.delete(f"/v1/admin/keys/{own}")).status_code == 204
    async with service.client(second["key"]) as heir:
        problem(await heir.delete(f"/v1/admin/keys/{second['id']}"), 409, "last_admin_key")
        assert (await heir.delete(f"/v1/admin/keys/{second['id']}", params={"force": True})).status_code == 204
    assert await status_of(service, second["key"]) == 401


async def test_an_operator_makes_reads_renames_and_lists_tenants(service: Service, operator: Client) -> None:
    made = await operator.post("/v1/admin/tenants", json={"name": "Acme"})
    assert made.status_code == 201
    tenant, key = made.json(), made.json()["first_key"]
    assert key["scopes"] == ["read", "write", "admin"]
    assert await status_of(service, key["key"]) == 200
    path = f"/v1/admin/tenants/{tenant['id']}"
    assert (await operator.get(path)).json()["name"] == "Acme"
    assert (await operator.patch(path, json={"name": "Acme & Co"})).json()["name"] == "Acme & Co"
    newest = (await operator.get("/v1/admin/tenants", params={"limit": 1})).json()
    assert (newest["data"][0]["id"], newest["has_more"]) == (tenant["id"], True)
    older = {"limit": 1, "cursor": newest["next_cursor"]}
    assert (await operator.get("/v1/admin/tenants", params=older)).json()["data"][0]["id"] != tenant["id"]
    nowhere = format_id(operator.tenant_id)[:-4] + "ZZZZ"
    problem(await operator.get(f"/v1/admin/tenants/{nowhere}"), 404, "not_found")
    problem(await operator.patch(f"/v1/admin/tenants/{nowhere}", json={"name": "x"}), 404, "not_found")


async def test_figures_of_a_tenant_are_its_own(client: Client, operator: Client) -> None:
    for project, turns in (("big", 3), ("small", 1)):
        await client.append(await client.conversation(project=project), *[f"turn {n}" for n in range(turns)])
    await client.conversation(project="small")
    stats = (await client.get("/v1/admin/stats")).json()
    assert [stats[name] for name in ("of", "conversations", "turns", "entries", "vectors", "vectors_pending")] == [
        "tenant", 3, 4, 4, 4, 0,
    ]  # fmt: skip
    assert [(one["project"], one["conversations"], one["turns"]) for one in stats["projects"]] == [
        ("big", 1, 3),
        ("small", 2, 1),
    ]
    assert stats["tokens"] == sum(one["tokens"] for one in stats["projects"])
    assert stats["bytes"] == sum(table["bytes"] for table in stats["tables"]) > 0
    assert {table["table"]: table["rows"] for table in stats["tables"]}["turns"] == 4
    assert (await client.get("/v1/admin/stats", params={"top": 1})).json()["projects"] == stats["projects"][:1]
    whole = (await operator.get("/v1/admin/stats", params={"of": "installation", "top": 100})).json()
    assert whole["turns"] >= stats["turns"]
    assert whole["bytes"] > 0
    assert whole["projects"] == []
    assert len(whole["tenants"]) == 100 or format_id(client.tenant_id) in {one["tenant_id"] for one in whole["tenants"]}
