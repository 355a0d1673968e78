"""Sends requests over httpx: with an Idempotency-Key for each logical request, and retries where they are safe."""

import asyncio
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Final, cast
from urllib.parse import urlsplit

import httpx

from turnkeep_client.errors import ConnectionFailedError, TurnkeepError
from turnkeep_client.generated.operations import Repeat, Value
from turnkeep_client.problems import error_of_response
from turnkeep_client.retries import RetryPolicy

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_GZIP: Final = b"\x1f\x8b"
_FAILED: Final = 300


@dataclass(frozen=True, slots=True)
class Server:
    """The server and how it is asked: its URL, a key or token, and the limits of time and of retries."""

    url: str
    api_key: str
    timeout_s: float = 30.0
    reconnect_timeout_s: float = 120.0
    """How long a stream tries to continue while the server does not answer."""
    retries: RetryPolicy = field(default_factory=RetryPolicy)

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine, so that no proxy is used."""
        return urlsplit(self.url).hostname in _LOOPBACK

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request and of the handshake of a WebSocket."""
        return {"Authorization": f"Bearer {self.api_key}", "User-Agent": f"turnkeep-client-python/{_version()}"}


class HttpTransport:
    """The requests of one client, on the event loop on which it is used first."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.AsyncClient(
            base_url=server.url.rstrip("/"),
            headers=server.headers,
            timeout=server.timeout_s,
            trust_env=not server.is_loopback,
        )

    async def request(
        self,
        method: str,
        path: str,
        repeat: Repeat,
        *,
        query: Mapping[str, Value],
        headers: Mapping[str, str | None],
        body: object = None,
        is_bytes: bool = False,
    ) -> object:
        """Send a request until it is answered. Raises the TurnkeepError of its code."""
        if isinstance(body, dict) and cast("dict[str, object]", body).get("stream") is True:
            raise ValueError("This client reads whole answers. Leave `stream` out.")
        sent = {name: value for name, value in headers.items() if value is not None}
        content: bytes | None = None
        if isinstance(body, bytes):
            content = body
            sent["Content-Type"] = "application/gzip" if body.startswith(_GZIP) else "application/x-ndjson"
        elif body is not None:
            content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
            sent["Content-Type"] = "application/json"
        if repeat == "key":
            # one key for all attempts, so that the server executes the request once
            sent.setdefault(IDEMPOTENCY_KEY, str(uuid.uuid4()))
        request = self.http.build_request(
            method, path, params={name: value for name, value in query.items() if value is not None}, headers=sent,
            content=content,
        )  # fmt: skip
        response = await self._send(request, repeat)
        if is_bytes:
            return response.content
        return response.json() if response.content else None

    async def _send(self, request: httpx.Request, repeat: Repeat) -> httpx.Response:
        attempt = 0
        while True:
            is_sent = True
            try:
                response = await self.http.send(request)
                if response.status_code < _FAILED:
                    return response
                error: TurnkeepError = error_of_response(response.status_code, response.headers, response.content)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as failure:
                is_sent = False
                error = connection_failed(self.server.url, failure)
            except httpx.TransportError as failure:
                error = connection_failed(self.server.url, failure)
            wait_s = self.server.retries.wait_s(attempt, error, repeat, is_sent=is_sent)
            if wait_s is None:
                raise error
            await asyncio.sleep(wait_s)
            attempt += 1

    async def aclose(self) -> None:
        """Close the connections."""
        await self.http.aclose()


def connection_failed(url: str, failure: BaseException) -> ConnectionFailedError:
    """Return the error of a server that did not answer."""
    return ConnectionFailedError(
        "connection_failed",
        f"{url} did not answer ({type(failure).__name__}).",
        remedy="Check the URL and that the server runs (`turnkeep serve`).",
        is_retryable=True,
    )


def _version() -> str:
    try:
        return version("turnkeep-client")
    except PackageNotFoundError:  # used from a checkout that is not installed
        return "dev"
