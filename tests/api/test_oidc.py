"""Access tokens of an OpenID Connect issuer: which are accepted, whom they stand for, and what the issuer may do."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core.errors import Unavailable
from app.core.ids import format_id
from app.providers.identity.issuer_keys import IssuerKeys
from app.settings import Settings
from app.settings.oidc import OidcSettings
from tests.support.api import Client, Service, open_service, problem
from tests.support.fake_issuer import FakeIssuer, fake_issuer
from tests.support.live import events_on, serving, socket_on
from tests.support.mcp import call, post
from tests.support.postgres import TestDatabase

ROLES = "memory-user=read+write,memory-reader=read,memory-admin=read+write+admin"


@pytest.fixture
async def issuer() -> AsyncIterator[FakeIssuer]:
    async with fake_issuer() as running:
        yield running


def oidc(issuer: FakeIssuer, **more: Any) -> dict[str, Any]:
    return {
        "oidc_issuer": issuer.url, "oidc_audience": "turnkeep", "oidc_allow_http": True, "oidc_roles": ROLES,
        "oidc_tenant_claim": "tenant", "oidc_agent_claim": "agent", "oidc_refresh_interval_s": 0.3,
        "oidc_timeout_s": 1.0, "key_cache_s": 0,
    } | more  # fmt: skip


@pytest.fixture
async def service(issuer: FakeIssuer, database: TestDatabase, tmp_path: Path) -> AsyncIterator[Service]:
    async with open_service(database, tmp_path, **oidc(issuer)) as opened:
        yield opened


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async with await service.new_tenant() as opened:
        yield opened


async def get(service: Service, token: str, path: str = "/v1/conversations") -> httpx.Response:
    async with service.client(token) as person:
        return await person.get(path)


def of(client: Client, **claims: Any) -> dict[str, Any]:
    return {"tenant": format_id(client.tenant_id)} | claims


async def test_a_token_works_over_rest_websocket_events_and_mcp(
    service: Service, client: Client, issuer: FakeIssuer
) -> None:
    token = issuer.token(**of(client))
    async with service.client(token) as person:
        conversation = await person.conversation(owner="ann")
        await person.append(conversation, "hello")
    async with serving(service.app, service.settings) as port, httpx.AsyncClient(timeout=60) as http:
        async with socket_on(port, conversation, token) as socket:
            assert (await socket.ask("subscribe"))["type"] == "ack"
        async with socket_on(port, conversation, None) as socket:
            assert (await socket.ask("auth", token=token))["type"] == "ack"
        async with events_on(port, f"/v1/conversations/{conversation}/events", token) as events:
            assert (await events.until("snapshot"))["turns"][0]["content"] == "hello"
        answer = await post(http, port, token, call("get_history", {"conversation_id": conversation}))
        assert "hello" in answer.text
    assert issuer.key_requests == 1


async def test_wrong_tokens_are_refused(service: Service, client: Client, issuer: FakeIssuer) -> None:
    now = int(time.time())
    good, other = of(client), FakeIssuer()
    other.port = issuer.port
    header, claims = {"alg": "HS256", "typ": "JWT", "kid": "first"}, issuer.claims(**good)
    wrong = {
        "not yet valid": issuer.token(**good, nbf=now + 120),
        "issued later": issuer.token(**good, iat=now + 120),
        "no expiry": issuer.token(**good | {"exp": None}),
        "no subject": issuer.token(**good | {"sub": None}),
        "infinite expiry": issuer.token(**good | {"exp": float("inf")}),
        "another audience": issuer.token(**good, aud="another"),
        "no audience": issuer.token(**good, aud=None),
        "another issuer": issuer.token(**good, iss=issuer.url + "/"),
        "an id token": issuer.token(**good, typ="ID"),
        "a refresh token": issuer.token(**good, typ="Refresh"),
        "another's key of this id": other.token(**good),
        "no signature": issuer.raw_token({"alg": "none", "kid": "first"}, claims, None),
        "no signature, in another case": issuer.raw_token({"alg": "nOnE", "kid": "first"}, claims, b"x"),
        "signed with the public key": issuer.raw_token(header, claims, issuer.public_pem()),
        "a key as a path": issuer.token(**good, headers={"kid": "../../../../dev/null"}),
        "a key as a URL": issuer.token(**good, headers={"kid": f"{issuer.url}/evil"}),
        "a key that is a number": issuer.raw_token({"alg": "RS256", "kid": 1}, claims, b"x"),
        "a key set of its own": other.token(**good, headers={"jku": "http://evil.example/keys"}),
        "an unknown extension": issuer.token(**good, headers={"crit": ["b64"], "b64": True}),
        "too long": issuer.token(**good, padding="x" * 20_000),
        "deeply nested": f"{'W' * 8000}.e30.e30",
        "no JSON": "e30x.e30.e30",
        "a subject that is no text": issuer.token(**good | {"sub": "\ud800"}),
    }
    for what, token in wrong.items():
        answer = await get(service, token)
        assert answer.status_code == 401, f"{what}: {answer.text}"
        assert answer.json()["code"] in {"unauthenticated", "token_expired", "token_unusable"}, what
        assert token not in answer.text
    problem(await get(service, issuer.token(**good, exp=now - 120)), 401, "token_expired")
    assert (await get(service, issuer.token(**good, exp=now - 5))).status_code == 200, "within the leeway"
    assert not any("evil" in path or "dev/null" in path for path in issuer.requests)


@pytest.mark.slow
async def test_a_websocket_ends_after_the_expiry_of_its_token(
    issuer: FakeIssuer, database: TestDatabase, tmp_path: Path
) -> None:
    short = oidc(issuer, oidc_leeway_s=0, live_recheck_s=0.2)
    async with open_service(database, tmp_path, **short) as service, await service.new_tenant() as client:
        conversation = await client.conversation()
        async with serving(service.app, service.settings) as port:
            expiring = issuer.token(**of(client, exp=int(time.time()) + 3))
            async with socket_on(port, conversation, expiring) as one, socket_on(port, conversation, expiring) as two:
                assert (await one.ask("subscribe"))["type"] == "ack"
                assert (await two.ask("auth", token=issuer.token(**of(client))))["type"] == "ack"
                assert (await one.until("error"))["code"] == "token_expired"
                assert (await one.closed())[0] == 4401
                assert (await two.ask("ping"))["type"] == "pong", "it has authenticated with another token"


async def test_claims_that_name_no_tenant_here_are_refused(
    service: Service, client: Client, issuer: FakeIssuer
) -> None:
    for tenant in (None, "unknown", "01ARZ3NDEKTSV4RRFFQ69G5FAV", 7, {"a": 1}, [], ["a", format_id(client.tenant_id)]):
        problem(await get(service, issuer.token(tenant=tenant)), 401, "token_unusable")
    problem(await get(service, issuer.token(**of(client, agent="a\tb"))), 401, "token_unusable")


@pytest.mark.slow
async def test_roles_give_scopes(service: Service, client: Client, issuer: FakeIssuer) -> None:
    for roles, may_write, may_administer in (
        (["memory-reader"], False, False), (["memory-user", "x"], True, False), (["memory-admin"], True, True),
    ):  # fmt: skip
        token = issuer.token(**of(client, realm_access={"roles": roles}))
        async with service.client(token) as person:
            assert (await person.get("/v1/conversations")).status_code == 200
            assert (await person.post("/v1/conversations", json={})).status_code == (201 if may_write else 403)
            assert (await person.get("/v1/admin/keys")).status_code == (200 if may_administer else 403)
            made = await person.post("/v1/admin/keys", json={"name": "by a person"})
            assert made.status_code == (201 if may_administer else 403)
    for access in (None, {"roles": []}, {"roles": ["operator"]}):
        problem(await get(service, issuer.token(**of(client, realm_access=access))), 403, "forbidden")


async def test_a_person_reads_what_the_access_token_allows(
    service: Service, client: Client, issuer: FakeIssuer
) -> None:
    token = issuer.token(**of(client, realm_access={"roles": ["memory-reader"]}))
    own = (await get(service, token, "/v1/keys/self")).json()
    assert (own["kind"], own["name"], own["scopes"]) == ("person", None, ["read"])
    assert (own["tenant_id"], own["projects"], own["owners"]) == (format_id(client.tenant_id), None, None)
    assert 0 < (datetime.fromisoformat(own["expires_at"]) - datetime.now(UTC)).total_seconds() <= 3600
    assert "ann" not in str(own), "no claim is shown"


async def test_two_tenants_with_the_same_subject_do_not_meet(
    service: Service, client: Client, issuer: FakeIssuer
) -> None:
    async with await service.new_tenant() as other:
        ids: list[str] = []
        for one in (client, other):
            async with service.client(issuer.token(**of(one))) as person:
                await person.conversation(external_id="mine")
                assert len((await person.get("/v1/conversations")).json()["data"]) == 1
            entries = (await one.get("/v1/admin/audit", params={"action": "conversations.create"})).json()["data"]
            assert [entry["actor"] for entry in entries] == ["person"]
            ids.append(entries[0]["key_id"])
            assert "ann" not in str(entries)
        assert ids[0] != ids[1], "the id of a person differs between tenants"


async def test_a_new_key_is_fetched_and_unknown_ones_only_now_and_then(
    service: Service, client: Client, issuer: FakeIssuer
) -> None:
    old = issuer.token(**of(client))
    assert (await get(service, old)).status_code == 200
    await asyncio.sleep(0.35)
    issuer.rotate("second", algorithm="ES256")
    assert (await get(service, issuer.token(**of(client)))).status_code == 200
    problem(await get(service, old), 401, "unauthenticated")
    before = issuer.key_requests
    forged = [issuer.token(**of(client), headers={"kid": f"k{number}"}) for number in range(40)]
    answers = await asyncio.gather(*(get(service, token) for token in forged))
    assert {answer.status_code for answer in answers} == {401}
    assert issuer.key_requests - before <= 3


@pytest.mark.slow
async def test_known_keys_are_used_while_the_issuer_is_down_or_slow(
    service: Service, client: Client, issuer: FakeIssuer
) -> None:
    token = issuer.token(**of(client))
    issuer.status = 503
    refused = problem(await get(service, token), 503, "issuer_unavailable")
    assert refused["retryable"] is True
    issuer.status, issuer.delay_s = 200, 0.2
    await asyncio.sleep(0.35)
    answers = await asyncio.gather(*(get(service, token) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {200}
    assert issuer.key_requests == 2, "one fetch for all who wait"
    for body in (b"[]", b"{", b'{"keys": 7}', b'{"keys": []}', b"[" * 100_000, b" " * 300_000):
        issuer.body = body
        await asyncio.sleep(0.35)
        problem(await get(service, issuer.token(**of(client), headers={"kid": "new"})), 401, "unauthenticated")
        assert (await get(service, token)).status_code == 200


@pytest.mark.slow
async def test_stale_keys_are_used_for_a_time_and_not_longer(
    issuer: FakeIssuer, database: TestDatabase, tmp_path: Path
) -> None:
    short = oidc(issuer, oidc_keys_max_age_s=1, oidc_keys_max_stale_s=1, oidc_refresh_interval_s=0.05)
    async with open_service(database, tmp_path, **short) as service, await service.new_tenant() as client:
        token = issuer.token(**of(client))
        assert (await get(service, token)).status_code == 200
        issuer.status = 500
        await asyncio.sleep(1.1)
        assert (await get(service, token)).status_code == 200
        await asyncio.sleep(1.1)
        problem(await get(service, token), 503, "issuer_unavailable")
        issuer.status = 200
        await asyncio.sleep(0.1)
        assert (await get(service, token)).status_code == 200


async def test_claims_restrict_people_to_owners_and_projects(
    issuer: FakeIssuer, database: TestDatabase, tmp_path: Path
) -> None:
    restricting = oidc(issuer, oidc_owners_claim="sub", oidc_projects_claim="https://example.com/projects",
                       oidc_tenant_claim="org.name")  # fmt: skip
    async with open_service(database, tmp_path, **restricting) as first, await first.new_tenant() as client:
        named = {"oidc_tenants": f"acme={format_id(client.tenant_id)}"}
        async with open_service(database, tmp_path, **restricting | named) as service:
            claims: dict[str, Any] = {"org": {"name": "acme"}, "https://example.com/projects": ["default"]}
            mine = await client.conversation(owner="ann")
            await client.conversation(owner="bob")
            listed = (await get(service, issuer.token(sub="ann", **claims))).json()["data"]
            assert [one["id"] for one in listed] == [mine]
            missing = issuer.token(sub="ann", org={"name": "acme"})
            assert (await get(service, missing)).json()["data"] == [], "without the claim, nothing is reached"
            admin = issuer.token(sub="ann", **claims, realm_access={"roles": ["memory-admin"]})
            assert len((await get(service, admin)).json()["data"]) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"oidc_allow_http": False}, {"oidc_audience": None}, {"oidc_roles": {}}, {"oidc_roles": "a=operator"},
        {"oidc_tenant": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, {"oidc_tenant_claim": None}, {"oidc_algorithms": "HS256"},
        {"oidc_algorithms": "RS256,none"}, {"oidc_issuer": "https://a:b@example.com"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_would_let_wrong_tokens_in_stop_the_start(wrong: dict[str, Any]) -> None:
    issuer = FakeIssuer()
    with pytest.raises(ValueError, match=r"oidc|OIDC"):
        Settings(**oidc(issuer) | wrong)


async def test_a_scope_claim_of_many_names_gives_its_scopes(
    issuer: FakeIssuer, database: TestDatabase, tmp_path: Path
) -> None:
    options = oidc(issuer, oidc_roles_claim="scope", oidc_agent_claim="azp")
    async with open_service(database, tmp_path, **options) as service, await service.new_tenant() as client:
        scope = " ".join(["memory-user", *(f"another-scope-{number}" for number in range(40))])
        assert (await get(service, issuer.token(**of(client), scope=scope))).status_code == 200
        unusable = issuer.token(**of(client), scope=scope, azp="x" * 1000)
        problem(await get(service, unusable), 401, "token_unusable")


async def test_a_malformed_address_of_keys_is_an_issuer_that_does_not_answer(
    issuer: FakeIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: object) -> dict[str, object]:
        return {"issuer": issuer.url, "jwks_uri": "https://["}

    keys = IssuerKeys(OidcSettings(), issuer.url)
    monkeypatch.setattr(keys, "_read", read)
    with pytest.raises(Unavailable):
        await keys.find("first")
