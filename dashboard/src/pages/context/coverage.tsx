// The whole conversation as one strip: the turns that a context shows verbatim, those that summaries stand for, and those
// that are left out.
import { useEffect, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { useLoaded } from "../../api/paging";
import type { Context, Fact, Summary } from "../../api/types";
import { number } from "../../lib/format";
import { strings } from "../../strings";

const text = strings.context;
/** Turns whose positions are read at once; those of older ones are read one by one when a context shows them. */
const NEWEST_TURNS = 200;
const AT_ONCE = 8;

interface Range {
  from: number;
  to: number;
}

export interface Covered {
  last: number;
  verbatim: Range[];
  summarised: Range[];
}

/** What a page knows of the conversation beside the context: where its newest turns and its summaries are, and its facts. */
export interface Known {
  last: number;
  summaries: Map<string, Summary>;
  positions: Map<string, number>;
  facts: Map<string, Fact>;
}

export function useKnown(id: string): Known | null {
  const newest = useLoaded(id, async () => {
    const positions = new Map<string, number>();
    const path = { conversation_id: id };
    const [turns, summaries, facts] = await Promise.all([
      body(api.GET("/v1/conversations/{conversation_id}/turns", { params: { path, query: { order: "desc", limit: NEWEST_TURNS } } })),
      body(api.GET("/v1/conversations/{conversation_id}/summaries", { params: { path, query: { order: "desc", limit: 200 } } })),
      body(api.POST("/v1/facts/search", { body: { conversation_id: id, limit: 200 } })),
    ]);
    for (const turn of turns.data) if (turn.position !== null) positions.set(turn.id, turn.position);
    return { last: turns.data[0]?.position ?? 0, summaries: new Map(summaries.data.map((one) => [one.id, one])), positions, facts: new Map(facts.data.map((one) => [one.id, one])) };
  });
  return newest.value;
}

export function Coverage({ id, context, known }: { id: string; context: Context; known: Known | null }) {
  const [covered, setCovered] = useState<Covered | null>(null);
  useEffect(() => {
    if (!known) return;
    const stop = new AbortController();
    void coverageOf(id, context, known, stop.signal)
      .then((next) => !stop.signal.aborted && setCovered(next))
      .catch(() => undefined); // the strip keeps its last state: the context itself reports errors
    return () => stop.abort();
  }, [context, known]);
  if (!covered) return null;
  if (covered.last === 0) return <p class="muted">{text.noTurns}</p>;
  const verbatim = context.included.turn_ids.length;
  const leftOut = context.gap?.turns ?? 0;
  const summarised = countOf(covered.summarised, covered.verbatim);
  const place = ({ from, to }: Range) => ({ left: `${(100 * (from - 1)) / covered.last}%`, width: `${(100 * (to - from + 1)) / covered.last}%` });
  return (
    <div class="stack coverage">
      <p class="small">{text.coverage} <span class="muted">{text.coverageHelp}</span></p>
      <div class="strip" role="img" aria-label={text.covered(verbatim, summarised, leftOut)}>
        {covered.summarised.map((range) => <span key={`s${range.from}`} class="summarised" style={place(range)} />)}
        {covered.verbatim.map((range) => <span key={`v${range.from}`} class="verbatim" style={place(range)} />)}
      </div>
      <ul class="legend small number">
        <li><i class="verbatim" /> {text.covers.verbatim} {number(verbatim)}</li>
        <li><i class="summarised" /> {text.covers.summarised} {number(summarised)}</li>
        <li><i class="left-out" /> {text.covers.leftOut} {number(leftOut)}</li>
      </ul>
    </div>
  );
}

async function coverageOf(id: string, context: Context, known: Known, signal: AbortSignal): Promise<Covered> {
  const { turn_ids: turns, summary_ids: summaries } = context.included;
  const { positions } = known;
  const recalled = new Set((context.explain ?? []).filter(({ section, decision }) => section === "recalled" && decision === "included").map((item) => item.id));
  // the recent turns come first, by position; without holes, so that two positions say where all of them are
  const recent = turns.filter((turn) => !recalled.has(turn));
  const ends = [recent[0], recent.at(-1)].filter((turn) => turn !== undefined);
  await readPositions(id, [...ends, ...recalled], positions, signal);
  const verbatim: Range[] = turns.flatMap((turn) => {
    const position = recalled.has(turn) ? positions.get(turn) : undefined;
    return position === undefined ? [] : [{ from: position, to: position }];
  });
  const [from, to] = ends.map((turn) => positions.get(turn));
  if (from !== undefined && to !== undefined) verbatim.push({ from, to });
  const shown = await Promise.all(summaries.map((one) => known.summaries.get(one) ?? readSummary(id, one, signal)));
  return {
    last: Math.max(known.last, to ?? 0),
    verbatim,
    summarised: shown.map((one) => ({ from: one.from_position, to: one.to_position })),
  };
}

async function readPositions(id: string, turns: string[], positions: Map<string, number>, signal: AbortSignal): Promise<void> {
  const unknown = [...new Set(turns)].filter((turn) => !positions.has(turn));
  for (let first = 0; first < unknown.length; first += AT_ONCE) {
    await Promise.all(
      unknown.slice(first, first + AT_ONCE).map(async (turn) => {
        const { position } = await body(
          api.GET("/v1/conversations/{conversation_id}/turns/{turn_id}", { params: { path: { conversation_id: id, turn_id: turn } }, signal }),
        );
        if (position !== null) positions.set(turn, position);
      }),
    );
  }
}

const readSummary = (id: string, summary: string, signal: AbortSignal): Promise<Summary> =>
  body(api.GET("/v1/conversations/{conversation_id}/summaries/{summary_id}", { params: { path: { conversation_id: id, summary_id: summary } }, signal }));

/** The number of positions that are in one of the ranges, and in none of the others. */
export function countOf(ranges: Range[], others: Range[]): number {
  const joined: Range[] = [];
  for (const range of [...ranges].sort((a, b) => a.from - b.from)) {
    const before = joined.at(-1);
    if (before && range.from <= before.to + 1) before.to = Math.max(before.to, range.to);
    else joined.push({ ...range });
  }
  return joined.reduce((sum, { from, to }) => {
    let count = to - from + 1;
    for (const other of others) count -= Math.max(0, Math.min(to, other.to) - Math.max(from, other.from) + 1);
    return sum + Math.max(0, count);
  }, 0);
}
