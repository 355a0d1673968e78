"""Generated from openapi/openapi.json by `make clients`. Do not edit."""

from typing import Literal, NotRequired, TypeAlias, TypedDict


class Aborting(TypedDict):
    """Abort a turn. The reason is stored as `abort_reason` in its metadata."""

    reason: NotRequired["str | None"]


class AfterTurn(TypedDict):
    """A turn to store: the input and the output of the model, as OpenAI Responses items."""

    project: NotRequired[str]
    session_id: str
    user_id: str
    turn_id: str
    input_items: NotRequired["list[Message]"]
    output_items: NotRequired["list[Message]"]


class AgentAnswer(TypedDict):
    """The agent's answer, and its conversation."""

    conversation_id: str
    response: str
    tools_used: list[str]
    history: "list[AgentTurn]"


class AgentTurn(TypedDict):
    """A turn of the conversation, with its text."""

    id: str
    role: "Role"
    actor: str
    content: str
    occurred_at: str


Append = TypedDict(
    "Append",
    {
        "turns": "list[TurnInput]",
        "format": NotRequired["Format | None"],
        "import": NotRequired[bool],
        "expected_seq": NotRequired["int | None"],
        "index": NotRequired["IndexTime"],
    },
)


class AppendResult(TypedDict):
    """Result of an append: the stored turns, and the new state of the conversation."""

    conversation_id: str
    turns: "list[Turn]"
    seq: int
    rev: int
    head_hash: str
    sanitised: list[str]


class AskAgent(TypedDict):
    """A question or task for the agent. It is stored as a turn of the named conversation, or of a new one."""

    query: str
    conversation_id: NotRequired["str | None"]


class AudioPart(TypedDict):
    """An audio part."""

    type: Literal["input_audio"]
    input_audio: "InputAudio"


class AuditBreak(TypedDict):
    """The first place where a chain is not as it was sealed. `number` is null for a whole day."""

    kind: Literal["entry_changed", "entry_removed", "entry_added", "seal_changed", "seal_removed"]
    day: str
    number: "int | None"


class AuditChain(TypedDict):
    """The end of the chain of a day: its number of entries, and the hash of the last one in hexadecimal."""

    day: str
    entries: int
    hash: str


class AuditEntry(TypedDict):
    """An entry of the audit: an action, its actor and its object. It has no content and no text of a caller."""

    id: str
    recorded_at: str
    actor: "ActorKind"
    key_id: "str | None"
    action: str
    object_kind: "str | None"
    object_id: "str | None"
    conversation_id: "str | None"
    first_seq: "int | None"
    last_seq: "int | None"
    head_hash: "str | None"
    counts: "dict[str, int]"
    request_id: "str | None"
    day: "str | None"
    number: "int | None"


class AuditVerification(TypedDict):
    """Result of a part of the verification of a tenant's audit, oldest chain first."""

    valid: bool
    entries: int
    first_break: "AuditBreak | None"
    chains: "list[AuditChain]"
    deleted_days: int
    unsealed: int
    has_more: bool
    next_cursor: "str | None"


class AuditVerify(TypedDict):
    """What to verify of the audit."""

    known: NotRequired["list[KnownChain]"]
    max_entries: NotRequired[int]
    cursor: NotRequired["str | None"]


class BeforeTurn(TypedDict):
    """A turn before its model call. `current_input`: OpenAI Responses items, not stored by this call."""

    project: NotRequired[str]
    session_id: str
    user_id: str
    turn_id: str
    current_input: "list[Message]"
    base_instructions: NotRequired["str | None"]
    max_input_tok: NotRequired["int | None"]
    include_memories: NotRequired[bool]
    agent_id: NotRequired["str | None"]


class CanonicalToolCall(TypedDict):
    """A tool call in the shape of this API."""

    id: str
    name: str
    arguments: NotRequired["str | dict[str, JsonValue] | None"]


class ChainBreak(TypedDict):
    """The first break of a hash chain."""

    turn_id: "str | None"
    seq: int
    what: Literal["content_hash", "chain_hash", "missing", "head"]


class ChangedConversation(TypedDict):
    """The new metadata of a conversation; it replaces the old."""

    metadata: "dict[str, str] | None"


class Chunk(TypedDict):
    """More text of a turn. Text below the offset taken so far is a repetition and changes nothing."""

    offset: int
    delta: str
    part: NotRequired[str]


class ChunkResult(TypedDict):
    """The received length and the durable length of a part."""

    turn_id: str
    part: str
    offset: int
    durable_offset: int


class Compacted(TypedDict):
    """Result of a compaction: the new summaries by position, and the state of the conversation after it."""

    conversation_id: str
    summaries: "list[Summary]"
    summarized_through: "str | None"
    remaining_turns: int
    continues: bool
    rev: int


class Compaction(TypedDict):
    """When and how older turns are summarised. `summaries`: who writes them; null: as the settings say."""

    strategy: Literal["rolling", "hierarchical", "never"]
    trigger_turns: int
    trigger_tokens: int
    summarizer_model: "str | None"
    summaries: NotRequired['Literal["model", "highlights"] | None']


class CompactionDryRun(TypedDict):
    """Turns that a compaction would summarise, the oldest first, in one summary or several."""

    kind: "SummaryKind | None"
    turns: int
    tokens: int
    summaries: int
    through: "str | None"
    continues: bool
    cost: "ModelCost | None"


class CompactionIn(TypedDict):
    """When and how older turns are summarised. The settings are the defaults of omitted fields."""

    strategy: NotRequired['Literal["rolling", "hierarchical", "never"] | None']
    trigger_turns: NotRequired["int | None"]
    trigger_tokens: NotRequired["int | None"]
    summarizer_model: NotRequired["str | None"]
    summaries: NotRequired['Literal["model", "highlights"] | None']


class CompactionRequest(TypedDict):
    """A compaction to run now. The conversation's policy is the default of omitted fields."""

    strategy: NotRequired['Literal["rolling", "hierarchical", "never"] | None']
    trigger_turns: NotRequired["int | None"]
    trigger_tokens: NotRequired["int | None"]
    summarizer_model: NotRequired["str | None"]
    summaries: NotRequired['Literal["model", "highlights"] | None']
    through: NotRequired["str | None"]


class ComparedHit(TypedDict):
    """A hit of a comparison: its id without its content."""

    kind: "EntryKind"
    id: str
    score: float


class ComparedQuery(TypedDict):
    """The hits of one query in the two spaces, best first. `degraded` names the parts that were missing in either."""

    overlap: float
    rank_agreement: float
    searched: "list[ComparedHit]"
    compared: "list[ComparedHit]"
    degraded: list[str]


class ConnectionPoolSample(TypedDict):
    """Connections of one pool: how many there may be, are open and are used, and how many callers wait for one."""

    pool: str
    size: int
    open: int
    used: int
    waiting: int


class Context(TypedDict):
    """A context, ready for a model. `system` is null if the format keeps it in `messages`, or if there is none."""

    format: "Format"
    messages: "list[Message]"
    system: "str | None"
    usage: "ContextUsage"
    included: "Included"
    gap: "Gap | None"
    as_of_seq: int
    degraded: list[str]
    explain: "list[Explained] | None"


class ContextOptions(TypedDict):
    """How the context of a generated answer is built: the fields of `POST …/context` that a client may choose."""

    recent_turns: NotRequired["int | None"]
    query: NotRequired["str | None"]
    semantic_recall: NotRequired["SemanticRecall | None"]
    include_facts: NotRequired[bool]
    include_memories: NotRequired[bool]
    include_summary: NotRequired[bool]
    filter_participants: NotRequired["list[str] | None"]
    as_actor: NotRequired["str | None"]
    system: NotRequired["str | list[str] | None"]
    agent_id: NotRequired["str | None"]
    tokenizer: NotRequired[Literal["o200k_base", "cl100k_base"]]
    wait_for_vectors_ms: NotRequired[int]


class ContextRequest(TypedDict):
    """A context to build."""

    token_budget: int
    recent_turns: NotRequired["int | None"]
    query: NotRequired["str | None"]
    semantic_recall: NotRequired["SemanticRecall | None"]
    shorten: NotRequired[bool]
    max_turn_tokens: NotRequired["int | None"]
    include_facts: NotRequired[bool]
    include_memories: NotRequired[bool]
    min_relevance: NotRequired[float]
    include_summary: NotRequired[bool]
    filter_participants: NotRequired["list[str] | None"]
    as_actor: NotRequired["str | None"]
    system: NotRequired["str | list[str] | None"]
    agent_id: NotRequired["str | None"]
    format: NotRequired["Format"]
    tokenizer: NotRequired[Literal["o200k_base", "cl100k_base"]]
    explain: NotRequired[bool]
    wait_for_vectors_ms: NotRequired[int]


class ContextUsage(TypedDict):
    """Tokens of a context."""

    budget: int
    used: int
    tokenizer: str
    exact: bool
    sections: "Sections"


class Conversation(TypedDict):
    """A conversation with its counters. `token_count` counts live turns in o200k_base."""

    id: str
    project: str
    external_id: "str | None"
    owner: "str | None"
    title: "str | None"
    title_source: 'Literal["caller", "model", "question"] | None'
    participants: "list[ParticipantOut]"
    metadata: "dict[str, JsonValue]"
    created_at: str
    updated_at: str
    active_at: str
    ttl_s: "int | None"
    expires_at: "str | None"
    last_seq: int
    rev: int
    turn_count: int
    token_count: int
    summarized_through: "str | None"
    retention: "Retention"
    compaction: "Compaction"
    facts: "Facts"
    forked_from: "str | None"
    head_hash: str
    archived: bool
    pinned: bool
    trashed_at: "str | None"


class ConversationCreate(TypedDict):
    """A conversation to create. An existing conversation with this `id` or `external_id` is returned instead."""

    metadata: NotRequired["dict[str, JsonValue]"]
    retention: NotRequired["Retention"]
    compaction: NotRequired["CompactionIn"]
    id: NotRequired["str | None"]
    external_id: NotRequired["str | None"]
    project: NotRequired[str]
    owner: NotRequired["str | None"]
    title: NotRequired["str | None"]
    participants: NotRequired["list[Participant | str]"]
    ttl_s: NotRequired["int | None"]
    facts: NotRequired["FactsIn"]


