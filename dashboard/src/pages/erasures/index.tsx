// Erasures: start one, follow and cancel it, and read and verify the receipts.
import { useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { useLoaded, usePages } from "../../api/paging";
import { hasScope } from "../../api/session";
import type { Erasure, ErasureCreate, Operation } from "../../api/types";
import { useAction } from "../../components/actions";
import { ErrorNote } from "../../components/basics";
import { ConfirmByName, Dialog } from "../../components/dialog";
import { SelectField, TextField } from "../../components/fields";
import { hasEnded, OperationCard, statusClass } from "../../components/operation";
import { PagedTable } from "../../components/table";
import { download, number, time } from "../../lib/format";
import { strings } from "../../strings";

const text = strings.erasures;
type Kind = keyof typeof text.kinds;
const KINDS = Object.entries(text.kinds) as [Kind, string][];

const subjectOf = (kind: Kind, subject: string, project: string): ErasureCreate => ({
  ...(kind === "owner" ? { owner: subject } : kind === "actor" ? { actor: subject } : { conversation_id: subject }),
  ...(project && kind !== "conversation" ? { project } : {}),
});

export default function ErasuresPage() {
  const receipts = usePages<Erasure>("erasures", (cursor) => body(api.GET("/v1/erasures", { params: { query: { limit: 50, ...(cursor ? { cursor } : {}) } } })));
  const [started, setStarted] = useState<Operation[]>([]);
  const [shown, setShown] = useState<Erasure | null>(null);
  // those that an earlier visit has started
  const running = useLoaded("running erasures", async () =>
    hasScope("read") ? (await body(api.GET("/v1/operations", { params: { query: { kind: "erasure", limit: 20 } } }))).data.filter((one) => !hasEnded(one)) : [],
  );
  const operations = [...started, ...(running.value ?? []).filter(({ id }) => !started.some((one) => one.id === id))];
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.intro}</span>
      </div>
      <StartErasure onStart={(operation) => (setStarted([operation, ...started]), receipts.reload())} />
      {operations.map((operation) => <OperationCard key={operation.id} first={operation} title={text.running} onEnd={receipts.reload} />)}
      <h2>{text.receipts}</h2>
      <PagedTable label={text.receipts} pages={receipts} keyOf={(receipt) => receipt.id} empty={<p>{text.empty}</p>}
        columns={[
          { title: text.kindOf, render: (receipt) => <>{text.subjectKinds[receipt.subject_kind]}<br /><code class="small muted">{receipt.id}</code></> },
          { title: strings.keys.state, render: (receipt) => <span class={statusClass(receipt.status)}>{text.statuses[receipt.status]}</span> },
          { title: text.ended, render: (receipt) => receipt.ended_at && <time dateTime={receipt.ended_at}>{time(receipt.ended_at)}</time> },
          { title: text.rows, isNumber: true, render: rowsOf },
          { title: "", render: (receipt) => <button onClick={() => setShown(receipt)}>{text.receipt}</button> },
        ]} />
      {shown && <Receipt receipt={shown} onClose={() => setShown(null)} />}
    </div>
  );
}

function rowsOf({ counts }: Erasure): string {
  const sums = Object.values(counts).reduce(([deleted, emptied], rows) => [deleted + rows.deleted, emptied + rows.emptied] as const, [0, 0] as readonly [number, number]);
  return sums.map(number).join(" · ");
}

function StartErasure({ onStart }: { onStart: (operation: Operation) => void }) {
  const [form, setForm] = useState({ kind: "owner" as Kind, subject: "", project: "" });
  const [confirming, setConfirming] = useState<{ "Idempotency-Key": string } | null>(null);
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const subject = form.subject.trim();
  const erase = async () => {
    const operation = await body(api.POST("/v1/erasures", { params: confirming ? { header: confirming } : {}, body: subjectOf(form.kind, subject, form.project.trim()) }));
    setConfirming(null);
    set({ subject: "", project: "" });
    onStart(operation);
  };
  return (
    <form class="card stack" onSubmit={(event) => (event.preventDefault(), setConfirming(once()))}>
      <h2>{text.start}</h2>
      <div class="form-grid top">
        <SelectField label={text.kind} help={text.kindHelp[form.kind]} value={form.kind} options={KINDS} onValue={(kind) => set({ kind })} />
        <TextField label={text.subject[form.kind]} required value={form.subject} onValue={(value) => set({ subject: value })} />
        {form.kind !== "conversation" && <TextField label={text.project} help={text.projectHelp} value={form.project} onValue={(project) => set({ project })} />}
      </div>
      <div><button class="danger" disabled={!subject}>{text.submit}</button></div>
      {confirming && (
        <ConfirmByName title={text.confirmTitle[form.kind]} help={text.confirmHelp} name={subject} action={text.submit} onConfirm={erase} onClose={() => setConfirming(null)} />
      )}
    </form>
  );
}

function Receipt({ receipt, onClose }: { receipt: Erasure; onClose: () => void }) {
  const [form, setForm] = useState({ kind: (receipt.subject_kind === "tenant" ? "owner" : receipt.subject_kind) as Kind, subject: "", project: "" });
  const [outcome, setOutcome] = useState<{ valid: boolean; matches: boolean | null } | null>(null);
  const verifying = useAction();
  const content = JSON.stringify(receipt, null, 2);
  const verify = () =>
    verifying.run(async () => {
      const subject = form.subject.trim() ? subjectOf(form.kind, form.subject.trim(), form.project.trim()) : {};
      setOutcome(await body(api.POST("/v1/erasures/verify", { body: { receipt, ...subject } })));
    });
  return (
    <Dialog title={text.receipt} onClose={onClose}>
      <pre tabIndex={0}>{content}</pre>
      {receipt.subject_kind !== "tenant" && (
        <fieldset class="choices">
          <legend>{text.check}</legend>
          <div class="form-grid top">
            <TextField label={text.subject[form.kind]} value={form.subject} onValue={(subject) => setForm({ ...form, subject })} />
            {form.kind !== "conversation" && <TextField label={text.project} value={form.project} onValue={(project) => setForm({ ...form, project })} />}
          </div>
        </fieldset>
      )}
      {verifying.error && <ErrorNote error={verifying.error} />}
      {outcome && (
        <div role="status" class="stack">
          <p class={outcome.valid ? "notice good" : "notice error"}>{outcome.valid ? text.valid : text.invalid}</p>
          {outcome.matches !== null && <p class={outcome.matches ? "notice good" : "notice error"}>{outcome.matches ? text.matches : text.differs}</p>}
        </div>
      )}
      <div class="actions">
        <button onClick={() => download(`erasure-${receipt.id}.json`, content)}>{text.download}</button>
        <button disabled={verifying.busy || receipt.signature === null} onClick={() => void verify()}>{text.verify}</button>
        <button class="primary" onClick={onClose}>{strings.app.close}</button>
      </div>
    </Dialog>
  );
}
