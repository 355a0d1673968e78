// The turns of a conversation that were read: one stretch without holes, which grows at both ends while the user scrolls.
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { asApiError, type ApiError } from "../../api/problem";
import type { Turn } from "../../api/types";

const PAGE_TURNS = 100;

export interface History {
  turns: Turn[];
  /** Whether the newest turn was read, so that new ones follow without a hole. */
  reachesEnd: boolean;
  loading: boolean;
  error: ApiError | null;
  /** Changes when another stretch is read. */
  generation: number;
  loadOlder(): void;
  loadNewer(): void;
  reload(): void;
}

interface Reading {
  generation: number;
  older: string | null;
  newer: string | null;
  /** The position that the cursors belong to. */
  middle: number | null;
  busy: Set<Direction>;
}

type Direction = "older" | "newer";

/** Read the newest turns, or those around a position. `around` undefined: not known yet. */
export function useHistory(id: string, around: number | null | undefined): History {
  const [state, setState] = useState({ turns: [] as Turn[], reachesEnd: false, loading: true, error: null as ApiError | null, generation: 0 });
  const reading = useRef<Reading>({ generation: 0, older: null, newer: null, middle: null, busy: new Set() });
  const shown = useRef(state);
  shown.current = state;

  const page = useCallback(
    (direction: Direction, middle: number | null, cursor: string | null) =>
      body(
        api.GET("/v1/conversations/{conversation_id}/turns", {
          params: {
            path: { conversation_id: id },
            query: {
              limit: PAGE_TURNS,
              include_superseded: true,
              order: direction === "older" ? "desc" : "asc",
              ...(middle !== null ? (direction === "older" ? { before: middle + 1 } : { after: middle }) : {}),
              ...(cursor ? { cursor } : {}),
            },
          },
        }),
      ),
    [id],
  );
  const start = useCallback(
    async (middle: number | null) => {
      const generation = reading.current.generation + 1;
      reading.current = { generation, older: null, newer: null, middle, busy: new Set() };
      setState({ turns: [], reachesEnd: false, loading: true, error: null, generation });
      try {
        const [older, newer] = await Promise.all([page("older", middle, null), middle === null ? null : page("newer", middle, null)]);
        const now = reading.current;
        if (generation !== now.generation) return;
        now.older = older.has_more ? older.next_cursor : null;
        now.newer = newer?.has_more ? newer.next_cursor : null;
        setState({ turns: [...older.data, ...(newer?.data ?? [])], reachesEnd: now.newer === null, loading: false, error: null, generation });
      } catch (error) {
        if (generation === reading.current.generation) setState((before) => ({ ...before, loading: false, error: asApiError(error) }));
      }
    },
    [page],
  );
  const more = useCallback(
    async (direction: Direction) => {
      const now = reading.current;
      const cursor = now[direction];
      if (cursor === null || now.busy.has(direction)) return;
      now.busy.add(direction);
      try {
        const next = await page(direction, now.middle, cursor);
        if (now !== reading.current) return;
        now[direction] = next.has_more ? next.next_cursor : null;
        setState((before) => ({ ...before, turns: [...before.turns, ...next.data], reachesEnd: now.newer === null, error: null }));
      } catch (error) {
        if (now === reading.current) setState((before) => ({ ...before, error: asApiError(error) }));
      } finally {
        now.busy.delete(direction);
      }
    },
    [page],
  );
  useEffect(() => {
    if (around === undefined) return;
    const positions = shown.current.turns.flatMap(({ position }) => position ?? []);
    const isRead = around !== null && positions.length > 0 && around >= Math.min(...positions) && around <= Math.max(...positions);
    if (!isRead) void start(around);
  }, [start, around]);
  return { ...state, loadOlder: () => void more("older"), loadNewer: () => void more("newer"), reload: () => void start(around ?? null) };
}