class ConversationDeletedFrame(TypedDict):
    """A conversation was deleted."""

    type: Literal["conversation.deleted"]
    id: str


class ConversationEvent(TypedDict):
    """A conversation was created, changed, put into the trash, restored or deleted. A fork sends none of its turns."""

    type: Literal[
        "conversation.created",
        "conversation.updated",
        "conversation.trashed",
        "conversation.restored",
        "conversation.deleted",
    ]
    timestamp: str
    data: "ConversationEventData"


class ConversationEventData(TypedDict):
    """A conversation, as it is when the event is sent."""

    conversation_id: str
    conversation: "Conversation | None"
    omitted: "Omission | None"


class ConversationReference(TypedDict):
    """A conversation by its id."""

    id: str


class ConversationSearch(TypedDict):
    """Filters for conversations. A conversation must match all given filters; times are exclusive."""

    project: NotRequired["str | None"]
    external_id: NotRequired["str | None"]
    owner: NotRequired["str | None"]
    participant: NotRequired["str | None"]
    metadata: NotRequired["dict[str, JsonValue] | None"]
    title: NotRequired["str | None"]
    created_after: NotRequired["str | None"]
    created_before: NotRequired["str | None"]
    active_after: NotRequired["str | None"]
    active_before: NotRequired["str | None"]
    archived: NotRequired['bool | Literal["any"] | None']
    pinned: NotRequired["bool | None"]
    trashed: NotRequired[bool]
    order: NotRequired[Literal["asc", "desc"]]
    limit: NotRequired[int]
    cursor: NotRequired["str | None"]


class ConversationUpdate(TypedDict):
    """Changes of a conversation. Omitted fields are not changed; null clears `ttl_s`. An owner can be set once."""

    metadata: NotRequired["dict[str, JsonValue]"]
    retention: NotRequired["Retention"]
    compaction: NotRequired["CompactionIn"]
    owner: NotRequired["str | None"]
    title: NotRequired["str | None"]
    participants: NotRequired["list[Participant | str]"]
    ttl_s: NotRequired["int | None"]
    facts: NotRequired["FactsIn"]
    archived: NotRequired[bool]
    pinned: NotRequired[bool]


class ConversationUpdatedFrame(TypedDict):
    """A conversation was created or changed, with previews as in a list; sent at most once a second for each."""

    type: Literal["conversation.updated"]
    conversation: "ListedConversation"


class CreateChatCompletion(TypedDict):
    """A chat completion to create, in OpenAI's format. All other members pass unread."""

    conversation_id: NotRequired["JsonValue | None"]
    token_budget: NotRequired["JsonValue | None"]
    context: NotRequired["JsonValue | None"]
    on_disconnect: NotRequired["JsonValue | None"]
    model: NotRequired["str | None"]
    stream: NotRequired["bool | None"]
    stream_options: NotRequired["dict[str, JsonValue] | None"]
    store: NotRequired["bool | None"]
    n: NotRequired["int | None"]
    seed: NotRequired["int | None"]
    max_tokens: NotRequired["int | None"]
    max_completion_tokens: NotRequired["int | None"]
    temperature: NotRequired["int | float | None"]
    top_p: NotRequired["int | float | None"]
    frequency_penalty: NotRequired["int | float | None"]
    presence_penalty: NotRequired["int | float | None"]
    logprobs: NotRequired["bool | None"]
    top_logprobs: NotRequired["int | None"]
    stop: NotRequired["str | list[str] | None"]
    tools: NotRequired["list[JsonValue] | None"]
    tool_choice: NotRequired["str | dict[str, JsonValue] | None"]
    parallel_tool_calls: NotRequired["bool | None"]
    response_format: NotRequired["dict[str, JsonValue] | None"]
    reasoning_effort: NotRequired["str | None"]
    verbosity: NotRequired["str | None"]
    service_tier: NotRequired["str | None"]
    metadata: NotRequired["dict[str, JsonValue] | None"]
    user: NotRequired["str | None"]
    safety_identifier: NotRequired["str | None"]
    prompt_cache_key: NotRequired["str | None"]


class CreateResponse(TypedDict):
    """A response to create. The model's endpoint is sent all other members unchanged, as in a chat completion."""

    model: NotRequired["str | None"]
    input: NotRequired["str | list[ResponsesItem] | None"]
    instructions: NotRequired["str | None"]
    conversation: NotRequired["str | ConversationReference | None"]
    previous_response_id: NotRequired["str | None"]
    store: NotRequired["bool | None"]
    stream: NotRequired["bool | None"]
    stream_options: NotRequired["dict[str, JsonValue] | None"]
    prompt: NotRequired["JsonValue | None"]
    context_management: NotRequired["JsonValue | None"]
    moderation: NotRequired["JsonValue | None"]
    background: NotRequired["bool | None"]
    tools: NotRequired["list[dict[str, JsonValue]] | None"]
    tool_choice: NotRequired['Literal["none", "auto", "required"] | dict[str, JsonValue] | None']
    parallel_tool_calls: NotRequired["bool | None"]
    max_tool_calls: NotRequired["int | None"]
    max_output_tokens: NotRequired["int | None"]
    text: NotRequired["dict[str, JsonValue] | None"]
    reasoning: NotRequired["dict[str, JsonValue] | None"]
    temperature: NotRequired["float | None"]
    top_p: NotRequired["float | None"]
    top_logprobs: NotRequired["int | None"]
    truncation: NotRequired['Literal["auto", "disabled"] | None']
    include: NotRequired["list[str] | None"]
    metadata: NotRequired["dict[str, str] | None"]
    user: NotRequired["str | None"]
    token_budget: NotRequired["int | None"]
    context: NotRequired["ContextOptions | None"]
    on_disconnect: NotRequired['Literal["abort", "keep"] | None']


class DefaultLimits(TypedDict):
    """The limits of the installation, which its settings give to tenants and keys for which nothing else was set."""

    rates_enabled: bool
    burst_s: int
    rates: "RatesView"
    quotas: "QuotaLimits"


DeletedConversation = TypedDict(
    "DeletedConversation",
    {
        "id": str,
        "object": str,
        "deleted": bool,
    },
)

DeletedResponse = TypedDict(
    "DeletedResponse",
    {
        "id": str,
        "object": Literal["response"],
        "deleted": bool,
    },
)


class Delivery(TypedDict):
    """The delivery of one event to one webhook. `id` is the id of the event, which receivers get as `webhook-id`."""

    id: str
    webhook_id: str
    type: str
    conversation_id: "str | None"
    object_id: str
    status: "DeliveryStatus"
    attempts: int
    last_status: "int | None"
    last_error: "DeliveryError | None"
    recorded_at: str
    attempted_at: "str | None"
    next_attempt_at: "str | None"
    delivered_at: "str | None"


class DoubtfulSentence(TypedDict):
    """A sentence of a summary that the turns may not support: code points `start` to `end` (exclusive) of its text."""

    start: int
    end: int
    reason: Literal["said_by_another"]


class DryRun(TypedDict):
    """What background work would do to a conversation now. Nothing was changed, and no model was asked."""

    conversation_id: str
    compaction: "CompactionDryRun"
    extraction: "ExtractionDryRun"
    retention: "RetentionDryRun"


class EmbeddingSpace(TypedDict):
    """An embedding space and how far it is filled."""

    id: int
    provider: str
    model: str
    dimensions: int
    base_url: "str | None"
    state: "SpaceState"
    configured: bool
    searched_here: bool
    previous: bool
    entries: int
    covered: int
    vectors: int
    share: float
    exact: bool
    index_ready: bool
    jobs_waiting: int
    jobs_parked: int
    jobs_error: "str | None"
    created_at: str


EmbeddingSpaces = TypedDict(
    "EmbeddingSpaces",
    {
        "object": Literal["list"],
        "data": "list[EmbeddingSpace]",
        "has_more": "Literal[False]",
        "next_cursor": "None",
    },
)


class Ending(TypedDict):
    """The end of a turn. A `length` that differs from the length of its content is refused."""

    length: NotRequired["int | None"]
    usage: NotRequired["dict[str, JsonValue] | None"]
    model: NotRequired["str | None"]
    metadata: NotRequired["dict[str, JsonValue] | None"]
    tool_calls: NotRequired["list[ToolCall] | None"]


class ErasedRows(TypedDict):
    """Rows of one table: deleted ones, and rows that stay without their content (tombstones, removed names)."""

    deleted: int
    emptied: int


class ErasedRowsIn(TypedDict):
    """Rows of one table, as a receipt has them."""

    deleted: int
    emptied: int


class ErasedTurns(TypedDict):
    """Result of an erasure."""

    conversation_id: str
    erased: list[str]
    already_erased: list[str]
    rev: int


class Erasure(TypedDict):
    """The receipt of an erasure. It has no personal data, and is kept after its operation, which has the same id."""

    id: str
    tenant_id: str
    subject_kind: "SubjectKind"
    subject_hash: str
    status: "ErasureStatus"
    counts: "dict[str, ErasedRows]"
    created_at: str
    ended_at: "str | None"
    signature: "str | None"


class ErasureCreate(TypedDict):
    """What to erase: exactly one of `conversation_id`, `owner`, `actor` and `tenant`."""

    conversation_id: NotRequired["str | None"]
    owner: NotRequired["str | None"]
    actor: NotRequired["str | None"]
    tenant: NotRequired["str | None"]
    project: NotRequired["str | None"]


class ErrorFrame(TypedDict):
    """A frame was refused, with an error code of the REST API (`docs/errors.md`). Other clients are not notified."""

    type: Literal["error"]
    id: "str | None"
    code: str
    detail: str
    retryable: bool
    turn_id: "str | None"
    expected_offset: "int | None"
    errors: "list[JsonValue]"


