// A fact as one line, with its state and its evidence.
import { api, body } from "../api/client";
import { useLoaded } from "../api/paging";
import type { Fact, Turn } from "../api/types";
import { hue, time } from "../lib/format";
import { conversationLink } from "../lib/links";
import { clipped, textOf } from "../lib/turn_text";
import { strings } from "../strings";
import { ErrorNote, Loading } from "./basics";

const text = strings.facts;
const SHOWN_SOURCES = 5;

export const statementOf = ({ subject, predicate, object }: Fact): string => `${subject} ${predicate.replaceAll("_", " ")} ${object}`;

export type FactState = "valid" | "ended" | "future" | "retracted" | "undone";

/** The state of a fact at a time in ms. A retracted or undone fact has no time in which it was true. */
export function stateOf({ valid_from: from, valid_to: to, invalidated_at: invalidated, undone }: Fact, at = Date.now()): FactState {
  if (undone) return "undone";
  if (invalidated !== null && to !== null && Date.parse(to) <= Date.parse(from)) return "retracted";
  if (Date.parse(from) > at) return "future";
  return to !== null && Date.parse(to) <= at ? "ended" : "valid";
}

const BADGES: Record<FactState, string> = { valid: "badge good", ended: "badge", future: "badge accent", retracted: "badge bad", undone: "badge bad" };

export function FactStateBadge({ fact }: { fact: Fact }) {
  const state = stateOf(fact);
  return <span class={BADGES[state]}>{text.states[state]}</span>;
}

/** Subject and object stand out; the predicate is a name of the service. */
export function Statement({ fact }: { fact: Fact }) {
  return (
    <span class="statement">
      <strong>{fact.subject}</strong> <span class="muted">{fact.predicate.replaceAll("_", " ")}</span> <strong>{fact.object}</strong>
    </span>
  );
}

export const validity = ({ valid_from: from, valid_to: to }: Fact): string => (to === null ? text.since(time(from)) : text.between(time(from), time(to)));

/** The turns that state the fact, each with a link into its conversation. */
export function Evidence({ fact }: { fact: Fact }) {
  const { conversation_id: conversation, source_turn_ids: sources } = fact;
  if (sources.length === 0) return <p class="muted small">{text.noEvidence}</p>;
  if (conversation === null) return <p class="muted small">{text.manyConversations(sources.length)}</p>;
  return (
    <ul class="evidence">
      {sources.slice(0, SHOWN_SOURCES).map((turn) => <Source key={turn} conversation={conversation} id={turn} />)}
      {sources.length > SHOWN_SOURCES && <li class="muted small">{text.moreEvidence(sources.length - SHOWN_SOURCES)}</li>}
    </ul>
  );
}

function Source({ conversation, id }: { conversation: string; id: string }) {
  const turn = useLoaded<Turn>(id, () =>
    body(api.GET("/v1/conversations/{conversation_id}/turns/{turn_id}", { params: { path: { conversation_id: conversation, turn_id: id } } })),
  );
  if (turn.error) return <li><ErrorNote error={turn.error} /></li>;
  if (!turn.value) return <li><Loading /></li>;
  const { actor, position, occurred_at: when } = turn.value;
  return (
    <li>
      <p class="row small">
        <span class={`actor ${hue(actor)}`}>{actor}</span> <time class="muted" dateTime={when}>{time(when)}</time>
        <a href={conversationLink(conversation, id)}>{strings.recall.openTurn(position ?? 0)}</a>
      </p>
      <p class="quote">{clipped(textOf(turn.value), 280) || strings.conversation.erased}</p>
    </li>
  );
}
