"""Sends events to receivers over HTTP/1.1.

Hides the client. Invariants: a connection leads to an address that was checked for it, so a name that changes its
address between a check and the connection gains nothing. Redirects, proxies of the environment and cookies do not
exist here. One attempt ends after `SEND_TIMEOUT_S`. Of an answer, only the status and `Retry-After` are used.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, cast

import httpcore2

from app.providers.receivers.destinations import is_public
from app.providers.schemas import MAX_SENDS, SEND_TIMEOUT_S, DeliveryError, SendResult
from app.settings.webhooks import WebhookSettings

_MAX_ADDRESSES: Final = 4
_MAX_READ_BYTES: Final = 65_536
_DISCARD_S: Final = 1.0
_KEPT_OPEN_S: Final = 15.0
_NAME_THREADS_PER_ATTEMPT: Final = 2
_MAX_RETRY_AFTER_S: Final = 3600
_OK, _REDIRECT, _ERROR = 200, 300, 400


class _AddressRefused(Exception):
    """A host has an address that webhooks may not lead to."""


class _UnknownName(Exception):
    """A host has no address."""


_ERRORS: Final[Mapping[type[Exception], DeliveryError]] = {
    TimeoutError: DeliveryError.TIMEOUT,
    httpcore2.TimeoutException: DeliveryError.TIMEOUT,
    _AddressRefused: DeliveryError.ADDRESS,
    _UnknownName: DeliveryError.NAME,
    ssl.SSLError: DeliveryError.TLS,
    httpcore2.NetworkError: DeliveryError.CONNECTION,
    OSError: DeliveryError.CONNECTION,
    httpcore2.ProtocolError: DeliveryError.PROTOCOL,
    httpcore2.UnsupportedProtocol: DeliveryError.PROTOCOL,
    ValueError: DeliveryError.PROTOCOL,
}
"""What a kind of exception means; the first match counts."""


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to the checked addresses of a host."""

    def __init__(self, *, allow_private: bool, max_lookups: int) -> None:
        self._allow_private = allow_private
        # the library declares another class of this name for where anyio is missing
        self._backend = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())
        # not the threads of the process: a slow name server must not delay tokenising and embedding
        self._threads = ThreadPoolExecutor(max_lookups, thread_name_prefix="names")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of the library
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Return a connection to an address of the host. Raises _AddressRefused if any of them is not allowed."""
        addresses = await self._addresses(host, port)
        if not self._allow_private and not all(map(is_public, addresses)):
            raise _AddressRefused
        failed: Exception = _UnknownName()
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                return await self._backend.connect_tcp(
                    address, port, timeout=timeout, local_address=local_address, socket_options=socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    async def _addresses(self, host: str, port: int) -> list[str]:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        except (OSError, UnicodeError):
            raise _UnknownName from None
        return list(dict.fromkeys(str(result[4][0]) for result in results))

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of the library
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Refuse: webhooks lead to the network only."""
        del path, timeout, socket_options
        raise _AddressRefused

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class WebhookSender:
    """An `EventSender` over a pool of connections."""

    def __init__(self, settings: WebhookSettings, *, guard: Callable[[], None]) -> None:
        """`guard` raises while a transaction is open."""
        self._settings = settings
        self._guard = guard
        # more than attempts: a look-up goes on after its attempt has timed out, and one tenant makes at most half of
        # the attempts, so a name server that does not answer delays no other tenant
        max_lookups = _NAME_THREADS_PER_ATTEMPT * MAX_SENDS
        self._backend = _CheckedBackend(allow_private=settings.webhook_allow_private, max_lookups=max_lookups)
        self._pool: httpcore2.AsyncConnectionPool | None = None
        self._opening = asyncio.Lock()

    async def send(self, url: str, *, headers: Mapping[str, str], body: bytes) -> SendResult:
        """Send one POST: see `EventSender`."""
        self._guard()
        if not self._settings.webhook_allow_http and not url.lower().startswith("https://"):
            return SendResult(None, DeliveryError.ADDRESS)  # the setting has changed since the webhook was made
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                return await self._send(url, headers, body)
        except tuple(_ERRORS) as error:
            meaning = next(meaning for kind, meaning in _ERRORS.items() if isinstance(error, kind))
            return SendResult(None, DeliveryError.TLS if _is_of_tls(error) else meaning)

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> SendResult:
        pool = await self._opened()
        raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        raw_headers.append((b"content-length", str(len(body)).encode()))
        async with pool.stream("POST", url, headers=raw_headers, content=body) as response:
            result = _result(response)
            # the status is the answer, also if reading the body fails
            with suppress(TimeoutError, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException):
                async with asyncio.timeout(_DISCARD_S):
                    await _discard(response)
        return result

    async def _opened(self) -> httpcore2.AsyncConnectionPool:
        async with self._opening:
            if self._pool is None:
                self._pool = httpcore2.AsyncConnectionPool(
                    # made once: the library would read all certificates on the event loop for each connection
                    ssl_context=await asyncio.to_thread(httpcore2.default_ssl_context),
                    max_connections=MAX_SENDS,
                    max_keepalive_connections=MAX_SENDS,
                    keepalive_expiry=_KEPT_OPEN_S,
                    network_backend=self._backend,
                )
            return self._pool

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.aclose()
            self._pool = None
        self._backend.close()


def _is_of_tls(error: BaseException) -> bool:
    """Return whether an error of the TLS library is the reason; the libraries between wrap it."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, ssl.SSLError):
            return True
        reason = reason.__cause__ or reason.__context__
    return False


def _result(response: httpcore2.Response) -> SendResult:
    status = response.status
    if _OK <= status < _REDIRECT:
        return SendResult(status, None)
    error = DeliveryError.REDIRECT if _REDIRECT <= status < _ERROR else DeliveryError.STATUS
    return SendResult(status, error, _retry_after(response))


def _retry_after(response: httpcore2.Response) -> int | None:
    """Return `Retry-After` in seconds, at most an hour; None for a date, because clocks differ."""
    text = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
    return min(int(text), _MAX_RETRY_AFTER_S) if text.isdigit() and len(text) < 10 else None  # noqa: PLR2004


async def _discard(response: httpcore2.Response) -> None:
    """Read a short body, so that the connection can be used again. A connection with a longer one is closed."""
    count = 0
    async for chunk in cast("AsyncIterable[bytes]", response.stream):
        count += len(chunk)
        if count > _MAX_READ_BYTES:
            return