class EvaluatedConversationRecall(TypedDict):
    """A search within one conversation. Administrators may choose the embedding space and the weights."""

    space: NotRequired["int | None"]
    configuration: NotRequired["RankingConfiguration | None"]
    query: str
    k: NotRequired[int]
    kinds: NotRequired["list[EntryKind]"]
    mode: NotRequired["Mode"]
    threshold: NotRequired["float | None"]
    min_relevance: NotRequired[float]
    agent_id: NotRequired["str | None"]
    filters: NotRequired["RecallFilters"]
    neighbours: NotRequired[int]
    explain: NotRequired[bool]
    content: NotRequired[Literal["passage", "full"]]
    wait_for_vectors_ms: NotRequired[int]


class EvaluatedRecall(TypedDict):
    """A search across conversations. Administrators may choose the embedding space and the weights."""

    space: NotRequired["int | None"]
    configuration: NotRequired["RankingConfiguration | None"]
    query: str
    k: NotRequired[int]
    kinds: NotRequired["list[EntryKind]"]
    mode: NotRequired["Mode"]
    threshold: NotRequired["float | None"]
    min_relevance: NotRequired[float]
    agent_id: NotRequired["str | None"]
    filters: NotRequired["RecallFilters"]
    neighbours: NotRequired[int]
    explain: NotRequired[bool]
    content: NotRequired[Literal["passage", "full"]]
    wait_for_vectors_ms: NotRequired[int]
    conversation_ids: NotRequired["list[str] | None"]
    project: NotRequired["str | None"]
    owner: NotRequired["str | None"]


class Explained(TypedDict):
    """Why a part is in the context, or is not. `tokens` are those of the whole unit: a tool call with its results."""

    section: Literal["system", "recent", "summary", "facts", "memories", "recalled"]
    id: str
    decision: Literal["included", "dropped"]
    reason: str
    tokens: int
    score: "float | None"
    passages: "list[PassageRange]"


class Explanation(TypedDict):
    """Why a hit has its score. `words` are the query's lexemes, `configuration` the weights that the request gave."""

    cosine: "float | None"
    bm25: float
    reranked: "float | None"
    terms: "ScoreTerms"
    words: list[str]
    configuration: "dict[str, float]"
    reason: str


class ExportCreate(TypedDict):
    """What to export: a project, or without one all data of the tenant."""

    created_at: NotRequired["str | None"]
    checkpoints: NotRequired[bool]
    cursor: NotRequired["str | None"]
    project: NotRequired["str | None"]


class ExportLine(TypedDict):
    """One line of an export: a header, a record, a trailer or a checkpoint. The export format lists their members."""

    type: Literal[
        "header", "conversation", "turn", "summary", "fact", "fact_decision", "memory", "trailer", "checkpoint"
    ]


class Extraction(TypedDict):
    """Result of an extraction, through the turn with the seq `read_through`. Each turn is processed once."""

    conversation_id: str
    read_through: int
    continues: bool
    recorded: int
    repeated: int
    ended: int
    passed_over: int
    redacted: "dict[str, int]"


class ExtractionDryRun(TypedDict):
    """Turns that an extraction of facts would read. `enabled`: jobs do it; otherwise only a call does."""

    enabled: bool
    turns: int
    tokens: int
    continues: bool
    cost: "ModelCost | None"


Fact = TypedDict(
    "Fact",
    {
        "id": str,
        "subject": str,
        "predicate": str,
        "object": str,
        "owner": "str | None",
        "project": "str | None",
        "conversation_id": "str | None",
        "source_turn_ids": list[str],
        "confidence": float,
        "tier": "Tier",
        "stated_by": "StatedBy | None",
        "evidence_count": int,
        "valid_from": str,
        "valid_to": "str | None",
        "recorded_at": str,
        "invalidated_at": "str | None",
        "invalidated_by": "str | None",
        "undone": bool,
    },
)

FactCreate = TypedDict(
    "FactCreate",
    {
        "subject": str,
        "predicate": str,
        "object": str,
        "owner": NotRequired["str | None"],
        "project": NotRequired["str | None"],
        "conversation_id": NotRequired["str | None"],
        "source_turn_ids": NotRequired[list[str]],
        "confidence": NotRequired[float],
        "tier": NotRequired["Tier"],
        "valid_from": NotRequired["str | None"],
        "valid_to": NotRequired["str | None"],
        "replaces": NotRequired[bool],
    },
)


class FactEvent(TypedDict):
    """A fact was recorded, changed (evidence, end, tier), retracted, or deleted with its evidence or by expiry."""

    type: Literal["fact.recorded", "fact.updated", "fact.retracted", "fact.deleted"]
    timestamp: str
    data: "FactEventData"


class FactEventData(TypedDict):
    """A fact, as it is when the event is sent. `conversation_id`: null for a fact of several conversations or none."""

    conversation_id: "str | None"
    fact_id: str
    fact: "Fact | None"
    omitted: "Omission | None"


class FactHit(TypedDict):
    """A recalled fact."""

    id: str
    conversation_id: "str | None"
    score: float
    relevance: "float | None"
    text: str
    passage: "PassageBounds | None"
    passages: "list[HitPassage]"
    count: int
    said_at: list[str]
    dates: "list[HitDate]"
    neighbours: "list[Turn] | None"
    explain: "Explanation | None"
    kind: Literal["fact"]
    turn: "None"
    fact: "Fact"
    summary: "None"
    memory: "None"


class FactListing(TypedDict):
    """Filters and paging of a list of facts, in a body."""

    subject: NotRequired["str | None"]
    predicate: NotRequired["str | None"]
    owner: NotRequired["str | None"]
    project: NotRequired["str | None"]
    conversation_id: NotRequired["str | None"]
    tier: NotRequired["Tier | None"]
    as_of: NotRequired["str | None"]
    known_at: NotRequired["str | None"]
    include_retracted: NotRequired[bool]
    order: NotRequired[Literal["asc", "desc"]]
    limit: NotRequired[int]
    cursor: NotRequired["str | None"]


class FactRecordedFrame(TypedDict):
    """A fact of this conversation was recorded or got evidence. Not sent to callers with a token."""

    type: Literal["fact.recorded"]
    rev: int
    fact: "Fact"


class FactResult(TypedDict):
    """Result of an assertion, a correction, a retraction or an undo: the fact, and other facts that changed."""

    fact: "Fact | None"
    changed: "list[Fact]"


FactUpdate = TypedDict(
    "FactUpdate",
    {
        "object": NotRequired["str | None"],
        "confidence": NotRequired["float | None"],
        "tier": NotRequired["Tier | None"],
        "valid_from": NotRequired["str | None"],
        "valid_to": NotRequired["str | None"],
    },
)


class Facts(TypedDict):
    """Whether facts are extracted, and whether personal data is removed first."""

    enabled: bool
    redact: bool


class FactsExtract(TypedDict):
    """Turns to extract facts from: those not processed yet, through this turn or through the newest."""

    through: NotRequired["str | None"]


class FactsIn(TypedDict):
    """Whether facts are extracted, and whether personal data is removed first. The settings are the defaults."""

    enabled: NotRequired["bool | None"]
    redact: NotRequired["bool | None"]


class FilePart(TypedDict):
    """A document part of chat completions, Responses, or Anthropic (`source`)."""

    type: Literal["file", "input_file", "document"]
    file: NotRequired["dict[str, JsonValue] | None"]
    filename: NotRequired["str | None"]
    file_id: NotRequired["str | None"]
    file_url: NotRequired["str | None"]
    file_data: NotRequired["str | None"]
    title: NotRequired["str | None"]
    source: NotRequired["dict[str, JsonValue] | None"]


class ForkRequest(TypedDict):
    """A fork: a new conversation with copies of the live turns through one, by id or seq; by default of all turns."""

    through: NotRequired["str | None"]
    through_seq: NotRequired["int | None"]
    id: NotRequired["str | None"]
    external_id: NotRequired["str | None"]
    owner: NotRequired["str | None"]
    title: NotRequired["str | None"]
    metadata: NotRequired["dict[str, JsonValue] | None"]


class FunctionCall(TypedDict):
    """The function that a model calls; `arguments` is JSON text."""

    name: str
    arguments: str


class FunctionToolCall(TypedDict):
    """A tool call in the shape of chat completions."""

    id: str
    type: Literal["function"]
    function: "FunctionCall"


class Gap(TypedDict):
    """Live turns that a context neither shows nor covers by a summary: their number, the first and the last position."""

    turns: int
    from_position: int
    to_position: int


class Generate(TypedDict):
    """Messages to answer in a conversation. Without `conversation_id` and `external_id` a new conversation is created."""

    conversation_id: NotRequired["str | None"]
    external_id: NotRequired["str | None"]
    project: NotRequired[str]
    owner: NotRequired["str | None"]
    messages: "list[Message]"
    token_budget: NotRequired["int | None"]
    context: NotRequired["ContextOptions"]
    model: NotRequired["str | None"]
    parameters: NotRequired["dict[str, JsonValue]"]
    stream: NotRequired[bool]
    on_disconnect: NotRequired[Literal["abort", "keep"]]


class Generated(TypedDict):
    """An answer. `turns`: the turns that were stored, the new messages and the answer. `response`: the answer's text."""

    conversation_id: str
    turns: "list[Turn]"
    response: str
    usage: "GeneratedUsage"
    gap: "Gap | None"


class GeneratedUsage(TypedDict):
    """Tokens that the model read and wrote, as reported by its endpoint; null if it reports none."""

    prompt_tokens: "int | None"
    completion_tokens: "int | None"


class Health(TypedDict):
    """The state of the process: alive, or ready."""

    status: Literal["ok"]


HistoryPage = TypedDict(
    "HistoryPage",
    {
        "object": Literal["list"],
        "data": "list[Turn]",
        "has_more": bool,
        "next_cursor": "str | None",
        "summaries": "list[Summary]",
        "rev": int,
    },
)


class HistorySearch(TypedDict):
    """Filters and paging of a history, in a body: those of `GET …/turns`."""

    order: NotRequired['Literal["asc", "desc"] | None']
    after: NotRequired["int | None"]
    before: NotRequired["int | None"]
    since_rev: NotRequired["int | None"]
    status: NotRequired[Literal["committed", "aborted"]]
    actors: NotRequired["list[str] | None"]
    limit: NotRequired[int]
    cursor: NotRequired["str | None"]
    include_superseded: NotRequired[bool]
    include_summaries: NotRequired[bool]


