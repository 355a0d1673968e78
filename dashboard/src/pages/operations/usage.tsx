// Tokens and cost of chat models, by day.
import { api, body } from "../../api/client";
import { useLoaded, type Loaded } from "../../api/paging";
import type { ModelUsageDay } from "../../api/types";
import { ErrorNote } from "../../components/basics";
import { DataTable } from "../../components/table";
import { number } from "../../lib/format";
import { strings } from "../../strings";
import { Chart } from "./chart";

const text = strings.operations;
const DAYS = 14;
const MOST_PAGES = 10;
const DAY_MS = 86_400_000;
const dayOf = (when: number): string => new Date(when).toISOString().slice(0, 10);
const cost = (value: number): string => value.toLocaleString("en", { maximumFractionDigits: value < 1 ? 4 : 2 });

export interface UsageOfDays extends Loaded<ModelUsageDay[]> {
  today: { tokens: number; cost: number };
}

export function useUsage(allTenants: boolean): UsageOfDays {
  const usage = useLoaded(`usage ${allTenants}`, () => readAll(allTenants));
  const today = (usage.value ?? []).filter(({ day }) => day === dayOf(Date.now()));
  return { ...usage, today: { tokens: sum(today, tokensOf), cost: sum(today, (one) => one.cost) } };
}

async function readAll(allTenants: boolean): Promise<ModelUsageDay[]> {
  const rows: ModelUsageDay[] = [];
  let cursor: string | null = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const query = { first_day: dayOf(Date.now() - (DAYS - 1) * DAY_MS), all_tenants: allTenants, limit: 200, ...(cursor ? { cursor } : {}) };
    const answer: { data: ModelUsageDay[]; next_cursor: string | null } = await body(api.GET("/v1/admin/usage", { params: { query } }));
    rows.push(...answer.data);
    cursor = answer.next_cursor;
    if (cursor === null) break;
  }
  return rows;
}

const tokensOf = (one: ModelUsageDay): number => one.prompt_tokens + one.completion_tokens;
const sum = <T,>(rows: T[], figure: (row: T) => number): number => rows.reduce((total, row) => total + figure(row), 0);

/** The sums of all days and tenants by purpose and model, the most tokens first. */
function byModel(rows: ModelUsageDay[]): ModelUsageDay[] {
  const sums = new Map<string, ModelUsageDay>();
  for (const row of rows) {
    const name = `${row.purpose} ${row.model}`;
    const before = sums.get(name);
    sums.set(name, before ? {
      ...row, calls: row.calls + before.calls, failed: row.failed + before.failed, cost: row.cost + before.cost,
      prompt_tokens: row.prompt_tokens + before.prompt_tokens, completion_tokens: row.completion_tokens + before.completion_tokens,
    } : row);
  }
  return [...sums.values()].sort((first, second) => tokensOf(second) - tokensOf(first));
}

export function Usage({ usage }: { usage: UsageOfDays }) {
  const rows = usage.value ?? [];
  const days = Array.from({ length: DAYS }, (_, index) => dayOf(Date.now() - (DAYS - 1 - index) * DAY_MS));
  const times = days.map((day) => Date.parse(day) / 1000);
  const by = (figure: (one: ModelUsageDay) => number) => days.map((day) => sum(rows.filter((one) => one.day === day), figure));
  return (
    <section class="stack">
      <h2>{text.usage}</h2>
      {usage.error && <ErrorNote error={usage.error} onRetry={usage.reload} />}
      {usage.value && rows.length === 0 && <p class="muted">{text.usageNone}</p>}
      {rows.length > 0 && (
        <>
          <div class="charts">
            <Chart bars title={text.charts.tokens} times={times} format={number} series={[{ label: text.names.tokens, values: by(tokensOf) }]} />
            <Chart bars title={text.charts.cost} times={times} format={cost} series={[{ label: text.series.cost, values: by((one) => one.cost) }]} />
          </div>
          <DataTable label={text.usage} rows={byModel(rows)} keyOf={(one) => `${one.purpose} ${one.model}`}
            columns={[
              { title: text.purpose, render: ({ purpose }) => purpose.replace("_", " ") },
              { title: text.model, render: ({ model }) => model },
              { title: text.calls, isNumber: true, render: ({ calls }) => number(calls) },
              { title: text.failed, isNumber: true, render: ({ failed }) => number(failed) },
              { title: text.series.prompt, isNumber: true, render: (one) => number(one.prompt_tokens) },
              { title: text.series.completion, isNumber: true, render: (one) => number(one.completion_tokens) },
              { title: text.cost, isNumber: true, render: (one) => cost(one.cost) },
            ]} />
        </>
      )}
    </section>
  );
}
