"""Login to NATS with a key pair, and TLS with files: what the URL of a server cannot say.

A credentials file has a JWT of the user and the seed of its key pair (as `nsc generate creds` writes it), or only the
seed. A server sends a random text, and accepts its signature. The seed never leaves the process. Files are read at each
connection, so that replaced ones are used. Errors name no content of a file.

Method: the format of NKEYS (base32 of a prefix, an Ed25519 key and a CRC-16) is that of github.com/nats-io/nkeys.
"""

import base64
import binascii
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificates

from app.settings.server import BusSettings

CREDENTIALS_SETTING: Final = "TURNKEEP_NATS_CREDENTIALS_FILE"
CA_SETTING: Final = "TURNKEEP_NATS_TLS_CA_FILE"
CERT_SETTING: Final = "TURNKEEP_NATS_TLS_CERT_FILE"
KEY_SETTING: Final = "TURNKEEP_NATS_TLS_KEY_FILE"
_SECTION: Final = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+([A-Za-z0-9_.=+/-]+?)\s+-{3,}END [A-Z ]+-{3,}")
_SEED_PREFIX: Final = 18 << 3
_USER_PREFIX: Final = 20 << 3
_SEED_BYTES: Final = 32
_CRC_BYTES: Final = 2


class NatsFileError(Exception):
    """A file that cannot be used. The message has its kind, and never its content. `setting` names the file."""

    def __init__(self, message: str, *, setting: str, file: Path) -> None:
        super().__init__(message)
        self.setting = setting
        self.file = file


@dataclass(frozen=True, slots=True)
class UserCredentials:
    """The key pair of a NATS user, and its JWT if the server wants one."""

    key: Ed25519PrivateKey = field(repr=False)
    jwt: str | None = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "UserCredentials":
        """Read a file of credentials. Raises NatsFileError."""
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            wrong = "the credentials file cannot be read"
            raise NatsFileError(wrong, setting=CREDENTIALS_SETTING, file=path) from error
        sections: Mapping[str, str] = dict(_SECTION.findall(text))
        seed = sections.get("USER NKEY SEED", text.strip())
        return cls(Ed25519PrivateKey.from_private_bytes(_decode_seed(seed, path)), sections.get("NATS USER JWT"))

    @property
    def public_key(self) -> str:
        """Return the public key, as the configuration of a server names the user."""
        raw = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return _encode(bytes([_USER_PREFIX]) + raw)

    def sign(self, nonce: str) -> bytes:
        """Return the signature of the text that a server sent."""
        return base64.b64encode(self.key.sign(nonce.encode()))


def _decode_seed(text: str, path: Path) -> bytes:
    """Return the 32 bytes of the seed of a user. Raises NatsFileError."""
    wrong = NatsFileError("the credentials file has no seed of a user", setting=CREDENTIALS_SETTING, file=path)
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        raise wrong from None  # the error would quote the seed
    if len(raw) != 2 + _SEED_BYTES + _CRC_BYTES:
        raise wrong
    body, check = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
    # the kind of the key is in the last three bits of the first byte and the first five of the second one
    kind = (body[0] & 7) << 5 | body[1] >> 3
    if body[0] & 0xF8 != _SEED_PREFIX or kind != _USER_PREFIX or _crc(body) != check:
        raise wrong
    return body[2:]


def _encode(body: bytes) -> str:
    return base64.b32encode(body + _crc(body)).decode().rstrip("=")


def _crc(body: bytes) -> bytes:
    return binascii.crc_hqx(body, 0).to_bytes(_CRC_BYTES, "little")


def _tls_context(settings: BusSettings) -> ssl.SSLContext | None:
    if settings.nats_tls_ca_file is None and settings.nats_tls_cert_file is None:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.nats_tls_ca_file)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        if settings.nats_tls_ca_file is None:
            raise
        raise _tls_error(CA_SETTING, settings.nats_tls_ca_file) from error
    cert, key = settings.nats_tls_cert_file, settings.nats_tls_key_file
    if cert is not None and key is not None:
        try:
            context.load_cert_chain(cert, key, password="")
        except (OSError, ValueError) as error:
            # the error does not say which of the two it is about
            raise (_tls_error(KEY_SETTING, key) if _is_certificate(cert) else _tls_error(CERT_SETTING, cert)) from error
    return context


def _tls_error(setting: str, file: Path) -> NatsFileError:
    return NatsFileError("a file for TLS cannot be used", setting=setting, file=file)


def _is_certificate(file: Path) -> bool:
    try:
        return bool(load_pem_x509_certificates(file.read_bytes()))
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class LoginFiles:
    """What the files of the settings say: credentials and TLS, None for each that is not set."""

    credentials: UserCredentials | None
    tls: ssl.SSLContext | None

    @classmethod
    def read(cls, settings: BusSettings) -> "LoginFiles":
        """Read the files. Blocking. Raises NatsFileError."""
        file = settings.nats_credentials_file
        return cls(None if file is None else UserCredentials.read(file), _tls_context(settings))
