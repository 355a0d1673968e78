// The list of conversations: search, filters, live changes, pages on demand.
import { useLocation } from "preact-iso";
import { useEffect, useMemo, useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { followEvents } from "../../api/event_stream";
import { usePages } from "../../api/paging";
import { session } from "../../api/session";
import type { Conversation, ConversationSearch, ListedConversation } from "../../api/types";
import { Ago } from "../../components/ago";
import { Empty, ErrorNote, Loading, notifyError } from "../../components/basics";
import { VirtualList } from "../../components/virtual_list";
import { hue, time } from "../../lib/format";
import { useKeys } from "../../lib/keyboard";
import { conversationLink, recallLink } from "../../lib/links";
import { useSettled } from "../../lib/settled";
import { useStore } from "../../lib/store";
import { withoutMarks } from "../../lib/turn_text";
import { strings } from "../../strings";
import { FirstRun } from "./first_run";
import { useSaid, type Said } from "./said";
import "./conversations.css";

const text = strings.conversations;
/** The first page is small, so that it is shown soon; the others are large, so that the list keeps up with a scroll. */
const FIRST_ROWS = 50;
const MORE_ROWS = 200;
type State = keyof typeof text.states;
interface Filters {
  title: string;
  owner: string;
  participant: string;
  state: State;
}
const NO_FILTERS: Filters = { title: "", owner: "", participant: "", state: "active" };

function searchOf(filters: Filters, project: string | null): ConversationSearch {
  return {
    order: "desc",
    trashed: filters.state === "trashed",
    ...(project ? { project } : {}),
    ...(filters.title ? { title: filters.title } : {}),
    ...(filters.owner ? { owner: filters.owner } : {}),
    ...(filters.participant ? { participant: filters.participant } : {}),
    ...(filters.state === "archived" ? { archived: true } : {}),
    ...(filters.state === "pinned" ? { pinned: true } : {}),
  };
}

/** Whether a conversation belongs into the list. The server decides about new ones in the same way. */
function matches(row: Conversation, filters: Filters): boolean {
  const isTrashed = row.trashed_at !== null;
  if (isTrashed !== (filters.state === "trashed")) return false;
  if (!isTrashed && row.archived !== (filters.state === "archived")) return false;
  if (filters.state === "pinned" && !row.pinned) return false;
  if (filters.owner && row.owner !== filters.owner) return false;
  if (filters.participant && !row.participants.some(({ actor }) => actor === filters.participant)) return false;
  return !filters.title || (row.title ?? "").toLowerCase().includes(filters.title.toLowerCase());
}

export default function ConversationsPage() {
  const { project } = useStore(session);
  const { route } = useLocation();
  const [typed, setTyped] = useState(NO_FILTERS);
  const filters = useSettled(typed, 200);
  // by its id, since its place changes when others are written to
  const [chosen, setChosen] = useState<string | null>(null);
  const [isLive, setLive] = useState(false);
  const search = searchOf(filters, project);
  const pages = usePages<ListedConversation>(JSON.stringify(search), (cursor) =>
    body(api.POST("/v1/conversations/search", { body: { ...search, ...(cursor ? { cursor, limit: MORE_ROWS } : { limit: FIRST_ROWS }) } })),
  );
  // recall finds nothing in the trash
  const isSearched = typed.title === filters.title && filters.state !== "trashed";
  const said = useSaid(isSearched ? { query: filters.title, owner: filters.owner, project } : null);
  const isWhole = !pages.hasMore && !pages.loading;
  const items = useMemo(() => itemsOf(pages.rows, isWhole ? said.found : [], filters), [pages.rows, isWhole, said.found, filters]);
  const selected = chosen === null ? -1 : items.findIndex((item) => keyOf(item) === chosen);
  const select = (step: number) => {
    const place = selected + step + (items[selected + step] === HEADING ? step : 0);
    const next = items[Math.max(0, Math.min(place, items.length - 1))];
    if (next && next !== HEADING) setChosen(keyOf(next));
  };

  useEffect(() => {
    const path = project ? `/v1/events?project=${encodeURIComponent(project)}` : "/v1/events";
    let changes: Changes = new Map();
    let frame = 0;
    const show = () => {
      const shown = changes;
      [changes, frame] = [new Map(), 0];
      pages.update((before) => withChanges(before, shown, filters));
    };
    const stream = followEvents(path, {
      connected: setLive,
      event: (type, data) => {
        if (type === "reread") return pages.reload();
        const { conversation, id } = data as { conversation?: ListedConversation; id?: string };
        if (type === "conversation.updated" && conversation) changes.set(conversation.id, conversation);
        else if (type === "conversation.deleted" && id) changes.set(id, null);
        // many changes arrive within one frame of the screen
        frame ||= requestAnimationFrame(show);
      },
    });
    return () => (stream.close(), cancelAnimationFrame(frame));
  }, [JSON.stringify(search)]);

  const open = (index: number) => {
    const item = items[index];
    if (item && item !== HEADING) route(linkOf(item));
  };
  useKeys({
    j: () => select(1),
    k: () => select(-1),
    Enter: () => open(selected),
  });
  const isUnfiltered = JSON.stringify(filters) === JSON.stringify(NO_FILTERS) && !project;
  const set = (change: Partial<Filters>) => (setChosen(null), setTyped({ ...typed, ...change }));
  const create = async () => {
    const made = await body(api.POST("/v1/conversations", { params: { header: once() }, body: project ? { project } : {} }));
    route(`/dashboard/conversations/${made.id}`);
  };
  return (
    <>
      <div class="list-head">
        <div class="page-head">
          <h1>{text.title}</h1>
          <span class={isLive ? "badge good" : "badge"} role="status">{isLive ? text.live : text.offline}</span>
          <button class="push" onClick={() => void create().catch(notifyError)}>{text.create}</button>
        </div>
        <FilterBar filters={typed} onChange={set} />
      </div>
      {pages.error && <div class="list-note"><ErrorNote error={pages.error} onRetry={pages.reload} /></div>}
      {said.error && <div class="list-note"><ErrorNote error={said.error} /></div>}
      {items.length > 0 ? (
        <VirtualList rows={items} keyOf={keyOf} estimate={94} label={text.list} class="grow" selected={selected} onNearEnd={pages.loadMore}
          render={(item, index) => (item === HEADING ? <SaidHeading query={filters.title} /> : <Row item={item} isSelected={index === selected} />)} />
      ) : pages.loading || said.loading ? (
        <Empty><Loading /></Empty>
      ) : isUnfiltered && !pages.error ? (
        <FirstRun />
      ) : (
        <Empty>
          <p>{text.none}</p>
          <button onClick={() => set(NO_FILTERS)}>{text.clear}</button>
        </Empty>
      )}
    </>
  );
}

/** A row of the list: a conversation by its title, the heading of the others, or a conversation by what was said in it. */
const HEADING = "said in";
type Item = ListedConversation | Said | typeof HEADING;

const isSaid = (item: ListedConversation | Said): item is Said => "snippet" in item;
const keyOf = (item: Item): string => (item === HEADING ? HEADING : isSaid(item) ? item.turn : item.id);
const linkOf = (item: ListedConversation | Said): string => (isSaid(item) ? conversationLink(item.conversation.id, item.turn) : conversationLink(item.id));

/** The conversations by their titles; when all of them are read, the others in which the words were said. */
function itemsOf(rows: ListedConversation[], said: Said[], filters: Filters): Item[] {
  const listed = new Set(rows.map(({ id }) => id));
  const others = said.filter(({ conversation }) => !listed.has(conversation.id) && matches(conversation, { ...filters, title: "" }));
  return others.length === 0 ? rows : [...rows, HEADING, ...others];
}

function SaidHeading({ query }: { query: string }) {
  return <p class="said-heading small"><strong>{text.saidIn}</strong> <a href={recallLink({ q: query })}>{text.byMeaning}</a></p>;
}

/** Changed conversations by their ids; null: deleted. */
type Changes = Map<string, ListedConversation | null>;

/** The list after changes: what was written to comes first, what changed otherwise keeps its place. */
function withChanges(shown: ListedConversation[], changes: Changes, filters: Filters): ListedConversation[] {
  const first = new Map([...changes].filter((change): change is [string, ListedConversation] => change[1] !== null && matches(change[1], filters)));
  const others = shown.flatMap((row) => {
    const now = changes.get(row.id);
    if (now === undefined) return row;
    if (!first.has(row.id) || now?.active_at !== row.active_at) return [];
    first.delete(row.id);
    return now;
  });
  return [...[...first.values()].sort((a, b) => b.active_at.localeCompare(a.active_at)), ...others];
}

function FilterBar({ filters, onChange }: { filters: Filters; onChange: (change: Partial<Filters>) => void }) {
  return (
    <div class="filters" role="search">
      <input type="search" aria-label={text.search} placeholder={`${text.search}  ( / )`} value={filters.title}
        onInput={(event) => onChange({ title: event.currentTarget.value })} />
      <input aria-label={text.owner} placeholder={text.owner} value={filters.owner} onInput={(event) => onChange({ owner: event.currentTarget.value })} />
      <input aria-label={text.participant} placeholder={text.participant} value={filters.participant}
        onInput={(event) => onChange({ participant: event.currentTarget.value })} />
      <select aria-label={text.state} value={filters.state} onChange={(event) => onChange({ state: event.currentTarget.value as State })}>
        {Object.entries(text.states).map(([state, label]) => <option key={state} value={state}>{label}</option>)}
      </select>
    </div>
  );
}

function Row({ item, isSelected }: { item: ListedConversation | Said; isSelected: boolean }) {
  const row = isSaid(item) ? item.conversation : item;
  const preview = isSaid(item) ? { actor: item.actor, text: item.snippet } : (item.last_message ?? item.first_message);
  return (
    <a class={isSelected ? "conversation-row selected" : "conversation-row"} href={linkOf(item)}>
      <span class="row tight spread">
        <strong class="clip">{row.title ?? row.external_id ?? text.untitled}</strong>
        <Ago class="small muted" at={row.active_at} />
      </span>
      <span class="clip muted">
        {preview ? <><span class={`actor ${hue(preview.actor)}`}>{preview.actor}</span> {withoutMarks(preview.text)}</> : text.noMessage}
      </span>
      <span class="facts-line small muted number">
        <span>{text.turns(row.turn_count)}</span>
        <span>{text.tokens(row.token_count)}</span>
        <span>{text.retention[row.retention]}</span>
        {row.expires_at && <span>{text.expires(time(row.expires_at))}</span>}
        {row.owner && <span class="clip">{row.owner}</span>}
        <span class="clip">{row.project}</span>
        {row.pinned && <span class="badge accent">{text.states.pinned}</span>}
      </span>
    </a>
  );
}
