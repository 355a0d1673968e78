// The changes of a conversation while it is shown: committed, superseded and erased turns, and the text of open ones.
import { useEffect, useRef, useState } from "preact/hooks";
import { followEvents } from "../../api/event_stream";
import type { Turn } from "../../api/types";

export interface LiveTurns {
  committed: Map<string, Turn>;
  /** The successors of superseded turns, by their ids. */
  superseded: Map<string, string>;
  erased: Set<string>;
  pending: Turn[];
  /** Facts that were recorded and summaries that were made since the page was opened. */
  facts: number;
  summaries: number;
  isConnected: boolean;
}

const NOTHING: LiveTurns = { committed: new Map(), superseded: new Map(), erased: new Set(), pending: [], facts: 0, summaries: 0, isConnected: false };

interface PendingTurn {
  turn: Turn;
  /** The code points of each part, which offsets count: `content`, or a member of a tool call as `tool_calls/0/arguments`. */
  parts: Map<string, string[]>;
}

interface PartText {
  part: string;
  text: string;
}

type Frame =
  | { type: "snapshot"; turns: Turn[]; pending: { turn: Turn; parts: PartText[] }[]; more: boolean }
  | { type: "turn.opened"; turn: Turn }
  | { type: "turn.delta"; turn_id: string; part: string; offset: number; delta: string }
  | { type: "turn.committed"; turn: Turn }
  | { type: "turn.aborted"; turn_id: string }
  | { type: "turn.superseded"; turn_id: string; superseded_by: string }
  | { type: "turn.erased"; turn_id: string }
  | { type: "fact.recorded" }
  | { type: "summary.created" };

export function useLiveTurns(id: string, onDeleted: () => void): LiveTurns {
  const [state, setState] = useState(NOTHING);
  const deleted = useRef(onDeleted);
  deleted.current = onDeleted;
  useEffect(() => {
    setState(NOTHING);
    const now: Changes = { committed: new Map(), superseded: new Map(), erased: new Set(), open: new Map(), facts: 0, summaries: 0 };
    let isScheduled = false;
    let areTurnsChanged = false;
    // many deltas arrive within one frame of the screen
    const show = () => {
      if (isScheduled) return;
      isScheduled = true;
      requestAnimationFrame(() => {
        isScheduled = false;
        const pending = [...now.open.values()].map(writtenSoFar);
        const { facts, summaries } = now;
        const turns = areTurnsChanged ? { committed: new Map(now.committed), superseded: new Map(now.superseded), erased: new Set(now.erased) } : {};
        areTurnsChanged = false;
        setState((before) => ({ ...before, ...turns, pending, facts, summaries }));
      });
    };
    const stream = followEvents(`/v1/conversations/${encodeURIComponent(id)}/events`, {
      connected: (isConnected) => setState((before) => ({ ...before, isConnected })),
      event: (type, data) => {
        if (type === "error" && (data as { code?: string }).code === "not_found") return deleted.current();
        areTurnsChanged ||= type === "snapshot" || type === "turn.committed" || type === "turn.superseded" || type === "turn.erased";
        apply(data as Frame, now);
        show();
      },
    });
    return () => stream.close();
  }, [id]);
  return state;
}

interface Changes extends Omit<LiveTurns, "pending" | "isConnected"> {
  open: Map<string, PendingTurn>;
}

/** An open turn with its text, and its tool calls, as far as they are written. */
function writtenSoFar({ turn, parts }: PendingTurn): Turn {
  const calls: { id: string; name: string; arguments: string }[] = [];
  for (const [part, points] of parts) {
    const [, place, member] = /^tool_calls\/(\d+)\/(id|name|arguments)$/.exec(part) ?? [];
    if (place === undefined || member === undefined) continue;
    calls[Number(place)] = { id: "", name: "", arguments: "", ...calls[Number(place)], [member]: points.join("") };
  }
  return { ...turn, content: (parts.get("content") ?? []).join(""), tool_calls: calls.filter(Boolean) };
}

function apply(frame: Frame, now: Changes): void {
  const { committed, open } = now;
  switch (frame.type) {
    case "snapshot":
      for (const turn of frame.turns) committed.set(turn.id, turn);
      if (frame.more) return;
      open.clear();
      for (const { turn, parts } of frame.pending) {
        open.set(turn.id, { turn, parts: new Map(parts.map(({ part, text }) => [part, Array.from(text)])) });
      }
      return;
    case "turn.opened":
      if (!open.has(frame.turn.id)) open.set(frame.turn.id, { turn: frame.turn, parts: new Map() });
      return;
    case "turn.delta": {
      const parts = open.get(frame.turn_id)?.parts;
      const written = parts?.get(frame.part) ?? [];
      if (!parts || frame.offset > written.length) return;
      parts.set(frame.part, written);
      written.length = frame.offset;
      for (const point of frame.delta) written.push(point);
      return;
    }
    case "turn.committed":
      open.delete(frame.turn.id);
      committed.set(frame.turn.id, frame.turn);
      return;
    case "turn.aborted":
      open.delete(frame.turn_id);
      return;
    case "turn.superseded":
      now.superseded.set(frame.turn_id, frame.superseded_by);
      return;
    case "turn.erased":
      now.erased.add(frame.turn_id);
      return;
    case "fact.recorded":
      now.facts += 1;
      return;
    case "summary.created":
      now.summaries += 1;
  }
}
