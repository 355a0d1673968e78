// The conversation as one strip: summaries over the turns that they stand for, facts at their sources, and the place of
// the turns in view. The strip is a slider, so a long conversation can be crossed with the mouse or the keyboard.
import { useMemo, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { useLoaded } from "../../api/paging";
import type { Fact, Summary } from "../../api/types";
import { ErrorNote } from "../../components/basics";
import { statementOf } from "../../components/fact";
import { time } from "../../lib/format";
import { memo } from "../../lib/memo";
import { useStore, type Store } from "../../lib/store";
import { strings } from "../../strings";

const text = strings.conversation.timeline;
const MOST_PAGES = 10;

export interface InView {
  from: number;
  to: number;
}

interface Props {
  id: string;
  /** The position of the newest turn. */
  last: number;
  /** Changes when summaries were made. */
  revision: number;
  facts: { fact: Fact; position: number }[];
  inView: Store<InView>;
  onGo: (position: number) => void;
}

export const Timeline = memo(function Timeline({ id, last, revision, facts, inView, onGo }: Props) {
  const summaries = useLoaded(`${id} ${revision}`, () => validSummaries(id));
  const [open, setOpen] = useState<string | null>(null);
  const levels = useMemo(() => byLevel(summaries.value ?? []), [summaries.value]);
  const left = (position: number) => `${(100 * (position - 1)) / last}%`;
  const width = (turns: number) => `${(100 * turns) / last}%`;
  const shown = summaries.value?.find((one) => one.id === open);
  return (
    <section class="timeline" aria-label={text.title}>
      {summaries.error && <ErrorNote error={summaries.error} onRetry={summaries.reload} />}
      {levels.map(([level, ones]) => (
        <div key={level} class="timeline-row" role="group" aria-label={text.level(level)}>
          {ones.map((one) => (
            <button key={one.id} type="button" class={`timeline-summary ${one.kind}`} aria-pressed={one.id === open} title={text.range(one.from_position, one.to_position)}
              aria-label={text.summary(one.from_position, one.to_position)} style={{ left: left(one.from_position), width: width(one.to_position - one.from_position + 1) }}
              onClick={() => setOpen(one.id === open ? null : one.id)} />
          ))}
        </div>
      ))}
      {facts.length > 0 && (
        <div class="timeline-row facts" role="group" aria-label={text.facts}>
          {facts.map(({ fact, position }) => (
            <button key={`${fact.id} ${position}`} type="button" class="timeline-fact" title={statementOf(fact)} aria-label={text.factAt(statementOf(fact), position)}
              style={{ left: left(position + 0.5) }} onClick={() => onGo(position)} />
          ))}
        </div>
      )}
      <Place last={last} inView={inView} onGo={onGo} />
      {shown && <SummaryText summary={shown} onGo={onGo} onClose={() => setOpen(null)} />}
    </section>
  );
});

/** The turns in view, as a slider over all turns. */
function Place({ last, inView, onGo }: Pick<Props, "last" | "inView" | "onGo">) {
  const { from, to } = useStore(inView);
  return (
    <div class="timeline-place">
      <span class="track"><span style={{ left: `${(100 * Math.max(0, from - 1)) / last}%`, width: `${(100 * Math.max(1, to - from + 1)) / last}%` }} /></span>
      <input type="range" min={1} max={last} step={1} value={from || last} aria-label={text.go} aria-valuetext={text.turns(from, to, last)}
        onChange={(event) => onGo(Number(event.currentTarget.value))} />
      <span class="small muted number">{text.turns(from, to, last)}</span>
    </div>
  );
}

function SummaryText({ summary, onGo, onClose }: { summary: Summary; onGo: (position: number) => void; onClose: () => void }) {
  return (
    <div class="card stack summary-text">
      <p class="row spread tight"><strong class="number">{text.summary(summary.from_position, summary.to_position)}</strong> <button class="quiet" onClick={onClose}>{strings.app.close}</button></p>
      <p class="row small">
        <span class="badge">{text.kinds[summary.kind]}</span>
        <span class="muted number">{strings.conversation.tokens(summary.tokens)}</span>
        {summary.model && <span class="muted">{summary.model}</span>}
        <time class="muted" dateTime={summary.created_at}>{time(summary.created_at)}</time>
        <button class="link" onClick={() => onGo(summary.from_position)}>{text.goFirst}</button>
      </p>
      {summary.refused_for && <p class="small muted">{text.refused}{text.refusedFor[summary.refused_for]}</p>}
      <p class="summary-words">{parts(summary).map(({ words, doubtful }, index) => (doubtful ? <mark key={index} class="doubtful" title={text.doubtful}>{words}</mark> : words))}</p>
    </div>
  );
}

/** The text of a summary in pieces: doubtful sentences, and what is between them. Places are code points. */
function parts({ text: whole, doubtful }: Summary): { words: string; doubtful: boolean }[] {
  const signs = Array.from(whole);
  const found: { words: string; doubtful: boolean }[] = [];
  let at = 0;
  for (const { start, end } of doubtful) {
    found.push({ words: signs.slice(at, start).join(""), doubtful: false }, { words: signs.slice(start, end).join(""), doubtful: true });
    at = end;
  }
  return [...found, { words: signs.slice(at).join(""), doubtful: false }];
}

async function validSummaries(id: string): Promise<Summary[]> {
  const summaries: Summary[] = [];
  let cursor: string | null = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const read: { data: Summary[]; next_cursor: string | null; has_more: boolean } = await body(
      api.GET("/v1/conversations/{conversation_id}/summaries", { params: { path: { conversation_id: id }, query: { order: "desc", limit: 200, ...(cursor ? { cursor } : {}) } } }),
    );
    summaries.push(...read.data);
    if (!read.has_more || !read.next_cursor) break;
    cursor = read.next_cursor;
  }
  return summaries.filter(({ valid }) => valid);
}

/** The highest level first, as it stands for the most turns. */
function byLevel(summaries: Summary[]): [number, Summary[]][] {
  const levels = new Map<number, Summary[]>();
  for (const one of summaries) levels.set(one.level, [...(levels.get(one.level) ?? []), one]);
  return [...levels.entries()].sort(([a], [b]) => b - a);
}
