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

    max_vectors_per_append: Positive = Field(
        default=32, description="Vectors made before an append responds; further turns get theirs from a job."
    )
    language: Language = Field(
        default="auto", description="Language of all texts in its script; `auto`: the language that each text shows."
    )
    exact_scope_entries: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=200_000, description="Largest scope that is searched exactly; in larger ones candidates are compared."
    )
    resident_index_mb: Annotated[int, Field(ge=0, le=1_048_576)] = Field(
        default=512, description="Memory for searched entries, 2 KiB each or 1 KiB in large scopes; 0 keeps none."
    )
    passage_tokens: Annotated[int, Field(ge=50, le=4_000)] = Field(
        default=400, description="Longest turn that recall shows whole; of a longer one it shows passages of this size."
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
    recall_facts_limit: Annotated[int, Field(ge=1, le=200)] = Field(
        default=20, description="Maximum number of facts that a context considers."
    )
    search_limit: Annotated[int, Field(ge=1, le=100)] = Field(
        default=5, description="Most long-term memories of a context, and most turns recalled for a session's turn."
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
