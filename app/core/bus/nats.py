"""The bus over core NATS: for many replicas, or to keep messages out of Postgres.

Every connection has a new client, whose own reconnection is off: it would stop permanently after one refused login, and
would send queued messages late. It tries all servers of the cluster, in random order. Invariants: with a `tls://` URL
nothing is sent unencrypted, and no login is in a log line or an error.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self, cast
from urllib.parse import SplitResult, unquote, urlsplit

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from app.core.bus.connection import QUEUE_BYTES, Link, ReconnectingBus, WrongSetting
from app.core.bus.nats_login import (
    CA_SETTING,
    CREDENTIALS_SETTING,
    LoginFiles,
    NatsFileError,
    UserCredentials,
    report_handshakes,
)
from app.core.telemetry import error_type, get_logger
from app.settings.server import BusSettings

_ENVELOPE_BYTES = 32 * 2**10
_CONNECT_S, _RETRY_S, _FLUSH_S, _PING_S = 2, 1, 5, 5
_URL_SETTING: Final = "TURNKEEP_NATS_URL"
_REFUSED_LOGIN: Final = "authorization violation"
_PENDING_MESSAGES, _PENDING_BYTES = 2**20, 256 * 2**20


@dataclass(frozen=True, slots=True)
class NatsCluster:
    """The servers of one cluster, and the login."""

    servers: Sequence[str]
    user: str | None = None
    password: str | None = None
    token: str | None = None

    @classmethod
    def from_urls(cls, urls: str) -> Self:
        """Read comma-separated URLs; the first login in them (user and password, or a token) is used for all."""
        parts = [urlsplit(url.strip()) for url in urls.split(",")]
        cluster = cls([_without_login(part) for part in parts])
        login = next((part for part in parts if part.username), None)
        if login is None or login.username is None:
            return cluster
        if login.password is None:
            return replace(cluster, token=unquote(login.username))
        return replace(cluster, user=unquote(login.username), password=unquote(login.password))

    @property
    def requires_tls(self) -> bool:
        """Whether nothing may be sent unencrypted, to any server."""
        return any(server.startswith("tls:") for server in self.servers)


def _without_login(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], path="", query="", fragment="").geturl()


class _NoTlsError(ConnectionError):
    """A server that offers no TLS, although the URL is `tls://`."""

    def __str__(self) -> str:
        return "nats: the server offers no TLS"


class NatsBus(ReconnectingBus):
    """A bus over the NATS servers at a URL."""

    def __init__(self, cluster: NatsCluster, *, settings: BusSettings, queue_bytes: int = QUEUE_BYTES) -> None:
        super().__init__("nats", envelope_bytes=_ENVELOPE_BYTES, queue_bytes=queue_bytes)
        self._cluster = cluster
        self._settings = settings

    def _suspect(self, error: BaseException) -> WrongSetting | None:
        if isinstance(error, NatsFileError):
            return WrongSetting(error.setting, str(error.file))
        if isinstance(error, ssl.SSLCertVerificationError):
            return _named(CA_SETTING, self._settings.nats_tls_ca_file)
        if isinstance(error, _NoTlsError):
            return WrongSetting(_URL_SETTING, None)
        if isinstance(error, errors.Error) and _REFUSED_LOGIN in str(error).lower():
            file = self._settings.nats_credentials_file
            return _named(_URL_SETTING if file is None else CREDENTIALS_SETTING, file)
        return None

    async def _connect(self, on_payload: Callable[[str], None], on_gap: Callable[[], None]) -> Link:
        files = await asyncio.to_thread(LoginFiles.read, self._settings)
        link = _NatsLink(self._settings.nats_subject, on_gap)
        try:
            await link.open(self._cluster, files, on_payload)
        except BaseException:
            with suppress(Exception):  # the connection was not complete
                await asyncio.wait_for(link.close(), _RETRY_S)
            raise
        return link


def _named(setting: str, file: Path | None) -> WrongSetting:
    return WrongSetting(setting, None if file is None else str(file))


class _NatsLink:
    """One client and its connection. A client whose reconnection is off says hello to one server only."""

    def __init__(self, subject: str, on_gap: Callable[[], None]) -> None:
        self._client = Client()
        self._subject = subject
        self._report_loss = on_gap
        self._is_encrypted = False
        self.ended = asyncio.Event()

    async def open(self, cluster: NatsCluster, files: LoginFiles, on_payload: Callable[[str], None]) -> None:
        """Connect and subscribe; return when the server has the subscription."""
        credentials = files.credentials
        report_handshakes(files.tls, self._note_handshake)

        def secret(value: str | None) -> Callable[[], str] | None:
            if value is None:
                return None

            def give() -> str:
                self._require_tls(cluster)
                return value

            return give

        def sign(nonce: str) -> bytes:
            self._require_tls(cluster)
            return cast("UserCredentials", credentials).sign(nonce)

        async def on_message(message: Msg) -> None:
            on_payload(message.data.decode(errors="replace"))

        async def ended() -> None:
            self.ended.set()

        await self._client.connect(
            list(cluster.servers),
            name="turnkeep",
            user=secret(cluster.user),
            password=secret(cluster.password),
            token=secret(cluster.token),
            signature_cb=None if credentials is None else sign,
            user_jwt_cb=None if credentials is None else lambda: credentials.jwt,
            tls=files.tls,
            no_echo=True,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=_RETRY_S,
            connect_timeout=_CONNECT_S,
            # needed in addition to our probes: a flush returns at once after the client's reader task has ended
            ping_interval=_PING_S,
            error_cb=self._on_error,
            disconnected_cb=ended,
            closed_cb=ended,
        )
        self._require_tls(cluster)
        await self._client.subscribe(  # pyright: ignore[reportUnknownMemberType] - the types of its callback are incomplete
            self._subject, cb=on_message, pending_msgs_limit=_PENDING_MESSAGES, pending_bytes_limit=_PENDING_BYTES
        )
        await self._confirm()

    def _note_handshake(self) -> None:
        self._is_encrypted = True

    def _require_tls(self, cluster: NatsCluster) -> None:
        # if a server offers no TLS, the client goes on unencrypted
        if cluster.requires_tls and not self._is_encrypted:
            raise _NoTlsError

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, errors.SlowConsumerError):
            self._report_loss()
        elif not self._client.is_connected:
            return  # reported by `ended`, or raised by `open`
        else:
            # usually a missing permission for the subject: no message would ever arrive
            get_logger().warning("bus.refused", kind="nats", error_type=error_type(error))
            self.ended.set()

    async def send(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            await self._client.publish(self._subject, payload)
        await self._confirm()

    async def probe(self) -> None:
        await self._confirm()

    async def _confirm(self) -> None:
        """Return when the server has received everything that was sent before."""
        if not self._client.is_connected:
            raise errors.ConnectionClosedError  # a flush may return without an error
        # the ping of a flush overtakes what `publish` has queued, and gives the client the time to write it
        await self._client.flush(_FLUSH_S)
        await self._client.flush(_FLUSH_S)

    async def close(self) -> None:
        await self._client.close()
