// What the service is doing: figures over time, index, compaction, tokens and spend, slow calls.
import { useMemo, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { useLoaded, usePages } from "../../api/paging";
import { hasScope } from "../../api/session";
import type { JobCounts, MetricSample, SlowCall, Stats } from "../../api/types";
import { Empty, ErrorNote, Loading } from "../../components/basics";
import { CheckField, SelectField } from "../../components/fields";
import { DataTable, PagedTable } from "../../components/table";
import { ago, bytes, number, time } from "../../lib/format";
import { strings } from "../../strings";
import { Backlog, compactionOf, useJobCounts } from "./backlog";
import { Chart, type Series } from "./chart";
import { Replicas } from "./replicas";
import { Usage, useUsage } from "./usage";
import { classesOf, ofClass, useSamples } from "./samples";
import "./operations.css";

const text = strings.operations;
const MIB = 1024 * 1024;
type Range = keyof typeof text.ranges;
type Of = keyof typeof text.scopes;
const decimals = (value: number): string => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 });

export default function OperationsPage() {
  const isOperator = hasScope("operator");
  const mayCount = hasScope("admin");
  const [of, setOf] = useState<Of>(isOperator ? "installation" : "tenant");
  const [range, setRange] = useState<Range>("15");
  const [chosen, setChosen] = useState<string | null>(null);
  const processes = useSamples(Number(range), isOperator);
  const stats = useLoaded<Stats | null>(`stats ${of}`, async () => (mayCount ? body(api.GET("/v1/admin/stats", { params: { query: { of } } })) : null));
  const counts = useJobCounts(of === "installation");
  const usage = useUsage(of === "installation");
  const shown = processes.known.get(chosen ?? "") ?? processes.known.get(processes.last ?? "");
  const samples = shown?.samples ?? [];
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        {shown && <span class="small muted">{text.processes(processes.known.size)}, {text.started(ago(shown.started_at))}</span>}
      </div>
      <div class="form-grid operations-choice">
        {isOperator && <SelectField label={text.scope} value={of} onValue={setOf} options={Object.entries(text.scopes) as [Of, string][]} />}
        {isOperator && <SelectField label={text.range} value={range} onValue={setRange} options={Object.entries(text.ranges) as [Range, string][]} />}
        {processes.known.size > 1 && (
          <SelectField label={text.process} value={shown?.process_id ?? ""} onValue={setChosen}
            options={[...processes.known.values()].map((one) => [one.process_id, `${one.process_id.slice(0, 12)} (${text.started(ago(one.started_at))})`] as const)} />
        )}
      </div>
      <Tiles latest={samples.at(-1)} pending={stats.value?.vectors_pending ?? null} counts={counts.value} tokens={usage.today.tokens} cost={usage.today.cost} />
      {!isOperator && <p class="notice">{text.needsOperator}</p>}
      {processes.error && <ErrorNote error={processes.error} />}
      {isOperator && !processes.error && (samples.length > 0 ? <Charts samples={samples} /> : shown ? <Empty><p>{text.noSamples}</p></Empty> : <Loading />)}
      <div class="halves">
        <section class="card stack">
          <h2>{text.index}</h2>
          {stats.error && <ErrorNote error={stats.error} onRetry={stats.reload} />}
          {stats.value && <Index stats={stats.value} />}
          {stats.value && <Largest stats={stats.value} />}
          <p class="row">
            <a href="/dashboard/jobs?kind=index.vectors">{text.indexJobs}</a>
            {isOperator && <a href="/dashboard/spaces">{text.spaces}</a>}
          </p>
        </section>
        <Backlog counts={counts} />
        {stats.value && stats.value.summaries.length > 0 && <Summaries stats={stats.value} />}
      </div>
      {isOperator && <Replicas />}
      <Usage usage={usage} />
      <SlowCalls />
    </div>
  );
}

