"""Settings of models: the chat model, the embedders, and the tools that models are offered."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, model_validator

from app.settings.group import SettingsGroup
from app.settings.kinds import ApiRoot, Money, Names, NotNegative, Positive, RerankUrl

OPENAI_ROOT: Final = "https://api.openai.com/v1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is reached, and under which name."""

    base_url: str
    api_key: str | None
    model: str
    dimensions: int | None = None
    """Dimensions of an embedder's vectors; None: the model's own."""


class _OpenAISettings(SettingsGroup):
    """The key of OpenAI itself, which both groups of endpoints can use."""

    openai_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("TURNKEEP_OPENAI_API_KEY", "OPENAI_API_KEY", "openai_api_key"),
        description="Key for OpenAI itself; never sent to another host.",
    )

    def _key_for(self, base_url: str | None, own: SecretStr | None) -> str | None:
        """Return the key sent to an endpoint; OpenAI's own key goes to OpenAI alone."""
        if own is not None:
            return own.get_secret_value()
        if base_url is None or urlsplit(base_url).hostname == "api.openai.com":
            return None if self.openai_api_key is None else self.openai_api_key.get_secret_value()
        return None


class ChatSettings(_OpenAISettings):
    """The chat model: its endpoint, limits, prices and budgets; generated answers."""

    llm_model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="The chat model; naming one enables the features that need it."
    )
    llm_base_url: ApiRoot | None = Field(default=None, description="Its endpoint; default: OpenAI's own.")
    llm_api_key: SecretStr | None = Field(default=None, description="Its key; default: OPENAI_API_KEY.")
    llm_timeout_ms: Annotated[int, Field(ge=100, le=600_000)] = Field(
        default=12_000, description="Longest time for one interactive call to it, retries and repairs included."
    )
    llm_job_timeout_s: Annotated[float, Field(ge=0.1, le=3600)] = Field(
        default=180.0, description="The same for calls of jobs: summaries, facts, redaction, titles."
    )
    llm_max_output_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = Field(
        default=800, description="Maximum tokens of one answer, if a call names no limit."
    )
    llm_max_retries: Annotated[int, Field(ge=0, le=10)] = Field(
        default=2, description="How often a request that failed temporarily is repeated within that time."
    )
    llm_concurrency: Positive = Field(
        default=4, description="Maximum simultaneous calls to it, separately for jobs and for interactive requests."
    )
    llm_context_tokens: Annotated[int, Field(ge=256, le=10_000_000)] = Field(
        default=128_000, description="Tokens that it reads and writes in one call: its window."
    )
    llm_price_prompt: Money = Field(default=0.0, description="Price of a million tokens that it reads.")
    llm_price_completion: Money = Field(default=0.0, description="Price of a million tokens that it writes.")
    llm_daily_tokens: NotNegative = Field(
        default=0, description="Tokens that a tenant may spend on it per day (UTC); 0: no limit."
    )
    llm_daily_cost: Money = Field(
        default=0.0, description="Cost that a tenant may cause per day (UTC), by the prices above; 0: no limit."
    )
    title_generation_enabled: bool = Field(
        default=True, description="Whether it writes titles of conversations that have none from their callers."
    )
    generation_timeout_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=600.0, description="Longest time for one generated answer, retries and its whole stream included."
    )

    @model_validator(mode="after")
    def _model_has_a_name_and_an_endpoint(self) -> Self:
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
    def key_of_llm(self) -> str | None:
        """The key sent to the endpoint."""
        return self._key_for(self.llm_base_url, self.llm_api_key)

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint; None: there is no chat model."""
        if self.llm_model is None:
            return None
        return Endpoint(self.llm_base_url or OPENAI_ROOT, self.key_of_llm, self.llm_model)

    @property
    def llm_timeout_s(self) -> float:
        """The longest time for one call, in seconds."""
        return self.llm_timeout_ms / 1000

    @property
    def title_model(self) -> str | None:
        """The model that writes titles; None: no model does."""
        return self.llm_model if self.title_generation_enabled else None


class EmbeddingSettings(_OpenAISettings):
    """The embedder, and the second one during a move to another embedding space."""

    embedder: Literal["local", "local-multilingual", "openai", "none"] = Field(
        default="local",
        description=(
            "`local`: the bundled model; `local-multilingual`: that of the extra `multilingual`; `openai`: OpenAI or a"
            " compatible endpoint; `none`: text only."
        ),
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
        default=2, description="How often a request that failed temporarily is repeated within that time."
    )
    embeddings_batch: Annotated[int, Field(ge=1, le=2048)] = Field(
        default=128, description="Maximum texts in one request to it."
    )
    embeddings_piece_tokens: Annotated[int, Field(ge=32, le=8000)] = Field(
        default=512, description="Long text is cut into pieces of about this many tokens."
    )
    next_embedder: Literal["local", "local-multilingual", "openai"] | None = Field(
        default=None, description="A second embedder, next to the first while an installation moves to it."
    )
    next_embeddings_base_url: ApiRoot | None = Field(
        default=None, description="Endpoint of the second embedder, if it is `openai`; default: OpenAI's own."
    )
    next_embeddings_api_key: SecretStr | None = Field(default=None, description="Its key; default: OPENAI_API_KEY.")
    next_embeddings_model: Annotated[str, Field(min_length=1)] = Field(
        default="text-embedding-3-small", description="Its model."
    )
    next_embeddings_dimensions: Annotated[int, Field(ge=1, le=16_000)] | None = Field(
        default=None, description="Dimensions of its vectors; default: the model's own."
    )
    embedder_threads: NotNegative = Field(
        default=0, description="Threads of a local model; 0: one per core, at most 4."
    )

    @model_validator(mode="after")
    def _remote_embedder_has_a_key(self) -> Self:
        if self.embedder == "openai" and self.embeddings_base_url is None and not self.key_of_embeddings:
            raise ValueError("TURNKEEP_EMBEDDER=openai needs TURNKEEP_EMBEDDINGS_API_KEY or OPENAI_API_KEY")
        if self.next_embedder == "openai" and self.next_embeddings_base_url is None and not self.key_of_next:
            raise ValueError("TURNKEEP_NEXT_EMBEDDER=openai needs TURNKEEP_NEXT_EMBEDDINGS_API_KEY or OPENAI_API_KEY")
        return self

    @property
    def key_of_embeddings(self) -> str | None:
        """The key sent to the embedding endpoint."""
        return self._key_for(self.embeddings_base_url, self.embeddings_api_key)

    @property
    def key_of_next(self) -> str | None:
        """The key sent to the second embedder's endpoint."""
        return self._key_for(self.next_embeddings_base_url, self.next_embeddings_api_key)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the embedder `openai`."""
        root = self.embeddings_base_url or OPENAI_ROOT
        return Endpoint(root, self.key_of_embeddings, self.embeddings_model, self.embeddings_dimensions)

    @property
    def next_endpoint(self) -> Endpoint:
        """The endpoint of the second embedder, if it is `openai`."""
        root = self.next_embeddings_base_url or OPENAI_ROOT
        return Endpoint(root, self.key_of_next, self.next_embeddings_model, self.next_embeddings_dimensions)


class RerankerSettings(SettingsGroup):
    """A reranker, which compares a query with the texts of the best hits. The texts are sent to it."""

    reranker_url: RerankUrl | None = Field(
        default=None, description="Its endpoint, such as `https://api.cohere.com/v2/rerank`; default: no reranker."
    )
    reranker_api_key: SecretStr | None = Field(default=None, description="Its key.")
    reranker_model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="Its model, where the endpoint has several."
    )
    reranker_timeout_ms: Annotated[int, Field(ge=50, le=60_000)] = Field(
        default=2000, description="Longest time for one call of it; then the search goes on without."
    )

    @model_validator(mode="after")
    def _key_and_model_have_an_endpoint(self) -> Self:
        if self.reranker_url is None and (self.reranker_api_key is not None or self.reranker_model is not None):
            raise ValueError("TURNKEEP_RERANKER_API_KEY and TURNKEEP_RERANKER_MODEL need TURNKEEP_RERANKER_URL")
        return self

    @property
    def reranker_timeout_s(self) -> float:
        """The longest time for one call, in seconds."""
        return self.reranker_timeout_ms / 1000


class ToolSettings(SettingsGroup):
    """Tools for models: which are offered over MCP, and the agent behind `ask_agent`."""

    enable_memory_tools: bool = Field(
        default=True, description="Whether the memory tools are among the tools for models."
    )
    mcp_profile: Literal["full", "small"] = Field(
        default="full", description="Which tools are offered: all, or four with flat arguments for small models."
    )
    mcp_hidden_tools: Names = Field(
        default=None, description="Tools that are not offered, separated by commas; default: none is hidden."
    )
    mcp_answer_kb: Annotated[int, Field(ge=8, le=65_536)] = Field(
        default=32,
        description="Longest answer of a tool in KiB; a cut one says how to read the rest.",
    )
    enable_internal_agent: bool = Field(default=False, description="Whether `ask_agent` is enabled.")
    internal_agent_exclusive: bool = Field(
        default=True, description="Whether an enabled `ask_agent` replaces all other tools for models."
    )
    internal_agent_model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="The chat model that it uses; default: LLM_MODEL."
    )
    internal_agent_system_prompt: Annotated[str, Field(min_length=1, max_length=32_768)] | None = Field(
        default=None, description="The task description for that model; default: the built-in text."
    )
    internal_agent_tools: Names = Field(
        default=None,
        description="Tools that it can use, separated by commas; default: those that read, and `store_memory`.",
    )
    max_tool_calls: Annotated[int, Field(ge=0, le=50)] = Field(
        default=5, description="Maximum rounds of tool calls in one of its answers."
    )
    internal_agent_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=180.0, description="Longest time for one of its answers, tools included."
    )

    @property
    def max_answer_bytes(self) -> int:
        """The longest answer of a tool."""
        return self.mcp_answer_kb * 2**10
