// One person: all that is stored under an owner, what can be hidden, and its erasure with the receipt.
import { useLocation } from "preact-iso";
import { useEffect, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { api, body } from "../../api/client";
import { useLoaded } from "../../api/paging";
import { asApiError, type ApiError } from "../../api/problem";
import { currentSignIn, session } from "../../api/session";
import type { ListedConversation, OwnerView } from "../../api/types";
import { Ago } from "../../components/ago";
import { Empty, ErrorNote, Loading, notify } from "../../components/basics";
import { ConfirmByName } from "../../components/dialog";
import { ErasureNote, useErasure } from "../../components/erasure";
import { FactStateBadge, Statement, validity } from "../../components/fact";
import { WorkNote } from "../../components/work_note";
import { number } from "../../lib/format";
import { conversationLink, factsLink, personLink, recallLink } from "../../lib/links";
import { useStore } from "../../lib/store";
import { useWork } from "../../lib/work";
import { strings } from "../../strings";
import { MemoryList } from "../facts/memories";
import "../facts/facts.css";
import "./person.css";

const text = strings.person;
type Section = keyof OwnerView;
const CURSORS = { conversations: "conversations_cursor", facts: "facts_cursor", memories: "memories_cursor" } as const;

export default function PersonPage() {
  const { query, route } = useLocation();
  const owner = query["owner"] ?? "";
  const [typed, setTyped] = useState(owner);
  useEffect(() => setTyped(owner), [owner]);
  const submit = (event: Event) => {
    event.preventDefault();
    if (typed.trim()) route(personLink(typed.trim()));
  };
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.intro}</span>
      </div>
      <form class="row tight person-search" role="search" onSubmit={submit}>
        <input type="search" aria-label={text.owner} placeholder={text.owner} maxLength={256} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        <button class="primary" disabled={!typed.trim()}>{text.lookUp}</button>
      </form>
      {owner ? <Person key={owner} owner={owner} /> : <Empty><p>{text.start}</p></Empty>}
    </div>
  );
}

