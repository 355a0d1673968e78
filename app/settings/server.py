"""Settings of the server: address, browsers, requests, the bus between processes, telemetry."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, FilePath, SecretStr, model_validator
from pydantic_settings import NoDecode

from app.settings.group import SettingsGroup
from app.settings.hosts import Hosts
from app.settings.kinds import NatsUrls, Positive, ServerUrl, origins


class ServerSettings(SettingsGroup):
    """The address of the server, and how commands reach it."""

    host: str = Field(default="127.0.0.1", description="Address the server listens on.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=8765, description="Port the server listens on; 0: a free one."
    )
    processes: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1,
        description="Server processes that `serve` starts on the port, with a worker beside if more than one.",
    )
    url: ServerUrl | None = Field(
        default=None, description="Where commands find a running server; default: the address and port above."
    )
    api_key: SecretStr | None = Field(
        default=None, description="Key that those commands send; default: the admin key file."
    )
    graceful_shutdown_s: Positive = Field(
        default=10, description="Time that running requests and jobs may take after a stop signal."
    )


class BrowserSettings(SettingsGroup):
    """Which pages may call the API, and under which host names."""

    cors_origins: Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(origins)] = Field(
        default=None, description="Origins whose pages may call the API, separated by commas, or `*`; default: none."
    )
    allowed_hosts: Hosts = Field(
        default=None,
        description="Hosts that requests may name in `Host`, separated by commas, or `*`; default: loopback names if"
        " HOST is a loopback address, otherwise any.",
    )


class RequestSettings(SettingsGroup):
    """Limits on request bodies."""

    max_request_bytes: Positive = Field(default=8 * 2**20, description="Largest request body.")
    body_timeout_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=60.0, description="Time after its head within which a request body must be complete."
    )
    import_max_bytes: Positive = Field(default=2**30, description="Largest upload of an import, after decompression.")
    max_json_depth: Positive = Field(default=32, description="Deepest nesting of a JSON body.")


class BusSettings(SettingsGroup):
    """The bus between processes."""

    nats_url: NatsUrls | None = Field(
        default=None,
        description="NATS servers of one cluster that carry live messages, with commas between; default: Postgres.",
    )
    nats_credentials_file: FilePath | None = Field(
        default=None, description="Login with a key pair: a `.creds` file; default: the login in the URL."
    )
    nats_tls_ca_file: FilePath | None = Field(
        default=None,
        description="Certificates of the authorities that sign those of the NATS servers; default: the system's.",
    )
    nats_tls_cert_file: FilePath | None = Field(
        default=None, description="Certificate that this process shows to the NATS servers; default: none."
    )
    nats_tls_key_file: FilePath | None = Field(default=None, description="Private key of that certificate.")
    nats_subject: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=200)] = Field(
        default="turnkeep.live", description="Subject of this installation on the NATS servers."
    )

    @model_validator(mode="after")
    def _nats_files_can_be_used(self) -> Self:
        urls = [] if self.nats_url is None else self.nats_url.get_secret_value().split(",")
        is_tls = bool(urls) and all(url.strip().lower().startswith("tls://") for url in urls)
        if (self.nats_tls_ca_file or self.nats_tls_cert_file) and not is_tls:
            raise ValueError(
                "TURNKEEP_NATS_TLS_CA_FILE and TURNKEEP_NATS_TLS_CERT_FILE need tls:// in TURNKEEP_NATS_URL"
            )
        if (self.nats_tls_cert_file is None) != (self.nats_tls_key_file is None):
            raise ValueError("TURNKEEP_NATS_TLS_CERT_FILE and TURNKEEP_NATS_TLS_KEY_FILE are set together")
        if self.nats_credentials_file is not None and (not urls or any("@" in url for url in urls)):
            raise ValueError("TURNKEEP_NATS_CREDENTIALS_FILE needs TURNKEEP_NATS_URL without a login in it")
        return self


class TelemetrySettings(SettingsGroup):
    """Metrics and logs."""

    metrics_key: Annotated[SecretStr, Field(min_length=16)] | None = Field(
        default=None, description="Key that /metrics requires, as `Authorization: Bearer`; default: none is required."
    )
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Separate port for /metrics, on the same address; default: PORT."
    )
    slow_call_ms: Positive = Field(
        default=1000, description="Duration from which a call is kept as slow, in milliseconds."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )
    log_format: Literal["json", "console"] | None = Field(
        default=None,
        description="One JSON object per line, or text for people; default: text on a terminal, JSON elsewhere.",
    )
