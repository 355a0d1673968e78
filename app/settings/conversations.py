"""Settings of conversations: sizes, defaults, open turns, live connections."""

from typing import Annotated, Literal

from pydantic import Field

from app.settings.group import SettingsGroup
from app.settings.kinds import NotNegative, Positive


class LimitSettings(SettingsGroup):
    """Sizes of turns, memories and responses."""

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
        description="Largest text of the turns in one response: a page ends there, and recall omits the rest.",
    )
    clock_skew_s: NotNegative = Field(default=300, description="How far in the future `occurred_at` may lie.")


class ConversationSettings(SettingsGroup):
    """Defaults of conversations that name no value, and how conversations are kept."""

    session_gap_s: Positive = Field(default=3600, description="Silence after which the next turn starts a session.")
    session_lock_wait_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=200, description="How long a turn of the lifecycle waits for its session before `resource_busy`."
    )
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
    """Open turns: how often their text is written, their lease, their number and size."""

    stream_debounce_ms: Annotated[int, Field(ge=10, le=10_000)] = Field(
        default=250, description="Time between two writes of the text of an open turn."
    )
    stream_lease_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=60.0, description="Time without a sign of its writer after which an open turn is aborted."
    )
    stream_handover_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        default=1000, description="How long a replica waits until another one has written and released an open turn."
    )
    stream_sweep_s: Annotated[float, Field(ge=0.1, le=600)] = Field(
        default=5.0, description="Time between two searches for open turns whose lease has ended."
    )
    max_chunk_bytes: Annotated[int, Field(ge=1)] = Field(
        default=64 * 2**10, description="Largest chunk of an open turn's text, in UTF-8 bytes."
    )
    max_open_turns_per_conversation: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=64, description="Turns open at once in a conversation."
    )
    max_open_turns: Positive = Field(default=2000, description="Turns open at once in all conversations of a tenant.")
    max_open_turns_per_token: Positive = Field(
        default=8, description="Open turns of its actor with which a conversation token cannot open another."
    )
    max_unflushed_characters: Positive = Field(
        default=64 * 2**20, description="Text that a process accepts while the database does not respond."
    )

    @property
    def debounce_s(self) -> float:
        """The time between two writes, in seconds."""
        return self.stream_debounce_ms / 1000

    @property
    def handover_s(self) -> float:
        """The wait for another replica, in seconds."""
        return self.stream_handover_ms / 1000


class LiveSettings(SettingsGroup):
    """Live connections: WebSockets, event streams, and the subscriptions that they carry."""

    live_queue_frames: Positive = Field(default=1000, description="Maximum number of frames queued for a subscriber.")
    live_queue_bytes: Positive = Field(
        default=2**20, description="Maximum size of the frames queued for a subscriber, and of the replies to a client."
    )
    live_open_bytes: Positive = Field(
        default=4 * 2**20, description="Maximum text of a conversation's open turns that subscribers receive."
    )
    live_snapshot_turns: Annotated[int, Field(ge=0, le=200)] = Field(
        default=50, description="Newest turns in the snapshot of a subscriber that names no `after_rev`."
    )
    live_check_s: Annotated[float, Field(ge=0.1, le=600)] = Field(
        default=10.0, description="Time between two comparisons of followed conversations with their rows."
    )
    live_frame_bytes: Annotated[int, Field(ge=1024)] = Field(
        default=2**20, description="Largest frame that a client may send."
    )
    live_frames_per_s: Annotated[float, Field(gt=0)] = Field(
        default=2000.0, description="Frames of one connection that are processed per second."
    )
    live_bytes_per_s: Annotated[int, Field(ge=1024)] = Field(
        default=2 * 2**20, description="Bytes of frames of one connection that are processed per second."
    )
    live_bad_frames: Positive = Field(
        default=20, description="Consecutive invalid frames after which a connection is closed."
    )
    live_auth_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="Time within which a connection without a key must send one."
    )
    live_recheck_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="Time between two checks of the key of a connection."
    )
    live_heartbeat_s: Annotated[float, Field(gt=0)] = Field(
        default=15.0, description="Time between two signs of life on a live connection."
    )
    live_stall_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="Time after which a connection that reads nothing is closed."
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
        default=500, description="WebSockets of one process that have not sent a key yet."
    )
