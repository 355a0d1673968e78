"""The ASGI application: routers and middleware around the container, which opens with the lifespan."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Final

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from fastapi.telemetry import TelemetryConfig
from prometheus_client import CollectorRegistry, Gauge, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.routing import Route

from app.container import Container, open_container
from app.core.bus.messages import Bus
from app.core.database.reader import Fallback
from app.core.database.transactions import PoolUse
from app.core.errors import AppError
from app.core.threads import running
from app.core.tracing.export import exported_telemetry
from app.core.tracing.metrics import counter, export
from app.dashboard import pages
from app.diagnostics.service import Monitor, ProcessFigures
from app.mcp.endpoint import McpEndpoint
from app.routers.documents import docs_pages
from app.routers.documents.openapi import openapi_document
from app.routers.http.bytes_in_flight import BytesInFlight
from app.routers.http.middleware import install_middleware
from app.routers.http.problems import declared_members, install_problem_handlers
from app.routers.http.routing.methods import refuse_missing_methods
from app.routers.live import sse, websocket
from app.routers.live.connection_limits import Connections, add_live_metrics
from app.routers.live.frames import frame_members
from app.routers.live.server_state import ServerState
from app.routers.openai import chat_completions
from app.routers.openai import conversations as openai_conversations
from app.routers.openai import responses as openai_responses
from app.routers.rest.agents import ask, generation, lifecycle
from app.routers.rest.conversations import context, conversations, streams, summaries, tokens, turns
from app.routers.rest.memory import facts, memories, recall
from app.routers.rest.operations import (
    admin,
    audit,
    embedding_spaces,
    erasures,
    exports,
    health,
    imports,
    jobs,
    keys,
    monitoring,
    operations,
    webhooks,
)
from app.settings import Settings
from app.webhooks.service import add_webhook_metrics, dispatching
from app.worker.handlers import make_worker
from app.worker.runner import Worker, add_job_metrics, add_sweep_metrics, working

_ROUTERS = tuple(
    module.router
    for module in (
        conversations, turns, context, recall, streams, summaries, tokens, websocket, sse, facts, memories, lifecycle,
        generation, chat_completions, openai_conversations, openai_responses, ask, erasures, exports, imports,
        operations, admin, keys, jobs, audit, embedding_spaces, monitoring, webhooks, health, docs_pages, pages,
    )
)  # fmt: skip

# FastAPI makes spans only while traces are exported; its log exporter would write the messages of exceptions
_TELEMETRY: Final[TelemetryConfig] = {
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
    "exclude": lambda scope: scope["path"] in {"/healthz", "/readyz", "/metrics"},
}


def create_app(settings: Settings) -> FastAPI:
    """Return the application for these settings. Nothing starts before its lifespan."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    mcp_endpoint = McpEndpoint(settings, registry)
    monitor = Monitor(settings.telemetry)
    state = _state(settings, registry, monitor)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(exported_telemetry(version=app.version, names=mcp_endpoint.names))
            # takes about a second: done while Postgres starts, and before the first request
            members = asyncio.get_running_loop().run_in_executor(None, declared_members, app)
            try:
                opening = open_container(settings, migrate=settings.database.migrate_on_start)
                container = state.opened = await stack.enter_async_context(opening)
            except AppError as error:
                # reported by the starting process: the server only says that the start failed
                state.start_failure = error
                raise
            await stack.enter_async_context(mcp_endpoint.open(container))
            _add_metrics(registry, container, monitor)
            worker = make_worker(container) if settings.jobs.worker_in_process else None
            if worker is not None:
                await stack.enter_async_context(_working(worker, container, registry))
            monitor.figures = _figures(state, worker)
            await stack.enter_async_context(running(monitor.sample_forever()))
            announced = container.replicas.announced(
                monitor.process_id, kind="server", runs_jobs=worker is not None, version=app.version
            )
            await stack.enter_async_context(announced)
            await members
            yield

    app = FastAPI(
        title="Turnkeep",
        version=version("turnkeep"),
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        telemetry=_TELEMETRY,
    )
    app.state.turnkeep = state
    for router in _ROUTERS:
        app.include_router(router)
    # a route, not a mount, which would redirect to another path
    app.router.routes.append(Route("/mcp", endpoint=mcp_endpoint, methods=["POST"], include_in_schema=False))
    app.mount("/docs/assets", StaticFiles(packages=[("fastapi_offline", "static")]), name="docs_assets")
    refuse_missing_methods(app)
    install_problem_handlers(app)
    install_middleware(app, state)
    app.openapi = lambda: openapi_document(app)
    return app


