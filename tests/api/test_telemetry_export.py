"""Traces and metrics over OTLP: a process of its own, and a collector that speaks HTTP and protobuf."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.core.tracing.export import requested_signals
from app.core.tracing.span_filter import statement_summary
from app.tenancy.key_text import generate_key
from tests.support.fake_chat import open_fake_chat, says
from tests.support.postgres import TestDatabase
from tests.support.process import Process

MARKER = "Wombat4marker"
TRACE = "0af7651916cd43dd8448eb211c80319c"
KEY = str(generate_key())
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector:
    """What a collector was sent."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()

    def spans(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for path, body in list(self.bodies):
            if path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        found += [
                            {
                                "name": span.name, "trace": span.trace_id.hex(), "id": span.span_id.hex(),
                                "parent": span.parent_span_id.hex(), "events": len(span.events),
                                "attributes": {one.key: one.value.string_value for one in span.attributes},
                            }
                            for span in scope.spans
                        ]  # fmt: skip
        return found

    def metrics(self) -> set[str]:
        return {
            metric.name
            for path, body in list(self.bodies)
            if path == "/v1/metrics"
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while not is_there():
            assert time.monotonic() < until, sorted({span["name"] for span in self.spans()})
            time.sleep(0.1)


@pytest.fixture
def collector() -> Iterator[Collector]:
    opened = Collector()
    yield opened
    opened.close()


def process_on(database: TestDatabase, folder: Path, endpoint: str | None, **settings: str) -> Process:
    process = Process(
        folder, database_url=database.app, ops_database_url=database.ops, owner_database_url=database.owner,
        migrate_on_start="false", bootstrap_key=KEY, **settings,
    )  # fmt: skip
    if endpoint is not None:
        process.env |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }  # fmt: skip
    return process


@pytest.mark.slow
async def test_spans_tell_where_the_time_goes_and_nothing_that_a_caller_has_said(
    database: TestDatabase, tmp_path: Path, collector: Collector
) -> None:
    async with open_fake_chat() as chat:
        chat.reply = says(f"the answer {MARKER}")
        process = process_on(database, tmp_path, collector.url, llm_base_url=chat.url, llm_model="gpt-5.2").start()
        try:
            # in threads: the model answers in this loop
            await asyncio.to_thread(process.wait)
            await asyncio.to_thread(use_everything, process)
            metrics = await asyncio.to_thread(openmetrics, process)
            collector.wait_for(lambda: "model" in {span["name"] for span in collector.spans()})
            collector.wait_for(lambda: "http.server.request.duration" in collector.metrics())
        finally:
            await asyncio.to_thread(process.stop)
    spans = collector.spans()
    names = {span["name"] for span in spans}
    assert names >= {"embed", "search", "assemble", "model", "POST /v1/conversations/{conversation_id}/turns"}
    assert any(name.startswith("job ") for name in names)
    assert any(name.startswith("insert ") for name in names)
    assert all(MARKER.lower() not in body.lower().decode("latin-1") for _, body in collector.bodies)
    assert all(span["events"] == 0 for span in spans)
    mine = [span for span in spans if span["trace"] == TRACE]
    assert {"embed", "POST /v1/conversations/{conversation_id}/turns"} <= {span["name"] for span in mine}
    by_id = {span["id"]: span for span in mine}
    embedding = next(span for span in mine if span["name"] == "embed")
    assert by_id[embedding["parent"]]["name"] == "POST /v1/conversations/{conversation_id}/turns"
    assert any("turnkeep.tenant_id" in span["attributes"] for span in mine)
    asked = [headers for headers in chat.headers if TRACE in headers.get("traceparent", "")]
    assert asked, "the endpoint of the model was given the trace"
    assert all(MARKER.lower() not in str(headers).lower() for headers in asked), "and nothing else of the caller"
    assert f'trace_id="{TRACE}"' in metrics, "a bucket of the durations shows a trace"
    assert metrics.endswith("# EOF\n")
    assert not any(span["name"] in {"begin", "commit"} and not span["parent"] for span in spans)


def openmetrics(process: Process) -> str:
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    request = urllib.request.Request(f"http://127.0.0.1:{process.port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        return answer.read().decode()


def use_everything(process: Process) -> None:
    """Say the marker wherever a caller may say something, in one trace."""

    def call(method: str, path: str, body: Any = None) -> Any:
        headers = {
            "Content-Type": "application/json", "Authorization": f"Bearer {KEY}", "traceparent": PARENT,
            "tracestate": f"vendor={MARKER.lower()}", "baggage": f"who={MARKER}", "User-Agent": MARKER,
        }  # fmt: skip
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{process.port}{path}", method=method, data=data, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return json.loads(error.read() or b"null")

    conversation = call("POST", "/v1/conversations", {"external_id": MARKER, "owner": MARKER, "title": MARKER})["id"]
    path = f"/v1/conversations/{conversation}"
    turns = [{"role": "user", "actor": MARKER, "content": f"we met yesterday {MARKER}"}] * 3
    assert len(call("POST", f"{path}/turns", {"turns": turns})["turns"]) == 3
    call("GET", f"/v1/conversations?owner={MARKER}&{MARKER}=1")
    call("GET", f"/v1/conversations/{MARKER}")
    call("GET", f"/{MARKER}?{MARKER}")
    assert "data" in call("POST", f"{path}/recall", {"query": MARKER})
    assert "messages" in call("POST", f"{path}/context", {"token_budget": 500, "semantic_recall": {"k": 2}})
    call("POST", "/v1/facts", {"subject": MARKER, "predicate": "likes", "object": MARKER, "owner": MARKER})
    call("POST", f"{path}/turns", {"turns": [{"role": MARKER}]})
    generate = {"conversation_id": conversation, "messages": [{"role": "user", "content": MARKER}], "model": MARKER}
    call("POST", "/v1/generate", generate)
    for method, name in (("tools/call", MARKER), (MARKER, MARKER), ("tools/call", "recall")):
        params = {"name": name, "arguments": {"query": MARKER}, "_meta": {}}
        call("POST", "/mcp", {"jsonrpc": "2.0", "id": MARKER, "method": method, "params": params})


@pytest.mark.slow
def test_a_dead_collector_delays_neither_requests_nor_the_stop(database: TestDatabase, tmp_path: Path) -> None:
    process = process_on(database, tmp_path, "http://127.0.0.1:9", embedder="none").start().wait()
    durations: list[float] = []
    for _ in range(20):
        started = time.monotonic()
        assert process.call("GET", "/v1/conversations", key=KEY)[0] == 200
        durations.append(time.monotonic() - started)
    assert sorted(durations)[10] < 1, durations
    started = time.monotonic()
    code, said = process.stop()
    assert code in {0, -signal.SIGTERM}, "the server ends itself by the same signal, after its orderly stop"
    assert "Traceback" not in said
    assert time.monotonic() - started < 12


@pytest.mark.slow
def test_nothing_of_the_sdk_is_imported_without_an_endpoint() -> None:
    modules = "[m for m in sys.modules if m.startswith('opentelemetry.sdk')]"
    code = f"import sys, app.main, app.cli.serving.server; print({modules})"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=kept, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("environment", "signals"),
    [
        ({}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ["traces", "metrics"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, ["traces"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ["metrics"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, []),
    ],
)
def test_the_standard_variables_decide_what_is_exported(environment: dict[str, str], signals: list[str]) -> None:
    assert requested_signals(environment) == signals


@pytest.mark.parametrize(
    ("sql", "summary"),
    [
        ("select a from turns where x = 'Ann'", "select turns"),
        ("begin; set local app.tenant = '1'", "begin"),
        ("  with due as (select 1 from jobs) update jobs set x = 1", "with jobs"),
        ("Ann 'says' hello", "statement"),
        ("", "statement"),
    ],
)
def test_a_statement_is_named_by_its_first_word_and_table(sql: str, summary: str) -> None:
    assert statement_summary(sql) == summary
