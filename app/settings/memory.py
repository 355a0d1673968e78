"""Settings of search, contexts, the turn lifecycle and facts."""

from datetime import timedelta
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from app.settings.group import SettingsGroup
from app.settings.kinds import NotNegative, Positive, Share

Language: TypeAlias = Literal[
    "auto", "en", "de", "fr", "es", "pt", "it", "nl", "sv", "pl", "tr", "ru", "ar", "hi", "zh", "ja", "ko"
]

_ENTRY_BYTES: Final = 512
"""About the bytes of an entry in the memory for searches, without its vector."""
_FLOAT_BYTES: Final = 4
_ALWAYS_EXACT: Final = 20_000
"""So many entries are compared in the database within a fraction of a second."""


class IndexSettings(SettingsGroup):
    """The search index, and how it is searched."""

    max_vectors_per_entry: Positive = Field(
        default=32, description="Long text gets a vector per piece, up to this many."
    )
    max_vectors_per_append: Positive = Field(
        default=32, description="Vectors made before an append responds; further turns get theirs from a job."
    )
    language: Language = Field(
        default="auto", description="Language of all texts in its script; `auto`: the language that each text shows."
    )
    index_text_bytes: Positive = Field(
        default=256 * 2**10, description="How much of a turn's text is analysed for search."
    )
    max_query_lexemes: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=64, description="Distinct words of a query that are searched; further words are ignored."
    )
    recall_pool: Annotated[int, Field(ge=20, le=1000)] = Field(
        default=100, description="Candidates taken from each of vector and text search before they are ranked."
    )
    exact_scope_entries: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=200_000, description="Largest scope that is searched exactly; larger ones use the vector index."
    )
    resident_index_mb: Annotated[int, Field(ge=0, le=1_048_576)] = Field(
        default=512, description="Memory for the entries that a process searches, about 2 KiB each; 0 keeps none."
    )
    text_candidates: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        default=50_000, description="Entries of a larger scope that share a word with the query and are compared."
    )
    tier_fresh_vectors: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=2000, description="New vectors of a large tenant that are collected before they are indexed."
    )

    def exact_entries(self, dimensions: int) -> int:
        """Return how many entries the largest scope has that is searched exactly, with vectors of so many dimensions.

        These are `exact_scope_entries`, but no more than the memory for searches has room for: without it, each search
        would compare them in the database.
        """
        most = self.resident_index_mb * 2**20 // (_ENTRY_BYTES + _FLOAT_BYTES * dimensions)
        return min(self.exact_scope_entries, max(most, _ALWAYS_EXACT))

    @property
    def forced_language(self) -> str | None:
        """The language of all texts in its script; None: each text shows its own."""
        return None if self.language == "auto" else self.language


class ContextSettings(SettingsGroup):
    """Contexts and their budget."""

    max_context_messages: Positive = Field(
        default=50, description="Newest turns that a context shows first, if the call names no number."
    )
    context_margin: Annotated[float, Field(ge=1, le=4)] = Field(
        default=1.35, description="Safety factor on counts for formats whose tokenizer is not public."
    )
    floor_recent: Share = Field(default=0.40, description="Share of the budget kept for recent turns.")
    floor_summary: Share = Field(default=0.15, description="Share of the budget kept for the summary.")
    floor_other: Share = Field(default=0.05, description="Share kept for each of facts, memories and recalled.")
    recall_facts_limit: Annotated[int, Field(ge=1, le=200)] = Field(
        default=20, description="Maximum number of facts that a context considers."
    )
    search_limit: Annotated[int, Field(ge=1, le=100)] = Field(
        default=5, description="Most long-term memories of a context, and most turns recalled for a session's turn."
    )
    highlight_tokens: Annotated[int, Field(ge=100, le=100_000)] = Field(
        default=800, description="Largest highlights, which represent turns that no model has summarised."
    )


class LifecycleSettings(SettingsGroup):
    """The turn lifecycle of an agent."""

    recent_context_items: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=30, description="Newest turns of a session that the context of its next turn shows first."
    )
    max_input_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        default=120_000, description="`max_input_tok` of a turn that names none."
    )
    compact_threshold: Share = Field(
        default=0.8, description="Share of `max_input_tok` above which a session is compacted."
    )
    compaction_min_age_hours: NotNegative = Field(default=24, description="Age at which maintenance summarises turns.")
    operation_ttl_s: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=900, description="Lifetime of the operation token of a prepared turn."
    )


class FactSettings(SettingsGroup):
    """Lifetimes of facts."""

    l1_retention_days: Annotated[int, Field(ge=1, le=36_500)] = Field(
        default=1, description="How long a fact of the tier `l1` is kept."
    )
    l2_retention_days: Annotated[int, Field(ge=1, le=36_500)] = Field(
        default=7, description="How long a fact of the tier `l2` is kept."
    )

    @property
    def l1_kept(self) -> timedelta:
        """How long a fact of the tier l1 is kept."""
        return timedelta(days=self.l1_retention_days)

    @property
    def l2_kept(self) -> timedelta:
        """How long a fact of the tier l2 is kept."""
        return timedelta(days=self.l2_retention_days)
