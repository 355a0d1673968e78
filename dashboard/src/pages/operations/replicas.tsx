// The running servers and workers, and whether all of them have the same version.
import { api, body } from "../../api/client";
import type { Replica } from "../../api/types";
import { Ago } from "../../components/ago";
import { ErrorNote, Loading } from "../../components/basics";
import { DataTable } from "../../components/table";
import { usePolled } from "../../lib/polled";
import { strings } from "../../strings";

const text = strings.operations.replicas;
/** Replicas announce themselves so often. */
const EVERY_MS = 10_000;
const MOST = 200;

export function Replicas() {
  const replicas = usePolled("replicas", () => body(api.GET("/v1/admin/replicas", { params: { query: { limit: MOST } } })), EVERY_MS);
  const rows = replicas.value?.data ?? [];
  const differ = (of: (one: Replica) => string) => new Set(rows.map(of)).size > 1;
  return (
    <section class="card stack">
      <h2>{text.title} {rows.length > 0 && <span class="muted number">{rows.length}{replicas.value?.has_more && "+"}</span>}</h2>
      {replicas.error && <ErrorNote error={replicas.error} onRetry={replicas.reload} />}
      {!replicas.value && replicas.loading && <Loading />}
      {replicas.value && rows.length === 0 && <p class="muted">{text.none}</p>}
      {(differ(({ version }) => version) || differ(({ schema_revision: revision }) => revision)) && <p class="badge warn">{text.differ}</p>}
      {rows.length > 0 && (
        <DataTable label={text.title} rows={rows} keyOf={({ id }) => id}
          columns={[
            { title: text.name, render: (one) => <><strong>{one.host}</strong> <span class="muted number">{one.process_number}</span>{one.is_this && <> <span class="badge accent">{text.own}</span></>}<br /><code class="small muted">{one.id}</code></> },
            { title: text.kind, render: (one) => <span class="row"><span class="badge">{text.kinds[one.kind]}</span>{one.runs_jobs && <span class="badge">{text.runsJobs}</span>}</span> },
            { title: text.version, render: (one) => <>{one.version} <span class="small muted">{text.schema(one.schema_revision)}</span></> },
            { title: text.started, render: (one) => <Ago at={one.started_at} /> },
            { title: text.seen, render: (one) => <Ago at={one.seen_at} /> },
          ]} />
      )}
    </section>
  );
}
