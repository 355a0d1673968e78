"""Settings of conversations: sizes, defaults, open turns, live connections."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.settings.group import SettingsGroup
from app.settings.kinds import NotNegative, Positive


class LimitSettings(SettingsGroup):
    """Sizes of turns and responses."""

    max_turns_per_append: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=500, description="Most turns in one append."
    )
    max_text_bytes: Positive = Field(default=2**20, description="Largest text of one part, in UTF-8 bytes.")
    max_metadata_bytes: Positive = Field(
        default=16 * 2**10, description="Largest metadata object, as JSON in UTF-8 bytes."
    )
    max_answer_bytes: ClassVar[int] = 16 * 2**20
    """Largest text of the turns in one response: a page ends there, and recall omits the rest. It takes several times
    its size in memory, and clients wait for it."""


class ConversationSettings(SettingsGroup):
    """Defaults of conversations that name no value, and how conversations are kept."""

    session_gap_s: Positive = Field(default=3600, description="Silence after which the next turn starts a session.")
    conversation_ttl_hours: NotNegative = Field(
        default=0, description="Time to live of conversations that name none; 0: no limit."
    )
    trash_days: Annotated[int, Field(ge=1, le=3650)] = Field(
        default=30, description="Days that a conversation stays in the trash until it is deleted."
    )
    compaction_trigger_turns: Positive = Field(
        default=50, description="Live unsummarised turns that trigger compaction."
    )
    compaction_trigger_tokens: Positive = Field(default=8000, description="Their tokens that trigger compaction.")
    summaries: Literal["model", "highlights"] = Field(
        default="model",
        description="What replaces older turns: `model`, summaries of the chat model; `highlights` in any case.",
    )
    fact_extraction_enabled: bool = Field(
        default=False, description="Whether facts are extracted from conversations that do not set `facts`."
    )
    erase_without_summary: bool = Field(
        default=False,
        description="Whether retention erases turns that no model has summarised, which leaves `erased_sources`.",
    )

    @property
    def default_ttl_s(self) -> int | None:
        """Time to live of conversations that name none; None: no limit."""
        return self.conversation_ttl_hours * 3600 or None


class StreamSettings(SettingsGroup):
    """Open turns: how often their text is written, their lease and their number."""

    stream_debounce_ms: Annotated[int, Field(ge=10, le=10_000)] = Field(
        default=250, description="Time between two writes of the text of an open turn."
    )
    stream_lease_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=60.0, description="Time without a sign of its writer after which an open turn is aborted."
    )

    @property
    def debounce_s(self) -> float:
        """The time between two writes, in seconds."""
        return self.stream_debounce_ms / 1000

    @property
    def sweep_s(self) -> float:
        """The time between two searches for open turns whose lease has ended: they stay open that much longer."""
        return min(self.stream_lease_s / 12, 5.0)


class LiveSettings(SettingsGroup):
    """Live connections: WebSockets, event streams, and the subscriptions that they carry."""

    live_queue_frames: Positive = Field(default=1000, description="Maximum number of frames queued for a subscriber.")
    live_frame_bytes: Annotated[int, Field(ge=1024)] = Field(
        default=2**20, description="Largest frame that a client may send."
    )
    live_heartbeat_s: Annotated[float, Field(gt=0)] = Field(
        default=15.0, description="Time between two signs of life on a live connection."
    )
    live_max_connections: Positive = Field(
        default=10_000, description="Live connections of one process, WebSockets and event streams together."
    )
    live_max_connections_per_tenant: Positive = Field(
        default=5000,
        description="Live connections of one tenant to one process; one key, with the tokens made by it, has half.",
    )
