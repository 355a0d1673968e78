// One hit: what was found, why it has its score, where it was said, and whether the user says that it is right.
import type { Explanation, RecallHit, RecallMode, ScoreTerms, Turn } from "../../api/types";
import { Ago } from "../../components/ago";
import Markdown from "../../components/markdown";
import { hue, number } from "../../lib/format";
import { conversationLink, factsLink } from "../../lib/links";
import { memo } from "../../lib/memo";
import { isWide } from "../../lib/window";
import { clipped, textOf, withoutMarks } from "../../lib/turn_text";
import { strings } from "../../strings";
import type { Mark } from "./marks";

const text = strings.recall;
const SHORT = 420;

interface Props {
  hit: RecallHit;
  /** What the search compared. */
  mode: RecallMode;
  place: number;
  /** Its place on the other side; 0: it is not there; null: nothing is compared. */
  otherPlace: number | null;
  mark: Mark;
  onMark: (hit: RecallHit, mark: Mark) => void;
}

export const HitView = memo(function HitView({ hit, mode, place, otherPlace, mark, onMark }: Props) {
  return (
    <li class={mark ? `hit ${mark}` : "hit"}>
      <div class="row small">
        <strong class="number">{place}</strong>
        <span class="badge">{text.kinds[hit.kind]}</span>
        <Relevance value={hit.relevance} />
        <span class="muted number" title={text.scoreHelp}>{text.score(hit.score)}</span>
        {otherPlace !== null && <span class={otherPlace === place ? "muted" : "badge accent"}>{otherPlace ? text.alsoAt(otherPlace) : text.notThere}</span>}
        {hit.kind === "turn" && (
          <span class="row marks push">
            {(["right", "wrong"] as const).map((name) => (
              <button key={name} type="button" aria-pressed={mark === name} aria-label={text.markLabel(text.marks[name], place)}
                onClick={() => onMark(hit, mark === name ? null : name)}>
                {text.marks[name]}
              </button>
            ))}
          </span>
        )}
      </div>
      <HitText hit={hit} />
      <Provenance hit={hit} />
      {hit.explain && (
        <details class="small" open={isWide()}>
          <summary>{text.parts}<span class="muted"> {hit.explain.reason}</span></summary>
          <Terms terms={hit.explain.terms} mode={mode} hasVector={hit.explain.cosine !== null} />
          <p class="muted number">
            {measured(hit.explain, mode)}.
            {hit.explain.words.length > 0 && <> {text.words} {hit.explain.words.join(", ")}</>}
          </p>
        </details>
      )}
      {hit.neighbours && hit.neighbours.length > 0 && (
        <details class="small">
          <summary>{text.neighbours(hit.neighbours.length)}</summary>
          {hit.neighbours.map((turn) => <Neighbour key={turn.id} turn={turn} />)}
        </details>
      )}
    </li>
  );
});

/** Turns and summaries are rendered as in the transcript; facts and memories are plain sentences. */
function HitText({ hit: { kind, text: value } }: { hit: RecallHit }) {
  const whole = kind === "turn" || kind === "summary" ? <Markdown text={value} /> : <p class="hit-text">{value}</p>;
  if (value.length <= SHORT) return whole;
  return (
    <details class="hit-long">
      <summary><span class="hit-text">{clipped(withoutMarks(value), SHORT)}</span></summary>
      {whole}
    </details>
  );
}

function Relevance({ value }: { value: number | null }) {
  if (value === null) return <span class="muted">{text.noRelevance}</span>;
  return (
    <span class="row tight relevance number" title={text.relevanceHelp}>
      <span class="meter"><span style={{ width: `${Math.round(value * 100)}%` }} /></span> {text.relevance(value)}
    </span>
  );
}

function Provenance({ hit }: { hit: RecallHit }) {
  if (hit.kind === "turn") {
    const { turn } = hit;
    return (
      <p class="row small muted">
        {turn && <><span class={`actor ${hue(turn.actor)}`}>{turn.actor}</span> <Ago at={turn.occurred_at} /></>}
        {hit.passage && <span>{text.passage(hit.passage.length)}</span>}
        {hit.conversation_id && <a href={conversationLink(hit.conversation_id, hit.id)}>{turn?.position ? text.openTurn(turn.position) : text.openConversation}</a>}
      </p>
    );
  }
  return (
    <p class="row small muted">
      {hit.kind === "fact" && <a href={factsLink({ owner: hit.fact.owner, subject: hit.fact.subject, fact: hit.fact.id })}>{text.openFact}</a>}
      {hit.kind === "summary" && <span class="number">{text.standsFor(hit.summary.from_position, hit.summary.to_position)}</span>}
      {hit.kind === "memory" && <span>{text.memoryOf(hit.memory.agent_id)}</span>}
      {hit.conversation_id && <a href={conversationLink(hit.conversation_id, hit.kind === "fact" ? hit.fact.source_turn_ids[0] : null)}>{text.openConversation}</a>}
    </p>
  );
}

/** What was compared: a mode without vectors has no cosine, one without words no BM25. */
const measured = ({ cosine, bm25 }: Explanation, mode: RecallMode): string =>
  [...(mode === "text" ? [] : [text.cosine(cosine)]), ...(mode === "vector" ? [] : [text.bm25(bm25)])].join(", ");

type Term = keyof ScoreTerms;

/**
 * The terms that the mode computes. A mode of words alone derives its other match terms from the words, and a mode of meaning
 * alone from the meaning: they belong to the term that they come from, so the parts shown still add up to the score.
 */
function computed(terms: ScoreTerms, mode: RecallMode): [Term, number][] {
  if (mode === "hybrid") return Object.entries(terms) as [Term, number][];
  const { meaning, words, share, overlap, ...others } = terms;
  const match: Partial<ScoreTerms> = mode === "text" ? { words: words + meaning + overlap, share } : { meaning: meaning + words + share + overlap };
  return Object.entries({ ...match, ...others }) as [Term, number][];
}

/** The terms of the score that are not zero, largest first, as bars on one scale; those below zero go to the left. */
function Terms({ terms, mode, hasVector }: { terms: ScoreTerms; mode: RecallMode; hasVector: boolean }) {
  const shown = computed(terms, mode).filter(([, value]) => Math.abs(value) >= 0.0005);
  shown.sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  return (
    <dl class="terms">
      {shown.map(([name, value]) => (
        <div key={name} title={name === "meaning" && !hasVector ? text.expectedMeaningHelp : text.terms[name]}>
          <dt>{name === "meaning" && !hasVector ? text.expectedMeaning : name}</dt>
          <dd>
            <span class={value < 0 ? "bar below" : "bar"}><span style={{ width: `${Math.min(100, Math.abs(value) * 100)}%` }} /></span>
            <span class="number">{number(Math.round(value * 1000) / 1000)}</span>
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Neighbour({ turn }: { turn: Turn }) {
  return (
    <p class="neighbour">
      <span class={`actor ${hue(turn.actor)}`}>{turn.actor}</span> <span class="muted number">{turn.position}</span> {clipped(withoutMarks(textOf(turn)), 300) || "…"}
    </p>
  );
}
