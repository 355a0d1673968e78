// The work that waits: how many jobs of each kind, and the conversations that wait for a summary.
import { api, body } from "../../api/client";
import type { Loaded } from "../../api/paging";
import type { JobCounts } from "../../api/types";
import { Ago } from "../../components/ago";
import { ErrorNote, Loading } from "../../components/basics";
import { DataTable } from "../../components/table";
import { number } from "../../lib/format";
import { usePolled } from "../../lib/polled";
import { strings } from "../../strings";

const text = strings.operations;
const COMPACTION = "conversation.compact";
const EVERY_MS = 10_000;

export const useJobCounts = (allTenants: boolean): Loaded<JobCounts> =>
  usePolled(`job counts ${allTenants}`, () => body(api.GET("/v1/admin/jobs/counts", { params: { query: { all_tenants: allTenants } } })), EVERY_MS);

/** Conversations that wait for a summary, also those whose job failed too often. */
export function compactionOf(counts: JobCounts): { waiting: number; parked: number } {
  const { queued = 0, running = 0, parked = 0 } = counts.kinds.find(({ kind }) => kind === COMPACTION) ?? {};
  return { waiting: queued + running + parked, parked };
}

export function Backlog({ counts }: { counts: Loaded<JobCounts> }) {
  const compaction = counts.value && compactionOf(counts.value);
  return (
    <section class="card stack">
      <h2>{text.backlog}</h2>
      {counts.error && <ErrorNote error={counts.error} onRetry={counts.reload} />}
      {!counts.value && counts.loading && <Loading />}
      {compaction && <p>{compaction.waiting === 0 ? text.compactionNone : text.compactionWaiting(number(compaction.waiting), number(compaction.parked))}</p>}
      {counts.value && counts.value.kinds.length === 0 && <p class="muted">{strings.jobs.empty}</p>}
      {counts.value && counts.value.kinds.length > 0 && (
        <DataTable label={text.backlog} rows={counts.value.kinds} keyOf={({ kind }) => kind}
          columns={[
            { title: strings.jobs.kind, render: ({ kind }) => <a href={`/dashboard/jobs?kind=${encodeURIComponent(kind)}`}><code>{kind}</code></a> },
            { title: text.series.queued, isNumber: true, render: ({ queued }) => number(queued) },
            { title: text.series.running, isNumber: true, render: ({ running }) => number(running) },
            { title: text.series.parked, isNumber: true, render: ({ parked }) => (parked > 0 ? <span class="badge bad">{number(parked)}</span> : "0") },
            { title: text.next, isNumber: true, render: ({ next_run_at: next }) => (next ? <Ago at={next} /> : "") },
          ]} />
      )}
      <p><a href="/dashboard/jobs">{text.showJobs}</a></p>
    </section>
  );
}
