// Hits that the user marked as right or wrong, and how well each side finds the right ones. They are kept in the storage
// of this tab, by key: ids and queries, no content of turns.
import { currentSignIn, marksStorage } from "../../api/session";
import { SIDES, type Question, type Side } from "./configuration";

export const CUTS = [1, 5, 10, 25] as const;

export interface MarkedQuery extends Question {
  /** Conversations of the marked turns, by the turn's id. */
  right: Record<string, string>;
  wrong: Record<string, string>;
  ranks: Record<Side, Ranking | null>;
}

/** The ids of the hits, best first, and the configuration that gave them. */
export interface Ranking {
  configuration: string;
  k: number;
  ids: string[];
}

const NO_RANKS = Object.fromEntries(SIDES.map((side) => [side, null])) as Record<Side, null>;

export type Mark = "right" | "wrong" | null;

export const idOf = ({ query, scope }: Question): string => JSON.stringify([query, scope.kind, scope.name]);

export function readMarks(): MarkedQuery[] {
  try {
    return JSON.parse(sessionStorage.getItem(marksStorage(currentSignIn())) ?? "[]") as MarkedQuery[];
  } catch {
    return [];
  }
}

export function storeMarks(marks: MarkedQuery[]): void {
  sessionStorage.setItem(marksStorage(currentSignIn()), JSON.stringify(marks));
}

export function markOf(marked: MarkedQuery | undefined, turn: string): Mark {
  if (marked?.right[turn] !== undefined) return "right";
  return marked?.wrong[turn] === undefined ? null : "wrong";
}

/** The marks with one changed. A query without marks is forgotten. */
export function withMark(
  marks: MarkedQuery[], question: Question, turn: { id: string; conversation: string }, mark: Mark, ranks: Partial<Record<Side, Ranking>>,
): MarkedQuery[] {
  const id = idOf(question);
  const before = marks.find((one) => idOf(one) === id);
  const next: MarkedQuery = { ...question, right: { ...before?.right }, wrong: { ...before?.wrong }, ranks: { ...NO_RANKS, ...before?.ranks, ...ranks } };
  delete next.right[turn.id];
  delete next.wrong[turn.id];
  if (mark) next[mark][turn.id] = turn.conversation;
  const isEmpty = Object.keys(next.right).length + Object.keys(next.wrong).length === 0;
  if (!before) return isEmpty ? marks : [...marks, next];
  return marks.flatMap((one) => (idOf(one) !== id ? [one] : isEmpty ? [] : [next]));
}

/** The marks with the rankings of a query that was asked again. */
export function withRanks(marks: MarkedQuery[], question: Question, ranks: Partial<Record<Side, Ranking>>): MarkedQuery[] {
  const id = idOf(question);
  return marks.map((one) => (idOf(one) === id ? { ...one, ranks: { ...one.ranks, ...ranks } } : one));
}

export interface Figures {
  /** Queries with a right turn that were asked with this configuration, of all that have a right turn. */
  asked: number;
  of: number;
  /** The mean share of the right turns among the first k hits; null where no query was asked for as many. */
  recall: (number | null)[];
}

/** R@k of one side: the mean, over the marked queries, of the share of the right turns among the first k hits. */
export function figuresOf(marks: MarkedQuery[], side: Side, configuration: string): Figures {
  const rated = marks.filter((one) => Object.keys(one.right).length > 0);
  const asked = rated.filter((one) => one.ranks[side]?.configuration === configuration);
  const recall = CUTS.map((cut) => {
    const shares = asked.flatMap((one) => {
      const ranking = one.ranks[side];
      if (!ranking || ranking.k < cut) return [];
      const first = new Set(ranking.ids.slice(0, cut));
      const right = Object.keys(one.right);
      return [right.filter((turn) => first.has(turn)).length / right.length];
    });
    return shares.length ? shares.reduce((sum, share) => sum + share, 0) / shares.length : null;
  });
  return { asked: asked.length, of: rated.length, recall };
}