function Tiles({ latest, pending, counts, tokens, cost }: { latest: MetricSample | undefined; pending: number | null; counts: JobCounts | null; tokens: number; cost: number }) {
  const slowest = latest?.route_classes.reduce<number | null>((most, { p95_ms }) => (p95_ms !== null && p95_ms > (most ?? -1) ? p95_ms : most), null);
  const tiles: [string, string][] = [
    ...(latest
      ? ([
          [text.tiles.requests, decimals(latest.requests / latest.interval_s)],
          [text.tiles.latency, slowest === null || slowest === undefined ? "–" : `${decimals(slowest)} ms`],
          [text.tiles.errors, number(latest.errors)],
          [text.tiles.live, number(latest.live_connections)],
        ] as [string, string][])
      : []),
    ...(counts
      ? ([[text.tiles.jobs, number(counts.queued)], [text.tiles.parked, number(counts.parked)], [text.tiles.compaction, number(compactionOf(counts).waiting)]] as [string, string][])
      : []),
    ...(pending === null ? [] : ([[text.tiles.pending, number(pending)]] as [string, string][])),
    [text.tiles.tokens, number(tokens)],
    [text.tiles.cost, decimals(cost)],
  ];
  return (
    <dl class="tiles">
      {tiles.map(([label, value]) => <div key={label} class="card"><dt>{label}</dt><dd class="number">{value}</dd></div>)}
    </dl>
  );
}

function Charts({ samples }: { samples: MetricSample[] }) {
  const times = samples.map(({ at }) => Date.parse(at) / 1000);
  const { throughput, latency, pools } = useMemo(() => {
    const classes = classesOf(samples);
    const names = [...new Set(samples.flatMap(({ connection_pools }) => connection_pools.map(({ pool }) => pool)))];
    return {
      throughput: classes.map((label): Series => ({ label, values: ofClass(samples, label, (one, { interval_s }) => one.requests / interval_s, 0) })),
      latency: classes.map((label): Series => ({ label, values: ofClass(samples, label, ({ p95_ms }) => p95_ms, null) })),
      pools: names.map((name): Series => ({ label: text.series.pool(name), values: samples.map(({ connection_pools }) => connection_pools.find(({ pool }) => pool === name)?.used ?? null) })),
    };
  }, [samples]);
  const of = (label: string, figure: (sample: MetricSample) => number | null): Series => ({ label, values: samples.map(figure) });
  const callers = of(text.series.waiting, ({ connection_pools }) => connection_pools.reduce((sum, { waiting }) => sum + waiting, 0));
  const common = { times, format: decimals };
  return (
    <div class="charts">
      <Chart title={text.charts.throughput} series={throughput} {...common} />
      <Chart title={text.charts.latency} series={latency} {...common} />
      <Chart title={text.charts.failures} {...common} series={[of(text.series.refused, (one) => one.refused / one.interval_s), of(text.series.errors, (one) => one.errors / one.interval_s)]} />
      <Chart title={text.charts.jobs} {...common}
        series={[of(text.series.queued, ({ jobs }) => jobs?.queued ?? null), of(text.series.running, ({ jobs }) => jobs?.running ?? null), of(text.series.parked, ({ jobs }) => jobs?.parked ?? null)]} />
      <Chart title={text.charts.connections} series={[...pools, callers]} {...common} />
      <Chart title={text.charts.live} {...common}
        series={[of(text.series.live, (one) => one.live_connections), of(text.series.open, (one) => one.open_turns), of(text.series.subscribers, (one) => one.subscribers)]} />
      <Chart title={text.charts.memory} {...common}
        series={[of(text.series.memory, ({ memory_bytes }) => (memory_bytes === null ? null : memory_bytes / MIB)), of(text.series.searchIndex, ({ search_index_bytes }) => search_index_bytes / MIB)]} />
    </div>
  );
}

function Index({ stats }: { stats: Stats }) {
  const state = text.indexState(number(stats.vectors), number(stats.entries));
  return (
    <>
      <p>{stats.vectors_pending === 0 ? text.indexComplete : text.indexPending(number(stats.vectors_pending))}</p>
      <div>
        <progress aria-label={state} value={stats.entries - stats.vectors_pending} max={stats.entries || 1} />
        <p class="small muted number">{state} · {bytes(stats.bytes)}</p>
      </div>
      <DataTable label={text.index} rows={stats.tables} keyOf={({ table }) => table}
        columns={[
          { title: text.table, render: ({ table }) => <code>{table}</code> },
          { title: text.rows, isNumber: true, render: ({ rows }) => number(rows) },
          { title: text.bytes, isNumber: true, render: (one) => bytes(one.bytes) },
        ]} />
    </>
  );
}

