"""Login to NATS with a key pair, and TLS with files: what the URL of a server cannot say.

A credentials file has a JWT of the user and the seed of its key pair, as `nsc generate creds` writes it. A server sends
a random text, and accepts its signature. The seed never leaves the process. Files are read at each connection, so that
replaced ones are used. Errors name no content of a file. The client reads such files too, but with the package `nkeys`,
of which there is no wheel; so it is given its documented callbacks.
"""

import base64
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509 import load_pem_x509_certificates

from app.settings.server import BusSettings

CREDENTIALS_SETTING: Final = "TURNKEEP_NATS_CREDENTIALS_FILE"
CA_SETTING: Final = "TURNKEEP_NATS_TLS_CA_FILE"
CERT_SETTING: Final = "TURNKEEP_NATS_TLS_CERT_FILE"
KEY_SETTING: Final = "TURNKEEP_NATS_TLS_KEY_FILE"
_SECTION: Final = re.compile(r"-{3,}BEGIN ([A-Z ]+)-{3,}\s+([A-Za-z0-9_.=+/-]+?)\s+-{3,}END [A-Z ]+-{3,}")
_KEY_START: Final = 2
_KEY_END: Final = 34
"""Place of the Ed25519 key in a seed, after the two bytes of its kind and before its checksum."""


class NatsFileError(Exception):
    """A file that cannot be used. The message has its kind, and never its content. `setting` names the file."""

    def __init__(self, message: str, *, setting: str, file: Path) -> None:
        super().__init__(message)
        self.setting = setting
        self.file = file


@dataclass(frozen=True, slots=True)
class UserCredentials:
    """The key pair of a NATS user, and its JWT."""

    key: Ed25519PrivateKey = field(repr=False)
    jwt: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "UserCredentials":
        """Read a file of credentials. Raises NatsFileError."""
        try:
            sections: Mapping[str, str] = dict(_SECTION.findall(path.read_text()))
        except (OSError, UnicodeDecodeError) as error:
            wrong = "the credentials file cannot be read"
            raise NatsFileError(wrong, setting=CREDENTIALS_SETTING, file=path) from error
        try:
            seed, jwt = sections["USER NKEY SEED"], sections["NATS USER JWT"]
            raw = base64.b32decode(seed + "=" * (-len(seed) % 8))[_KEY_START:_KEY_END]
            return cls(Ed25519PrivateKey.from_private_bytes(raw), jwt.encode())
        except (KeyError, ValueError):
            wrong = "the credentials file has no JWT and seed of a user"
            raise NatsFileError(wrong, setting=CREDENTIALS_SETTING, file=path) from None  # it would quote the seed

    def sign(self, nonce: str) -> bytes:
        """Return the signature of the text that a server sent."""
        return base64.b64encode(self.key.sign(nonce.encode()))


def _tls_context(settings: BusSettings) -> ssl.SSLContext:
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


def report_handshakes(context: ssl.SSLContext, on_handshake: Callable[[], None]) -> None:
    """Call a function after each TLS handshake of a context, its checks of the certificate included, that succeeds."""

    class ReportingObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            on_handshake()

    context.sslobject_class = ReportingObject


def _tls_error(setting: str, file: Path) -> NatsFileError:
    return NatsFileError("a file for TLS cannot be used", setting=setting, file=file)


def _is_certificate(file: Path) -> bool:
    try:
        return bool(load_pem_x509_certificates(file.read_bytes()))
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class LoginFiles:
    """What the files of the settings say: credentials, None if they are not set, and TLS."""

    credentials: UserCredentials | None
    tls: ssl.SSLContext

    @classmethod
    def read(cls, settings: BusSettings) -> "LoginFiles":
        """Read the files. Blocking. Raises NatsFileError."""
        file = settings.nats_credentials_file
        return cls(None if file is None else UserCredentials.read(file), _tls_context(settings))
