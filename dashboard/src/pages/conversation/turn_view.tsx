// One turn of the transcript.
import { Ago } from "../../components/ago";
import Markdown from "../../components/markdown";
import type { ContentPart, Fact, ToolCall, Turn } from "../../api/types";
import { statementOf, stateOf } from "../../components/fact";
import { hue, time } from "../../lib/format";
import { factsLink } from "../../lib/links";
import { memo } from "../../lib/memo";
import { strings } from "../../strings";

const text = strings.conversation;

export interface TurnActions {
  revise(turn: Turn): void;
  fork(turn: Turn): void;
  erase(turn: Turn): void;
}

interface Props {
  turn: Turn;
  versions: Turn[];
  facts: Fact[];
  isTarget: boolean;
  /** Null: the key may not write. */
  actions: TurnActions | null;
}

export const TurnView = memo(function TurnView({ turn, versions, facts, isTarget, actions }: Props) {
  const isTool = turn.role === "tool";
  return (
    <article class={`turn ${hue(turn.actor)}${isTarget ? " target" : ""}${facts.length ? " with-facts" : ""}`} data-position={turn.position} aria-label={`${turn.role} ${turn.actor}`}>
      <header class="row small">
        <strong class="turn-actor">{turn.actor}</strong>
        <span class="badge">{turn.role}</span>
        {turn.status === "pending" && <span class="badge accent">{text.pending}</span>}
        {turn.position !== null && <span class="muted number">{turn.position}</span>}
        <Ago class="muted" at={turn.occurred_at} />
        {actions && turn.status === "committed" && <Actions turn={turn} actions={actions} />}
      </header>
      <div class="turn-body">
        {turn.erased_at ? (
          <p class="muted">{text.erased}</p>
        ) : isTool ? (
          <details><summary>{text.toolResult}</summary><Content content={turn.content} plain /></details>
        ) : (
          <Content content={turn.content} />
        )}
        {turn.tool_calls.map((call, index) => <Call key={index} call={call} isOpen={turn.status === "pending"} />)}
        {turn.tool_results.map((result) => (
          <details key={result.tool_call_id}><summary>{text.toolResult} <code>{result.tool_call_id}</code></summary><Content content={result.content ?? null} plain /></details>
        ))}
        {versions.length > 0 && (
          <details class="small">
            <summary class="muted">{text.superseded(versions.length)}</summary>
            {versions.map((version) => <OldVersion key={version.id} version={version} successor={turn} />)}
          </details>
        )}
      </div>
      {facts.length > 0 && (
        <ul class="turn-facts" aria-label={text.factsHere}>
          {facts.map((fact) => (
            <li key={fact.id} class={stateOf(fact)}><a href={factsLink({ owner: fact.owner, fact: fact.id })} title={strings.facts.states[stateOf(fact)]}>{statementOf(fact)}</a></li>
          ))}
        </ul>
      )}
    </article>
  );
});

function Actions({ turn, actions }: { turn: Turn; actions: TurnActions }) {
  const position = turn.position ?? 0;
  return (
    <span class="turn-actions push">
      {!turn.erased_at && typeof turn.content === "string" && turn.role !== "tool" && (
        <button class="quiet" aria-label={text.ofTurn(text.revise, position)} onClick={() => actions.revise(turn)}>{text.revise}</button>
      )}
      <button class="quiet" aria-label={text.ofTurn(text.fork, position)} onClick={() => actions.fork(turn)}>{text.fork}</button>
      {!turn.erased_at && <button class="quiet danger" aria-label={text.ofTurn(text.erase, position)} onClick={() => actions.erase(turn)}>{text.erase}</button>}
    </span>
  );
}

/** An earlier version of the turn, or a turn after it that the revision removed. */
function OldVersion({ version, successor }: { version: Turn; successor: Turn }) {
  const isRemoved = version.position !== successor.position;
  return (
    <div class="old-version">
      <p class="row small muted">
        <span>{version.actor}</span>
        {isRemoved && <span class="badge">{text.removed(version.position ?? 0)}</span>}
        <time dateTime={version.created_at}>{time(version.created_at)}</time>
      </p>
      {version.erased_at ? <p class="muted">{text.erased}</p> : <Content content={version.content} />}
    </div>
  );
}

function Content({ content, plain = false }: { content: string | ContentPart[] | null; plain?: boolean }) {
  if (content === null) return null;
  if (typeof content === "string") return plain ? <pre>{content}</pre> : <Markdown text={content} />;
  return (
    <>
      {content.map((part, index) => {
        const value = (part as { text?: unknown }).text;
        if (typeof value === "string") return plain ? <pre key={index}>{value}</pre> : <Markdown key={index} text={value} />;
        return <details key={index}><summary>{text.otherPart} {String(part.type ?? "")}</summary><pre>{JSON.stringify(part, null, 2)}</pre></details>;
      })}
    </>
  );
}

/** `isOpen`: the call is written at this moment, so its arguments are shown while they grow. */
function Call({ call, isOpen }: { call: ToolCall; isOpen: boolean }) {
  const { name, arguments: given } = "function" in call ? (call.function as { name: string; arguments: unknown }) : (call as { name?: string; arguments?: unknown });
  return (
    <details open={isOpen}>
      <summary>{text.toolCall} <code>{name ?? ""}</code></summary>
      <p class="small muted">{text.arguments}</p>
      <pre>{typeof given === "string" ? given : JSON.stringify(given ?? call, null, 2)}</pre>
    </details>
  );
}
