"""An OpenID Connect issuer on real HTTP, with tokens in the shape of Keycloak's."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

REALM = "/realms/team"


class FakeIssuer:
    """Serves discovery and the key set. `delay_s`, `status` and `body` say how the key set is answered."""

    def __init__(self) -> None:
        self.port = 0
        self.delay_s = 0.0
        self.status = 200
        self.body: bytes | None = None
        self.requests: list[str] = []
        self.signing: dict[str, tuple[str, Any]] = {}
        self.published: list[dict[str, Any]] = []
        self.rotate("first")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{REALM}"

    @property
    def key_requests(self) -> int:
        return sum(path.endswith("/certs") for path in self.requests)

    def rotate(self, key_id: str, *, algorithm: str = "RS256", keep: bool = False) -> None:
        """Sign with a new key, and publish it; with `keep` beside the earlier ones."""
        is_rsa = algorithm.startswith(("RS", "PS"))
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048) if is_rsa else ec.generate_private_key(
            ec.SECP256R1()
        )  # fmt: skip
        maker = RSAAlgorithm if is_rsa else ECAlgorithm
        public = json.loads(maker.to_jwk(key.public_key())) | {"kid": key_id, "use": "sig", "alg": algorithm}  # type: ignore[attr-defined]
        self.signing[key_id] = (algorithm, key)
        self.published = [*(self.published if keep else []), public]

    def claims(self, **more: Any) -> dict[str, Any]:
        """The claims of an access token. Members that are None are left out."""
        now = int(time.time())
        claims = {
            "iss": self.url, "sub": "5f1c2a7e-ann", "aud": ["turnkeep", "account"], "exp": now + 300, "iat": now,
            "typ": "Bearer", "azp": "web", "realm_access": {"roles": ["memory-user", "offline_access"]},
            "scope": "openid profile email", "preferred_username": "ann", "email": "ann@example.com",
        }  # fmt: skip
        return {name: value for name, value in (claims | more).items() if value is not None}

    def token(self, *, key_id: str | None = None, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        name = key_id or next(reversed(self.signing))
        algorithm, key = self.signing[name]
        return jwt.encode(self.claims(**claims), key, algorithm=algorithm, headers={"kid": name} | (headers or {}))

    def raw_token(self, header: dict[str, Any], claims: dict[str, Any], secret: bytes | None) -> str:
        """A token with any header, signed with HS256 by `secret`, or not at all."""
        text = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        signature = b"" if secret is None else hmac.digest(secret, text, hashlib.sha256)
        return (text + b"." + _encoded(signature)).decode()

    def public_pem(self) -> bytes:
        _, key = next(reversed(self.signing.values()))
        return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            self.requests.append(path)
            status, body = 200, b"{}"
            if path == f"{REALM}/.well-known/openid-configuration":
                certs = f"{self.url}/protocol/openid-connect/certs"
                body = json.dumps({"issuer": self.url, "jwks_uri": certs}).encode()
            elif path == f"{REALM}/protocol/openid-connect/certs":
                await asyncio.sleep(self.delay_s)
                status = self.status
                body = json.dumps({"keys": self.published}).encode() if self.body is None else self.body
            else:
                status = 404
            head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def _encoded(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")


@asynccontextmanager
async def fake_issuer() -> AsyncIterator[FakeIssuer]:
    issuer = FakeIssuer()
    server = await asyncio.start_server(issuer.serve, "127.0.0.1", 0)
    issuer.port = server.sockets[0].getsockname()[1]
    async with server:
        yield issuer
