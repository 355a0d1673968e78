// Unfinished jobs: filter, run again, cancel.
import { useLocation } from "preact-iso";
import { useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { usePages } from "../../api/paging";
import { hasScope } from "../../api/session";
import type { Job, JobState } from "../../api/types";
import { Ago } from "../../components/ago";
import { FormDialog, useAction } from "../../components/actions";
import { ErrorNote, notify } from "../../components/basics";
import { CheckField, SelectField, TextField } from "../../components/fields";
import { statusClass } from "../../components/operation";
import { PagedTable } from "../../components/table";
import { useSettled } from "../../lib/settled";
import { strings } from "../../strings";

const text = strings.jobs;
/** Kinds that are offered; any other can be typed. */
const KINDS = [
  "conversation.compact", "conversation.facts", "conversation.retain", "conversation.title", "conversation.trash", "facts.withdraw",
  "index.vectors", "index.dates", "index.drop_space", "session.compact", "operations.erasure", "operations.import", "webhooks.purge",
];
/** Jobs of the whole installation have this tenant. */
const NO_TENANT = "0".repeat(26);
type Filters = { kind: string; state: JobState | ""; allTenants: boolean };

export default function JobsPage() {
  const { query } = useLocation();
  const none: Filters = { kind: "", state: "", allTenants: hasScope("operator") };
  const [typed, setTyped] = useState<Filters>({ ...none, kind: query["kind"] ?? "" });
  const filters = useSettled(typed, 300);
  const all_tenants = filters.allTenants;
  const pages = usePages<Job>(JSON.stringify(filters), (cursor) =>
    body(api.GET("/v1/admin/jobs", { params: { query: { limit: 50, all_tenants, ...(filters.kind ? { kind: filters.kind } : {}), ...(filters.state ? { state: filters.state } : {}), ...(cursor ? { cursor } : {}) } } })),
  );
  const [cancelling, setCancelling] = useState<Job | null>(null);
  const acting = useAction();
  const params = (job: Job) => ({ path: { job_id: job.id }, query: { all_tenants } });
  const retry = (job: Job) =>
    acting.run(async () => {
      await api.POST("/v1/admin/jobs/{job_id}/retry", { params: params(job) });
      notify(text.retried);
      pages.reload();
    });
  const cancel = async (job: Job) => {
    await api.POST("/v1/admin/jobs/{job_id}/cancel", { params: params(job) });
    notify(text.cancelled);
    setCancelling(null);
    pages.reload();
  };
  const isFiltered = filters.kind !== "" || filters.state !== "";
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.intro}</span>
        <button class="push" onClick={pages.reload}>{strings.app.refresh}</button>
      </div>
      <div class="card form-grid" role="search">
        <TextField label={text.kind} options={KINDS} value={typed.kind} onValue={(kind) => setTyped({ ...typed, kind })} />
        <SelectField label={text.state} value={typed.state} onValue={(state) => setTyped({ ...typed, state })}
          options={[["", strings.app.any], ...(Object.entries(text.states) as [JobState, string][])]} />
        {hasScope("operator") && <CheckField label={text.allTenants} checked={typed.allTenants} onValue={(allTenants) => setTyped({ ...typed, allTenants })} />}
      </div>
      {acting.error && <ErrorNote error={acting.error} />}
      <PagedTable label={text.title} pages={pages} keyOf={({ id }) => id}
        empty={<><p>{isFiltered ? text.emptyFiltered : text.empty}</p>{isFiltered && <button onClick={() => setTyped(none)}>{strings.audit.clear}</button>}</>}
        columns={[
          { title: text.kind, render: (job) => <><code>{job.kind}</code><br /><code class="small muted">{job.id}</code></> },
          { title: text.state, render: (job) => <span class={statusClass(job.state)}>{text.stateNames[job.state]}</span> },
          { title: text.attempts, isNumber: true, render: (job) => `${job.attempts} / ${job.max_attempts}` },
          { title: text.runAt, render: (job) => <Ago at={job.run_at} /> },
          { title: text.error, render: (job) => job.last_error && <code>{job.last_error}</code> },
          ...(all_tenants ? [{ title: text.tenant, render: (job: Job) => job.tenant_id === NO_TENANT ? <span class="muted">{text.installation}</span> : <code class="small">{job.tenant_id}</code> }] : []),
          {
            title: "",
            render: (job) => (
              <span class="row">
                {job.state !== "running" && <button disabled={acting.busy} onClick={() => void retry(job)}>{text.retry}</button>}
                {job.state !== "cancelled" && <button class="danger" onClick={() => setCancelling(job)}>{text.cancel}</button>}
              </span>
            ),
          },
        ]} />
      {cancelling && (
        <FormDialog title={text.cancelTitle(cancelling.kind)} action={text.cancelTitle(cancelling.kind)} danger onSubmit={() => cancel(cancelling)} onClose={() => setCancelling(null)}>
          <p>{text.cancelHelp}</p>
          <p><code>{cancelling.id}</code></p>
        </FormDialog>
      )}
    </div>
  );
}
