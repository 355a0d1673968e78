// The audit log: filters, pages, and the check of a conversation's chain.
import { useLocation } from "preact-iso";
import { useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { usePages } from "../../api/paging";
import { asApiError } from "../../api/problem";
import type { Action, AuditEntry, ObjectKind } from "../../api/types";
import { notify } from "../../components/basics";
import { SelectField, TextField } from "../../components/fields";
import { PagedTable } from "../../components/table";
import { number, time } from "../../lib/format";
import { fromLocalTime } from "../../lib/local_time";
import { useSettled } from "../../lib/settled";
import { isWide } from "../../lib/window";
import { ACTIONS, OBJECT_KINDS } from "../../lib/vocabulary";
import { strings } from "../../strings";
import { VerifyAudit } from "./verify_audit";

const text = strings.audit;
const NO_FILTERS = { action: "" as Action | "", key_id: "", object_kind: "" as ObjectKind | "", object_id: "", conversation_id: "", request_id: "", since: "", until: "" };
type Filters = typeof NO_FILTERS;

export default function AuditPage() {
  const { query } = useLocation();
  const [typed, setTyped] = useState<Filters>({ ...NO_FILTERS, ...pick(query) });
  const filters = useSettled(typed, 300);
  const pages = usePages<AuditEntry>(JSON.stringify(filters), (cursor) => body(api.GET("/v1/admin/audit", { params: { query: { limit: 100, ...given(filters), ...(cursor ? { cursor } : {}) } } })));
  const [areFiltersOpen] = useState(() => isWide() || Object.keys(pick(query)).length > 0);
  const set = (change: Partial<Filters>) => setTyped({ ...typed, ...change });
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.intro}</span>
        <button class="push" onClick={pages.reload}>{strings.app.refresh}</button>
      </div>
      <details class="card more-options" open={areFiltersOpen}>
        <summary>{text.filters}</summary>
        <div class="form-grid" role="search">
          <SelectField label={text.action} value={typed.action} onValue={(action) => set({ action })} options={[["", strings.app.any], ...ACTIONS.map((one) => [one, one] as const)]} />
          <SelectField label={text.objectKind} value={typed.object_kind} onValue={(object_kind) => set({ object_kind })} options={[["", strings.app.any], ...OBJECT_KINDS.map((one) => [one, one.replace("_", " ")] as const)]} />
          <TextField label={text.objectId} value={typed.object_id} onValue={(object_id) => set({ object_id })} />
          <TextField label={text.conversation} value={typed.conversation_id} onValue={(conversation_id) => set({ conversation_id })} />
          <TextField label={text.key} value={typed.key_id} onValue={(key_id) => set({ key_id })} />
          <TextField label={text.request} value={typed.request_id} onValue={(request_id) => set({ request_id })} />
          <TextField label={text.since} type="datetime-local" value={typed.since} onValue={(since) => set({ since })} />
          <TextField label={text.until} type="datetime-local" value={typed.until} onValue={(until) => set({ until })} />
          <button onClick={() => setTyped(NO_FILTERS)}>{text.clear}</button>
        </div>
      </details>
      <VerifyAudit />
      <PagedTable label={text.title} pages={pages} keyOf={(entry) => entry.id} empty={<><p>{text.empty}</p><button onClick={() => setTyped(NO_FILTERS)}>{text.clear}</button></>}
        columns={[
          { title: text.time, render: (entry) => <time dateTime={entry.recorded_at}>{time(entry.recorded_at)}</time> },
          { title: text.action, render: (entry) => <code>{entry.action}</code> },
          { title: text.actor, render: (entry) => <>{entry.actor}{entry.key_id && <><br /><button class="link small" title={text.key} onClick={() => set({ key_id: entry.key_id ?? "" })}><code>{entry.key_id}</code></button></>}</> },
          { title: text.object, render: (entry) => <ObjectCell entry={entry} /> },
          { title: text.counts, render: countsOf },
          { title: text.sealed, isNumber: true, render: (entry) => (entry.number === null ? <span class="muted small">{text.unsealed}</span> : <span title={entry.day ?? ""}>{number(entry.number)}</span>) },
        ]} />
    </div>
  );
}

function ObjectCell({ entry }: { entry: AuditEntry }) {
  const conversation = entry.conversation_id ?? (entry.object_kind === "conversation" ? entry.object_id : null);
  return (
    <>
      {entry.object_kind?.replace("_", " ")}
      {entry.object_id && <><br /><code class="small muted">{entry.object_id}</code></>}
      {conversation && (
        <span class="row">
          <a class="small" href={`/dashboard/conversations/${conversation}`}>{strings.conversation.title}</a>
          {entry.head_hash && <button class="link small" onClick={() => void verify(conversation)}>{text.verify}</button>}
        </span>
      )}
    </>
  );
}

async function verify(conversation: string): Promise<void> {
  try {
    const { first_break: broken, turns } = await body(api.GET("/v1/conversations/{conversation_id}/verify", { params: { path: { conversation_id: conversation } } }));
    notify(broken ? strings.conversation.broken(broken.what, broken.seq) : strings.conversation.valid(turns));
  } catch (error) {
    notify(asApiError(error).message);
  }
}

function countsOf(entry: AuditEntry) {
  const counts = Object.entries(entry.counts).map(([name, count]) => text.counted(count, name.replaceAll("_", " ")));
  if (entry.first_seq !== null && entry.last_seq !== null) counts.push(text.turns(entry.first_seq, entry.last_seq));
  return counts.join(", ");
}

function given(filters: Filters) {
  const { since, until, action, object_kind, ...ids } = filters;
  const named = Object.fromEntries(Object.entries(ids).map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
  return { ...named, ...(action ? { action } : {}), ...(object_kind ? { object_kind } : {}), ...(since ? { since: fromLocalTime(since) } : {}), ...(until ? { until: fromLocalTime(until) } : {}) };
}

function pick(query: Record<string, string>): Partial<Filters> {
  return Object.fromEntries(Object.entries(query).filter(([name]) => name in NO_FILTERS));
}
