// The rows of a transcript: valid turns in order, each with the versions that it superseded.
import type { Turn } from "../../api/types";
import type { LiveTurns } from "./live";

export interface TranscriptRow {
  turn: Turn;
  /** Earlier versions, and turns that a revision removed, newest first. */
  versions: Turn[];
}

const NONE: Turn[] = [];

/** `through`: turns after this position are left out, as those between were not read. */
export function rowsOf(read: Turn[], live: LiveTurns, through: number): TranscriptRow[] {
  const byId = new Map(read.map((turn) => [turn.id, turn]));
  for (const turn of live.committed.values()) if ((turn.position ?? 0) <= through) byId.set(turn.id, turn);
  for (const [id, successor] of live.superseded) {
    const turn = byId.get(id);
    if (turn) byId.set(id, { ...turn, superseded_by: successor });
  }
  for (const id of live.erased) {
    const turn = byId.get(id);
    if (turn && !turn.erased_at) byId.set(id, { ...turn, content: null, tool_calls: [], tool_results: [], erased_at: new Date().toISOString() });
  }
  const newest = new Map<number, Turn>();
  const folded = new Map<string, Turn[]>();
  const fold = (turn: Turn, behind: string) => folded.set(behind, [...(folded.get(behind) ?? []), turn]);
  for (const turn of byId.values()) {
    if (turn.position === null || turn.superseded_by !== null) continue;
    const other = newest.get(turn.position);
    if (!other) newest.set(turn.position, turn);
    else {
      const [winner, loser] = (turn.seq ?? 0) > (other.seq ?? 0) ? [turn, other] : [other, turn];
      newest.set(turn.position, winner);
      fold(loser, winner.id);
    }
  }
  for (const turn of byId.values()) {
    const successor = turn.superseded_by === null ? null : successorOf(turn, byId);
    if (successor) fold(turn, successor.id);
  }
  return [...newest.values()]
    .sort((a, b) => (a.position ?? 0) - (b.position ?? 0))
    .map((turn) => ({ turn, versions: folded.get(turn.id)?.sort((a, b) => (b.seq ?? 0) - (a.seq ?? 0)) ?? NONE }));
}

/** The valid turn that replaced a turn, perhaps over several versions; undefined if it was not read. */
function successorOf(turn: Turn, byId: Map<string, Turn>): Turn | undefined {
  const seen = new Set<string>();
  let current: Turn | undefined = turn;
  while (current && current.superseded_by !== null && !seen.has(current.id)) {
    seen.add(current.id);
    current = byId.get(current.superseded_by);
  }
  return current?.superseded_by === null ? current : undefined;
}
