"""What a key is told of itself: GET /v1/keys/self."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.core.ids import format_id
from app.tenancy.schemas import Restriction, Scope
from tests.support.api import Client, Service, problem

PATH = "/v1/keys/self"
EXPIRY = datetime(2099, 12, 31, tzinfo=UTC)
KEYS: dict[str, dict[str, Any]] = {
    "read-only": {"scopes": [Scope.READ]},
    "writes only": {"scopes": [Scope.WRITE], "long_term_enabled": False},
    "operator": {"scopes": [Scope.OPERATOR], "expires_at": EXPIRY},
    "restricted": {
        "scopes": [Scope.WRITE, Scope.READ],
        "restriction": Restriction(projects=frozenset({"shop", "app"}), owners=frozenset({"ann"})),
    },
    "agent": {"scopes": list(Scope), "agent_id": "planner"},
}


@pytest.mark.parametrize("name", KEYS)
async def test_a_key_of_any_scope_reads_what_it_is_and_never_its_secret(
    name: str, service: Service, client: Client
) -> None:
    key = str(await service.container.tenancy.create_key(client.tenant_id, name=name, **KEYS[name]))
    async with service.client(key) as holder:
        answer = await holder.get(PATH)
    assert answer.status_code == 200, answer.text
    own = answer.json()
    restricted = name == "restricted"
    assert own == {
        "id": key.split("_")[2],
        "kind": "key",
        "name": name,
        "tenant_id": format_id(client.tenant_id),
        "tenant_name": own["tenant_name"],
        "scopes": [scope.value for scope in Scope if scope in KEYS[name]["scopes"]],
        "agent_id": "planner" if name == "agent" else None,
        "long_term_enabled": name in {"read-only", "operator", "agent"},
        "expires_at": "2099-12-31T00:00:00.000Z" if name == "operator" else None,
        "projects": ["app", "shop"] if restricted else None,
        "owners": ["ann"] if restricted else None,
    }
    assert key.split("_", 3)[3] not in answer.text


async def test_two_tenants_read_their_own_names(client: Client, other: Client, service: Service) -> None:
    operator = await service.container.tenancy.create_key(client.tenant_id, name="operator", scopes=[Scope.OPERATOR])
    async with service.client(str(operator)) as renaming:
        for one, name in ((client, "Bakery"), (other, "Brewery")):
            renamed = await renaming.patch(f"/v1/admin/tenants/{format_id(one.tenant_id)}", json={"name": name})
            assert renamed.status_code == 200, renamed.text
    for one, name in ((client, "Bakery"), (other, "Brewery")):
        own = (await one.get(PATH)).json()
        assert (own["tenant_id"], own["tenant_name"]) == (format_id(one.tenant_id), name)


async def test_an_expired_or_revoked_key_and_a_conversation_token_are_refused(service: Service, client: Client) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    expired = await service.container.tenancy.create_key(
        client.tenant_id, name="expired", scopes=[Scope.READ], expires_at=soon
    )
    revoked = (await client.post("/v1/admin/keys", json={"name": "revoked"})).json()
    assert (await client.delete(f"/v1/admin/keys/{revoked['id']}")).status_code == 204
    conversation = await client.conversation()
    made = await client.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read"})
    await asyncio.sleep(0.25)
    for token, status, code in (
        (str(expired), 401, "key_expired"),
        (revoked["key"], 401, "key_revoked"),
        (made.json()["token"], 403, "token_not_allowed"),
        (None, 401, "unauthenticated"),
    ):
        async with service.client(token) as holder:
            problem(await holder.get(PATH), status, code)
