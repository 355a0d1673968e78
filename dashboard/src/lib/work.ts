// Long work that the user started: its progress, and its cancellation.
import { useEffect, useRef, useState } from "preact/hooks";
import { asApiError, type ApiError } from "../api/problem";

export interface Work {
  /** What is being done; null: nothing runs. */
  progress: string | null;
  error: ApiError | null;
  run(job: (report: (progress: string) => void, signal: AbortSignal) => Promise<void>): void;
  cancel(): void;
}

/** Run one job at a time. Leaving the page cancels it. */
export function useWork(first: string): Work {
  const [state, setState] = useState({ progress: null as string | null, error: null as ApiError | null });
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), []);
  return {
    ...state,
    cancel: () => stop.current?.abort(),
    run: (job) => {
      if (stop.current) return;
      const mine = new AbortController();
      stop.current = mine;
      setState({ progress: first, error: null });
      const report = (progress: string) => setState({ progress, error: null });
      void job(report, mine.signal)
        .then(() => setState({ progress: null, error: null }))
        .catch((error: unknown) => setState({ progress: null, error: mine.signal.aborted ? null : asApiError(error) }))
        .finally(() => (stop.current = null));
    },
  };
}
