"""Every setting, in one frozen object that is passed in. Names are the environment's, with the prefix TURNKEEP_.

`docs/settings.md` lists them all with their defaults; a test keeps it complete.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from app.settings.hosts import Hosts
from app.settings.kinds import Names, NatsUrls, NotNegative, Positive, ServerUrl, Share, TokenTime, api_root, origins
from app.settings.models import ModelSettings

__all__ = ["Settings", "api_root"]


class Settings(ModelSettings):
    """Settings of one process. Units stand at the end of each name."""

    model_config = SettingsConfigDict(env_prefix="TURNKEEP_", frozen=True, extra="ignore")

    # where
    host: str = Field(default="127.0.0.1", description="Address the server listens on.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=8765, description="Port the server listens on.")
    url: ServerUrl | None = Field(
        default=None, description="Where commands find a running server; default: the address and port above."
    )
    api_key: SecretStr | None = Field(
        default=None, description="Key that those commands send; default: the admin key file."
    )
    data_dir: Path = Field(default=Path("data"), description="Holds the embedded Postgres and the admin key file.")

    @property
    def admin_key_path(self) -> Path:
        """The file that holds the admin key made at the first start."""
        return self.data_dir / "admin-key"

    @field_validator("database_url", "ops_database_url", "owner_database_url")
    @classmethod
    def _postgres_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        scheme, separator, rest = url.partition("://")
        if not separator or scheme.removesuffix("+asyncpg") not in {"postgresql", "postgres"}:
            raise ValueError("a database URL is like postgresql://user:password@host:5432/database")
        return f"postgresql://{rest}"

    # database
    database_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("TURNKEEP_DATABASE_URL", "DATABASE_URL", "database_url"),
        description="Postgres 15 or newer with pgvector 0.8 or newer; unset starts the embedded one in DATA_DIR.",
    )
    ops_database_url: str | None = Field(
        default=None, description="URL of the ops role (sweeps, keys of new tenants); default: DATABASE_URL."
    )
    owner_database_url: str | None = Field(
        default=None, description="URL of the role that owns the schema and migrates; default: DATABASE_URL."
    )
    database_pool_size: Positive = Field(default=10, description="Connections this process keeps to Postgres.")
    database_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="Longest time for one statement, and to wait for a connection."
    )
    embedded_shared_buffers_mb: Annotated[int, Field(ge=16)] = Field(
        default=256, description="shared_buffers of the embedded Postgres."
    )
    migrate_on_start: bool = Field(default=True, description="Whether `serve` brings the schema up to date first.")

    # tenancy
    bootstrap_key: SecretStr | None = Field(
        default=None, description="Admin key made valid at the first start (see `turnkeep keys generate`)."
    )
    secret_key: SecretStr | None = Field(
        default=None, description="Key of all HMACs; default: one made at the first migration and kept in the database."
    )
    key_cache_s: Annotated[float, Field(ge=0, le=60)] = Field(
        default=0.5, description="How long a checked API key is trusted before it is looked up again."
    )
    key_cache_entries: Positive = Field(default=10_000, description="Checked API keys remembered at most.")
    idempotency_ttl_h: Positive = Field(default=24, description="How long an Idempotency-Key is remembered.")
    token_ttl_s: TokenTime = Field(default=900, description="How long a conversation token holds that names no time.")
    token_max_ttl_s: TokenTime = Field(default=3600, description="The longest time a conversation token may name.")

    # browsers
    cors_origins: Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(origins)] = Field(
        default=None, description="Origins whose pages may call the API, parted by commas, or `*`; default: none."
    )

    allowed_hosts: Hosts = Field(
        default=None,
        validation_alias=AliasChoices("TURNKEEP_ALLOWED_HOSTS", "TURNKEEP_MCP_HOSTS", "allowed_hosts", "mcp_hosts"),
        description="Hosts that requests may name in `Host`, with commas between them, or `*`; default: loopback names"
        " where HOST is a loopback address, else any.",
    )

    # MCP
    enable_memory_tools: bool = Field(
        default=True, description="Whether the memory tools are among the tools for models."
    )
    mcp_profile: Literal["full", "small"] = Field(
        default="full", description="Which tools are offered: all, or four with flat arguments for small models."
    )
    mcp_hidden_tools: Names = Field(
        default=None, description="Tools that are not offered, parted by commas; default: none is hidden."
    )

    # limits
    max_request_bytes: Positive = Field(default=8 * 2**20, description="Largest request body.")
    max_bytes_in_flight: Positive | None = Field(
        default=None,
        description="Bytes of request bodies over 64 KiB that a process works on at once; default: twice"
        " MAX_REQUEST_BYTES or LIVE_FRAME_BYTES, the larger of both.",
    )
    in_flight_wait_s: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=10.0, description="How long a request waits, unread, for room among the bytes in flight."
    )
    body_timeout_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=60.0, description="How long after its head a request body may take to be whole."
    )
    max_json_depth: Positive = Field(default=32, description="Deepest nesting of a JSON body.")
    max_turns_per_append: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=500, description="Most turns in one append."
    )
    max_text_bytes: Positive = Field(default=2**20, description="Largest text of one part, in UTF-8 bytes.")
    max_metadata_bytes: Positive = Field(
        default=16 * 2**10, description="Largest metadata object, as JSON in UTF-8 bytes."
    )
    max_memory_bytes: Annotated[int, Field(ge=1, le=2**20)] = Field(
        default=64 * 2**10, description="Largest long-term memory, in UTF-8 bytes."
    )
    max_answer_bytes: Positive = Field(
        default=16 * 2**20,
        description="Text of turns that one answer gives: a page ends there, a recall leaves out what comes after.",
    )
    clock_skew_s: NotNegative = Field(default=300, description="How far in the future occurred_at may lie.")
    graceful_shutdown_s: Positive = Field(
        default=10, description="How long requests under way may take after a stop signal."
    )

    # streaming
    stream_debounce_ms: Annotated[int, Field(ge=10, le=10_000)] = Field(
        default=250, description="Text of an open turn is written at most this often."
    )
    stream_lease_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=60.0, description="An open turn whose writer is not heard of for so long is aborted."
    )
    stream_handover_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=1000, description="How long a replica waits until another one has written and released an open turn."
    )
    stream_sweep_s: Annotated[float, Field(ge=0.1, le=600)] = Field(
        default=5.0, description="How often open turns are looked through for such."
    )
    max_chunk_bytes: Annotated[int, Field(ge=1)] = Field(
        default=64 * 2**10, description="Largest chunk of an open turn's text, in UTF-8 bytes."
    )
    max_open_turns_per_conversation: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=64, description="Turns open at once in a conversation."
    )
    max_open_turns: Positive = Field(default=2000, description="Turns open at once in all conversations of a tenant.")
    max_open_turns_per_token: Positive = Field(
        default=8, description="Turns of its actor open at once beyond which a conversation token opens no more."
    )
    max_unflushed_characters: Positive = Field(
        default=64 * 2**20, description="Text that a process takes while the database does not answer."
    )

    # live view
    live_queue_frames: Positive = Field(default=1000, description="Frames that wait for a subscriber, at most.")
    live_queue_bytes: Positive = Field(
        default=2**20,
        description="Bytes of frames that wait for a subscriber, and of answers that wait for a client, at most.",
    )
    live_open_bytes: Positive = Field(
        default=4 * 2**20, description="Text of a conversation's open turns that its followers are shown, at most."
    )
    live_snapshot_turns: Annotated[int, Field(ge=0, le=200)] = Field(
        default=50, description="Newest turns that a subscriber is shown who does not say where it goes on."
    )
    live_check_s: Annotated[float, Field(ge=0.1, le=600)] = Field(
        default=10.0, description="How often followed conversations are compared with their rows."
    )
    live_frame_bytes: Annotated[int, Field(ge=1024)] = Field(
        default=2**20, description="Largest frame that a client may send."
    )
    live_frames_per_s: Annotated[float, Field(gt=0)] = Field(
        default=2000.0, description="Frames of one connection that are carried out a second."
    )
    live_bytes_per_s: Annotated[int, Field(ge=1024)] = Field(
        default=2 * 2**20, description="Bytes of frames of one connection that are carried out a second."
    )
    live_bad_frames: Positive = Field(
        default=20, description="Frames in a row that cannot be read before a connection is closed."
    )
    live_auth_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="How long a connection without a key may take to send one."
    )
    live_recheck_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="How often the key of a connection is looked up again."
    )
    live_heartbeat_s: Annotated[float, Field(gt=0)] = Field(
        default=15.0, description="How often a live connection is sent a sign of life."
    )
    live_stall_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="How long a connection may take nothing of what is sent before it is cut."
    )
    live_max_connections: Positive = Field(
        default=10_000, description="Live connections of one process, WebSockets and event streams together."
    )
    live_max_connections_per_tenant: Positive = Field(
        default=5000, description="Live connections of one tenant to one process."
    )
    live_max_connections_per_key: Positive = Field(
        default=2500, description="Live connections of one key, with the tokens made by it, to one process."
    )
    live_max_connections_per_token: Positive = Field(
        default=20,
        description="Live connections to one process of a token's actor in its conversation, or a token without one.",
    )
    live_max_unauthenticated: Positive = Field(
        default=500, description="WebSockets of one process that have not said yet who they are."
    )

    # jobs
    worker_in_process: bool = Field(default=True, description="Whether `serve` runs jobs; if not, `turnkeep worker`.")
    worker_concurrency: Positive = Field(default=4, description="Jobs that one process runs at a time.")
    job_poll_s: Annotated[float, Field(ge=0.05, le=60)] = Field(
        default=1.0, description="How often a worker looks for jobs that nobody told it of."
    )
    job_lease_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=30.0, description="How long a job stays with a worker that is not heard of."
    )
    job_timeout_s: Annotated[float, Field(gt=0)] = Field(default=600.0, description="Longest time of one attempt.")
    job_max_attempts: Positive = Field(default=20, description="Attempts before a failing job is parked.")
    job_retry_base_s: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Wait after the first failure; it doubles with each."
    )
    job_retry_max_s: Annotated[float, Field(gt=0)] = Field(default=900.0, description="Longest wait between attempts.")
    sweep_interval_s: Annotated[float, Field(ge=1)] = Field(
        default=60.0, description="How often what has expired is removed."
    )
    backfill_interval_s: Annotated[float, Field(ge=1)] = Field(
        default=600.0, description="How often turns are looked for that have no vector in the embedding space."
    )

    # the bus between processes
    nats_url: NatsUrls | None = Field(
        default=None, description="NATS servers that carry live messages; unset: Postgres carries them."
    )
    nats_subject: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=200)] = Field(
        default="turnkeep.live", description="Subject of this installation on them."
    )
    bus_queue_bytes: Annotated[int, Field(ge=65_536)] = Field(
        default=16 * 2**20, description="Live messages that wait to be sent, at most."
    )

    # generation: answers of the chat model to whoever asks for them
    generation_timeout_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=600.0, description="Longest time for one answer, retries and its whole stream included."
    )
    generation_concurrency: Positive = Field(
        default=100, description="Such answers under way at once in this process; more wait."
    )

    # index and recall
    max_vectors_per_entry: Positive = Field(
        default=32, description="Long text gets a vector per piece, up to this many."
    )
    max_vectors_per_append: Positive = Field(
        default=32,
        description="Vectors made before an append answers; turns beyond are found by text until a job has made them.",
    )
    index_text_bytes: Positive = Field(
        default=256 * 2**10, description="How much of a turn's text is analysed for search."
    )
    session_gap_s: Positive = Field(
        default=3600, description="A longer silence starts a new session of the turns to come."
    )
    max_query_lexemes: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=64, description="Distinct words of a query that are searched for; of a longer one, the first."
    )
    recall_pool: Annotated[int, Field(ge=20, le=1000)] = Field(
        default=100, description="Candidates taken from each of vector and text search before they are ranked."
    )
    exact_scope_entries: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=20_000, description="Scopes of up to so many entries are searched exactly, wider ones by indexes."
    )
    text_candidates: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        default=50_000, description="In a wider scope so many entries that share a word with the query are compared."
    )
    tier_fresh_vectors: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=2000, description="So many vectors of a wide tenant wait before they go into the vector index."
    )
    hnsw_ef_search: Annotated[int, Field(ge=40, le=1000)] = Field(
        default=200, description="Candidates that a search of the vector index keeps in view."
    )
    hnsw_max_scan_tuples: Annotated[int, Field(ge=1000, le=10_000_000)] = Field(
        default=40_000, description="Vectors that such a search looks at before it gives up, and goes on exactly."
    )

    # context
    max_context_messages: Positive = Field(
        default=50, description="Newest turns a context shows before all else when the call names no number."
    )
    context_margin: Annotated[float, Field(ge=1, le=4)] = Field(
        default=1.35, description="Safety factor on counts for formats whose tokenizer is not public."
    )
    floor_recent: Share = Field(default=0.40, description="Share of the budget kept for recent turns.")
    floor_summary: Share = Field(default=0.15, description="Share of the budget kept for the summary.")
    floor_other: Share = Field(default=0.05, description="Share kept for each of facts, memories and recalled.")

    # long-term memory, and the turn lifecycle
    search_limit: Annotated[int, Field(ge=1, le=100)] = Field(
        default=5, description="Most long-term memories of a context, and most turns recalled for a session's turn."
    )
    recent_context_items: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=30, description="Newest turns of a session that the context of its next turn shows before all else."
    )
    max_input_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        default=120_000, description="`max_input_tok` of a turn that names none."
    )
    compact_threshold: Share = Field(default=0.8, description="Part of max_input_tok that has a session compacted.")
    compaction_min_age_hours: NotNegative = Field(default=24, description="Age at which maintenance summarises turns.")
    session_lock_wait_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=200, description="How long a turn waits for its session before it is told to come again."
    )
    operation_ttl_s: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=900, description="How long the operation token of a prepared turn holds."
    )

    # compaction: the policy of a conversation that names none, and how much highlights say
    compaction_trigger_turns: Positive = Field(
        default=50, description="Live unsummarised turns that trigger compaction."
    )
    compaction_trigger_tokens: Positive = Field(default=8000, description="Their tokens that trigger compaction.")
    summary_refresh_interval_minutes: Positive = Field(
        default=60, description="How often highlights are looked for that a chat model may replace by a summary."
    )
    highlight_tokens: Annotated[int, Field(ge=100, le=100_000)] = Field(
        default=800, description="Most tokens of highlights, which stand for turns that no model has summarised."
    )
    erase_without_summary: bool = Field(
        default=False,
        description="Whether retention erases what no model has summarised, which leaves `erased_sources`.",
    )

    # facts
    fact_extraction_enabled: bool = Field(
        default=False, description="Whether facts are extracted from conversations that do not say so themselves."
    )
    recall_facts_limit: Annotated[int, Field(ge=1, le=200)] = Field(
        default=20, description="Facts that a context looks at, at most."
    )
    l1_retention_days: Annotated[int, Field(ge=1, le=36_500)] = Field(
        default=1, description="How long a fact of the tier l1 is kept."
    )
    l2_retention_days: Annotated[int, Field(ge=1, le=36_500)] = Field(
        default=7, description="How long a fact of the tier l2 is kept."
    )

    # lifetimes
    conversation_ttl_hours: NotNegative = Field(
        default=0, description="Time to live of conversations that name none; 0: none."
    )

    # telemetry
    metrics_key: Annotated[SecretStr, Field(min_length=16)] | None = Field(
        default=None, description="Key that /metrics needs, as `Authorization: Bearer`; default: it needs none."
    )
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Port of its own for /metrics, on the same address; default: PORT."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    log_format: Literal["json", "console"] | None = Field(
        default=None,
        description="One JSON object a line, or text for people; default: text on a terminal, JSON elsewhere.",
    )

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of larger request bodies that a process works on at once, of which a tenant gets at most half."""
        return self.max_bytes_in_flight or 2 * max(self.max_request_bytes, self.live_frame_bytes)

    @model_validator(mode="after")
    def _a_tenants_share_has_room_for_the_largest_request(self) -> Self:
        if self.bytes_in_flight < 2 * max(self.max_request_bytes, self.live_frame_bytes):
            raise ValueError(
                "TURNKEEP_MAX_BYTES_IN_FLIGHT is less than twice"
                " TURNKEEP_MAX_REQUEST_BYTES or TURNKEEP_LIVE_FRAME_BYTES"
            )
        return self

    @model_validator(mode="after")
    def _metrics_have_a_port_of_their_own(self) -> Self:
        if self.metrics_port == self.port:
            raise ValueError("TURNKEEP_METRICS_PORT is the same as TURNKEEP_PORT: leave it out")
        return self

    @model_validator(mode="after")
    def _tokens_without_a_time_hold_no_longer_than_any(self) -> Self:
        if self.token_ttl_s > self.token_max_ttl_s:
            raise ValueError("TURNKEEP_TOKEN_TTL_S is longer than TURNKEEP_TOKEN_MAX_TTL_S")
        return self