class HitDate(TypedDict):
    """The first and last day, in UTC, that a relative date in `text` means, counted from the time of the turn."""

    start: int
    end: int
    first_day: str
    last_day: str


class HitPassage(TypedDict):
    """A further passage of a hit's turn: from `start` to `end` (exclusive) in code points of its plain text."""

    start: int
    end: int
    text: str


class ImagePart(TypedDict):
    """An image part: an http or data URL, a file id, or Anthropic's `source`."""

    type: Literal["image", "image_url", "input_image"]
    image_url: NotRequired["str | ImageUrl | None"]
    url: NotRequired["str | None"]
    file_id: NotRequired["str | None"]
    source: NotRequired["dict[str, JsonValue] | None"]


class ImageUrl(TypedDict):
    """The address of an image in chat completions."""

    url: str


class Included(TypedDict):
    """The parts that the context shows."""

    turn_ids: list[str]
    passages: "list[PassageRange]"
    summary_ids: list[str]
    fact_ids: list[str]
    memory_ids: list[str]


class IncompleteDetails(TypedDict):
    """Why the model ended an answer early: `max_output_tokens` or `content_filter`."""

    reason: str


class InputAudio(TypedDict):
    """Base64 audio and its encoding (`wav`, `mp3`)."""

    data: str
    format: str


Items = TypedDict(
    "Items",
    {
        "object": str,
        "data": "list[dict[str, JsonValue]]",
        "first_id": "str | None",
        "last_id": "str | None",
        "has_more": bool,
    },
)


class JobCounts(TypedDict):
    """The unfinished jobs by state, and the same of each kind that has some."""

    queued: int
    running: int
    parked: int
    cancelled: int
    kinds: "list[JobsOfKind]"


class JobView(TypedDict):
    """A job that has not finished; finished ones are deleted."""

    id: str
    tenant_id: str
    kind: str
    state: Literal["queued", "running", "parked", "cancelled"]
    subject_ids: list[str]
    priority: int
    attempts: int
    max_attempts: int
    run_at: str
    last_error: "str | None"
    created_at: str


class JobsOfKind(TypedDict):
    """The unfinished jobs of one kind, by state. `next_run_at`: when the first of those that wait is due."""

    kind: str
    queued: int
    running: int
    parked: int
    cancelled: int
    next_run_at: "str | None"


class JobsSample(TypedDict):
    """Jobs of the installation by state, as this process counted them last (every third of a lease)."""

    queued: int
    running: int
    parked: int


JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"


class Key(TypedDict):
    """A key, without its secret. `previous_expires_at`: end of validity of the secret before the last rotation."""

    id: str
    name: str
    scopes: "list[Scope]"
    state: Literal["valid", "expired", "revoked"]
    agent_id: "str | None"
    long_term_enabled: bool
    created_at: str
    expires_at: "str | None"
    revoked_at: "str | None"
    previous_expires_at: "str | None"
    last_used_at: "str | None"
    projects: "list[str] | None"
    owners: "list[str] | None"


class KeyCreate(TypedDict):
    """A key to create. Its scopes must be among the caller's own."""

    name: str
    scopes: NotRequired["list[Scope]"]
    expires_at: NotRequired["str | None"]
    agent_id: NotRequired["str | None"]
    long_term_enabled: NotRequired[bool]
    projects: NotRequired["list[str] | None"]
    owners: NotRequired["list[str] | None"]


class KeyLimitsView(TypedDict):
    """The rates of a key. `rates` are those that apply: `own` where that is set and lower, else `tenant`."""

    key_id: str
    rates: "RatesView"
    own: "OwnRates"
    tenant: "RatesView"


class KeyMade(TypedDict):
    """A key with its text, which only this response contains."""

    id: str
    name: str
    scopes: "list[Scope]"
    state: Literal["valid", "expired", "revoked"]
    agent_id: "str | None"
    long_term_enabled: bool
    created_at: str
    expires_at: "str | None"
    revoked_at: "str | None"
    previous_expires_at: "str | None"
    last_used_at: "str | None"
    projects: "list[str] | None"
    owners: "list[str] | None"
    key: str


class KeyRotate(TypedDict):
    """A new secret for a key. The old one is valid for `grace_s` more seconds."""

    grace_s: NotRequired[int]


class KnownChain(TypedDict):
    """The end of the chain of a day, as an earlier verification returned it: its entries, and the hash of the last."""

    day: str
    entries: int
    hash: str


class LimitsView(TypedDict):
    """The limits of a tenant, and what it has used today (UTC). Quotas start again at `resets_at`."""

    tenant_id: str
    rates: "RatesView"
    quotas: "QuotasView"
    resets_at: str
    own: "OwnLimits"
    defaults: "DefaultLimits"


class ListedConversation(TypedDict):
    """A conversation in a list, with previews of its first and last message."""

    id: str
    project: str
    external_id: "str | None"
    owner: "str | None"
    title: "str | None"
    title_source: 'Literal["caller", "model", "question"] | None'
    participants: "list[ParticipantOut]"
    metadata: "dict[str, JsonValue]"
    created_at: str
    updated_at: str
    active_at: str
    ttl_s: "int | None"
    expires_at: "str | None"
    last_seq: int
    rev: int
    turn_count: int
    token_count: int
    summarized_through: "str | None"
    retention: "Retention"
    compaction: "Compaction"
    facts: "Facts"
    forked_from: "str | None"
    head_hash: str
    archived: bool
    pinned: bool
    trashed_at: "str | None"
    first_message: "MessagePreview | None"
    last_message: "MessagePreview | None"


class Maintained(TypedDict):
    """The result of a session's maintenance."""

    ok: "Literal[True]"
    counts: "MaintenanceCounts"


class MaintenanceCounts(TypedDict):
    """Counts of the maintenance."""

    summaries: int
    refreshed: int
    turns_erased: int
    facts_expired: int


class Memory(TypedDict):
    """A long-term memory of an agent."""

    id: str
    agent_id: str
    owner: "str | None"
    content: str
    metadata: "dict[str, JsonValue]"
    created_at: str
    stored_at: list[str]
    expires_at: "str | None"


class MemoryEntries(TypedDict):
    """Recalled memories of an agent, best first. `degraded` names the parts of the search that were missing."""

    entries: "list[MemoryEntry]"
    degraded: list[str]


class MemoryEntry(TypedDict):
    """A recalled memory."""

    id: str
    agent_id: str
    owner: "str | None"
    content: str
    metadata: "dict[str, JsonValue]"
    created_at: str
    stored_at: list[str]
    expires_at: "str | None"
    score: float
    relevance: "float | None"


class MemoryFilters(TypedDict):
    """Filters for memories. A memory must match all given filters; times are exclusive."""

    owner: NotRequired["str | None"]
    metadata: NotRequired["dict[str, JsonValue] | None"]
    created_after: NotRequired["str | None"]
    created_before: NotRequired["str | None"]


class MemoryHit(TypedDict):
    """A recalled memory."""

    id: str
    conversation_id: "str | None"
    score: float
    relevance: "float | None"
    text: str
    passage: "PassageBounds | None"
    passages: "list[HitPassage]"
    count: int
    said_at: list[str]
    dates: "list[HitDate]"
    neighbours: "list[Turn] | None"
    explain: "Explanation | None"
    kind: Literal["memory"]
    turn: "None"
    fact: "None"
    summary: "None"
    memory: "Memory"


class MemoryListing(TypedDict):
    """Filters and paging of a list of memories, in a body."""

    agent_id: NotRequired["str | None"]
    owner: NotRequired["str | None"]
    order: NotRequired[Literal["asc", "desc"]]
    limit: NotRequired[int]
    cursor: NotRequired["str | None"]


class MemoryQuery(TypedDict):
    """A search for memories of an agent: the `top_k` most similar ones."""

    query: str
    top_k: NotRequired[int]
    min_relevance: NotRequired[float]
    filters: NotRequired["MemoryFilters"]


class MemoryStore(TypedDict):
    """A memory to store for the calling agent. After `ttl_s` seconds it is not recalled any more, and is deleted."""

    content: str
    metadata: NotRequired["dict[str, JsonValue]"]
    owner: NotRequired["str | None"]
    ttl_s: NotRequired["int | None"]


class MemoryStored(TypedDict):
    """Confirmation that a memory is durable and searchable. An administrator can delete it by its `id`."""

    stored: "Literal[True]"
    id: str


class MessagePreview(TypedDict):
    """The beginning of a message: at most 200 characters, on one line."""

    turn_id: str
    role: "Role"
    actor: str
    text: str
    occurred_at: str


class MetricSample(TypedDict):
    """Figures of one process at a time, with its requests in the `interval_s` seconds before."""

    at: str
    interval_s: float
    requests: int
    refused: int
    errors: int
    route_classes: "list[RouteClassSample]"
    jobs: "JobsSample | None"
    connection_pools: "list[ConnectionPoolSample]"
    memory_bytes: "int | None"
    search_index_bytes: int
    live_connections: int
    open_turns: int
    subscribers: int


class MetricSamples(TypedDict):
    """Samples of the process that answers, oldest first. `process_id` changes at every start."""

    process_id: str
    started_at: str
    interval_s: int
    samples: "list[MetricSample]"


class ModelCost(TypedDict):
    """The use of a chat model. `prompt_tokens` is an estimate; `max_cost` is by the prices in the settings."""

    model: str
    calls: int
    prompt_tokens: int
    max_completion_tokens: int
    max_cost: float


class ModelUsageDay(TypedDict):
    """A tenant's usage of a chat model on one day (UTC), for one purpose."""

    tenant_id: str
    day: str
    purpose: str
    model: str
    calls: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


class NewConversation(TypedDict):
    """A conversation to create, with its first items."""

    items: NotRequired["list[dict[str, JsonValue]] | None"]
    metadata: NotRequired["dict[str, str] | None"]


class NewItems(TypedDict):
    """Items to append, all or none."""

    items: "list[dict[str, JsonValue]]"


class Offset(TypedDict):
    """The durable length and the received length of one part."""

    part: str
    durable_offset: int
    offset: int


