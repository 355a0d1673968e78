"""A client of the API as one tenant, and the app it talks to."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from app.container import Container
from app.main import create_app, openapi_document
from app.settings import Settings
from app.worker.handlers import make_worker
from tests.support.constants import other_constants
from tests.support.contract import Contract
from tests.support.postgres import TestDatabase


@dataclass
class Service:
    """The application, open, on a database of this worker."""

    app: FastAPI
    container: Container
    settings: Settings
    contract: Contract
    database: TestDatabase

    def client(self, key: str | None) -> "Client":
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}

        return Client(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://localhost",
            headers=headers,
            event_hooks={"response": [self.check]},
        )

    async def check(self, response: httpx.Response) -> None:
        """Fail unless the response is one that the document declares.

        A stream in OpenAI's shape is that of OpenAI's document, and left to whoever reads it.
        """
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        if streamed and response.request.url.path.startswith("/openai/"):
            self.contract.record(response)
            return
        await response.aread()
        self.contract.check(response)

    async def run_jobs(self) -> None:
        """Do all jobs that are due. No worker runs beside the tests: it would be in their counts of statements."""
        await make_worker(self.container).drain()

    async def new_tenant(self) -> "Client":
        """A client of a tenant that nothing else uses."""
        key = await self.container.tenancy.create_tenant("test")
        client = self.client(str(key))
        client.tenant_id, client.key = key.tenant_id, str(key)
        return client


class Client(httpx.AsyncClient):
    """An httpx client that knows its tenant and a few shorthands."""

    tenant_id: Any
    key: str

    async def conversation(self, **body: Any) -> str:
        response = await self.post("/v1/conversations", json=body)
        assert response.status_code in {200, 201}, response.text
        return response.json()["id"]

    async def append(self, conversation_id: str, *turns: dict[str, Any] | str, **more: Any) -> dict[str, Any]:
        body = {"turns": [{"role": "user", "content": t} if isinstance(t, str) else t for t in turns]} | more
        response = await self.post(f"/v1/conversations/{conversation_id}/turns", json=body)
        assert response.status_code in {200, 201}, response.text
        return response.json()

    async def history(self, conversation_id: str, **params: Any) -> list[dict[str, Any]]:
        """All pages of a history, from the first turn on unless `params` say otherwise."""
        turns: list[dict[str, Any]] = []
        params = {"limit": 200, "order": "asc", **params}
        while True:
            response = await self.get(f"/v1/conversations/{conversation_id}/turns", params=params)
            assert response.status_code == 200, response.text
            page = response.json()
            turns += page["data"]
            if not page["has_more"]:
                return turns
            params["cursor"] = page["next_cursor"]

    async def recall(self, conversation_id: str | None, query: str, **body: Any) -> list[dict[str, Any]]:
        path = f"/v1/conversations/{conversation_id}/recall" if conversation_id else "/v1/recall"
        response = await self.post(path, json={"query": query, **body})
        assert response.status_code == 200, response.text
        return response.json()["data"]

    async def context(self, conversation_id: str, token_budget: int, **body: Any) -> dict[str, Any]:
        path = f"/v1/conversations/{conversation_id}/context"
        response = await self.post(path, json={"token_budget": token_budget, **body})
        assert response.status_code == 200, response.text
        return response.json()


def problem(response: httpx.Response, status: int, code: str, pointer: str | None = None) -> dict[str, Any]:
    """Fail unless the response is this problem, naming this field."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["code"] == code, body
    if pointer is not None:
        assert pointer in [error["pointer"] for error in body["errors"]], body
    return body


def settings_for(database: TestDatabase, data_dir: Path, **more: Any) -> Settings:
    """Settings of an app on a test database, as its unprivileged role.

    Titles are asked of a model only where a test says so: other tests count what a model is asked.
    """
    quiet = {"migrate_on_start": False, "worker_in_process": False, "title_generation_enabled": False}
    return Settings(
        database_url=database.app,
        ops_database_url=database.ops,
        owner_database_url=database.owner,
        data_dir=data_dir,
        log_level="error",
        **quiet | {"key_cache_s": 0.5} | more,
    )


@asynccontextmanager
async def open_service(database: TestDatabase, data_dir: Path, **more: Any) -> AsyncIterator[Service]:
    """An app with its lifespan open, with settings and constants by name.

    Audit entries of reads wait until a test asks for them: other tests count statements.
    """
    with other_constants(**{"audit_flush_s": 3600} | more) as values:
        settings = settings_for(database, data_dir, **values)
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            contract = Contract(openapi_document(app))
            yield Service(app, app.state.turnkeep.container, settings, contract, database)
    if (folder := os.environ.get("TURNKEEP_TEST_FOLDER")) is not None:  # a bench has none
        contract.write_seen(Path(folder))
