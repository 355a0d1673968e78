"""The edges of the service: health, metrics, documentation, and what surrounds every answer."""

import asyncpg
import httpx

from app.core.ids import KeyId, parse_id
from tests.support.api import Client, Service


async def test_health_readiness_and_metrics_need_no_key(service: Service) -> None:
    async with service.client(None) as anybody:
        assert (await anybody.get("/healthz")).json() == {"status": "ok"}
        for path in ("/healthz", "/readyz"):
            got, headed = await anybody.get(path), await anybody.head(path)
            assert (headed.status_code, headed.content) == (200, b"")
            for name in ("content-type", "content-length"):
                assert headed.headers[name] == got.headers[name]
            refused = await anybody.post(path)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert (await anybody.get("/readyz")).json() == {"status": "ok"}
        metrics = (await anybody.get("/metrics")).text
    assert 'turnkeep_http_requests_total{method="GET",route="/readyz",status="200"}' in metrics


async def test_readiness_says_no_while_the_database_does_not_answer(service: Service, monkeypatch) -> None:  # noqa: ANN001
    async def refuse(*_args: object, **_options: object) -> None:
        raise ConnectionRefusedError

    pool = service.container.database._pool  # noqa: SLF001
    monkeypatch.setattr(type(pool), "acquire", refuse)
    async with service.client(None) as anybody:
        response = await anybody.get("/readyz")
    assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")
    assert response.json()["retryable"] is True
    assert response.headers["Retry-After"] == "1"


async def test_documentation_is_served_without_anything_from_elsewhere(service: Service) -> None:
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as anybody:
        page = await anybody.get("/docs")
        assert page.status_code == 200
        assert "http://" not in page.text.replace("http://www.w3.org", "")
        assert "https://" not in page.text
        for path in ("/docs/assets/swagger-ui-bundle.js", "/docs/assets/swagger-ui.css", "/openapi.json"):
            assert path in page.text
            assert (await anybody.get(path)).status_code == 200


async def test_every_answer_carries_a_request_id_and_is_not_cached(client: Client) -> None:
    given = await client.get("/v1/conversations", headers={"X-Request-Id": "abc-1"})
    assert given.headers["X-Request-Id"] == "abc-1"
    assert given.headers["Cache-Control"] == "no-store"
    made = await client.get("/v1/conversations", headers={"X-Request-Id": "not fit\x7f"})
    assert len(made.headers["X-Request-Id"]) == 26
    missing = await client.get("/v1/conversations/01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert missing.json()["request_id"] == missing.headers["X-Request-Id"]


async def test_the_last_use_of_a_key_is_written(client: Client, service: Service) -> None:
    tenancy = service.container.tenancy
    await client.get("/v1/conversations")
    assert (await tenancy.list_keys(client.tenant_id))[0].last_used_at is None
    await tenancy.flush_last_used()
    assert (await tenancy.list_keys(client.tenant_id))[0].last_used_at is not None


async def test_a_revoked_key_is_refused_at_once(client: Client, service: Service) -> None:
    assert (await client.get("/v1/conversations")).status_code == 200
    key = (await service.container.tenancy.list_keys(client.tenant_id))[0]
    await service.container.tenancy.revoke_key(client.tenant_id, key_id=KeyId(parse_id(key.id)))
    refused = await client.get("/v1/conversations")
    assert (refused.status_code, refused.json()["code"]) == (401, "key_revoked")


async def test_expired_idempotency_records_are_swept_and_forgotten(client: Client, service: Service) -> None:
    headers = {"Idempotency-Key": "k"}
    first = await client.post("/v1/conversations", json={"title": "a"}, headers=headers)
    connection = await asyncpg.connect(service.database.superuser)
    expire = "update idempotency_records set expires_at = now() - interval '1 s' where tenant_id = $1"
    await connection.execute(expire, client.tenant_id)
    second = await client.post("/v1/conversations", json={"title": "b"}, headers=headers)
    assert second.status_code == 201
    assert second.json()["id"] != first.json()["id"]
    await connection.execute(expire, client.tenant_id)
    assert await service.container.tenancy.idempotency.delete_expired() >= 1
    left = await connection.fetchval("select count(*) from idempotency_records where tenant_id = $1", client.tenant_id)
    await connection.close()
    assert left == 0


async def test_a_body_of_a_million_wrong_things_is_refused_at_once(client: Client) -> None:
    """Each wrong item costs an error object: the first must end the work, while others are waiting."""
    conversation = await client.conversation()
    path = f"/v1/conversations/{conversation}"
    for url, body in (
        (f"{path}/turns", b'{"turns":[' + b"1," * 1_000_000 + b"1]}"),
        (f"{path}/turns", b'{"turns":[{"role":"user","content":[' + b"1," * 1_000_000 + b"1]}]}"),
        (f"{path}/recall", b'{"query":"x",' + b",".join(b'"m%d":1' % n for n in range(300_000)) + b"}"),
    ):
        response = await client.post(url, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 422
        assert len(response.json()["errors"]) <= 3
        assert len(response.content) < 2000


async def test_the_type_of_a_problem_leads_to_its_description(client: Client, service: Service) -> None:
    problem = (await client.get("/v1/conversations/01ARZ3NDEKTSV4RRFFQ69G5FAV")).json()
    path, anchor = problem["type"].split("#")
    transport = httpx.ASGITransport(service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as anybody:
        page = await anybody.get(path)
    assert page.status_code == 200
    assert f'id="{anchor}"' in page.text