function Summaries({ stats }: { stats: Stats }) {
  const { kinds, refusedFor } = strings.conversation.timeline;
  return (
    <section class="card stack">
      <h2>{text.summaries}</h2>
      <DataTable label={text.summaries} rows={stats.summaries} keyOf={({ kind, refused_for: reason }) => `${kind} ${reason ?? ""}`}
        columns={[
          { title: text.summaryNames.summaries, render: ({ kind }) => kinds[kind] },
          { title: text.summaryNames.reason, render: ({ refused_for: reason }) => (reason ? refusedFor[reason] : "") },
          { title: text.summaryNames.count, isNumber: true, render: ({ count }) => number(count) },
          { title: text.summaryNames.doubtful, isNumber: true, render: ({ doubtful }) => number(doubtful) },
        ]} />
    </section>
  );
}

function Largest({ stats }: { stats: Stats }) {
  const sized = ({ conversations, turns, tokens }: { conversations: number; turns: number; tokens: number }) => ({ conversations, turns, tokens });
  const rows = stats.of === "tenant"
    ? stats.projects.map((one) => ({ id: one.project, name: one.project, ...sized(one) }))
    : stats.tenants.map((one) => ({ id: one.tenant_id, name: one.name, ...sized(one) }));
  if (rows.length === 0) return null;
  return (
    <>
      <h3>{text.share}</h3>
      <DataTable label={text.share} rows={rows} keyOf={({ id }) => id}
        columns={[
          { title: stats.of === "tenant" ? text.names.project : text.names.tenant, render: ({ name }) => name },
          { title: text.names.conversations, isNumber: true, render: ({ conversations }) => number(conversations) },
          { title: text.names.turns, isNumber: true, render: ({ turns }) => number(turns) },
          { title: text.names.tokens, isNumber: true, render: ({ tokens }) => number(tokens) },
        ]} />
    </>
  );
}

function SlowCalls() {
  const [allTenants, setAllTenants] = useState(hasScope("operator"));
  const pages = usePages<SlowCall>(`slow ${allTenants}`, (cursor) =>
    body(api.GET("/v1/admin/slow-calls", { params: { query: { limit: 20, all_tenants: allTenants, ...(cursor ? { cursor } : {}) } } })),
  );
  const stages = ({ stages: given }: SlowCall) =>
    (Object.entries(text.stageNames) as [keyof typeof given, string][]).filter(([name]) => given[name] > 0).map(([name, label]) => `${label} ${decimals(given[name])} ms`).join(", ");
  return (
    <section class="stack">
      <div class="page-head">
        <h2>{text.slow}</h2>
        <span class="small muted">{text.slowHelp}</span>
        <span class="row push">
          {hasScope("operator") && <CheckField label={text.allTenants} checked={allTenants} onValue={setAllTenants} />}
          <button onClick={pages.reload}>{strings.app.refresh}</button>
        </span>
      </div>
      <PagedTable label={text.slow} pages={pages} keyOf={(call) => `${call.ended_at} ${call.request_id} ${call.route}`} empty={<p>{text.slowNone}</p>}
        columns={[
          { title: text.when, render: (call) => <time dateTime={call.ended_at}>{time(call.ended_at)}</time> },
          { title: text.call, render: (call) => <><code>{call.method} {call.route}</code> <span class={call.status >= 500 ? "badge bad" : "badge"}>{call.status}</span>{call.request_id && <><br /><code class="small muted">{call.request_id}</code></>}</> },
          { title: text.took, isNumber: true, render: (call) => `${decimals(call.duration_ms)} ms` },
          { title: text.database, isNumber: true, render: (call) => <>{decimals(call.database_ms)} ms<br /><span class="small muted">{text.statements(call.statements)}</span></> },
          { title: text.stages, render: stages },
        ]} />
    </section>
  );
}
