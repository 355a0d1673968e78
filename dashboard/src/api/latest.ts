// The answer to a request that changes while the user types or moves a slider: the newest one wins.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { asApiError, type ApiError } from "./problem";

export interface Latest<T> {
  /** The last answer; it stays while the next one is asked for. */
  value: T | null;
  loading: boolean;
  error: ApiError | null;
  tookMs: number;
}

/** How long a request may run before a newer one aborts it. Quick answers are shown while a slider moves. */
const PATIENCE_MS = 250;

/** Ask now and whenever `key` changes, which names everything that `load` depends on. Null: ask nothing. */
export function useLatest<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>): Latest<T> {
  const [state, setState] = useState<Latest<T>>({ value: null, loading: key !== null, error: null, tookMs: 0 });
  const wanted = useRef({ key, load });
  wanted.current = { key, load };
  const [asker] = useState(() => {
    let underWay: { stop: AbortController; began: number } | null = null;
    let asked: string | null = null;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const advance = (): void => {
      clearTimeout(timer);
      const now = wanted.current;
      if (now.key === null || now.key === asked) return;
      if (underWay) {
        const rest = PATIENCE_MS - (performance.now() - underWay.began);
        if (rest > 0) {
          timer = setTimeout(advance, rest);
          return;
        }
        underWay.stop.abort();
      }
      asked = now.key;
      void ask(now.load);
    };
    const ask = async (current: (signal: AbortSignal) => Promise<T>): Promise<void> => {
      const mine = { stop: new AbortController(), began: performance.now() };
      underWay = mine;
      setState((before) => ({ ...before, loading: true }));
      try {
        const value = await current(mine.stop.signal);
        if (underWay !== mine) return;
        underWay = null;
        setState({ value, loading: false, error: null, tookMs: performance.now() - mine.began });
      } catch (error) {
        if (underWay !== mine) return;
        underWay = null;
        setState((before) => ({ ...before, loading: false, error: asApiError(error) }));
      }
      advance();
    };
    const stop = (): void => {
      clearTimeout(timer);
      underWay?.stop.abort();
      underWay = null;
      asked = null;
    };
    return { advance, stop };
  });
  // not after the paint: a frame would pass before the request is sent
  useLayoutEffect(asker.advance, [key]);
  useEffect(() => asker.stop, []);
  return state;
}