function Person({ owner }: { owner: string }) {
  const { project } = useStore(session);
  const place = { owner, ...(project ? { project } : {}) };
  const first = useLoaded(`${owner} ${project ?? ""}`, () => body(api.POST("/v1/owners/lookup", { body: { ...place, limit: 20 } })));
  const [view, setView] = useState<OwnerView | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [dialog, setDialog] = useState<"erase" | "hide" | null>(null);
  useEffect(() => setView(first.value), [first.value]);
  const erasure = useErasure(first.reload);
  const hiding = useWork(text.hiding);
  const scopes = currentSignIn()?.scopes;

  const more = async (section: Section) => {
    const cursor = view?.[section].next_cursor;
    if (!view || !cursor) return;
    try {
      const next = await body(api.POST("/v1/owners/lookup", { body: { ...place, limit: 100, [CURSORS[section]]: cursor } }));
      setView({ ...view, [section]: { ...next[section], data: [...view[section].data, ...next[section].data] } } as OwnerView);
    } catch (caught) {
      setError(asApiError(caught));
    }
  };
  const hide = () => {
    setDialog(null);
    hiding.run(async (report, signal) => {
      const ids = await shownConversations(place, signal);
      for (const [index, id] of ids.entries()) {
        if (signal.aborted) break;
        report(text.hidingCount(index + 1, ids.length));
        await api.POST("/v1/conversations/{conversation_id}/trash", { params: { path: { conversation_id: id } }, signal });
      }
      first.reload();
      notify(text.hidden(ids.length), async () => {
        for (const id of ids) await api.POST("/v1/conversations/{conversation_id}/restore", { params: { path: { conversation_id: id } } });
        first.reload();
      });
    });
  };
  if (first.error) return <ErrorNote error={first.error} onRetry={first.reload} />;
  if (!view) return <Loading />;
  const { conversations, facts, memories } = view;
  const isEmpty = conversations.count + facts.count + memories.count === 0;
  return (
    <>
      <div class="card stack">
        <div class="row spread">
          <h2 class="person-name">{owner}</h2>
          <span class="row">
            <a class="button" href={recallLink({ owner })}>{text.search}</a>
            {scopes?.write && conversations.data.some(isShown) && <button disabled={hiding.progress !== null} onClick={() => setDialog("hide")}>{text.hide}</button>}
            {!isEmpty && <button class="danger" disabled={erasure.operation !== null && !erasure.receipt} onClick={() => setDialog("erase")}>{text.erase}</button>}
          </span>
        </div>
        <p class="muted number">{text.counts(number(conversations.count), number(facts.count), number(memories.count))}</p>
        {project && <p class="badge warn">{text.onlyProject(project)}</p>}
      </div>
      {error && <ErrorNote error={error} />}
      <WorkNote work={hiding} />
      <ErasureNote run={erasure} />
      {isEmpty && !erasure.operation && <Empty><p>{text.nothing}</p><p class="muted">{text.nothingHelp}</p></Empty>}
      <Part title={text.conversations} count={conversations.count} hasMore={conversations.has_more} onMore={() => void more("conversations")}>
        <ul class="person-list">
          {conversations.data.map((one) => <ConversationLine key={one.id} conversation={one} />)}
        </ul>
      </Part>
      <Part title={text.facts} count={facts.count} hasMore={facts.has_more} onMore={() => void more("facts")}>
        <ul class="person-list">
          {facts.data.map((fact) => (
            <li key={fact.id}>
              <a href={factsLink({ owner, fact: fact.id })}><Statement fact={fact} /></a>
              <span class="row small muted"><FactStateBadge fact={fact} /> {validity(fact)}</span>
            </li>
          ))}
        </ul>
      </Part>
      <Part title={text.memories} count={memories.count} hasMore={memories.has_more} onMore={() => void more("memories")}>
        <MemoryList memories={memories.data} onDeleted={first.reload} />
      </Part>
      {dialog === "erase" && (
        <ConfirmByName title={text.eraseTitle} help={project ? text.eraseProjectHelp(project) : text.eraseHelp} name={owner} action={text.erase} onClose={() => setDialog(null)}
          onConfirm={async () => {
            await erasure.start(place);
            setDialog(null);
          }} />
      )}
      {dialog === "hide" && (
        <ConfirmByName title={text.hideTitle} help={text.hideHelp} name={owner} action={text.hide} onClose={() => setDialog(null)} onConfirm={async () => hide()} />
      )}
    </>
  );
}

const isShown = ({ trashed_at: trashed }: ListedConversation): boolean => trashed === null;

/** The ids of all conversations of an owner that are not in the trash. */
async function shownConversations(place: { owner: string; project?: string }, signal: AbortSignal): Promise<string[]> {
  const ids: string[] = [];
  for (let cursor: string | null = null, hasMore = true; hasMore; ) {
    const { conversations }: OwnerView = await body(
      api.POST("/v1/owners/lookup", { body: { ...place, limit: 200, ...(cursor ? { conversations_cursor: cursor } : {}) }, signal }),
    );
    ids.push(...conversations.data.filter(isShown).map(({ id }) => id));
    cursor = conversations.next_cursor;
    hasMore = conversations.has_more && cursor !== null;
  }
  return ids;
}

function ConversationLine({ conversation }: { conversation: ListedConversation }) {
  return (
    <li>
      <a href={conversationLink(conversation.id)}>{conversation.title ?? conversation.external_id ?? strings.conversations.untitled}</a>
      <span class="row small muted number">
        {conversation.trashed_at && <span class="badge warn">{strings.conversations.states.trashed}</span>}
        {strings.conversations.turns(conversation.turn_count)} <Ago at={conversation.active_at} />
        {conversation.project}
      </span>
    </li>
  );
}

interface PartProps {
  title: string;
  count: number;
  hasMore: boolean;
  onMore: () => void;
  children: ComponentChildren;
}

function Part({ title, count, hasMore, onMore, children }: PartProps) {
  if (count === 0) return null;
  return (
    <section class="stack" aria-label={title}>
      <h2>{title} <span class="muted number">{number(count)}</span></h2>
      {children}
      {hasMore && <div><button onClick={onMore}>{strings.app.more}</button></div>}
    </section>
  );
}
