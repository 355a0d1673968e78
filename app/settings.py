"""Every setting, in one frozen object that is passed in. Names are the environment's, with the prefix TURNKEEP_.

`docs/settings.md` lists them all with their defaults; a test keeps it complete.
"""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
TokenTime = Annotated[int, Field(ge=1, le=3600)]
Money = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]

_ENDPOINTS = ("/embeddings", "/chat/completions")


def api_root(url: str) -> str:
    """The root of an OpenAI-compatible API, from its host, its `/v1` or the full URL of an endpoint."""
    parts = _base_url(url)
    path = parts.path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(endpoint)
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def server_url(url: str) -> str:
    """The root of a Turnkeep, without a slash at its end."""
    parts = _base_url(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _base_url(url: str) -> SplitResult:
    parts = urlsplit(url.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a base URL is absolute: http:// or https:// and a host")
    if parts.query or parts.fragment or url.strip().endswith(("?", "#")):
        raise ValueError("a base URL has no query and no fragment")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a base URL holds no login; the key has a setting of its own")
    return parts


ApiRoot = Annotated[str, AfterValidator(api_root)]
ServerUrl = Annotated[str, AfterValidator(server_url)]


def origins(given: object) -> object:
    """The origins in a text, parted by commas, as browsers write them."""
    if not isinstance(given, str):
        return given
    found = tuple(dict.fromkeys(text for item in given.split(",") if (text := item.strip().lower())))
    for origin in found:
        parts = urlsplit(origin)
        if origin != "*" and (not parts.scheme or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"):
            raise ValueError("an origin is a scheme and a host, such as https://chat.example.com, without a path")
    return found or None


def nats_urls(urls: SecretStr) -> SecretStr:
    """The URLs of the NATS servers of one cluster, separated by commas."""
    for url in urls.get_secret_value().split(","):
        try:
            parts = urlsplit(url.strip())
            good = parts.scheme in {"nats", "tls"} and bool(parts.hostname) and parts.port != 0
            good = good and parts.path in {"", "/"} and not parts.query and not parts.fragment
        except ValueError:  # not handed on: its words may quote the URL, and with it the password
            good = False
        if not good:
            raise ValueError("a NATS URL is like nats://user:password@host:4222 or tls://…; commas between several")
    return urls


NatsUrls = Annotated[SecretStr, AfterValidator(nats_urls)]


class Settings(BaseSettings):
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

    # limits
    max_request_bytes: Positive = Field(default=8 * 2**20, description="Largest request body.")
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

    # the chat model
    llm_model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="The chat model; naming one switches on what needs it."
    )
    llm_base_url: ApiRoot | None = Field(default=None, description="Its endpoint; default: OpenAI's own.")
    llm_api_key: SecretStr | None = Field(default=None, description="Its key; default: OPENAI_API_KEY.")
    llm_timeout_ms: Annotated[int, Field(ge=100, le=600_000)] = Field(
        default=12_000, description="Longest time for one call to it, retries and repairs included."
    )
    llm_max_output_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = Field(
        default=800, description="Longest answer of it, where a call names no limit."
    )
    llm_max_retries: Annotated[int, Field(ge=0, le=10)] = Field(
        default=2, description="How often a request that failed for the moment is sent again within that time."
    )
    llm_concurrency: Positive = Field(
        default=4, description="Calls under way to it at once, for jobs and for people who wait each."
    )
    llm_context_tokens: Annotated[int, Field(ge=256, le=10_000_000)] = Field(
        default=128_000, description="Tokens that it reads and writes in one call: its window."
    )
    llm_price_prompt: Money = Field(default=0.0, description="Price of a million tokens that it reads.")
    llm_price_completion: Money = Field(default=0.0, description="Price of a million tokens that it writes.")
    llm_daily_tokens: NotNegative = Field(
        default=0, description="Tokens that a tenant may spend on it in a day (UTC); 0: no limit."
    )
    llm_daily_cost: Money = Field(
        default=0.0, description="What a tenant may spend on it in a day (UTC), by the prices above; 0: no limit."
    )

    # index and recall
    embedder: Literal["local", "openai", "none"] = Field(
        default="local",
        description="`local`: the bundled model; `openai`: OpenAI or a compatible endpoint; `none`: text only.",
    )
    openai_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("TURNKEEP_OPENAI_API_KEY", "OPENAI_API_KEY", "openai_api_key"),
        description="Key for OpenAI itself; never sent to another host.",
    )
    embeddings_base_url: ApiRoot | None = Field(
        default=None, description="Endpoint of the embedder `openai`; default: OpenAI's own."
    )
    embeddings_api_key: SecretStr | None = Field(default=None, description="Its key; default: OPENAI_API_KEY.")
    embeddings_model: Annotated[str, Field(min_length=1)] = Field(
        default="text-embedding-3-small", description="Its model."
    )
    embeddings_dimensions: Annotated[int, Field(ge=1, le=16_000)] | None = Field(
        default=None, description="Dimensions of its vectors; default: the model's own."
    )
    embeddings_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="Longest time for one request to it, retries included."
    )
    embeddings_max_retries: Annotated[int, Field(ge=0, le=10)] = Field(
        default=2, description="How often a request that failed for the moment is sent again within that time."
    )
    embeddings_concurrency: Positive = Field(
        default=4, description="Requests under way to it at once, of documents and of queries each."
    )
    embeddings_batch: Annotated[int, Field(ge=1, le=2048)] = Field(
        default=128, description="Most texts in one request to it."
    )
    embeddings_piece_tokens: Annotated[int, Field(ge=32, le=8000)] = Field(
        default=512, description="Long text is cut into pieces of about this many tokens."
    )
    embedder_threads: NotNegative = Field(
        default=0, description="Threads of the bundled model; 0: one per core, at most 4."
    )
    max_vectors_per_entry: Positive = Field(
        default=32, description="Long text gets a vector per piece, up to this many."
    )
    max_vectors_per_append: Positive = Field(
        default=128,
        description="Vectors made before an append answers; turns beyond are found by text until a job has made them.",
    )
    index_text_bytes: Positive = Field(
        default=256 * 2**10, description="How much of a turn's text is analysed for search."
    )
    session_gap_s: Positive = Field(
        default=3600, description="A longer silence starts a new session of the turns to come."
    )
    max_query_lexemes: Positive = Field(
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
        default=50, description="Recent turns a context looks at when the call names none."
    )
    context_margin: Annotated[float, Field(ge=1, le=4)] = Field(
        default=1.35, description="Safety factor on counts for formats whose tokenizer is not public."
    )
    floor_recent: Share = Field(default=0.40, description="Share of the budget kept for recent turns.")
    floor_summary: Share = Field(default=0.15, description="Share of the budget kept for the summary.")
    floor_other: Share = Field(default=0.05, description="Share kept for each of facts, memories and recalled.")

    # long-term memory
    search_limit: Annotated[int, Field(ge=1, le=100)] = Field(
        default=5, description="Most long-term memories that a context with `include_memories` is given."
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
        default=False, description="Whether retention erases what no model has summarised, which leaves a gap."
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
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    log_format: Literal["json", "console"] = Field(
        default="json", description="One JSON object a line, or text for people."
    )

    @model_validator(mode="after")
    def _tokens_without_a_time_hold_no_longer_than_any(self) -> Self:
        if self.token_ttl_s > self.token_max_ttl_s:
            raise ValueError("TURNKEEP_TOKEN_TTL_S is longer than TURNKEEP_TOKEN_MAX_TTL_S")
        return self

    @model_validator(mode="after")
    def _remote_embedder_has_a_key(self) -> Self:
        if self.embedder == "openai" and self.embeddings_base_url is None and not self.key_of_embeddings:
            raise ValueError("TURNKEEP_EMBEDDER=openai needs TURNKEEP_EMBEDDINGS_API_KEY or OPENAI_API_KEY")
        return self

    @model_validator(mode="after")
    def _chat_model_is_named_and_has_an_endpoint(self) -> Self:
        if self.llm_model is None and (self.llm_base_url is not None or self.llm_api_key is not None):
            raise ValueError("TURNKEEP_LLM_BASE_URL and TURNKEEP_LLM_API_KEY need TURNKEEP_LLM_MODEL")
        if self.llm_model is not None and self.llm_base_url is None and not self.key_of_llm:
            raise ValueError(
                "TURNKEEP_LLM_MODEL needs TURNKEEP_LLM_BASE_URL, or for OpenAI itself TURNKEEP_LLM_API_KEY or"
                " OPENAI_API_KEY"
            )
        if self.llm_daily_cost and not (self.llm_price_prompt or self.llm_price_completion):
            raise ValueError("TURNKEEP_LLM_DAILY_COST needs TURNKEEP_LLM_PRICE_PROMPT and _COMPLETION")
        return self

    @property
    def key_of_embeddings(self) -> str | None:
        """The key sent to the embedding endpoint; OpenAI's own key goes to OpenAI alone."""
        return self._key_for(self.embeddings_base_url, self.embeddings_api_key)

    @property
    def key_of_llm(self) -> str | None:
        """The key sent to the chat model's endpoint; OpenAI's own key goes to OpenAI alone."""
        return self._key_for(self.llm_base_url, self.llm_api_key)

    def _key_for(self, base_url: str | None, own: SecretStr | None) -> str | None:
        if own is not None:
            return own.get_secret_value()
        if base_url is None or urlsplit(base_url).hostname == "api.openai.com":
            return None if self.openai_api_key is None else self.openai_api_key.get_secret_value()
        return None