OpenAIConversation = TypedDict(
    "OpenAIConversation",
    {
        "id": str,
        "object": str,
        "created_at": int,
        "metadata": "dict[str, JsonValue]",
    },
)

OpenAIResponse = TypedDict(
    "OpenAIResponse",
    {
        "id": str,
        "object": Literal["response"],
        "created_at": int,
        "completed_at": "int | None",
        "status": Literal["in_progress", "completed", "incomplete", "failed", "cancelled"],
        "error": "ResponseError | None",
        "incomplete_details": "IncompleteDetails | None",
        "instructions": "str | None",
        "model": str,
        "output": "list[dict[str, JsonValue]]",
        "previous_response_id": "str | None",
        "conversation": "ConversationReference | None",
        "store": bool,
        "usage": "dict[str, JsonValue] | None",
        "metadata": "dict[str, JsonValue]",
        "tools": "list[dict[str, JsonValue]]",
        "tool_choice": "JsonValue",
        "parallel_tool_calls": bool,
    },
)


class OpenTurn(TypedDict):
    """A turn that is written while it streams. `supersedes` takes effect at its commit."""

    role: "Role"
    id: NotRequired["str | None"]
    actor: NotRequired["str | None"]
    kind: NotRequired["Kind | None"]
    model: NotRequired["str | None"]
    adapter: NotRequired["str | None"]
    metadata: NotRequired["dict[str, JsonValue]"]
    supersedes: NotRequired["str | None"]
    tool_call_id: NotRequired["str | None"]
    occurred_at: NotRequired["str | None"]


class OpenedTurn(TypedDict):
    """An open turn: its current row, and the offset from which its writer continues each part."""

    turn: "Turn"
    writer: str
    epoch: int
    durable_offset: int
    parts: "list[Offset]"
    lease_expires_at: str


class Opening(TypedDict):
    """Open a turn."""

    turn: "OpenTurn"
    writer: NotRequired[str]
    position: NotRequired[Literal["committed", "opened"]]


class Operation(TypedDict):
    """A long operation. It is kept for a day after its end (setting); its parameters are never shown."""

    id: str
    kind: str
    status: "OperationStatus"
    progress: "OperationProgress"
    created_at: str
    started_at: "str | None"
    ended_at: "str | None"
    expires_at: "str | None"
    result: "dict[str, JsonValue] | None"
    error: "OperationProblem | None"


class OperationProblem(TypedDict):
    """The error that ended an operation (RFC 9457, without a status)."""

    type: str
    title: str
    code: str


class OperationProgress(TypedDict):
    """Progress in units of the kind of operation, such as rows. `total` is an estimate; null while unknown."""

    done: int
    total: "int | None"


class OtherPart(TypedDict):
    """A part of another type, which is stored as given."""

    type: NotRequired["str | None"]


class OtherToolCall(TypedDict):
    """A tool call of another shape, which is stored as given."""

    id: NotRequired["str | None"]


class OwnKey(TypedDict):
    """The key or access token of the request, without its secret, and what it may do."""

    id: str
    kind: Literal["key", "person"]
    name: "str | None"
    tenant_id: str
    tenant_name: str
    scopes: "list[Scope]"
    agent_id: "str | None"
    long_term_enabled: bool
    expires_at: "str | None"
    projects: "list[str] | None"
    owners: "list[str] | None"


class OwnLimits(TypedDict):
    """The limits that were set for a tenant."""

    rates: "OwnRates"
    quotas: "OwnQuotas"


class OwnQuotas(TypedDict):
    """Quotas that were set; null where nothing was set, and 0 for no limit."""

    daily_turns: "int | None"
    daily_bytes: "int | None"
    daily_vectors: "int | None"
    daily_model_tokens: "int | None"
    daily_model_cost: "float | None"


class OwnRates(TypedDict):
    """Calls per second of each class that were set; null where nothing was set, and 0 for no limit."""

    read: "float | None"
    write: "float | None"
    chunk: "float | None"
    search: "float | None"
    model: "float | None"


class OwnedConversations(TypedDict):
    """Conversations of an owner, the one last written to first; `count` is the number of all."""

    count: int
    data: "list[ListedConversation]"
    has_more: bool
    next_cursor: "str | None"


class OwnedFacts(TypedDict):
    """Facts of an owner, newest first, without retracted ones; `count` includes those that are not valid any more."""

    count: int
    data: "list[Fact]"
    has_more: bool
    next_cursor: "str | None"


class OwnedMemories(TypedDict):
    """Memories about an owner, of all agents, newest first. They belong to no project."""

    count: int
    data: "list[Memory]"
    has_more: bool
    next_cursor: "str | None"


class OwnerLookup(TypedDict):
    """An owner to look up, in all projects or in one. Each list has its own cursor."""

    owner: str
    project: NotRequired["str | None"]
    limit: NotRequired[int]
    conversations_cursor: NotRequired["str | None"]
    facts_cursor: NotRequired["str | None"]
    memories_cursor: NotRequired["str | None"]


class OwnerView(TypedDict):
    """All that is stored under an owner, by kind."""

    conversations: "OwnedConversations"
    facts: "OwnedFacts"
    memories: "OwnedMemories"


