"""A cluster of three NATS servers that are killed in turn, logins with key pairs, and TLS with own certificates."""

import asyncio
import base64
import binascii
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from pydantic import SecretStr, ValidationError

from app.core.bus.nats import NatsBus, NatsCluster
from app.core.bus.nats_login import NatsFileError, UserCredentials
from app.core.telemetry import configure_logging
from app.settings import Settings
from app.settings.server import BusSettings
from tests.bus.bus_servers import QUEUE_BYTES, RecordingListener, replica, until
from tests.support.api import Service, open_service
from tests.support.certificates import Authority
from tests.support.live import serving, socket_on
from tests.support.nats import NatsServer
from tests.support.postgres import TestDatabase
from tests.support.process import free_port

# an example of the documentation of NATS
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[NatsServer]]:
    """Three servers with routes to each other."""
    ports = [free_port() for _ in range(3)]
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    servers: list[NatsServer] = []
    for number, port in enumerate(ports):
        folder = tmp_path / str(number)
        folder.mkdir()
        options = ("--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{port}", "--routes", routes)
        servers.append(NatsServer(folder, *options))
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.kill()


def urls(cluster: list[NatsServer]) -> str:
    return ",".join(server.url for server in cluster)


def bus_on(url: str, subject: str, **more: Any) -> NatsBus:
    settings = BusSettings(nats_url=SecretStr(url), nats_subject=subject, **more)
    return NatsBus(NatsCluster.from_urls(url), settings=settings, queue_bytes=QUEUE_BYTES)


async def publish_forever(bus: NatsBus, sent: list[int]) -> None:
    while True:
        sent.append(len(sent))
        bus.publish({"test": sent[-1]})
        await asyncio.sleep(0.005)


async def follows(listener: RecordingListener, sent: list[int]) -> None:
    """Wait until something arrives that is sent from now on."""
    after = len(sent)
    await until(lambda: bool(listener.tests()) and listener.tests()[-1] >= after)


async def test_servers_that_are_killed_in_turn_lose_no_message_in_silence(cluster: list[NatsServer]) -> None:
    subject = f"test.{uuid4().hex}"
    buses = [bus_on(urls(cluster), subject) for _ in range(4)]
    listeners = [await replica(bus) for bus in buses]
    sent: list[int] = []
    publishing = asyncio.create_task(publish_forever(buses[0], sent))
    try:
        for server in cluster:
            await asyncio.gather(*(follows(listener, sent) for listener in listeners[1:]))
            server.kill()
            await asyncio.gather(*(follows(listener, sent) for listener in listeners[1:]))
            server.start()
    finally:
        publishing.cancel()
    await until(lambda: all(bus.connected() for bus in buses))
    buses[0].publish({"test": len(sent)})
    sent.append(len(sent))
    for listener in listeners[1:]:
        await until(lambda listener=listener: listener.tests()[-1] == sent[-1])  # type: ignore[misc]
        received = listener.tests()
        assert received == sorted(set(received))
        assert received == sent or listener.losses > 0
    assert listeners[0].tests() == sent
    await asyncio.gather(*(bus.close() for bus in buses))


@pytest.mark.slow
async def test_a_subscriber_gets_every_turn_while_servers_are_killed_in_turn(
    database: TestDatabase, cluster: list[NatsServer], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"nats_url": SecretStr(urls(cluster)), "nats_subject": f"test.{uuid4().hex}"}
    settings |= {"embedder": "none", "live_check_s": 1.0}
    async with (
        open_service(database, tmp_path / "one", **settings) as one,
        open_service(database, tmp_path / "two", **settings) as two,
        serving(two.app, two.settings) as port,
        await one.new_tenant() as client,
    ):
        conversation = await client.conversation()
        async with socket_on(port, conversation, client.key) as watcher:
            await watcher.ask("subscribe")
            sent: list[str] = []
            received: list[str] = []

            async def append() -> None:
                sent.append(f"cup {len(sent)}")
                await client.append(conversation, sent[-1])

            async def receive(text: str) -> None:
                while text not in received:
                    frame = await watcher.until("turn.committed")
                    received.append(frame["turn"]["content"])

            for server in cluster:
                for _ in range(10):
                    await append()
                server.kill()
                for _ in range(10):
                    await append()
                await receive(sent[-1])
                server.start()
                await until(lambda: connected(one) and connected(two))
            await append()
            await receive(sent[-1])
            assert received == sent


def connected(service: Service) -> bool:
    return service.container.bus.connected()


# logins with a key pair


def encode(body: bytes) -> str:
    """A key in the form of NKEYS, with its checksum."""
    check = binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body + check).decode().rstrip("=")


