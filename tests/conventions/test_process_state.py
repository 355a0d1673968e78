"""Nothing that a process remembers mixes tenants: every map, set, queue, buffer and cache is named here, with its key.

A new one is keyed by tenant and object, and gets a line in a table below: in `REVIEWED`, with the reason why it mixes
no tenants, or in `SHORT_LIVED`, where its class lives only as long as one piece of work of one tenant.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.process_state import Program, Why, problems

APP = Path(__file__).parents[2] / "app"

REVIEWED: Mapping[str, tuple[Why, str]] = {
    # open turns
    "app.conversations.streams.service.Streams._buffers": (Why.TENANT, "open turns that this process writes"),
    "app.conversations.streams.flush.Flusher._buffers": (Why.TENANT, "the same map, given to what writes it"),
    "app.conversations.streams.flush.Flusher._acknowledged": (Why.TENANT, "text of open turns that was taken and lost"),
    "app.conversations.streams.handover.StreamHandover._checks": (Why.NO_TENANT_DATA, "running tasks"),
    "app.conversations.streams.handover.StreamHandover._releasing": (
        Why.TENANT,
        "open turns that another process has asked for",
    ),
    "app.conversations.streams.handover.StreamHandover._released": (
        Why.TENANT,
        "open turns that another process was just given",
    ),
    "app.conversations.streams.take_over.TurnTakeOver._buffers": (Why.TENANT, "the same map, given to what adds to it"),
    "app.conversations.streams.take_over.TurnTakeOver._changing": (Why.TENANT, "open turns whose holder is changing"),
    "app.conversations.streams.flush._TenantTasks._tasks": (Why.TENANT, "one write for each tenant"),
    "app.conversations.streams.flush._TenantTasks._missed_tenants": (Why.TENANT, "tenants whose write is due again"),
    # followers, projections, and the bus
    "app.conversations.live.service.ConversationSubscriptions._conversations": (
        Why.TENANT,
        "followed conversations with their projections",
    ),
    "app.conversations.live.service.ConversationSubscriptions.event_sources": (
        Why.NO_TENANT_DATA,
        "functions, added at the start",
    ),
    "app.conversations.live.list_subscription.ListSubscriptions._tenant_lists": (
        Why.TENANT,
        "lists of conversations that are followed",
    ),
    "app.core.bus.connection.ReconnectingBus._queue": (Why.NAMED, "messages to other processes"),
    "app.core.bus.replicas.Replicas._seen": (Why.NO_TENANT_DATA, "running processes"),
    "app.core.bus.wire.SequenceTracker._known": (Why.NO_TENANT_DATA, "processes, and the number of their next message"),
    "app.routers.http.uvicorn_protocols.SocketTurns._waiting": (Why.NO_TENANT_DATA, "methods of connections"),
    "app.routers.live.connection_limits.Connections._counts": (
        Why.TENANT,
        "connections by tenant, by key, and by holder of a token",
    ),
    "app.dashboard.pages._gzipped": (Why.NO_TENANT_DATA, "the built files of the dashboard, which are public"),
    "app.routers.http.app_state.AppState.documents": (Why.NO_TENANT_DATA, "the encoded documents of the API"),
    "app.routers.http.metrics.HttpMetrics._children": (
        Why.NO_TENANT_DATA,
        "counters by method, route template and status",
    ),
    # shares of tenants in calls, in the bytes of bodies and in the embedder
    "app.core.limits.TenantLimiter._used_by": (Why.TENANT, "how much each tenant uses"),
    "app.core.limits.TenantLimiter._waiting": (
        Why.TENANT,
        "waiting requests, each with the future of its caller",
    ),
    "app.core.limits.TenantLimiter._refusals": (Why.TENANT, "the order in which requests are refused"),
    # keys, and what tenants spend
    "app.tenancy.service.Tenancy._checked": (Why.SECRET, "callers by the HMAC of the whole key or token they gave"),
    "app.tenancy.limits.rates.CallRates._buckets": (Why.TENANT, "calls that keys may still make"),
    "app.tenancy.limits.rates._policy": (Why.NO_TENANT_DATA, "limits by class and rate"),
    "app.tenancy.limits.quotas.TenantQuotas._known": (Why.TENANT, "what tenants have stored today"),
    "app.tenancy.limits.failed_keys.FailedKeys._buckets": (Why.NO_TENANT_DATA, "invalid keys that addresses may send"),
    "app.tenancy.limits.failed_keys.FailedKeys._valid": (Why.SECRET, "HMACs of whole keys that were valid"),
    "app.tenancy.service.Tenancy._used": (Why.TENANT, "when keys were used last"),
    "app.tenancy.service.Tenancy._warned": (Why.TENANT, "keys whose coming expiry was logged on a day"),
    "app.index.analyser.numbers._large_words": (Why.NO_TENANT_DATA, "words of the languages"),
    "app.index.analyser.numbers._months": (Why.NO_TENANT_DATA, "names of months of a language"),
    "app.index.analyser.numbers.number_words": (Why.NO_TENANT_DATA, "number words of a language"),
    "app.context.compaction.claim_words._common": (Why.NO_TENANT_DATA, "words of a language"),
    "app.context.compaction.claim_words._frequent": (Why.NO_TENANT_DATA, "words of a language"),
    "app.context.compaction.claim_words._known_words": (Why.NO_TENANT_DATA, "words of a language"),
    "app.context.compaction.service.Compactor.made": (Why.NO_TENANT_DATA, "summaries by kind, counted"),
    "app.context.compaction.writer.SummaryWriter.refused": (Why.NO_TENANT_DATA, "refused answers by reason, counted"),
    "app.context.token_counts.CountCache._counts": (
        Why.SECRET,
        "token counts by the keyed hash of tenant, tokenizer and text",
    ),
    "app.audit.request_context._REQUEST_ID": (Why.OWN, "the request that a task serves"),
    "app.audit.service.AuditTrail._waiting": (Why.TENANT, "entries of reads that are not written yet"),
    "app.audit.service.AuditTrail._lost": (Why.TENANT, "how many entries of reads were not kept"),
    "app.tenancy.spending.service.Spending._unwritten": (Why.TENANT, "spent tokens that could not be written yet"),
    "app.transfer.imports.lines._known_members": (Why.NO_TENANT_DATA, "names of members of records"),
    "app.governance.erasures.runner.ErasureRunner._steps": (Why.NO_TENANT_DATA, "the steps of erasures by name"),
    "app.governance.erasures.store.left_sql": (Why.NO_TENANT_DATA, "statements by kind of subject"),
    "app.operations.service.Operations.handlers": (Why.NO_TENANT_DATA, "handlers by kind of operation"),
    # webhooks
    "app.webhooks.dispatch.Dispatcher._running": (Why.TENANT, "lanes that this process sends"),
    "app.webhooks.dispatch.Dispatcher.counts": (Why.NO_TENANT_DATA, "attempts by outcome"),
    # the index, and embedders
    "app.index.search.ann_maintenance.AnnMaintenance._counts": (Why.TENANT, "how many entries tenants have"),
    "app.index.search.ann_maintenance.AnnMaintenance._due": (Why.TENANT, "tenants whose vectors are to be moved"),
    "app.index.analyser.detection._latin_words": (Why.NO_TENANT_DATA, "word lists of the languages"),
    "app.index.analyser.languages.acknowledgements": (Why.NO_TENANT_DATA, "word lists of the languages"),
    "app.index.analyser.languages.read_file": (Why.NO_TENANT_DATA, "files of the languages"),
    "app.index.analyser.languages.read_language": (Why.NO_TENANT_DATA, "rules of the languages"),
    "app.index.analyser.phrases._rules": (Why.NO_TENANT_DATA, "expressions for dates by language"),
    "app.index.analyser.query_words._words_of": (Why.NO_TENANT_DATA, "expressions for words by language"),
    "app.providers.local.fair_queue.FairQueue._waiting": (Why.OWN, "requests, each with the future of its caller"),
    "app.providers.local.fair_queue.FairQueue._rows": (Why.NO_TENANT_DATA, "two counts"),
    "app.providers.remote.openai.OpenAIEmbedder._waiting": (Why.NO_TENANT_DATA, "two counts"),
    # chat models
    "app.providers.endpoint.ChatEndpoint._variants": (
        Why.NO_TENANT_DATA,
        "parameters that each model of the endpoint takes",
    ),
    "app.providers.window.LearntWindows._windows": (Why.TENANT, "windows by tenant and model"),
    "app.providers.queues.endpoint_calls._Calls.waiting": (Why.OWN, "calls that wait, each with its caller's future"),
    "app.providers.queues.endpoint_calls.EndpointCalls._requests": (Why.OWN, "times of the requests that run"),
    "app.providers.endpoint.ChatEndpoint._recording": (Why.OWN, "tasks to wait for at the end"),
    "app.agents.generation.service.Generation._pending": (Why.OWN, "tasks to wait for at the end"),
    "app.agents.generation.service.Generation._running": (Why.TENANT, "answers that are streamed, by tenant and turn"),
    "app.agents.ask.output_filter.OutputFilter._runs": (
        Why.NO_TENANT_DATA,
        "runs of the installation's own instructions",
    ),
    "app.agents.ask.output_filter.OutputFilter._short": (
        Why.NO_TENANT_DATA,
        "short texts of the installation's own instructions",
    ),
    # search
    "app.index.search.resident.ResidentIndex._cached": (
        Why.TENANT,
        "entries by tenant, scope and space, read in a transaction of the tenant",
    ),
    "app.index.search.resident.ResidentIndex._of_tenant": (Why.TENANT, "the same, of each tenant"),
    "app.index.search.resident.ResidentIndex._due": (Why.TENANT, "those of `_cached` that are read in the background"),
    # jobs
    "app.worker.runner.Worker._running": (Why.TENANT, "jobs that this worker runs"),
    "app.worker.runner.Worker._given_up": (Why.TENANT, "jobs that another worker has now"),
    # the supervisor of several processes, which serves no request
    "app.cli.serving.supervisor.Supervisor._processes": (Why.NO_TENANT_DATA, "the processes that it keeps running"),
    # the database, and figures
    "app.core.database.transactions.Database._inside": (
        Why.NO_TENANT_DATA,
        "whether a transaction is open in this task",
    ),
    "app.core.database.transactions.Database._closing": (Why.NO_TENANT_DATA, "tasks that close connections"),
    "app.core.database.transactions.Database._ending": (Why.OWN, "tasks that return the connection of a caller"),
    "app.core.database.reader.DatabaseReader.fallbacks": (Why.NO_TENANT_DATA, "counts by reason"),
    "app.core.database.connections._last_used": (Why.NO_TENANT_DATA, "the server used last, by database URL"),
    "app.core.database.connections.ConnectOptions.server_settings": (Why.OWN, "settings of one connection, until made"),
    "app.core.database.queries.compiled.query": (Why.NO_TENANT_DATA, "SQL by the shape of a statement"),
    "app.core.database.transactions._reader_of": (Why.NO_TENANT_DATA, "functions by row type"),
    "app.memory.pii.deobfuscation._folded": (
        Why.NO_TENANT_DATA,
        "single characters, whose plain form is the same for all",
    ),
    "app.core.telemetry.OncePerMinute._logged": (Why.NO_TENANT_DATA, "names of log events, with a time each"),
    "app.agents.lifecycle.counters.LifecycleCounters.calls": (Why.NO_TENANT_DATA, "counts by call and code"),
    "app.agents.lifecycle.counters.LifecycleCounters.after_turn_ms": (Why.NO_TENANT_DATA, "counts by duration"),
    "app.governance.purge.Purger.counts": (Why.NO_TENANT_DATA, "counts by table"),
    "app.core.tracing.call_record._CALL": (Why.OWN, "the call that a task serves"),
    "app.diagnostics.monitor.Monitor._counts": (Why.NO_TENANT_DATA, "counts of requests by class"),
    "app.diagnostics.monitor.Monitor._samples": (Why.NO_TENANT_DATA, "figures of the process"),
    "app.diagnostics.slow_calls.SlowCalls._without_tenant": (Why.NO_TENANT_DATA, "slow calls without a valid key"),
    "app.diagnostics.slow_calls.SlowCalls._of_tenant": (Why.TENANT, "slow calls by tenant"),
    "app.memory.extraction.batch.ModelReader.ignored": (Why.NO_TENANT_DATA, "counts by purpose and reason"),
    "app.memory.extraction.turn_support._denials": (Why.NO_TENANT_DATA, "a word list"),
    "app.memory.pii.model_findings._digit_words": (Why.NO_TENANT_DATA, "words of digits of the languages"),
    "app.memory.pii.model_findings._common_words": (Why.NO_TENANT_DATA, "a word list"),
    "app.memory.pii.model_findings._month_names": (Why.NO_TENANT_DATA, "a word list"),
    "app.memory.facts.fact_writer.FactWriter.counts": (Why.NO_TENANT_DATA, "counts by tier"),
}

SHORT_LIVED: Mapping[str, str] = {
    "app.routers.http.uvicorn_protocols.BoundedSocket": "one connection",
    "app.audit.sealing._ChainEnds": "one transaction of the sealer, by tenant and day",
    "app.audit.verification._ChainWalk": "the check of one day of one tenant",
    "app.index.analyser.analyser.Analyser": "one batch of texts, or one query",
    "app.context.assembly.shortening.sizes": "one turn of one context",
    "app.context.assembly.shortening.shorten": "one turn of one context",
    "app.recall.passages._WordFinder": "one text and one query",
    "app.governance.erasures.state.ErasureState": "one step of one erasure",
    "app.transfer.lines.ExportDigest": "one export",
    "app.transfer.importers.building.TurnBuilder": "one conversation of one file that is converted",
    "app.transfer.importers.building.MixedMessage": "one message of one file that is converted",
    "app.transfer.importers.building.mixed_turns": "one message of one file that is converted",
    "app.transfer.importers.documents.ForeignDocument": "one file that is converted",
    "app.transfer.importers.documents._Salvage": "one file that is converted",
    "app.transfer.importers.systems.openai._conversation": "one conversation of one file that is converted",
    "app.cli.archives.outcome.RefusedLines": "one file of one command",
    "app.transfer.importers.message_tree.MessageTree": "one conversation of one file that is converted",
    "app.transfer.importers.message_tree.ChatBranch": "one conversation of one file that is converted",
    "app.transfer.importers.service._CheckedObjects": "one file that is converted",
    "app.transfer.exports.service._RecordPage": "one page of one export",
    "app.transfer.imports.runner.ImportState": "one object of one import",
    "app.transfer.imports.lines.StagedLines": "one object of one import",
    "app.transfer.imports.upload.UploadReader": "one upload",
    "app.cli.archives.download._Pipe": "one export of one command",
    "app.cli.archives.download._PartFile": "one export of one command",
    "app.transfer.imports.rebuild._RebuiltConversation": "one conversation of one import",
    "app.operations.service.OperationRun": "one run of one operation",
    "app.webhooks.outbox._Events": "one transaction of one tenant",
    "app.webhooks.dispatch._Shares": "one look for due deliveries",
    # one connection, or one follower
    "app.routers.live.epochs.Epochs": "one WebSocket, in one conversation",
    "app.routers.live.outbox.Outbox": "one WebSocket, in one conversation",
    "app.conversations.live.service.Subscription": "one subscriber",
    "app.conversations.live.list_subscription.ListSubscription": "one subscriber of a list",
    # one object of one tenant, in a map above
    "app.conversations.streams.buffer.OpenTurnBuffer": "one open turn",
    "app.conversations.streams.buffer.OpenPartBuffer": "one open turn",
    "app.conversations.streams.take_over.TurnTakeOver.add_opened_buffer.buffer": "one open turn",
    "app.conversations.live.service._FollowedConversation": "one followed conversation",
    "app.conversations.live.projection.ConversationProjection": "one followed conversation",
    "app.conversations.live.projection._PendingTurn": "one followed conversation",
    "app.conversations.live.open_text.TextBuffer": "one followed conversation",
    "app.conversations.live.list_subscription._TenantList": "one tenant's list",
    # one request or job, or a part of it
    "app.agents.ask.service._AskRun": "one question",
    "app.agents.generation.service.AnswerStream": "one answer",
    "app.agents.generation.answer.PartialAnswer": "one answer",
    "app.agents.generation.call_deltas.StreamedCalls": "one answer",
    "app.agents.generation.call_deltas._StreamedCall": "one answer",
    "app.agents.generation.responses.events.ResponseEvents": "one answer",
    "app.agents.generation.responses.events._OpenCall": "one answer",
    "app.agents.generation.responses.events._OpenMessage": "one answer",
    "app.agents.generation.responses.events._OpenText": "one answer",
    "app.agents.generation.responses.following._GrowingAnswer": "one answer",
    "app.agents.generation.responses.view.ResponseState": "one answer",
    "app.context.assembly.assemble._Assembly": "one context",
    "app.context.compaction.attribution._Evidence": "one summary that is checked",
    "app.context.compaction.claim_numbers.SourceFigures": "one summary that is checked",
    "app.context.compaction.claim_words.NameIndex": "one summary that is checked",
    "app.context.compaction.claims.SummarySource": "one summary that is checked",
    "app.context.assembly.plan.Costs": "one context",
    "app.context.assembly.plan.Plan": "one context",
    "app.context.assembly.reasons.Reasons": "one context",
    "app.context.assembly.recalled.RecalledTurns": "one context",
    "app.context.assembly.recent.RecentTurns": "one context",
    "app.conversations.schemas.conversations._PoliciesInMetadata": "one request",
    "app.context.assembly.report._Rows": "one context",
    "app.conversations.queries.context_turns._Pages": "one context",
    "app.core.database.transactions.Transaction": "one transaction",
    "app.core.errors.AppError": "one error",
    "app.core.tracing.call_record.CallRecord": "one call",
    "app.diagnostics.request_counts.RequestCounts": "the requests of one class in one interval",
    "app.formats.schemas.CanonicalTurn": "one turn",
    "app.formats.schemas.ParsedTurn": "one turn",
    "app.formats.tokens.CachingCounter": "one context",
    "app.formats.units._CallPairing": "one list of messages",
    "app.index.search.resident._CachedSegment": "the segment of one scope of one tenant",
    "app.index.search.segment.Segment": "the entries of one scope of one tenant",
    "app.index.search.dictionaries.Codes": "one segment",
    "app.index.search.maxscore.TopEntries": "one search",
    "app.index.search.search_statement.StatementArguments": "one statement",
    "app.index.search.search_statement.WordColumns": "one statement",
    "app.mcp.endpoint._replaying": "one request",
    "app.mcp.outcomes.OutcomeFilter": "one request",
    "app.memory.extraction.model_extractor._StatementChecker": "one answer of a model",
    "app.memory.extraction.batch.TurnBatch": "one batch of turns",
    "app.memory.extraction.service._Tally": "one extraction",
    "app.memory.extraction.turn_dates.TurnDates": "one turn",
    "app.memory.extraction.turn_support.TurnSupport": "one turn",
    "app.memory.facts.fact_timeline.FactTimeline": "one transaction",
    "app.memory.facts.validity.Run": "one transaction",
    "app.memory.pii.model_findings.replace_personal": "one text",
    "app.memory.pii.pii_filter.RedactedTexts": "one extraction",
    "app.diagnostics.invariants.ConversationCheck": "one conversation that is checked",
    # programs of a client, with one key
    "app.mcp.bridge.Bridge": "one client of the command `mcp`",
    "app.mcp.bridge.ClientMessage": "one message of the command `mcp`",
    "app.mcp.bridge._lines": "one client of the command `mcp`",
    "app.tail.view.OpenText": "one run of the command `tail`",
    "app.tail.view.View": "one run of the command `tail`",
}


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.of(
        {
            ".".join(path.relative_to(APP.parent).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
            for path in sorted(APP.rglob("*.py"))
        }
    )


@pytest.mark.slow
def test_all_that_a_process_remembers_is_keyed_by_tenant_or_has_no_data_of_tenants(program: Program) -> None:
    assert problems(program, reviewed=REVIEWED, short_lived=SHORT_LIVED) == []


IMPORTS = """
import asyncio
import collections
from asyncio import Queue as Waiting
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from functools import cache, lru_cache
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary
from app.conversations.streams.buffer import Held
from app.core.ids import ConversationId, TenantId, TurnId
"""

PLANTED = {
    "dict": "class Service:\n  def __init__(self):\n    self._turns: dict[TurnId, Held] = {}",
    "dict of another object": "class Service:\n  def __init__(self, turns: dict[TurnId, Held]):\n    self._t = turns",
    "dict in an application": "def start(app):\n  app.state.turns = {}",
    "dict of two": "class Service:\n  def __init__(self):\n    self._turns, self._count = {}, 0",
    "dict of a module": "TURNS: dict[TurnId, Held] = {}",
    "dict of a module, not annotated": "TURNS = dict()",
    "dict of a module that is filled": "TURNS = {1: 2}\ndef add(key):\n  TURNS[key] = 3",
    "dict of a function": "def made():\n  turns = {}\n  def add(key):\n    turns[key] = 1\n  return add",
    "dict of a global": "def start():\n  global turns\n  turns = {}",
    "dict of a default": "def add(key, turns={}):\n  turns[key] = 1",
    "dict of a class": "class Service:\n  turns: dict[str, Held] = {}",
    "dict of a frozen dataclass": (
        "@dataclass(frozen=True)\nclass Service:\n  turns: dict[TurnId, Held] = field(default_factory=dict)"
    ),
    "dict of a dataclass": "@dataclass\nclass Service:\n  turns: dict[TurnId, Held] = field(default_factory=dict)",
    "dict that is copied": "class Service:\n  def add(self, key):\n    self._turns = {**self._turns, key: 1}",
    "defaultdict": "class Service:\n  def __init__(self):\n    self._turns = defaultdict[TurnId, list[str]](list)",
    "OrderedDict": "class Service:\n  def __init__(self):\n    self._turns: OrderedDict[TurnId, Held] = OrderedDict()",
    "Counter": "class S:\n  def __init__(self):\n    self._t: collections.Counter[TurnId] = collections.Counter()",
    "WeakValueDictionary": (
        "class Service:\n  def __init__(self):\n"
        "    self._turns: WeakValueDictionary[TurnId, Held] = WeakValueDictionary()"
    ),
    "WeakKeyDictionary": "class Service:\n  def __init__(self):\n    self._turns = WeakKeyDictionary()",
    "set": "class Service:\n  def __init__(self):\n    self._turns: set[TurnId] = set()",
    "WeakSet": "class Service:\n  def __init__(self):\n    self._turns = WeakSet[Held]()",
    "list": "class Service:\n  def __init__(self):\n    self._turns: list[TurnId] = []",
    "deque": "class Service:\n  def __init__(self):\n    self._turns: deque[TurnId] = deque(maxlen=10)",
    "Queue": "class Service:\n  def __init__(self):\n    self._turns: asyncio.Queue[TurnId] = asyncio.Queue(10)",
    "Queue by another name": "class Service:\n  def __init__(self):\n    self._turns = Waiting(10)",
    "lru_cache": "@lru_cache(maxsize=100)\ndef text_of(turn_id: TurnId) -> str: ...",
    "lru_cache of a method": "class Service:\n  @lru_cache\n  def text_of(self, turn_id: TurnId) -> str: ...",
    "cache that is called": "def read(turn_id): ...\ntext_of = cache(read)",
}


def problems_of(program: Program, source: str, *reviewed: tuple[str, Why]) -> list[str]:
    """What is wrong about a module that is planted in the program, of which these places are reviewed."""
    listed = {name: (why, "planted") for name, why in reviewed}
    return problems(program.module("app.planted", IMPORTS + source), reviewed=listed, short_lived={})


def place_of(program: Program, source: str) -> str:
    """The name of the one place that remembers in a planted module."""
    [found] = problems_of(program, source)
    return found.split(" ")[0]


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_new_and_remembers_is_refused_until_it_is_reviewed(program: Program, planted: str) -> None:
    [found] = problems_of(program, PLANTED[planted])
    assert found.startswith("app.planted.")
    assert "is not reviewed" in found


KEYED_BY_A_TURN = [
    "dict", "defaultdict", "OrderedDict", "Counter", "WeakValueDictionary", "set", "list", "deque", "Queue",
    "lru_cache",
]  # fmt: skip


@pytest.mark.parametrize("planted", KEYED_BY_A_TURN)
@pytest.mark.parametrize("key", ["TurnId", "ConversationId", "UUID", "str", "tuple[ConversationId, TurnId]", "_Id"])
def test_what_is_keyed_by_an_id_alone_is_refused_though_it_is_in_the_table(
    program: Program, planted: str, key: str
) -> None:
    source = "_Id = ConversationId | TurnId\n" + PLANTED[planted].replace("TurnId", key)
    place = place_of(program, source)
    [refused] = problems_of(program, source, (place, Why.TENANT))
    assert refused.startswith(f"{place} ")
    assert "keyed by an id alone" in refused
    assert problems_of(program, source, (place, Why.NO_TENANT_DATA)) == []


@pytest.mark.parametrize("planted", KEYED_BY_A_TURN)
@pytest.mark.parametrize("key", ["tuple[TenantId, TurnId]", "StreamKey", "_Key", "_Key | StreamKey", "_Names"])
def test_what_is_keyed_by_tenant_and_object_is_accepted_in_the_table(program: Program, planted: str, key: str) -> None:
    keys = (
        "_Names = tuple[TenantId, str]\n@dataclass(frozen=True)\nclass _Key:\n  tenant_id: TenantId\n  turn_id: int\n"
    )
    source = keys + PLANTED[planted].replace("TurnId", key)
    assert problems_of(program, source, (place_of(program, source), Why.TENANT)) == []


@pytest.mark.slow
def test_a_map_of_the_program_that_loses_its_tenant_is_refused(program: Program) -> None:
    source = (APP / "conversations/streams/service.py").read_text()
    name = "app.conversations.streams.service.Streams._buffers"
    assert name not in " ".join(problems(program, reviewed=REVIEWED, short_lived=SHORT_LIVED))
    changed = program.module(
        "app.conversations.streams.service",
        source.replace("dict[StreamKey, OpenTurnBuffer]", "dict[TurnId, OpenTurnBuffer]"),
    )
    found = problems(changed, reviewed=REVIEWED, short_lived=SHORT_LIVED)
    assert f"{name} (dict by TurnId) is keyed by an id alone: another tenant may have the same" in found


def test_a_key_that_has_the_tenant_in_one_of_its_forms_only_is_refused(program: Program) -> None:
    source = PLANTED["dict"].replace("TurnId", "StreamKey | TurnId")
    [refused] = problems_of(program, source, (place_of(program, source), Why.TENANT))
    assert "keyed by an id alone" in refused


@pytest.mark.parametrize("planted", ["WeakKeyDictionary", "Queue by another name", "dict of a module, not annotated"])
def test_a_key_that_the_source_does_not_say_is_asked_for(program: Program, planted: str) -> None:
    place = place_of(program, PLANTED[planted])
    [refused] = problems_of(program, PLANTED[planted], (place, Why.NO_TENANT_DATA))
    assert "annotate it" in refused


def test_what_is_in_a_table_and_not_in_the_program_is_refused(program: Program) -> None:
    reviewed = {"app.planted.Service._turns": (Why.TENANT, "open turns"), "app.planted.Service._gone": (Why.TENANT, "")}
    planted = program.module("app.planted", PLANTED["dict"].replace("TurnId", "StreamKey"))
    assert problems(planted, reviewed=reviewed, short_lived={"app.planted.Request": "one request"}) == [
        "app.planted.Request is in the table, and not in the program",
        "app.planted.Service._gone is in the table, and not in the program",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "def sums(turns):\n  found = {}\n  found[1] = turns\n  return found",
        "NAMES = {'a': 1}",
        "class Service:\n  def __init__(self, names: Mapping[str, int]):\n    self._names = names",
        "class Body(Strict):\n  turns: list[TurnId]",
        "@dataclass(frozen=True)\nclass Page:\n  turns: list[TurnId]",
    ],
)
def test_local_variables_constants_and_bodies_remember_nothing(program: Program, source: str) -> None:
    assert problems_of(program, source) == []
