// An erasure: its confirmation, its progress, and its receipt.
import { useEffect, useRef, useState } from "preact/hooks";
import { api, body, once } from "../api/client";
import { asApiError, type ApiError } from "../api/problem";
import type { Erasure, ErasureCreate, Operation } from "../api/types";
import { download, number, time } from "../lib/format";
import { strings } from "../strings";
import { ErrorNote } from "./basics";

const text = strings.erasure;
const POLL_MS = 400;
const OPEN: ReadonlySet<string> = new Set(["queued", "running", "cancelling"]);

export interface ErasureRun {
  subject: ErasureCreate | null;
  operation: Operation | null;
  receipt: Erasure | null;
  error: ApiError | null;
  /** Start it. Raises ApiError if it is refused; later errors are in `error`. */
  start(subject: ErasureCreate): Promise<void>;
  cancel(): void;
}

type State = Pick<ErasureRun, "subject" | "operation" | "receipt" | "error">;
const NOTHING: State = { subject: null, operation: null, receipt: null, error: null };

/** Run an erasure, and follow it to its receipt. Leaving the page does not end it. */
export function useErasure(onEnd?: () => void): ErasureRun {
  const [state, setState] = useState(NOTHING);
  const isShown = useRef(true);
  useEffect(() => () => void (isShown.current = false), []);
  const follow = async (id: string) => {
    try {
      for (let isOpen = true; isOpen && isShown.current; ) {
        await new Promise((later) => setTimeout(later, POLL_MS));
        const operation = await body(api.GET("/v1/operations/{operation_id}", { params: { path: { operation_id: id } } }));
        isOpen = OPEN.has(operation.status);
        setState((before) => ({ ...before, operation }));
      }
      if (!isShown.current) return;
      const receipt = await body(api.GET("/v1/erasures/{erasure_id}", { params: { path: { erasure_id: id } } }));
      setState((before) => ({ ...before, receipt }));
      onEnd?.();
    } catch (error) {
      setState((before) => ({ ...before, error: asApiError(error) }));
    }
  };
  return {
    ...state,
    start: async (subject) => {
      const operation = await body(api.POST("/v1/erasures", { params: { header: once() }, body: subject }));
      setState({ ...NOTHING, subject, operation });
      void follow(operation.id);
    },
    cancel: () => {
      const id = state.operation?.id;
      if (!id) return;
      void api.POST("/v1/operations/{operation_id}/cancel", { params: { path: { operation_id: id } } }).catch((error: unknown) => setState((before) => ({ ...before, error: asApiError(error) })));
    },
  };
}

export function ErasureNote({ run }: { run: ErasureRun }) {
  const { operation, receipt, error, subject } = run;
  if (!operation) return null;
  const { done, total } = operation.progress;
  return (
    <section class="card stack" aria-label={text.title} role="status">
      <h2>{text.title}</h2>
      {error && <ErrorNote error={error} />}
      {receipt && subject ? (
        <Receipt receipt={receipt} subject={subject} />
      ) : (
        !error && (
          <div class="row spread">
            <span class="row number"><span class="spinner" /> {text.statuses[operation.status]} {text.progress(done, total)}</span>
            <button onClick={run.cancel} disabled={operation.status === "cancelling"}>{strings.app.cancel}</button>
          </div>
        )
      )}
    </section>
  );
}

export function Receipt({ receipt, subject }: { receipt: Erasure; subject: ErasureCreate }) {
  const [checked, setChecked] = useState<{ valid: boolean; matches: boolean | null } | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const verify = async () => {
    try {
      setChecked(await body(api.POST("/v1/erasures/verify", { body: { ...subject, receipt } })));
    } catch (caught) {
      setError(asApiError(caught));
    }
  };
  const counts = Object.entries(receipt.counts);
  return (
    <div class="stack receipt">
      <p class="row">
        <span class={receipt.status === "complete" ? "badge good" : "badge warn"}>{text.receiptStatuses[receipt.status]}</span>
        <span class="small muted">{receipt.ended_at && time(receipt.ended_at)}</span>
      </p>
      {counts.length === 0 ? (
        <p class="muted">{text.nothing}</p>
      ) : (
        <div class="table-scroll">
          <table>
            <thead><tr><th scope="col">{text.table}</th><th scope="col" class="number">{text.deleted}</th><th scope="col" class="number">{text.emptied}</th></tr></thead>
            <tbody>
              {counts.map(([table, rows]) => (
                <tr key={table}><td>{table}</td><td class="number">{number(rows.deleted)}</td><td class="number">{number(rows.emptied)}</td></tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <dl class="pairs">
        <dt>{text.id}</dt><dd><code>{receipt.id}</code></dd>
        <dt>{text.hash}</dt><dd><code>{receipt.subject_hash}</code></dd>
        <dt>{text.signature}</dt><dd><code>{receipt.signature}</code></dd>
      </dl>
      {error && <ErrorNote error={error} />}
      {checked && <p class={checked.valid && checked.matches !== false ? "badge good" : "badge bad"}>{checked.valid ? (checked.matches === false ? text.otherSubject : text.valid) : text.invalid}</p>}
      <div class="row">
        <button onClick={() => download(`receipt-${receipt.id}.json`, `${JSON.stringify(receipt, null, 2)}\n`)}>{text.download}</button>
        <button onClick={() => void verify()}>{text.verify}</button>
      </div>
    </div>
  );
}
