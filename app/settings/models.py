"""Settings of the models outside: the chat model, the embedder, and the one that an installation moves to."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings

from app.settings.kinds import ApiRoot, Money, Names, NotNegative, Positive


class ModelSettings(BaseSettings):
    """Which models are asked, where, with what key, and for how much."""

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
    title_generation_enabled: bool = Field(
        default=True, description="Whether it gives titles to conversations that have none from their callers."
    )

    # the agent behind ask_agent
    enable_internal_agent: bool = Field(default=False, description="Whether `ask_agent` answers.")
    internal_agent_exclusive: bool = Field(
        default=True,
        description="Whether `ask_agent`, where it answers, takes the place of all other tools for models.",
    )
    internal_agent_model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="The chat model that it asks; default: LLM_MODEL."
    )
    internal_agent_system_prompt: Annotated[str, Field(min_length=1, max_length=32_768)] | None = Field(
        default=None, description="What that model is told of its task; default: a text of ours."
    )
    internal_agent_tools: Names = Field(
        default=None,
        description="Tools that it may use, parted by commas; default: those that read, and store_memory.",
    )
    max_tool_calls: Annotated[int, Field(ge=0, le=50)] = Field(
        default=5, description="Rounds of tool calls in one answer of it, at most."
    )
    internal_agent_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=60.0, description="Longest time for one answer of it, tools included."
    )

    # embedders
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
    next_embedder: Literal["local", "openai"] | None = Field(
        default=None, description="A second embedder, beside the first while an installation moves to it."
    )
    next_embeddings_base_url: ApiRoot | None = Field(
        default=None, description="Its endpoint, where it is `openai`; default: OpenAI's own."
    )
    next_embeddings_api_key: SecretStr | None = Field(default=None, description="Its key; default: OPENAI_API_KEY.")
    next_embeddings_model: Annotated[str, Field(min_length=1)] = Field(
        default="text-embedding-3-small", description="Its model."
    )
    next_embeddings_dimensions: Annotated[int, Field(ge=1, le=16_000)] | None = Field(
        default=None, description="Dimensions of its vectors; default: the model's own."
    )
    embedder_threads: NotNegative = Field(
        default=0, description="Threads of the bundled model; 0: one per core, at most 4."
    )

    @model_validator(mode="after")
    def _remote_embedder_has_a_key(self) -> Self:
        if self.embedder == "openai" and self.embeddings_base_url is None and not self.key_of_embeddings:
            raise ValueError("TURNKEEP_EMBEDDER=openai needs TURNKEEP_EMBEDDINGS_API_KEY or OPENAI_API_KEY")
        if self.next_embedder == "openai" and self.next_embeddings_base_url is None and not self.key_of_next:
            raise ValueError("TURNKEEP_NEXT_EMBEDDER=openai needs TURNKEEP_NEXT_EMBEDDINGS_API_KEY or OPENAI_API_KEY")
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
    def key_of_next(self) -> str | None:
        """The key sent to the second embedder's endpoint; OpenAI's own key goes to OpenAI alone."""
        return self._key_for(self.next_embeddings_base_url, self.next_embeddings_api_key)

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