AuditEntryPage = TypedDict(
    "AuditEntryPage",
    {
        "object": Literal["list"],
        "data": "list[AuditEntry]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

DeliveryPage = TypedDict(
    "DeliveryPage",
    {
        "object": Literal["list"],
        "data": "list[Delivery]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

ErasurePage = TypedDict(
    "ErasurePage",
    {
        "object": Literal["list"],
        "data": "list[Erasure]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

FactPage = TypedDict(
    "FactPage",
    {
        "object": Literal["list"],
        "data": "list[Fact]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

JobViewPage = TypedDict(
    "JobViewPage",
    {
        "object": Literal["list"],
        "data": "list[JobView]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

KeyPage = TypedDict(
    "KeyPage",
    {
        "object": Literal["list"],
        "data": "list[Key]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

ListedConversationPage = TypedDict(
    "ListedConversationPage",
    {
        "object": Literal["list"],
        "data": "list[ListedConversation]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

MemoryPage = TypedDict(
    "MemoryPage",
    {
        "object": Literal["list"],
        "data": "list[Memory]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

ModelUsageDayPage = TypedDict(
    "ModelUsageDayPage",
    {
        "object": Literal["list"],
        "data": "list[ModelUsageDay]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

OperationPage = TypedDict(
    "OperationPage",
    {
        "object": Literal["list"],
        "data": "list[Operation]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

ReplicaViewPage = TypedDict(
    "ReplicaViewPage",
    {
        "object": Literal["list"],
        "data": "list[ReplicaView]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

SlowCallPage = TypedDict(
    "SlowCallPage",
    {
        "object": Literal["list"],
        "data": "list[SlowCall]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

SummaryPage = TypedDict(
    "SummaryPage",
    {
        "object": Literal["list"],
        "data": "list[Summary]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

TenantPage = TypedDict(
    "TenantPage",
    {
        "object": Literal["list"],
        "data": "list[Tenant]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)

WebhookPage = TypedDict(
    "WebhookPage",
    {
        "object": Literal["list"],
        "data": "list[Webhook]",
        "has_more": bool,
        "next_cursor": "str | None",
    },
)


class PartText(TypedDict):
    """The text so far of one part of an open turn."""

    part: str
    text: str


class Participant(TypedDict):
    """A participant of the conversation: the actor's string, and its names. `role` is `tool` for a tool."""

    actor: str
    name: NotRequired["str | None"]
    aliases: NotRequired[list[str]]
    role: NotRequired['Literal["tool"] | None']


class ParticipantOut(TypedDict):
    """A participant of the conversation. `role` is `tool` for a tool that acted; a speaker has no `role`."""

    actor: str
    name: "str | None"
    aliases: list[str]
    role: NotRequired[Literal["tool"]]


class PassageBounds(TypedDict):
    """Where a passage is in the plain text of its turn: from `start` to `end` (exclusive), of `length` code points."""

    start: int
    end: int
    length: int


class PassageRange(TypedDict):
    """A run of a turn's plain text: `start` to `end` in code points, `end` excluded."""

    turn_id: str
    start: int
    end: int


class Passed(TypedDict):
    """The unchanged answer of the model's endpoint."""

    pass


class PendingTurn(TypedDict):
    """An open turn: its row (with `content` null), and the text so far of each part."""

    turn: "Turn"
    writer: str
    parts: "list[PartText]"


class PresenceFrame(TypedDict):
    """The current writers."""

    type: Literal["presence"]
    writers: "list[WriterPresence]"


class Problem(TypedDict):
    """An error (RFC 9457). Some codes add members of their own, such as `seq`."""

    type: str
    title: str
    status: int
    detail: str
    code: Literal[
        "admin_key_file_invalid",
        "agent_call_invalid",
        "agent_disabled",
        "agent_id_required",
        "agent_not_allowed",
        "agent_timeout",
        "agent_tool_unknown",
        "already_superseded",
        "answer_too_large",
        "body_too_large",
        "body_too_slow",
        "bootstrap_key_invalid",
        "budget_too_small",
        "chunk_too_large",
        "conversation_advanced",
        "conversation_conflict",
        "conversation_owned",
        "conversation_trashed",
        "cursor_invalid",
        "data_folder_not_writable",
        "data_missing",
        "database_unavailable",
        "duplicate_key",
        "embedded_postgres_busy",
        "embedded_postgres_data",
        "embedded_postgres_failed",
        "embedded_postgres_missing",
        "embedded_postgres_place",
        "embedded_postgres_unsupported",
        "embedded_postgres_user",
        "embedded_postgres_version",
        "embedder_assets_damaged",
        "embedder_assets_missing",
        "embedder_closed",
        "embedder_failed",
        "embedder_invalid",
        "embedder_overloaded",
        "embedder_rate_limited",
        "embedder_unavailable",
        "fact_retracted",
        "forbidden",
        "head_too_large",
        "host_not_allowed",
        "idempotency_mismatch",
        "import_incomplete",
        "import_line_too_long",
        "import_too_large",
        "import_unreadable",
        "import_unsupported",
        "internal_error",
        "invalid_request",
        "issuer_unavailable",
        "job_running",
        "job_timeout",
        "job_waiting",
        "json_too_deep",
        "key_expired",
        "key_not_valid",
        "key_restricted",
        "key_revoked",
        "last_admin_key",
        "length_mismatch",
        "long_term_disabled",
        "malformed_json",
        "malformed_request",
        "mcp_tool_unknown",
        "method_not_allowed",
        "model_budget_exhausted",
        "model_context_exceeded",
        "model_error",
        "model_invalid",
        "model_not_configured",
        "model_overloaded",
        "model_rate_limited",
        "model_refused",
        "model_timeout",
        "model_unavailable",
        "not_found",
        "not_ready",
        "not_supported",
        "nothing_to_undo",
        "number_not_interoperable",
        "operation_ended",
        "operation_token_expired",
        "operation_token_invalid",
        "origin_not_allowed",
        "overloaded",
        "port_taken",
        "postgres_unusable",
        "quota_exhausted",
        "rate_limited",
        "resource_busy",
        "response_ended",
        "response_unfinished",
        "revision_changed",
        "route_not_found",
        "schema_outdated",
        "schema_unknown",
        "secret_replaced",
        "secret_shown_once",
        "source_gone",
        "sources_erased",
        "space_dropping",
        "space_incomplete",
        "space_no_previous",
        "space_not_configured",
        "space_searched",
        "stream_fenced",
        "stream_gap",
        "text_not_storable",
        "text_too_large",
        "token_expired",
        "token_not_allowed",
        "token_ranks_unusable",
        "token_unusable",
        "too_many_connections",
        "too_many_facts",
        "too_many_failed_keys",
        "too_many_open_turns",
        "too_many_operations",
        "too_many_webhooks",
        "tool_call_answered",
        "tool_call_unknown",
        "turn_aborted",
        "turn_committed",
        "turn_erased",
        "turn_id_conflict",
        "turn_pending",
        "unauthenticated",
        "unsupported_media_type",
        "worker_lost",
        "writer_mismatch",
    ]
    request_id: str
    errors: "list[ProblemField]"
    retryable: bool


ProblemField = TypedDict(
    "ProblemField",
    {
        "pointer": str,
        "in": Literal["body", "query", "path", "header"],
        "detail": str,
    },
)


class ProjectStats(TypedDict):
    """One project. `turns` and `tokens` count live turns."""

    project: str
    conversations: int
    turns: int
    tokens: int


class ProviderMessage(TypedDict):
    """A message of chat completions, Anthropic or Workers AI, or a turn in the canonical format."""

    role: str
    content: NotRequired["str | list[ContentPart] | None"]
    name: NotRequired["str | None"]
    tool_calls: NotRequired["list[ToolCall] | None"]
    tool_call_id: NotRequired["str | None"]


class QuotaLimits(TypedDict):
    """What a tenant may use in a day; 0 for no limit."""

    daily_turns: int
    daily_bytes: int
    daily_vectors: int
    daily_model_tokens: int
    daily_model_cost: float


class QuotaView(TypedDict):
    """A limit for the day, 0 if there is none, and what is used of it."""

    limit: float
    used: float


class Quotas(TypedDict):
    """What a tenant may use in a day (UTC). `null`: the default of the installation; 0: no limit."""

    daily_turns: NotRequired["int | None"]
    daily_bytes: NotRequired["int | None"]
    daily_vectors: NotRequired["int | None"]
    daily_model_tokens: NotRequired["int | None"]
    daily_model_cost: NotRequired["float | None"]


class QuotasView(TypedDict):
    """The quotas of a tenant for the day."""

    daily_turns: "QuotaView"
    daily_bytes: "QuotaView"
    daily_vectors: "QuotaView"
    daily_model_tokens: "QuotaView"
    daily_model_cost: "QuotaView"


class RankingConfiguration(TypedDict):
    """Weights of the ranking formula, for an evaluation. Omitted ones keep their defaults; the documentation has both."""

    meaning: NotRequired["float | None"]
    words: NotRequired["float | None"]
    share: NotRequired["float | None"]
    overlap: NotRequired["float | None"]
    session: NotRequired["float | None"]
    neighbour: NotRequired["float | None"]
    answer: NotRequired["float | None"]
    speaker: NotRequired["float | None"]
    assistant: NotRequired["float | None"]
    asks: NotRequired["float | None"]
    instructs: NotRequired["float | None"]
    first_person: NotRequired["float | None"]
    quantity: NotRequired["float | None"]
    wanted: NotRequired["float | None"]
    per_piece: NotRequired["float | None"]
    half_words: NotRequired["float | None"]


class Rates(TypedDict):
    """Calls per second of each class, for each key. `null`: the default; 0: no limit."""

    read: NotRequired["float | None"]
    write: NotRequired["float | None"]
    chunk: NotRequired["float | None"]
    search: NotRequired["float | None"]
    model: NotRequired["float | None"]


class RatesView(TypedDict):
    """Calls per second of each class, for each key; 0: no limit."""

    read: float
    write: float
    chunk: float
    search: float
    model: float


class RecallFilters(TypedDict):
    """Filters for hits. A hit must match all given filters; times are exclusive."""

    actors: NotRequired["list[str] | None"]
    roles: NotRequired["list[Role] | None"]
    occurred_after: NotRequired["str | None"]
    occurred_before: NotRequired["str | None"]
    metadata: NotRequired["dict[str, JsonValue] | None"]


RecallResult = TypedDict(
    "RecallResult",
    {
        "object": Literal["list"],
        "data": "list[TurnHit | FactHit | SummaryHit | MemoryHit]",
        "space": "str | None",
        "degraded": list[str],
    },
)


class ReceiptCheck(TypedDict):
    """A receipt to verify, and optionally the subject that it should be about."""

    conversation_id: NotRequired["str | None"]
    owner: NotRequired["str | None"]
    actor: NotRequired["str | None"]
    tenant: NotRequired["str | None"]
    project: NotRequired["str | None"]
    receipt: "ReceiptIn"


class ReceiptIn(TypedDict):
    """A receipt, as `GET /v1/erasures/{id}` returned it."""

    id: str
    tenant_id: str
    subject_kind: "SubjectKind"
    subject_hash: str
    status: "ErasureStatus"
    counts: "dict[str, ErasedRowsIn]"
    created_at: str
    ended_at: "str | None"
    signature: "str | None"


class ReceiptVerification(TypedDict):
    """`valid`: this installation signed the receipt for this tenant, and nothing in it was changed."""

    valid: bool
    matches: "bool | None"


class RelistFrame(TypedDict):
    """Some events were lost: read the list again. The stream continues with new events."""

    type: Literal["reread"]


class ReplayRequest(TypedDict):
    """Deliveries to send again: those recorded at `since` or later, dead ones unless `statuses` names others."""

    since: str
    until: NotRequired["str | None"]
    statuses: NotRequired["list[DeliveryStatus]"]


class ReplicaView(TypedDict):
    """A running process of the installation, as it announces itself."""

    id: str
    kind: Literal["server", "worker"]
    is_this: bool
    runs_jobs: bool
    version: str
    schema_revision: str
    host: str
    process_number: int
    started_at: str
    seen_at: str


class RereadFrame(TypedDict):
    """Some frames were dropped because the client read too slowly: subscribe again after this rev."""

    type: Literal["reread"]
    after_rev: int


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class ResponsesItem(TypedDict):
    """An item of OpenAI Responses: a message, a function call, its output, reasoning."""

    type: str
    role: NotRequired["str | None"]
    content: NotRequired["str | list[ContentPart] | None"]
    call_id: NotRequired["str | None"]
    name: NotRequired["str | None"]
    arguments: NotRequired["str | None"]
    output: NotRequired["str | list[ContentPart] | None"]


class Resuming(TypedDict):
    """Continue a turn after a lost connection, as the same writer; earlier connections can no longer write it."""

    writer: NotRequired[str]


class RetentionDryRun(TypedDict):
    """Turns whose content retention would erase now. Turns that no summary covers wait for one."""

    policy: "Retention"
    turns: int
    tokens: int
    continues: bool
    expires_at: "str | None"


class Revision(TypedDict):
    """A new turn in the place of an old one: an edit, or an answer that was generated again."""

    id: NotRequired["str | None"]
    actor: NotRequired["str | None"]
    kind: NotRequired["Kind | None"]
    content: NotRequired["str | list[ContentPart] | None"]
    tool_calls: NotRequired["list[ToolCall]"]
    tool_call_id: NotRequired["str | None"]
    tool_results: NotRequired["list[ToolOutput]"]
    usage: NotRequired["dict[str, JsonValue] | None"]
    model: NotRequired["str | None"]
    adapter: NotRequired["str | None"]
    metadata: NotRequired["dict[str, JsonValue]"]
    occurred_at: NotRequired["str | None"]
    role: NotRequired["Role | None"]
    truncate_after: NotRequired[bool]
    expected_seq: NotRequired["int | None"]


class RevisionResult(TypedDict):
    """Result of a revision: the new turn, and the number of turns that it superseded (the old one and truncated ones)."""

    conversation_id: str
    turn: "Turn"
    superseded_count: int
    seq: int
    rev: int
    head_hash: str


class RouteClassSample(TypedDict):
    """HTTP requests of one class in a sample."""

    route_class: str
    requests: int
    refused: int
    errors: int
    p50_ms: "float | None"
    p95_ms: "float | None"


class RunTurn(TypedDict):
    """Either the fields of before-turn, to prepare a turn, or `operation_token` and `output_items`, to complete it."""

    project: NotRequired["str | None"]
    session_id: NotRequired["str | None"]
    user_id: NotRequired["str | None"]
    turn_id: NotRequired["str | None"]
    current_input: NotRequired["list[Message] | None"]
    base_instructions: NotRequired["str | None"]
    max_input_tok: NotRequired["int | None"]
    include_memories: NotRequired["bool | None"]
    agent_id: NotRequired["str | None"]
    operation_token: NotRequired["str | None"]
    output_items: NotRequired["list[Message] | None"]


class ScoreTerms(TypedDict):
    """The terms of a score: it is their sum, unless a reranker has moved the hit."""

    meaning: float
    words: float
    share: float
    overlap: float
    session: float
    neighbour: float
    answer: float
    speaker: float
    assistant: float
    asks: float
    instructs: float
    first_person: float
    quantity: float
    wanted: float


class SecretRotate(TypedDict):
    """A new secret. Deliveries are signed with both for `grace_s` more seconds, a day unless given."""

    grace_s: NotRequired[int]


class SectionUsage(TypedDict):
    """Tokens of one section: requested and available, shown, and left out for lack of room."""

    requested: int
    used: int
    dropped: int


class Sections(TypedDict):
    """The sections of a context. The sum of their `used` is that of the context."""

    system: "SectionUsage"
    recent: "SectionUsage"
    summary: "SectionUsage"
    facts: "SectionUsage"
    memories: "SectionUsage"
    recalled: "SectionUsage"


class SemanticRecall(TypedDict):
    """How many earlier turns to recall, their lowest similarity (cosine), and the conversations to search."""

    k: NotRequired["int | None"]
    threshold: NotRequired[float]
    min_relevance: NotRequired[float]
    scope: NotRequired["RecallScope"]


class SessionRequest(TypedDict):
    """A session to maintain."""

    project: NotRequired[str]
    session_id: str


class SlowCall(TypedDict):
    """A slow HTTP request: its route template, its duration and where the time went, never its content."""

    ended_at: str
    tenant_id: "str | None"
    request_id: "str | None"
    trace_id: "str | None"
    method: str
    route: str
    status: int
    duration_ms: float
    statements: int
    database_ms: float
    stages: "StageTimes"


class SnapshotFrame(TypedDict):
    """The state of the conversation: the turns changed since the start position, and the open turns with their text."""

    type: Literal["snapshot"]
    seq: int
    rev: int
    turns: "list[Turn]"
    pending: "list[PendingTurn]"
    more: bool


class SpaceAdd(TypedDict):
    """The space to add; members left out are taken from the settings."""

    provider: NotRequired["str | None"]
    model: NotRequired["str | None"]
    dimensions: NotRequired["int | None"]


class SpaceComparison(TypedDict):
    """Queries for a comparison of two embedding spaces, in one conversation or in the whole tenant."""

    queries: list[str]
    k: NotRequired[int]
    mode: NotRequired[Literal["hybrid", "vector"]]
    conversation_id: NotRequired["str | None"]


class SpaceComparisonResult(TypedDict):
    """Agreement of two embedding spaces: the one searched and the one compared, as `provider/model/dimensions`."""

    searched: "str | None"
    compared: "str | None"
    k: int
    overlap: float
    rank_agreement: float
    queries: "list[ComparedQuery]"


class SpaceSwitch(TypedDict):
    """Options of a switch. `force`: switch even if turns lack vectors; until then they are found by words."""

    force: NotRequired[bool]


class StageTimes(TypedDict):
    """Time of the stages of a call, in milliseconds. Stages that run concurrently are added up."""

    embed_ms: float
    search_ms: float
    assemble_ms: float
    model_ms: float


class Stats(TypedDict):
    """Size of the data. `bytes` is the sum over `tables`."""

    of: Literal["tenant", "installation"]
    conversations: int
    turns: int
    tokens: int
    entries: int
    vectors: int
    vectors_pending: int
    bytes: int
    summaries: "list[SummaryStats]"
    tables: "list[TableSize]"
    projects: "list[ProjectStats]"
    tenants: "list[TenantStats]"


class Summary(TypedDict):
    """Text that replaces the turns of a range in contexts. Both positions are inclusive. `doubtful`: what to check."""

    id: str
    conversation_id: str
    kind: "SummaryKind"
    level: int
    from_position: int
    to_position: int
    valid: bool
    replaced_by: "str | None"
    actors: list[str]
    text: str
    abstract: "str | None"
    lines: "list[SummaryLine]"
    tokens: int
    model: "str | None"
    prompt_version: str
    refused_for: "RefusedFor | None"
    doubtful: "list[DoubtfulSentence]"
    rev: int
    created_at: str


class SummaryCreatedFrame(TypedDict):
    """A summary of older turns was created; contexts use it instead of them, and the turns are kept."""

    type: Literal["summary.created"]
    rev: int
    summary: "Summary"


class SummaryEvent(TypedDict):
    """A summary was created."""

    type: Literal["summary.created"]
    timestamp: str
    data: "SummaryEventData"


class SummaryEventData(TypedDict):
    """A summary, as it is when the event is sent."""

    conversation_id: str
    summary_id: str
    summary: "Summary | None"
    omitted: "Omission | None"


class SummaryHit(TypedDict):
    """A recalled summary."""

    id: str
    conversation_id: "str | None"
    score: float
    relevance: "float | None"
    text: str
    passage: "PassageBounds | None"
    passages: "list[HitPassage]"
    count: int
    said_at: list[str]
    dates: "list[HitDate]"
    neighbours: "list[Turn] | None"
    explain: "Explanation | None"
    kind: Literal["summary"]
    turn: "None"
    fact: "None"
    summary: "Summary"
    memory: "None"


class SummaryLine(TypedDict):
    """One line of highlights: text of a turn, with its date and actor."""

    turn_id: str
    text: str


class SummaryRequest(TypedDict):
    """Turns to summarise: through this turn; by default all but the newest."""

    through: NotRequired["str | None"]


class SummaryStats(TypedDict):
    """Valid summaries of one kind: `kind` and `refused_for` as in a summary. `doubtful`: those with such sentences."""

    kind: "SummaryKind"
    refused_for: "RefusedFor | None"
    count: int
    doubtful: int


class TableSize(TypedDict):
    """One table: rows and bytes with its indexes."""

    table: str
    rows: int
    bytes: int


class Tenant(TypedDict):
    """A customer of the installation."""

    id: str
    name: str
    created_at: str


class TenantCreate(TypedDict):
    """A tenant to create."""

    name: str


class TenantLimits(TypedDict):
    """The limits of a tenant that differ from the installation's; they replace all limits that were set before."""

    rates: NotRequired["Rates"]
    quotas: NotRequired["Quotas"]


class TenantMade(TypedDict):
    """A tenant with its first key (read, write, admin), whose text only this response contains."""

    id: str
    name: str
    created_at: str
    first_key: "KeyMade"


class TenantStats(TypedDict):
    """One tenant. `turns` and `tokens` count live turns."""

    tenant_id: str
    name: str
    conversations: int
    turns: int
    tokens: int


class TenantUpdate(TypedDict):
    """The fields of a tenant that may change."""

    name: str


class TestEvent(TypedDict):
    """A test that an administrator asked for."""

    type: Literal["webhook.test"]
    timestamp: str
    data: "TestEventData"


class TestEventData(TypedDict):
    """The webhook that a test was asked for."""

    webhook_id: str


class TextPart(TypedDict):
    """A text part."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class TokenCreate(TypedDict):
    """A short-lived token for one conversation: to read it, or to read it and append to it."""

    access: "Access"
    actor: NotRequired["str | None"]
    roles: NotRequired['list[Literal["user", "assistant", "tool"]]']
    ttl_s: NotRequired["int | None"]


class TokenMade(TypedDict):
    """A conversation token, whose text only this response contains."""

    token: str
    expires_at: str
    conversation_id: str
    access: "Access"
    actor: "str | None"
    roles: "list[Role]"


class ToolOutput(TypedDict):
    """The result of the tool call `tool_call_id`."""

    tool_call_id: str
    content: NotRequired["str | list[ContentPart] | None"]
    is_error: NotRequired[bool]


class Tree(TypedDict):
    """Nodes of a session's memory, each after its parent."""

    summaries: "list[TreeEntry]"


class TreeEntry(TypedDict):
    """One node of a session's memory. `has_overview`: the node's text has more than `abstract`."""

    path: str
    abstract: str
    updated_at: str
    has_overview: bool


class TreeRequest(TypedDict):
    """A part of a session's memory to list: `path` and the nodes below it, `depth` levels deep."""

    project: NotRequired[str]
    session_id: str
    path: NotRequired[str]
    depth: NotRequired[int]
    limit: NotRequired[int]


class Turn(TypedDict):
    """A stored turn. With `erased_at` it is a tombstone: its content was erased, its position and hashes are kept."""

    id: str
    conversation_id: str
    seq: "int | None"
    position: "int | None"
    rev: int
    kind: "Kind"
    actor: str
    role: "Role"
    content: "str | list[ContentPart] | None"
    tool_calls: "list[ToolCall]"
    tool_call_id: "str | None"
    tool_results: "list[ToolOutput]"
    usage: "dict[str, JsonValue] | None"
    content_tokens: int
    model: "str | None"
    adapter: "str | None"
    status: Literal["pending", "committed", "aborted"]
    superseded_by: "str | None"
    supersedes: "str | None"
    origin_turn_id: "str | None"
    metadata: "dict[str, JsonValue]"
    occurred_at: str
    created_at: str
    committed_at: "str | None"
    content_hash: "str | None"
    chain_hash: "str | None"
    index_state: Literal["indexed", "pending", "none"]
    erased_at: "str | None"


class TurnAbortedFrame(TypedDict):
    """An open turn was aborted, or its lease expired; `length` is the length of its content."""

    type: Literal["turn.aborted"]
    turn_id: str
    length: int


class TurnCommittedFrame(TypedDict):
    """A turn was committed, after streaming or by an append."""

    type: Literal["turn.committed"]
    rev: int
    turn: "Turn"


class TurnContext(TypedDict):
    """The input for the model. `context_token_count` counts all input items, in o200k_base."""

    input_items: "list[Message]"
    recall_fact_ids: list[str]
    context_token_count: int
    gap: "Gap | None"


class TurnDeltaFrame(TypedDict):
    """More text of an open turn. If `offset` is below the client's length, cut the text to `offset` first."""

    type: Literal["turn.delta"]
    turn_id: str
    part: str
    offset: int
    delta: str


class TurnDone(TypedDict):
    """Confirmation that the turn is stored, by this request or an earlier one."""

    ok: "Literal[True]"
    sanitised: NotRequired[list[str]]


class TurnErasedFrame(TypedDict):
    """The content of a turn was erased; the turn keeps its seq and position."""

    type: Literal["turn.erased"]
    rev: int
    turn_id: str


class TurnEvent(TypedDict):
    """A turn was committed, superseded by a revision, or erased."""

    type: Literal["turn.committed", "turn.superseded", "turn.erased"]
    timestamp: str
    data: "TurnEventData"


class TurnEventData(TypedDict):
    """A turn, as it is when the event is sent: erased content is not sent any more."""

    conversation_id: str
    turn_id: str
    turn: "Turn | None"
    omitted: "Omission | None"


class TurnHit(TypedDict):
    """A recalled turn. The `turn` of a long one has no content, calls and results, unless the request has `full`."""

    id: str
    conversation_id: "str | None"
    score: float
    relevance: "float | None"
    text: str
    passage: "PassageBounds | None"
    passages: "list[HitPassage]"
    count: int
    said_at: list[str]
    dates: "list[HitDate]"
    neighbours: "list[Turn] | None"
    explain: "Explanation | None"
    kind: Literal["turn"]
    turn: "Turn | None"
    fact: "None"
    summary: "None"
    memory: "None"


class TurnInput(TypedDict):
    """A turn to append."""

    id: NotRequired["str | None"]
    actor: NotRequired["str | None"]
    kind: NotRequired["Kind | None"]
    content: NotRequired["str | list[ContentPart] | None"]
    tool_calls: NotRequired["list[ToolCall]"]
    tool_call_id: NotRequired["str | None"]
    tool_results: NotRequired["list[ToolOutput]"]
    usage: NotRequired["dict[str, JsonValue] | None"]
    model: NotRequired["str | None"]
    adapter: NotRequired["str | None"]
    metadata: NotRequired["dict[str, JsonValue]"]
    occurred_at: NotRequired["str | None"]
    role: "Role"


class TurnOpenedFrame(TypedDict):
    """A turn was opened."""

    type: Literal["turn.opened"]
    turn: "Turn"
    writer: str


class TurnPrepared(TypedDict):
    """A turn whose input is stored. `operation_token` completes it, until `expires_at`."""

    input_items: "list[Message]"
    recall_fact_ids: list[str]
    context_token_count: int
    gap: "Gap | None"
    operation_token: str
    expires_at: str
    sanitised: NotRequired[list[str]]


class TurnSupersededFrame(TypedDict):
    """Another turn superseded this turn."""

    type: Literal["turn.superseded"]
    rev: int
    turn_id: str
    superseded_by: str


class Undone(TypedDict):
    """Result of an undo: the summary that was removed, and the summaries that are valid again."""

    conversation_id: str
    undone: str
    restored: list[str]
    summarized_through: "str | None"
    rev: int


class Verification(TypedDict):
    """Result of a verification of the hash chain."""

    conversation_id: str
    valid: bool
    turns: int
    verified_content: int
    erased: int
    head_hash: str
    first_break: "ChainBreak | None"


class Webhook(TypedDict):
    """A receiver of events. `failing_since`: the first failure since the last success."""

    id: str
    url: str
    description: "str | None"
    event_types: "list[str] | None"
    project: "str | None"
    include_content: bool
    enabled: bool
    disabled_reason: "DisabledReason | None"
    failing_since: "str | None"
    previous_secret_until: "str | None"
    created_at: str
    updated_at: str


class WebhookCreate(TypedDict):
    """A receiver of events."""

    url: str
    description: NotRequired["str | None"]
    event_types: NotRequired["list[EventType] | None"]
    project: NotRequired["str | None"]
    include_content: NotRequired[bool]


class WebhookMade(TypedDict):
    """A webhook with its secret, `whsec_…`, which is shown once."""

    id: str
    url: str
    description: "str | None"
    event_types: "list[str] | None"
    project: "str | None"
    include_content: bool
    enabled: bool
    disabled_reason: "DisabledReason | None"
    failing_since: "str | None"
    previous_secret_until: "str | None"
    created_at: str
    updated_at: str
    secret: str


class WebhookUpdate(TypedDict):
    """A change of a webhook; fields that are left out stay. `null` is for all types or projects, or no description."""

    url: NotRequired["str | None"]
    description: NotRequired["str | None"]
    event_types: NotRequired["list[EventType] | None"]
    project: NotRequired["str | None"]
    include_content: NotRequired["bool | None"]
    enabled: NotRequired["bool | None"]


class WriterPresence(TypedDict):
    """The writer of an open turn."""

    turn_id: str
    writer: str
    actor: str


Access: TypeAlias = Literal["read", "append"]
Action: TypeAlias = Literal[
    "conversations.create",
    "conversations.update",
    "conversations.delete",
    "conversations.trash",
    "conversations.restore",
    "conversations.fork",
    "conversations.undo_compact",
    "turns.append",
    "turns.open",
    "turns.resume",
    "turns.commit",
    "turns.abort",
    "turns.revise",
    "turns.erase",
    "responses.delete",
    "summaries.create",
    "facts.create",
    "facts.update",
    "facts.retract",
    "facts.undo",
    "facts.extract",
    "memories.store",
    "memories.delete",
    "memories.search",
    "recall.search",
    "contexts.build",
    "agents.ask",
    "tools.call",
    "tokens.create",
    "tokens.revoke",
    "keys.create",
    "keys.rotate",
    "keys.revoke",
    "keys.limit",
    "keys.list",
    "tenants.create",
    "tenants.update",
    "tenants.limit",
    "tenants.read",
    "limits.read",
    "stats.read",
    "samples.read",
    "slow_calls.list",
    "replicas.list",
    "usage.list",
    "erasures.start",
    "erasures.end",
    "erasures.list",
    "exports.read",
    "imports.start",
    "imports.end",
    "owners.read",
    "operations.cancel",
    "webhooks.create",
    "webhooks.update",
    "webhooks.rotate",
    "webhooks.test",
    "webhooks.replay",
    "webhooks.disable",
    "webhooks.delete",
    "webhooks.list",
    "jobs.list",
    "jobs.read",
    "jobs.retry",
    "jobs.cancel",
    "spaces.list",
    "spaces.add",
    "spaces.compare",
    "spaces.switch",
    "spaces.drop",
    "audit.list",
    "audit.verify",
    "audit.lose",
]
ActorKind: TypeAlias = Literal["key", "person", "token", "job", "command"]
ContentPart: TypeAlias = TextPart | ImagePart | AudioPart | FilePart | OtherPart
DeliveryError: TypeAlias = Literal[
    "status", "redirect", "timeout", "name", "address", "connection", "tls", "protocol", "internal"
]
DeliveryStatus: TypeAlias = Literal["pending", "delivered", "dead"]
DisabledReason: TypeAlias = Literal["request", "failing", "gone"]
EntryKind: TypeAlias = Literal["turn", "summary", "fact", "memory"]
ErasureStatus: TypeAlias = Literal["open", "complete", "failed", "cancelled"]
EventType: TypeAlias = Literal[
    "conversation.created",
    "conversation.updated",
    "conversation.trashed",
    "conversation.restored",
    "conversation.deleted",
    "turn.committed",
    "turn.superseded",
    "turn.erased",
    "summary.created",
    "fact.recorded",
    "fact.updated",
    "fact.retracted",
    "fact.deleted",
]
ForeignSystem: TypeAlias = Literal[
    "chatgpt", "claude", "open_webui", "librechat", "openai", "mem0", "zep", "letta", "langgraph", "honcho"
]
Format: TypeAlias = Literal["openai", "openai_responses", "anthropic", "workers_ai", "canonical"]
IndexTime: TypeAlias = Literal["now", "deferred"]
JobState: TypeAlias = Literal["queued", "parked", "cancelled"]
Kind: TypeAlias = Literal[
    "user_message", "agent_message", "tool_call_request", "tool_result", "system_instruction", "compaction"
]
Message: TypeAlias = ProviderMessage | ResponsesItem
Mode: TypeAlias = Literal["hybrid", "text", "vector"]
ModelPurpose: TypeAlias = Literal["summary", "facts", "redaction", "generation", "ask_agent", "title"]
ObjectKind: TypeAlias = Literal[
    "conversation",
    "turn",
    "summary",
    "fact",
    "memory",
    "key",
    "tenant",
    "job",
    "embedding_space",
    "tool",
    "operation",
    "erasure",
    "import",
    "webhook",
]
Omission: TypeAlias = Literal["deleted", "content_off", "too_large"]
OperationStatus: TypeAlias = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]
RecallScope: TypeAlias = Literal["conversation", "owner", "project"]
RefusedFor: TypeAlias = Literal[
    "blank",
    "too_short",
    "too_long",
    "repeated",
    "not_text",
    "unrelated",
    "unsupported_number",
    "unsupported_name",
    "model_invalid",
    "model_refused",
    "model_timeout",
    "model_context_exceeded",
    "model_overloaded",
    "model_rate_limited",
    "model_budget_exhausted",
    "model_unavailable",
]
Retention: TypeAlias = Literal["full", "audit_only", "ephemeral"]
Role: TypeAlias = Literal["user", "assistant", "system", "tool"]
Scope: TypeAlias = Literal["read", "write", "admin", "operator"]
SpaceState: TypeAlias = Literal["idle", "preparing", "searched", "kept", "dropping"]
StatedBy: TypeAlias = Literal["caller", "rules", "model"]
SubjectKind: TypeAlias = Literal["conversation", "owner", "actor", "tenant"]
SummaryKind: TypeAlias = Literal["summary", "highlights"]
Tier: TypeAlias = Literal["l1", "l2", "l3"]
ToolCall: TypeAlias = CanonicalToolCall | FunctionToolCall | OtherToolCall
LiveEvent: TypeAlias = (
    SnapshotFrame
    | TurnOpenedFrame
    | TurnDeltaFrame
    | TurnCommittedFrame
    | TurnAbortedFrame
    | TurnSupersededFrame
    | TurnErasedFrame
    | SummaryCreatedFrame
    | FactRecordedFrame
    | PresenceFrame
    | RereadFrame
    | ErrorFrame
)
ListEvent: TypeAlias = ConversationUpdatedFrame | ConversationDeletedFrame | RelistFrame | ErrorFrame