def _state(settings: Settings, registry: CollectorRegistry, monitor: Monitor) -> ServerState:
    """Return the state of the application before its lifespan."""
    return ServerState(
        settings=settings,
        registry=registry,
        monitor=monitor,
        bytes_in_flight=BytesInFlight(max_bytes=settings.bytes_in_flight),
        connections=Connections(registry, settings=settings.live),
        frame_members=frame_members(),
    )


def _add_metrics(registry: CollectorRegistry, container: Container, monitor: Monitor) -> None:
    """Export the figures of the services."""
    add_live_metrics(registry, container)
    _add_bus_metrics(registry, container.bus)
    registry.register(container.lifecycle.counters)
    add_sweep_metrics(registry, container.purger.counts)
    reranker = container.reranker
    for metric in (*container.embed_meter.collectors, *(() if reranker is None else reranker.collectors)):
        registry.register(metric)
    export(registry, lambda: _process_metrics(container, monitor))


def _pools(container: Container) -> dict[str, PoolUse]:
    standby = container.reader.standby
    pools = {"app": container.database.use, "ops": container.ops.use}
    return pools if standby is None else pools | {"standby": standby.use}


def _process_metrics(container: Container, monitor: Monitor) -> Iterator[Metric]:
    """Yield the use of the connection pools and of the standby, the open turns, and the slow calls."""
    connections = GaugeMetricFamily(
        "turnkeep_database_connections",
        "Connections to Postgres, by pool and state: `used`, `idle`, and `limit` for as many as there may be.",
        labels=["pool", "state"],
    )
    waiting = GaugeMetricFamily(
        "turnkeep_database_waiting", "Calls that wait for a connection, by pool.", labels=["pool"]
    )
    for pool, use in _pools(container).items():
        for state, count in (("used", use.used), ("idle", use.open - use.used), ("limit", use.size)):
            connections.add_metric([pool, state], count)
        waiting.add_metric([pool], use.waiting)
    yield connections
    yield waiting
    reader = container.reader
    yield CounterMetricFamily(
        "turnkeep_standby_reads", "Reads that a standby has answered.", value=reader.standby_reads
    )
    fallbacks = {reason: reader.fallbacks[reason] for reason in Fallback}
    text = "Reads that the primary has answered instead, by reason."
    yield counter("turnkeep_standby_fallbacks", text, "reason", fallbacks)
    open_turns = container.handover.open_turns
    yield GaugeMetricFamily("turnkeep_open_turns", "Open turns that this process writes.", value=open_turns)
    nbytes = container.index.resident.nbytes
    yield GaugeMetricFamily("turnkeep_search_index_bytes", "Memory of the search index, about.", value=nbytes)
    ignored = CounterMetricFamily(
        "turnkeep_model_findings_ignored",
        "Statements and personal data of models that the turns do not support, by purpose and reason.",
        labels=["purpose", "reason"],
    )
    for (purpose, reason), count in container.facts.extractor.ignored.items():
        ignored.add_metric([purpose, reason], count)
    yield ignored
    slow_calls = monitor.slow_call_count
    yield CounterMetricFamily("turnkeep_slow_calls", "HTTP requests that were slow.", value=slow_calls)


def _figures(state: ServerState, worker: Worker | None) -> ProcessFigures:
    """Return the sources of the samples."""
    container, connections = state.container, state.connections
    return ProcessFigures(
        jobs=None if worker is None else lambda: worker.counts,
        pools=lambda: _pools(container),
        search_index_bytes=lambda: container.index.resident.nbytes,
        live_connections=lambda: connections.open,
        open_turns=lambda: container.handover.open_turns,
        subscribers=lambda: container.subscriptions.subscribers,
    )


@asynccontextmanager
async def _working(worker: Worker, container: Container, registry: CollectorRegistry) -> AsyncGenerator[None]:
    """Run jobs and send deliveries during the block."""
    dispatcher = container.webhooks.dispatcher
    add_job_metrics(registry, worker)
    add_webhook_metrics(registry, dispatcher)
    async with working(worker), dispatching(dispatcher):
        yield


def _add_bus_metrics(registry: CollectorRegistry, bus: Bus) -> None:
    """Export the bus connection as `turnkeep_bus_connected`."""
    gauge = Gauge("turnkeep_bus_connected", "1 while messages of other processes are received.", registry=registry)
    gauge.set_function(lambda: float(bus.connected()))
