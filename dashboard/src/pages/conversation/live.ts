// The changes of a conversation while it is shown: committed, superseded and erased turns, and the text of open ones.
import { useEffect, useState } from "preact/hooks";
import { followEvents } from "../../api/event_stream";
import type { Turn } from "../../api/types";

interface LiveTurns {
  committed: Map<string, Turn>;
  pending: Turn[];
  isConnected: boolean;
}

interface PendingTurn {
  turn: Turn;
  /** Code points, which offsets count. */
  content: string[];
}

type Frame =
  | { type: "snapshot"; turns: Turn[]; pending: { turn: Turn; parts: { part: string; text: string }[] }[]; more: boolean }
  | { type: "turn.opened"; turn: Turn }
  | { type: "turn.delta"; turn_id: string; part: string; offset: number; delta: string }
  | { type: "turn.committed"; turn: Turn }
  | { type: "turn.aborted"; turn_id: string }
  | { type: "turn.superseded"; turn_id: string; superseded_by: string }
  | { type: "turn.erased"; turn_id: string };

export function useLiveTurns(id: string, onDeleted: () => void): LiveTurns {
  const [state, setState] = useState<LiveTurns>({ committed: new Map(), pending: [], isConnected: false });
  useEffect(() => {
    const committed = new Map<string, Turn>();
    const open = new Map<string, PendingTurn>();
    let scheduled = false;
    // many deltas arrive within one frame of the screen
    const show = () => {
      if (scheduled) return;
      scheduled = true;
      requestAnimationFrame(() => {
        scheduled = false;
        const pending = [...open.values()].map(({ turn, content }) => ({ ...turn, content: content.join("") }));
        setState((before) => ({ ...before, committed: new Map(committed), pending }));
      });
    };
    const stream = followEvents(`/v1/conversations/${encodeURIComponent(id)}/events`, {
      connected: (isConnected) => setState((before) => ({ ...before, isConnected })),
      event: (type, data) => {
        if (type === "error" && (data as { code?: string }).code === "not_found") return onDeleted();
        apply(data as Frame, committed, open);
        show();
      },
    });
    return () => stream.close();
  }, [id]);
  return state;
}

function apply(frame: Frame, committed: Map<string, Turn>, open: Map<string, PendingTurn>): void {
  switch (frame.type) {
    case "snapshot":
      for (const turn of frame.turns) committed.set(turn.id, turn);
      if (frame.more) return;
      open.clear();
      for (const { turn, parts } of frame.pending) {
        open.set(turn.id, { turn, content: Array.from(parts.find(({ part }) => part === "content")?.text ?? "") });
      }
      return;
    case "turn.opened":
      if (!open.has(frame.turn.id)) open.set(frame.turn.id, { turn: frame.turn, content: [] });
      return;
    case "turn.delta": {
      const pending = open.get(frame.turn_id);
      if (pending && frame.part === "content" && frame.offset <= pending.content.length) {
        pending.content.length = frame.offset;
        for (const point of frame.delta) pending.content.push(point);
      }
      return;
    }
    case "turn.committed":
      open.delete(frame.turn.id);
      committed.set(frame.turn.id, frame.turn);
      return;
    case "turn.aborted":
      open.delete(frame.turn_id);
      return;
    case "turn.superseded": {
      const old = committed.get(frame.turn_id);
      if (old) committed.set(old.id, { ...old, superseded_by: frame.superseded_by });
      return;
    }
    case "turn.erased": {
      const old = committed.get(frame.turn_id);
      if (old) committed.set(old.id, { ...old, content: null, tool_calls: [], tool_results: [], erased_at: new Date().toISOString() });
    }
  }
}
