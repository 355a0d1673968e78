// Why each part of a context is there, or was dropped: items with the same reason as one group.
import { useMemo, useState } from "preact/hooks";
import type { Explained } from "../../api/types";
import { statementOf } from "../../components/fact";
import { conversationLink, factsLink } from "../../lib/links";
import { memo } from "../../lib/memo";
import { clipped } from "../../lib/turn_text";
import { strings } from "../../strings";
import type { Background } from "./background";
import type { Known } from "./coverage";

const text = strings.context;
const SHOWN_ITEMS = 60;
const SHORT_GROUP = 3;
const SUMMARY_CHARACTERS = 240;
const ID = /\b[0-9A-HJKMNP-TV-Z]{26}\b/g;

interface Group extends Pick<Explained, "section" | "decision" | "reason"> {
  items: Explained[];
  tokens: number;
}

/** What the model sees comes first; items keep their order. */
function groupsOf(explain: Explained[]): Group[] {
  const groups = new Map<string, Group>();
  for (const item of explain) {
    const { section, decision, reason } = item;
    const key = `${decision} ${section} ${reason}`;
    const group = groups.get(key) ?? { section, decision, reason, items: [], tokens: 0 };
    group.items.push(item);
    group.tokens += item.tokens;
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => Number(a.decision === "dropped") - Number(b.decision === "dropped"));
}

interface Names {
  known: Known | null;
  background: Background;
}

/** What an item is called: the position of a turn, the range of a summary, the statement of a fact, a memory. Null: not known. */
function nameOf(id: string, { known, background }: Names): string | null {
  const position = known?.positions.get(id);
  const summary = known?.summaries.get(id);
  const fact = known?.facts.get(id);
  if (position !== undefined) return text.turn(position);
  if (summary) return text.ofTurns(summary.from_position, summary.to_position);
  return fact ? statementOf(fact) : (background.get(id) ?? null);
}

/** A reason with names instead of ids. */
const named = (reason: string, names: Names): string =>
  reason.replace(ID, (id) => nameOf(id, names) ?? id).replace(/\bturn (?=turn )/g, "").replace(/\bsummary (?=turns )/g, "summary of the ");

export function Reasons({ id, explain, ...names }: Names & { id: string; explain: Explained[] }) {
  const groups = useMemo(() => groupsOf(explain), [explain]);
  return (
    <section class="card stack">
      <h2>{text.why}</h2>
      <div class="reasons">
        {groups.map((group) => <ReasonGroup key={`${group.decision} ${group.section} ${group.reason}`} conversation={id} group={group} names={names} />)}
      </div>
    </section>
  );
}

function ReasonGroup({ conversation, group, names }: { conversation: string; group: Group; names: Names }) {
  const { section, decision, reason, items, tokens } = group;
  // null: the user has not opened or closed it
  const [chosen, setChosen] = useState<boolean | null>(null);
  const [isWhole, setWhole] = useState(false);
  const isOpen = chosen ?? items.length <= SHORT_GROUP;
  const shown = isWhole ? items : items.slice(0, SHOWN_ITEMS);
  return (
    <details class={`reason ${decision}`} open={isOpen} onToggle={(event) => event.currentTarget.open !== isOpen && setChosen(event.currentTarget.open)}>
      <summary>
        <span class="badge">{text.names[section]}</span> <span class={decision === "included" ? "badge good" : "badge bad"}>{decision === "included" ? text.included : text.dropped}</span>{" "}
        {named(reason, names)} <span class="small muted number">{text.group(items.length, tokens)}</span>
      </summary>
      {isOpen && (
        <ul class="reason-items small number">
          {shown.map((item) => <Item key={item.id} conversation={conversation} section={section} id={item.id} decision={decision} tokens={item.tokens} score={item.score} name={nameOf(item.id, names)} says={clipped(names.known?.summaries.get(item.id)?.text ?? "", SUMMARY_CHARACTERS)} />)}
          {shown.length < items.length && <li><button class="link" onClick={() => setWhole(true)}>{text.moreReasons(items.length)}</button></li>}
        </ul>
      )}
    </details>
  );
}

type ItemProps = Pick<Explained, "section" | "id" | "decision" | "tokens" | "score"> & { conversation: string; name: string | null; says: string };

const Item = memo(function Item({ conversation, section, id, decision, tokens, score, name, says }: ItemProps) {
  const isTurn = section === "recent" || section === "recalled";
  const href = isTurn ? conversationLink(conversation, id) : section === "facts" ? factsLink({ fact: id }) : null;
  const shown = name ?? <code>{id}</code>;
  return (
    <li class={decision}>
      {href ? <a href={href}>{shown}</a> : <span class="muted">{shown}</span>} <span class="muted clip">{text.tokens(tokens)}{score !== null && `, ${strings.recall.score(score)}`}</span>
      {says && <p class="quote">{says}</p>}
    </li>
  );
});
