// The answer to a request that changes while the user types or moves a slider: the newest one wins.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { asApiError, type ApiError } from "./problem";

export interface Latest<T> {
  /** The last answer; it stays while the next one is asked for. */
  value: T | null;
  loading: boolean;
  error: ApiError | null;
  /** How long the request of this answer took. */
  tookMs: number;
}

/** A request: `key` names everything that `load` depends on. */
export interface Question<T> {
  key: string;
  load: (signal: AbortSignal) => Promise<T>;
}

interface Wanted<T> {
  now: Question<T> | null;
  ahead: Question<T>[];
}

interface Answer<T> {
  value: T;
  tookMs: number;
  /** When it came. */
  at: number;
}

interface Call {
  key: string;
  stop: AbortController;
  began: number;
  isAhead: boolean;
}

/** How long a request may run before a newer one aborts it. Quick answers are shown while a slider moves. */
const PATIENCE_MS = 250;
/** An answer older than this is asked for again: turns may have come meanwhile. */
const FRESH_MS = 3_000;
const MOST_KEPT = 8;

/**
 * Ask now and whenever `key` changes, which names everything that `load` depends on. Null: ask nothing.
 *
 * `ahead` are the requests that the user is likely to want next: they are sent while no other one runs, so that their
 * answers are there at once.
 */
export function useLatest<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>, ahead: Question<T>[] = []): Latest<T> {
  const [state, setState] = useState<Latest<T>>({ value: null, loading: key !== null, error: null, tookMs: 0 });
  const wanted = useRef<Wanted<T>>({ now: null, ahead });
  wanted.current = { now: key === null ? null : { key, load }, ahead };
  const [asker] = useState(() => askerOf(() => wanted.current, (change) => setState((before) => ({ ...before, ...change }))));
  // not after the paint: a frame would pass before the request is sent
  useLayoutEffect(asker.advance, [JSON.stringify([key, ...ahead.map((one) => one.key)])]);
  useEffect(() => asker.stop, []);
  return state;
}

function askerOf<T>(wanted: () => Wanted<T>, show: (change: Partial<Latest<T>>) => void) {
  let underWay: Call | null = null;
  let asked: string | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const kept = new Map<string, Answer<T>>();

  const fresh = (key: string): Answer<T> | null => {
    const answer = kept.get(key);
    return answer && performance.now() - answer.at < FRESH_MS ? answer : null;
  };

  const advance = (): void => {
    clearTimeout(timer);
    const { now, ahead } = wanted();
    if (now && now.key !== asked) demand(now);
    const next = ahead.find(({ key }) => !fresh(key));
    if (now && next && !underWay) void ask(next, true);
  };

  const demand = (now: Question<T>): void => {
    const answer = fresh(now.key);
    if (answer) {
      asked = now.key;
      if (underWay) underWay.isAhead = true;
      show({ ...answer, loading: false, error: null });
    } else if (underWay?.key === now.key) {
      asked = now.key;
      underWay.isAhead = false;
      show({ loading: true });
    } else {
      const rest = underWay && !underWay.isAhead ? PATIENCE_MS - (performance.now() - underWay.began) : 0;
      if (rest > 0) {
        timer = setTimeout(advance, rest);
        return;
      }
      underWay?.stop.abort();
      asked = now.key;
      show({ loading: true });
      void ask(now, false);
    }
  };

  const ask = async ({ key, load }: Question<T>, isAhead: boolean): Promise<void> => {
    const call: Call = { key, stop: new AbortController(), began: performance.now(), isAhead };
    underWay = call;
    try {
      const value = await load(call.stop.signal);
      if (underWay !== call) return;
      const answer = { value, tookMs: performance.now() - call.began, at: performance.now() };
      keep(key, answer);
      underWay = null;
      if (!call.isAhead) show({ ...answer, loading: false, error: null });
      // a server that is slow is asked for nothing that is only likely to be wanted
      if (answer.tookMs < PATIENCE_MS) advance();
    } catch (error) {
      if (underWay !== call) return;
      underWay = null;
      if (!call.isAhead) show({ loading: false, error: asApiError(error) });
    }
  };

  const keep = (key: string, answer: Answer<T>): void => {
    kept.delete(key);
    kept.set(key, answer);
    const [oldest] = kept.keys();
    if (kept.size > MOST_KEPT && oldest !== undefined) kept.delete(oldest);
  };
  const stop = (): void => {
    clearTimeout(timer);
    underWay?.stop.abort();
    underWay = null;
    asked = null;
    kept.clear();
  };
  return { advance, stop };
}
