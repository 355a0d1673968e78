"""Samples, slow calls, and the files for Grafana and Prometheus."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from app.audit.service import request_uuid
from app.core.ids import TenantId, format_id, new_uuid
from app.core.tracing.call_record import CallRecord, Stage, current_call, recorded_call
from app.core.tracing.stages import MeasuredStage
from app.diagnostics.request_counts import RequestCounts
from app.diagnostics.service import FinishedCall, Monitor
from app.settings.server import TelemetrySettings
from app.tenancy.schemas import Scope
from app.worker.handlers import make_worker
from app.worker.runner import add_job_metrics
from tests.support.api import Client, Service, problem

ROOT = Path(__file__).parents[2]
SECRET = "narwhal9secret"


@pytest.fixture
async def operator(service: Service, client: Client) -> Client:
    key = await service.container.tenancy.create_key(client.tenant_id, name="operator", scopes=list(Scope))
    return service.client(str(key))


@pytest.fixture
def everything_is_slow(service: Service) -> Iterator[Monitor]:
    kept, monitor = service.app.state.turnkeep.monitor, Monitor(TelemetrySettings(slow_call_ms=1))
    monitor.figures = kept.figures
    service.app.state.turnkeep.monitor = monitor
    yield monitor
    service.app.state.turnkeep.monitor = kept


async def test_a_sample_counts_the_requests_of_each_class(
    operator: Client, client: Client, everything_is_slow: Monitor
) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "one")
    await client.recall(conversation, "one")
    assert (await client.get("/v1/facts", params={"limit": 0})).status_code == 422
    assert (await client.get("/healthz")).status_code == 200
    everything_is_slow.sample()
    answer = (await operator.get("/v1/admin/samples", params={"minutes": 1})).json()
    (sample,) = answer["samples"]
    classes = {one["route_class"]: one for one in sample["route_classes"]}
    assert {name: one["requests"] for name, one in classes.items()} == {"write": 2, "search": 1, "read": 1, "other": 1}
    assert (sample["requests"], sample["refused"], sample["errors"]) == (5, 1, 0)
    assert classes["write"]["p95_ms"] >= classes["write"]["p50_ms"] > 0
    assert {pool["pool"] for pool in sample["connection_pools"]} == {"app", "ops"}
    assert all(0 <= pool["used"] <= pool["open"] <= pool["size"] for pool in sample["connection_pools"])
    assert sample["jobs"] is None, "no worker runs here"
    assert sample["memory_bytes"] > 10_000_000
    assert 0 < sample["search_index_bytes"] < 100_000_000, "other tests of this process search, too"
    [exported] = re.findall(r"^turnkeep_search_index_bytes (\S+)$", (await operator.get("/metrics")).text, re.MULTILINE)
    assert float(exported) == sample["search_index_bytes"]
    everything_is_slow.sample()
    later = (await operator.get("/v1/admin/samples")).json()["samples"]
    assert [one["requests"] for one in later] == [5, 2], "each request is in one sample"


async def test_samples_are_for_operators_and_are_kept_for_an_hour(
    client: Client, operator: Client, everything_is_slow: Monitor
) -> None:
    problem(await client.get("/v1/admin/samples"), 403, "forbidden")
    for minutes in (0, 61):
        problem(await operator.get("/v1/admin/samples", params={"minutes": minutes}), 422, "invalid_request")
    for _ in range(400):
        everything_is_slow.sample()
    for minutes, kept in ((1, 6), (60, 360)):
        answer = await operator.get("/v1/admin/samples", params={"minutes": minutes})
        assert len(answer.json()["samples"]) == kept


@pytest.mark.usefixtures("everything_is_slow")
async def test_a_slow_call_says_where_the_time_went_and_nothing_that_the_caller_said(
    client: Client, operator: Client
) -> None:
    conversation = await client.conversation(external_id=SECRET, owner=SECRET)
    await client.append(conversation, {"role": "user", "actor": SECRET, "content": f"the secret is {SECRET}"})
    recall = {"query": SECRET, "kinds": ["turn"]}
    headers = {"X-Request-Id": SECRET}
    await client.post(f"/v1/conversations/{conversation}/recall", json=recall, params={}, headers=headers)
    budget = {"token_budget": 500, "semantic_recall": {"k": 3}}
    await client.post(f"/v1/conversations/{conversation}/context", json=budget)
    await client.get("/v1/conversations", params={"owner": SECRET})
    listed = await operator.get("/v1/admin/slow-calls", params={"limit": 200, "order": "asc"})
    assert SECRET not in listed.text
    calls = {call["route"]: call for call in listed.json()["data"]}
    recalled = calls["/v1/conversations/{conversation_id}/recall"]
    assert recalled["request_id"] == format_id(request_uuid(SECRET) or new_uuid())
    assert recalled["stages"]["embed_ms"] > 0 < recalled["stages"]["search_ms"]
    assert recalled["stages"]["model_ms"] == 0
    assert recalled["duration_ms"] >= recalled["database_ms"] > 0 < recalled["statements"]
    assert calls["/v1/conversations/{conversation_id}/context"]["stages"]["assemble_ms"] > 0
    assert {call["tenant_id"] for call in calls.values()} == {format_id(client.tenant_id)}


@pytest.mark.usefixtures("everything_is_slow")
async def test_an_export_is_no_slow_call_because_its_reader_decides_when_it_ends(
    client: Client, operator: Client
) -> None:
    conversation = await client.conversation()
    assert (await client.get(f"/v1/conversations/{conversation}/export")).status_code == 200
    listed = await operator.get("/v1/admin/slow-calls", params={"limit": 200})
    routes = {call["route"] for call in listed.json()["data"]}
    assert "/v1/conversations" in routes
    assert "/v1/conversations/{conversation_id}/export" not in routes


async def test_slow_calls_have_paging_in_both_orders_and_cursors_of_one_process(
    client: Client, operator: Client, everything_is_slow: Monitor
) -> None:
    for number in range(7):
        everything_is_slow.observe(call_of(client.tenant_id, duration_s=1.0 + number))
    found: dict[str, list[float]] = {}
    for order in ("asc", "desc"):
        params, found[order] = {"limit": 3, "order": order}, []
        while True:
            page = (await operator.get("/v1/admin/slow-calls", params=params)).json()
            found[order] += [call["duration_ms"] for call in page["data"] if call["duration_ms"] % 1000 == 0]
            if not page["has_more"]:
                break
            params["cursor"] = page["next_cursor"]
    assert found == {"asc": [1000.0 * n for n in range(1, 8)], "desc": [1000.0 * n for n in range(7, 0, -1)]}
    first = (await operator.get("/v1/admin/slow-calls", params={"limit": 1})).json()["next_cursor"]
    everything_is_slow.process_id = new_uuid()  # as another replica
    problem(await operator.get("/v1/admin/slow-calls", params={"cursor": first, "limit": 1}), 422, "cursor_invalid")


async def test_only_operators_see_slow_calls_of_all_tenants_and_of_callers_without_a_key(
    client: Client, operator: Client, everything_is_slow: Monitor
) -> None:
    other = TenantId(new_uuid())
    for tenant in (client.tenant_id, other, None):
        everything_is_slow.observe(call_of(tenant))
    problem(await client.get("/v1/admin/slow-calls", params={"all_tenants": True}), 403, "forbidden")
    seen = (await operator.get("/v1/admin/slow-calls", params={"all_tenants": True, "limit": 200})).json()["data"]
    assert {call["tenant_id"] for call in seen} == {format_id(client.tenant_id), format_id(other), None}
    own = (await operator.get("/v1/admin/slow-calls", params={"limit": 200})).json()["data"]
    assert {call["tenant_id"] for call in own} == {format_id(client.tenant_id)}


def call_of(tenant_id: TenantId | None, *, duration_s: float | None = 5.0) -> FinishedCall:
    return FinishedCall(tenant_id, "r", None, "GET", "/v1/facts", "read", 200, duration_s, CallRecord())


def test_a_busy_tenant_does_not_push_out_the_slow_calls_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.diagnostics.monitor._SLOW_CALLS", 10)
    monitor = Monitor(TelemetrySettings())
    quiet, busy = TenantId(new_uuid()), TenantId(new_uuid())
    for tenant in (quiet, *[busy] * 1000):
        monitor.observe(call_of(tenant))
    kept = monitor.kept_slow_calls
    assert len(list(kept.of_tenant(quiet))) == 1
    assert [entry.number for entry in kept.of_tenant(busy)] == list(range(992, 1002))
    for _ in range(5000):
        monitor.observe(call_of(TenantId(new_uuid())))
    assert len(list(kept.of_all())) == 200, "the memory is bounded for any number of tenants"


def test_a_stream_and_a_fast_call_are_not_slow() -> None:
    monitor = Monitor(TelemetrySettings())
    for duration_s in (None, 0.999):
        monitor.observe(call_of(None, duration_s=duration_s))
    assert monitor.slow_call_count == 0
    monitor.observe(call_of(None, duration_s=1.0))
    assert monitor.slow_call_count == 1


@pytest.mark.parametrize("duration_ms", [0.01, 0.7, 12.5, 480.0, 31_000.0])
def test_a_percentile_is_at_most_a_fifth_too_high(duration_ms: float) -> None:
    counts = RequestCounts()
    assert counts.percentile_ms(0.5) is None
    for _ in range(99):
        counts.add(200, duration_ms)
    counts.add(500, 60_000)
    found = counts.percentile_ms(0.95) or 0
    assert duration_ms <= found <= max(0.5, duration_ms * 1.2)
    assert (counts.requests, counts.errors) == (100, 1)


def test_stages_count_for_the_call_of_their_task_only() -> None:
    with MeasuredStage(Stage.EMBED):
        assert current_call() is None
    with recorded_call() as record:
        with pytest.raises(ValueError, match="no"), MeasuredStage(Stage.SEARCH):
            raise ValueError("no")
        with MeasuredStage(Stage.SEARCH):
            pass
    assert set(record.stages_s) == {Stage.SEARCH}
    assert current_call() is None


# The files for Grafana and Prometheus

NAMES = re.compile(r"\b((?:turnkeep|mcp_memory|process)_[a-z0-9_]+)")


def exported_names(service: Service) -> set[str]:
    """Every name that a series of `/metrics` may have."""
    jobs = CollectorRegistry()
    add_job_metrics(jobs, make_worker(service.container))
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    collectors = [service.app.state.turnkeep.registry, jobs]
    return {
        metric.name + suffix
        for collector in collectors
        for metric in cast("Collector", collector).collect()
        for suffix in suffixes.get(metric.type, [""])
    }


def test_every_metric_of_the_dashboard_is_exported(service: Service) -> None:
    dashboard = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    used = {name for panel in panels for target in panel["targets"] for name in NAMES.findall(target["expr"])}
    assert len(used) > 12
    assert used - exported_names(service) == set()
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    asked = {name for panel in panels for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])}
    assert asked - {"__rate_interval"} <= variables
    assert all(
        target["expr"].count("(") == target["expr"].count(")") for panel in panels for target in panel["targets"]
    )


def test_every_alert_uses_exported_metrics_and_says_what_to_do(service: Service) -> None:
    document = yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 6
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "action"}
        assert set(NAMES.findall(rule["expr"])) <= exported_names(service), rule["alert"]
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_every_metric_of_the_guide_is_exported(service: Service) -> None:
    guide = (ROOT / "docs/guides/monitoring.md").read_text()
    named = set(re.findall(r"`((?:turnkeep|mcp_memory)_[a-z0-9_]+)", guide))
    families = {name.removesuffix("_bucket") for name in exported_names(service)}
    assert len(named) > 12
    assert named <= families


async def test_calls_of_embedders_are_counted_by_space_purpose_and_status(service: Service, client: Client) -> None:
    registry = service.app.state.turnkeep.registry
    space = {"provider": "local", "purpose": "query"}

    def value(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name == name and (space | labels).items() <= sample.labels.items()
        )

    before = value("turnkeep_embed_calls_total", status="ok"), value("turnkeep_embed_duration_seconds_count")
    conversation = await client.conversation()
    await client.append(conversation, "one")
    await client.recall(conversation, SECRET)
    after = value("turnkeep_embed_calls_total", status="ok"), value("turnkeep_embed_duration_seconds_count")
    assert after == (before[0] + 1, before[1] + 1)
    assert SECRET not in (await client.get("/metrics")).text
