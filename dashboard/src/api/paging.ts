// Lists that are read page by page while the user scrolls.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { asApiError, type ApiError } from "./problem";

export interface Page<T> {
  data: T[];
  has_more: boolean;
  next_cursor: string | null;
}

export interface Pages<T> {
  rows: T[];
  hasMore: boolean;
  loading: boolean;
  error: ApiError | null;
  loadMore(): void;
  reload(): void;
  /** Change the rows that are shown, such as by an event. */
  update(change: (rows: T[]) => T[]): void;
}

/** Read a list: the first page now and whenever `key` changes, the others by `loadMore`. */
export function usePages<T>(key: string, load: (cursor: string | null) => Promise<Page<T>>): Pages<T> {
  const [state, setState] = useState({ rows: [] as T[], hasMore: false, loading: true, error: null as ApiError | null });
  const current = useRef({ generation: 0, cursor: null as string | null, busy: false });

  const read = useCallback(
    async (first: boolean) => {
      const now = current.current;
      if (first) {
        now.generation += 1;
        now.cursor = null;
      } else if (now.busy || now.cursor === null) return;
      const { generation } = now;
      now.busy = true;
      setState((before) => ({ ...before, loading: true, error: null }));
      try {
        const page = await load(now.cursor);
        if (generation !== now.generation) return;
        now.cursor = page.has_more ? page.next_cursor : null;
        setState(({ rows }) => ({
          rows: first ? page.data : [...rows, ...page.data],
          hasMore: page.has_more,
          loading: false,
          error: null,
        }));
      } catch (error) {
        if (generation !== now.generation) return;
        setState((before) => ({ ...before, loading: false, error: asApiError(error) }));
      } finally {
        if (generation === now.generation) now.busy = false;
      }
    },
    // `key` names everything that `load` depends on
    [key],
  );

  useEffect(() => {
    setState({ rows: [], hasMore: false, loading: true, error: null });
    void read(true);
  }, [read]);

  return {
    ...state,
    loadMore: () => void read(false),
    reload: () => void read(true),
    update: (change) => setState((before) => ({ ...before, rows: change(before.rows) })),
  };
}

export interface Loaded<T> {
  value: T | null;
  loading: boolean;
  error: ApiError | null;
  reload(): void;
}

/** Read one object, now and whenever `key` changes. The last value stays while the next one is read. */
export function useLoaded<T>(key: string, load: () => Promise<T>): Loaded<T> {
  const [state, setState] = useState({ value: null as T | null, loading: true, error: null as ApiError | null });
  const generation = useRef(0);
  const read = useCallback(async () => {
    const mine = ++generation.current;
    setState((before) => ({ ...before, loading: true }));
    try {
      const value = await load();
      if (mine === generation.current) setState({ value, loading: false, error: null });
    } catch (error) {
      if (mine === generation.current) setState((before) => ({ ...before, loading: false, error: asApiError(error) }));
    }
  }, [key]);
  useEffect(() => void read(), [read]);
  return { ...state, reload: () => void read() };
}
