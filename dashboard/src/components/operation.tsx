// Long operations: their progress, their result, and a button that cancels them.
import { useEffect, useRef, useState } from "preact/hooks";
import { api, body } from "../api/client";
import { asApiError, type ApiError } from "../api/problem";
import type { Operation } from "../api/types";
import { number, time } from "../lib/format";
import { strings } from "../strings";
import { useAction } from "./actions";
import { ErrorNote } from "./basics";

const text = strings.operation;
const POLL_MS = 1000;
const ENDED = new Set(["succeeded", "failed", "cancelled"]);
export const hasEnded = (operation: Operation): boolean => ENDED.has(operation.status);
export const statusClass = (status: string): string =>
  status === "succeeded" || status === "complete" || status === "delivered" || status === "valid" || status === "searched" ? "badge good"
  : status === "failed" || status === "dead" || status === "parked" || status === "revoked" ? "badge bad"
  : status === "cancelled" || status === "cancelling" || status === "expired" || status === "open" ? "badge warn"
  : "badge accent";

/** An operation, read again each second until it has ended. */
function useOperation(first: Operation, onEnd: () => void): { operation: Operation; error: ApiError | null; set: (operation: Operation) => void } {
  const [operation, set] = useState(first);
  const [error, setError] = useState<ApiError | null>(null);
  const ended = useRef(hasEnded(first));
  useEffect(() => {
    if (hasEnded(operation)) {
      if (!ended.current) onEnd();
      ended.current = true;
      return;
    }
    let isCurrent = true;
    const timer = setTimeout(async () => {
      try {
        const next = await body(api.GET("/v1/operations/{operation_id}", { params: { path: { operation_id: first.id } } }));
        if (isCurrent) set(next), setError(null);
      } catch (caught) {
        if (isCurrent) setError(asApiError(caught)), set({ ...operation });
      }
    }, POLL_MS);
    return () => void ((isCurrent = false), clearTimeout(timer));
  }, [operation]);
  return { operation, error, set };
}

export function OperationCard({ first, title, onEnd = () => undefined }: { first: Operation; title: string; onEnd?: () => void }) {
  const { operation, error, set } = useOperation(first, onEnd);
  const cancelling = useAction();
  const { done, total } = operation.progress;
  const cancel = () =>
    cancelling.run(async () => set(await body(api.POST("/v1/operations/{operation_id}/cancel", { params: { path: { operation_id: operation.id } } }))));
  return (
    <section class="card stack operation" aria-label={title}>
      <div class="row spread">
        <h3>{title}</h3>
        <span class={statusClass(operation.status)} role="status">{text.statuses[operation.status]}</span>
      </div>
      {!hasEnded(operation) && <progress aria-label={title} {...(total ? { value: done, max: Math.max(total, done) } : {})} />}
      <p class="small muted number">
        {text.done(number(done), total === null ? null : number(Math.max(total, done)))} · {text.started(time(operation.created_at))} · <code>{operation.id}</code>
      </p>
      {operation.error && <p class="badge bad">{operation.error.title} ({operation.error.code})</p>}
      {operation.result && <Result value={operation.result} />}
      {error && <ErrorNote error={error} />}
      {cancelling.error && <ErrorNote error={cancelling.error} />}
      {!hasEnded(operation) && (
        <div>
          <button disabled={cancelling.busy || operation.status === "cancelling"} onClick={() => void cancel()}>{text.cancel}</button>
        </div>
      )}
    </section>
  );
}

/** The members of a result; those of objects inside by their path. */
export function Result({ value }: { value: Record<string, unknown> }) {
  const rows = flat(value);
  return rows.length > 0 && (
    <dl class="pairs number">
      {rows.map(([name, shown]) => [<dt key={name}>{name}</dt>, <dd key={`${name} value`}>{shown}</dd>])}
    </dl>
  );
}

function flat(value: Record<string, unknown>, prefix = ""): [string, string][] {
  return Object.entries(value).flatMap(([name, inner]): [string, string][] => {
    const path = `${prefix}${name}`.replaceAll("_", " ");
    if (inner === null || (Array.isArray(inner) && inner.length === 0)) return [];
    if (typeof inner === "number") return [[path, number(inner)]];
    if (typeof inner === "object" && !Array.isArray(inner)) return flat(inner as Record<string, unknown>, `${path} `);
    return [[path, typeof inner === "string" ? inner : JSON.stringify(inner)]];
  });
}
