"""What leaves the process in a span: attributes on a list, with plain values. Pure but for the types of the SDK.

The libraries that make spans record paths, queries, URLs, SQL, `Host` headers, names of tools and messages of
exceptions, all of which can contain what a caller wrote. So nothing is exported but what is named here.
"""

import re
from collections.abc import Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, Status, TraceState, get_current_span
from opentelemetry.util.types import Attributes, AttributeValue

SPAN_ATTRIBUTES: Final = frozenset(
    {
        "http.request.method",
        "http.route",
        "http.response.status_code",
        "error.type",
        "url.scheme",
        "network.protocol.name",
        "network.protocol.version",
        "db.system",
        "db.system.name",
        "turnkeep.tenant_id",
        "turnkeep.key_id",
        "turnkeep.conversation_id",
        "turnkeep.job_id",
        "turnkeep.job_kind",
        "turnkeep.attempt",
        "turnkeep.provider",
        "turnkeep.model",
        "turnkeep.purpose",
        "turnkeep.texts",
        "turnkeep.k",
        "turnkeep.token_budget",
        "turnkeep.turns",
    }
)
"""All attributes that are exported, apart from those of `_NAMED` and `server.address` of upstream endpoints."""
METRIC_ATTRIBUTES: Final = frozenset(
    {
        "http.request.method",
        "http.route",
        "http.response.status_code",
        "error.type",
        "url.scheme",
        "network.protocol.version",
        "server.address",
        "server.port",
    }
)

_NAMED: Final = frozenset({"mcp.method.name", "gen_ai.tool.name"})
"""Attributes whose values callers choose: exported if they are names of this server."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:/{}\-]{1,200}")
_DATABASE_SCOPE: Final = "opentelemetry.instrumentation.asyncpg"
_HTTP_CLIENT_SCOPE: Final = "opentelemetry.instrumentation.httpx"
_MCP_SCOPE: Final = "mcp-python-sdk"
_FIRST_WORD: Final = re.compile(r"\s*([A-Za-z]+)")
_TABLE: Final = re.compile(r"\b(?:from|into|update)\s+(?:only\s+)?([a-z_]{1,63})\b", re.IGNORECASE)
_OF_TABLES: Final = frozenset({"select", "insert", "update", "delete", "with"})
_OTHER_STATEMENTS: Final = frozenset({"begin", "commit", "rollback", "set", "listen", "unlisten", "notify"})


def statement_summary(sql: str) -> str:
    """Return a short name of a statement of our own: its first word, and the first table that it names."""
    first = _FIRST_WORD.match(sql)
    word = "" if first is None else first[1].lower()
    if word in _OF_TABLES:
        table = _TABLE.search(sql)
        return word if table is None else f"{word} {table[1].lower()}"
    return word if word in _OTHER_STATEMENTS else "statement"


class FilteringSpanExporter(SpanExporter):
    """Exporter that gives filtered copies of spans to another one. `names`: what callers may name, as in `_NAMED`."""

    def __init__(self, exporter: SpanExporter, *, names: frozenset[str]) -> None:
        self._exporter = exporter
        self._names = names

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the filtered spans."""
        return self._exporter.export([self.filtered(span) for span in spans])

    def shutdown(self) -> None:
        """Stop the other exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export all that waits."""
        return self._exporter.force_flush(timeout_millis)

    def filtered(self, span: ReadableSpan) -> ReadableSpan:
        """Return a copy with the allowed attributes only, without events, messages and links."""
        scope = "" if span.instrumentation_scope is None else span.instrumentation_scope.name
        attributes = span.attributes or {}
        allowed = {key: value for key, value in attributes.items() if key in SPAN_ATTRIBUTES and _is_plain(value)}
        allowed |= {key: value for key, value in attributes.items() if key in _NAMED and value in self._names}
        if scope == _HTTP_CLIENT_SCOPE and _is_plain(address := attributes.get("server.address", "")):
            allowed["server.address"] = address
        name = span.name
        if scope == _DATABASE_SCOPE:
            name = allowed["db.query.summary"] = statement_summary(
                str(attributes.get("db.query.text") or attributes.get("db.statement") or "")
            )
        elif scope == _MCP_SCOPE:
            name = (
                " ".join(str(allowed[key]) for key in ("mcp.method.name", "gen_ai.tool.name") if key in allowed)
                or "mcp"
            )
        return ReadableSpan(
            name=name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=allowed,
            kind=span.kind,
            status=Status(span.status.status_code),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )


def _is_plain(value: AttributeValue) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and _PLAIN.fullmatch(value) is not None)


class WithoutLoneStatements(Sampler):
    """Sampler that records no client span outside of a trace: polls of the job table would be a trace each."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Return the decision of the other sampler, unless a client span has no parent."""
        if kind is SpanKind.CLIENT and not get_current_span(parent_context).get_span_context().is_valid:
            return SamplingResult(Decision.DROP)
        return self._sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """Return the name of the sampler."""
        return f"WithoutLoneStatements({self._sampler.get_description()})"
