"""Settings of what every process keeps going: the database, tenancy, jobs."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator

from app.settings.group import SettingsGroup
from app.settings.kinds import NotNegative, Positive, TokenTime


class DatabaseSettings(SettingsGroup):
    """Postgres: where it is, and what its connections are set to."""

    data_dir: Path = Field(
        default=Path("data"), description="Folder of the embedded Postgres and of the file `admin-key`."
    )
    database_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("TURNKEEP_DATABASE_URL", "DATABASE_URL", "database_url"),
        description="Postgres 15 or newer with pgvector 0.8 or newer; default: the embedded one in DATA_DIR.",
    )
    database_read_url: str | None = Field(
        default=None,
        description="Standbys of DATABASE_URL that answer reads; default: the primary answers all.",
    )
    database_read_wait_ms: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=50, description="Longest time that a read waits for a standby to catch up, before the primary answers."
    )
    ops_database_url: str | None = Field(
        default=None, description="URL of the ops role (jobs, expiry, keys of new tenants); default: DATABASE_URL."
    )
    owner_database_url: str | None = Field(
        default=None, description="URL of the role that owns the schema and migrates; default: DATABASE_URL."
    )
    database_pooler: bool = Field(
        default=False,
        description="Whether DATABASE_URL and DATABASE_READ_URL lead to a pooler; OWNER_DATABASE_URL leads past it.",
    )
    database_pool_size: Positive = Field(
        default=10, description="Connections of this process to Postgres; two more for the ops role."
    )
    database_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="Longest time for one statement, an idle transaction, and to wait for a connection."
    )
    embedded_shared_buffers_mb: Annotated[int, Field(ge=16)] = Field(
        default=256, description="`shared_buffers` of the embedded Postgres."
    )
    migrate_on_start: bool = Field(default=True, description="Whether `serve` brings the schema up to date first.")
    hnsw_ef_search: Annotated[int, Field(ge=40, le=1000)] = Field(
        default=200, description="Candidates that a search of the vector index considers at once."
    )
    hnsw_max_scan_tuples: Annotated[int, Field(ge=1000, le=10_000_000)] = Field(
        default=40_000, description="Vectors after which such a search ends; the rest is searched exactly."
    )

    @field_validator("database_url", "database_read_url", "ops_database_url", "owner_database_url")
    @classmethod
    def _postgres_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        scheme, separator, rest = url.partition("://")
        if not separator or scheme.removesuffix("+asyncpg") not in {"postgresql", "postgres"}:
            raise ValueError("a database URL is like postgresql://user:password@host:5432/database")
        return f"postgresql://{rest}"

    @model_validator(mode="after")
    def _standby_has_a_primary(self) -> Self:
        if self.database_read_url is not None and self.database_url is None:
            raise ValueError("TURNKEEP_DATABASE_READ_URL needs TURNKEEP_DATABASE_URL with the primary")
        return self

    @model_validator(mode="after")
    def _pooler_can_be_passed(self) -> Self:
        if self.database_pooler and (self.database_url is None or self.owner_database_url is None):
            raise ValueError(
                "TURNKEEP_DATABASE_POOLER needs TURNKEEP_DATABASE_URL with the pooler, and TURNKEEP_OWNER_DATABASE_URL"
                " with Postgres itself"
            )
        return self


class TenancySettings(SettingsGroup):
    """Keys, tokens and idempotency."""

    bootstrap_key: SecretStr | None = Field(
        default=None, description="Admin key that the first start creates (see `turnkeep keys generate`)."
    )
    secret_key: SecretStr | None = Field(
        default=None,
        description="Key of all HMACs; a change makes all API keys invalid. Default: one made by the first migration.",
    )
    key_cache_s: Annotated[float, Field(ge=0, le=60)] = Field(
        default=0.5, description="Time that a checked API key is cached; a revoked one may work for so long."
    )
    key_expiry_warning_days: NotNegative = Field(
        default=7, description="Days before its expiry from which the use of a key is logged as a warning."
    )
    key_cache_entries: Positive = Field(default=10_000, description="Maximum number of cached API keys.")
    idempotency_ttl_h: Positive = Field(default=24, description="Time that an Idempotency-Key is valid.")
    token_ttl_s: TokenTime = Field(default=900, description="Lifetime of a conversation token without `ttl_s`.")
    token_max_ttl_s: TokenTime = Field(default=3600, description="Maximum `ttl_s` of a conversation token.")

    @model_validator(mode="after")
    def _default_token_ttl_is_allowed(self) -> Self:
        if self.token_ttl_s > self.token_max_ttl_s:
            raise ValueError("TURNKEEP_TOKEN_TTL_S is longer than TURNKEEP_TOKEN_MAX_TTL_S")
        return self


class JobSettings(SettingsGroup):
    """Jobs and the workers that run them."""

    worker_in_process: bool = Field(
        default=True, description="Whether `serve` runs jobs; otherwise `turnkeep worker` does."
    )
    worker_concurrency: Positive = Field(default=4, description="Jobs that one process runs at a time.")
    job_poll_s: Annotated[float, Field(ge=0.05, le=60)] = Field(
        default=1.0, description="Time between two searches for jobs that no message announced."
    )
    job_lease_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=30.0, description="Time without a sign of life of its worker after which a job goes to another one."
    )
    job_timeout_s: Annotated[float, Field(gt=0)] = Field(default=600.0, description="Longest time of one attempt.")
    job_max_attempts: Positive = Field(default=20, description="Attempts before a failing job is parked.")
    job_retry_base_s: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Wait after the first failure; it doubles with each."
    )
    job_retry_max_s: Annotated[float, Field(gt=0)] = Field(default=900.0, description="Longest wait between attempts.")
    operation_run_s: Annotated[float, Field(ge=0, le=300)] = Field(
        default=20.0, description="Time that an operation runs before jobs that wait have their turn."
    )
    operation_kept_h: Positive = Field(default=24, description="Time that an operation is kept after its end.")
    max_open_operations: Positive = Field(
        default=100, description="Maximum number of operations of one kind of a tenant that have not ended."
    )
    sweep_interval_s: Annotated[float, Field(ge=1)] = Field(
        default=60.0, description="Time between two removals of expired data."
    )
    backfill_interval_s: Annotated[float, Field(ge=1)] = Field(
        default=600.0, description="Time between two searches for turns without a vector in the embedding space."
    )
    summary_refresh_interval_minutes: Positive = Field(
        default=60, description="Time between two searches for highlights that a chat model can replace by a summary."
    )

    @property
    def summary_refresh_interval_s(self) -> float:
        """The same in seconds."""
        return self.summary_refresh_interval_minutes * 60.0