class Identity:
    """A key pair of an operator (prefix 14), an account (0) or a user (20)."""

    def __init__(self, prefix: int) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._prefix = prefix
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = encode(bytes([prefix << 3]) + raw)

    @property
    def seed(self) -> str:
        kind = self._prefix << 3
        raw = self._key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        return encode(bytes([18 << 3 | kind >> 5, (kind & 31) << 3]) + raw)

    def jwt(self, subject: "Identity", name: str, claims: dict[str, Any]) -> str:
        """Sign what an identity may do."""
        header = {"typ": "JWT", "alg": "ed25519-nkey"}
        body = {"jti": uuid4().hex, "iat": int(datetime.now(UTC).timestamp()), "iss": self.public, "name": name}
        body |= {"sub": subject.public, "nats": {"version": 2} | claims}
        parts = ".".join(_base64(json.dumps(part).encode()) for part in (header, body))
        return f"{parts}.{_base64(self._key.sign(parts.encode()))}"


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def credentials(jwt: str, seed: str) -> str:
    """The text of a credentials file, as `nsc generate creds` writes it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


@pytest.mark.parametrize(
    "content",
    ["", "nonsense", SEED, credentials("a.b.c", SEED[:40]), credentials("a.b.c", SEED.lower()), "\0"],
    ids=["empty", "a word", "a seed alone", "too short", "small letters", "no text"],
)
def test_what_is_no_credentials_file_is_refused_without_being_quoted(tmp_path: Path, content: str) -> None:
    file = tmp_path / "user.creds"
    file.write_text(content)
    with pytest.raises(NatsFileError) as caught:
        UserCredentials.read(file)
    assert str(caught.value) == "the credentials file has no JWT and seed of a user"
    assert caught.value.__cause__ is None


async def test_a_key_pair_is_a_login(tmp_path: Path) -> None:
    operator, account, user, stranger = Identity(14), Identity(0), Identity(20), Identity(20)
    config, good, wrong = tmp_path / "nats.conf", tmp_path / "good.creds", tmp_path / "wrong.creds"
    limits = {"conn": -1, "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True}
    account_jwt = operator.jwt(account, "acme", {"type": "account", "limits": limits})
    own = operator.jwt(operator, "op", {"type": "operator"})
    config.write_text(f"operator: {own}\nresolver: MEMORY\nresolver_preload: {{ {account.public}: {account_jwt} }}\n")
    for file, identity in ((good, user), (wrong, stranger)):
        jwt = account.jwt(user, "turnkeep", {"type": "user", "subs": -1, "data": -1, "payload": -1})
        file.write_text(credentials(jwt, identity.seed))
    server = NatsServer(tmp_path, "-c", str(config))
    server.start()
    try:
        buses = [bus_on(server.url, "test", nats_credentials_file=file) for file in (good, wrong, None)]
        for bus in buses:
            await replica(bus)
        await until(buses[0].connected)
        assert [bus.connected() for bus in buses] == [True, False, False]
        # a file that was replaced is read at the next connection
        good.replace(wrong)
        await until(buses[1].connected)
        await asyncio.gather(*(bus.close() for bus in buses))
    finally:
        server.kill()


# TLS


async def test_own_certificates_are_checked_on_both_sides(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    cert, key = authority.issue("server")
    mine, my_key = authority.issue("client")
    foreign, foreign_key = other.issue("client")
    options = ("--tlsverify", "--tlscert", str(cert), "--tlskey", str(key), "--tlscacert", str(authority.file))
    server = NatsServer(tmp_path, *options)
    server.start()
    url = server.url.replace("nats://", "tls://")
    own = {"nats_tls_ca_file": authority.file}
    try:
        buses = [
            bus_on(url, "test", **own, nats_tls_cert_file=mine, nats_tls_key_file=my_key),
            bus_on(url, "test", **own),
            bus_on(url, "test", **own, nats_tls_cert_file=foreign, nats_tls_key_file=foreign_key),
            bus_on(url, "test", nats_tls_ca_file=other.file, nats_tls_cert_file=mine, nats_tls_key_file=my_key),
            bus_on(url, "test"),
        ]
        for bus in buses:
            await replica(bus)
        await until(buses[0].connected)
        assert [bus.connected() for bus in buses] == [True, False, False, False, False]
        await asyncio.gather(*(bus.close() for bus in buses))
    finally:
        server.kill()


async def test_the_log_says_which_file_is_wrong_and_nothing_of_what_is_in_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("client")
    _, foreign_key = authority.issue("other")
    bad, gone = tmp_path / "s3cret.pem", tmp_path / "gone"
    bad.write_text("-----BEGIN CERTIFICATE-----\nS3CRETLINE\n-----END CERTIFICATE-----\n")
    gone.write_text(SEED)
    server = NatsServer(tmp_path, "--user", "ann", "--pass", "right")
    server.start()
    url = server.url
    tls = url.replace("nats://", "tls://")
    cases: list[tuple[str, Path | None, NatsBus]] = [
        ("TURNKEEP_NATS_CREDENTIALS_FILE", bad, bus_on(url, "t", nats_credentials_file=bad)),
        ("TURNKEEP_NATS_CREDENTIALS_FILE", gone, bus_on(url, "t", nats_credentials_file=gone)),
        ("TURNKEEP_NATS_TLS_CA_FILE", bad, bus_on(tls, "t", nats_tls_ca_file=bad)),
        ("TURNKEEP_NATS_TLS_CERT_FILE", bad, bus_on(tls, "t", nats_tls_cert_file=bad, nats_tls_key_file=key)),
        ("TURNKEEP_NATS_TLS_KEY_FILE", bad, bus_on(tls, "t", nats_tls_cert_file=cert, nats_tls_key_file=bad)),
        (
            "TURNKEEP_NATS_TLS_KEY_FILE",
            foreign_key,
            bus_on(tls, "t", nats_tls_cert_file=cert, nats_tls_key_file=foreign_key),
        ),
        ("TURNKEEP_NATS_URL", None, bus_on(url.replace("//", "//ann:wr0ng@"), "t")),
    ]
    gone.unlink()
    try:
        for setting, file, bus in cases:
            log = io.StringIO()
            configure_logging(Settings(log_level="info").telemetry, log)
            await replica(bus)
            await bus.close()
            [line] = [json.loads(one) for one in log.getvalue().splitlines() if "bus.disconnected" in one]
            assert (line.get("setting"), line.get("file")) == (setting, None if file is None else str(file)), line
            for secret in ("S3CRETLINE", SEED, "wr0ng"):
                assert secret not in log.getvalue()
    finally:
        configure_logging(Settings(log_level="error").telemetry)
        server.kill()


def test_files_that_contradict_the_url_stop_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file.pem"
    file.write_text("x")
    for wrong in (
        {"nats_tls_ca_file": file},
        {"nats_tls_ca_file": file, "nats_url": SecretStr("nats://a")},
        {"nats_tls_ca_file": file, "nats_url": SecretStr("tls://a,nats://b")},
        {"nats_tls_cert_file": file, "nats_url": SecretStr("tls://a")},
        {"nats_tls_key_file": file, "nats_url": SecretStr("tls://a")},
        {"nats_credentials_file": file},
        {"nats_credentials_file": file, "nats_url": SecretStr("nats://ann:s3cret@a")},
        {"nats_tls_ca_file": tmp_path / "absent.pem", "nats_url": SecretStr("tls://a")},
    ):
        with pytest.raises(ValidationError) as caught:
            Settings(**wrong)
        assert "s3cret" not in str(caught.value)
    Settings(nats_tls_ca_file=file, nats_credentials_file=file, nats_url=SecretStr("tls://a,tls://b"))


@pytest.mark.parametrize("login", ["ann:s3cret@", "s3cret@", "", "credentials"])
async def test_nothing_secret_is_sent_to_a_server_without_tls(tmp_path: Path, login: str) -> None:
    """The server takes any login, and offers no TLS."""
    received = bytearray()
    greeted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "version": "2.10.0", "max_payload": 2**20, "auth_required": True, "nonce": "abc"}
        writer.write(f"INFO {json.dumps(info)}\r\n".encode())
        greeted.set()
        while line := await reader.readline():
            received.extend(line)
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    file = tmp_path / "user.creds"
    file.write_text(credentials("s3cret", SEED))
    if login == "credentials":
        bus = bus_on(f"tls://127.0.0.1:{port}", "test", nats_credentials_file=file)
    else:
        bus = bus_on(f"tls://{login}127.0.0.1:{port}", "test")
    await replica(bus)
    await greeted.wait()
    await asyncio.sleep(0.3)
    bus.publish({"test": "a text of a turn"})
    await asyncio.sleep(0.3)
    assert not bus.connected()
    await bus.close()
    server.close()
    # without a login, the client says who it is and no more
    assert bytes(received).count(b"\r\n") == (2 if login == "" else 0) * received.count(b"PING")
    for private in (b"s3cret", b"ann", b"sig", b"PUB", b"SUB", b"a text of a turn"):
        assert private not in received
