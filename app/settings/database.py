"""Settings of what every process keeps going: the database, tenancy, jobs."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator

from app.settings.group import SettingsGroup
from app.settings.kinds import Positive, TokenTime


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
    """Keys and tokens."""

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
    token_max_ttl_s: TokenTime = Field(default=3600, description="Maximum `ttl_s` of a conversation token.")


class JobSettings(SettingsGroup):
    """Jobs and the workers that run them."""

    worker_in_process: bool = Field(
        default=True, description="Whether `serve` runs jobs; otherwise `turnkeep worker` does."
    )
    worker_concurrency: Positive = Field(default=4, description="Jobs that one process runs at a time.")
    job_lease_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=30.0, description="Time without a sign of life of its worker after which a job goes to another one."
    )
    job_timeout_s: Annotated[float, Field(gt=0)] = Field(default=600.0, description="Longest time of one attempt.")
    job_max_attempts: Positive = Field(default=20, description="Attempts before a failing job is parked.")
    job_retry_max_s: Annotated[float, Field(gt=0)] = Field(default=900.0, description="Longest wait between attempts.")
    sweep_interval_s: Annotated[float, Field(ge=1)] = Field(
        default=60.0, description="Time between two removals of expired data."
    )
    summary_refresh_interval_minutes: Positive = Field(
        default=60, description="Time between two searches for highlights that a chat model can replace by a summary."
    )

    @property
    def summary_refresh_interval_s(self) -> float:
        """The same in seconds."""
        return self.summary_refresh_interval_minutes * 60.0
