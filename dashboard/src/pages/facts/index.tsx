// Facts and memories: lists by owner and subject, the history of a fact, and its corrections.
import { useLocation } from "preact-iso";
import { useEffect, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { useLoaded, usePages } from "../../api/paging";
import { currentSignIn, session } from "../../api/session";
import type { Fact, FactListing } from "../../api/types";
import { Empty, ErrorNote, Loading } from "../../components/basics";
import { FactStateBadge, Statement, validity } from "../../components/fact";
import { CheckField, TextField } from "../../components/fields";
import { VirtualList } from "../../components/virtual_list";
import { factsLink } from "../../lib/links";
import { useKeys } from "../../lib/keyboard";
import { useSettled } from "../../lib/settled";
import { useStore } from "../../lib/store";
import { strings } from "../../strings";
import { AssertDialog } from "./assert_dialog";
import { FactDetail } from "./fact_detail";
import { MemoriesPane } from "./memories";
import "./facts.css";

const text = strings.facts;
const TABS = ["facts", "memories"] as const;

export default function FactsPage() {
  const { query, route } = useLocation();
  const tab = query["tab"] === "memories" ? "memories" : "facts";
  return (
    <>
      <div class="list-head">
        <div class="page-head">
          <h1>{text.title}</h1>
          <nav class="row tabs" aria-label={text.title}>
            {TABS.map((name) => (
              <a key={name} class="button" aria-current={name === tab ? "page" : undefined} href={name === "facts" ? "/dashboard/facts" : "/dashboard/facts?tab=memories"}>{text.tabs[name]}</a>
            ))}
          </nav>
        </div>
        {tab === "facts" && <p class="small muted">{text.intro}</p>}
      </div>
      {tab === "facts" ? <FactsPane query={query} onSelect={(fact) => route(factsLink(fact), true)} /> : <MemoriesPane owner={query["owner"] ?? ""} />}
    </>
  );
}

interface PaneProps {
  query: Record<string, string>;
  onSelect: (selected: { owner: string | null; subject: string | null; fact: string | null }) => void;
}

function FactsPane({ query, onSelect }: PaneProps) {
  const { project } = useStore(session);
  const [typed, setTyped] = useState({ owner: query["owner"] ?? "", subject: query["subject"] ?? "", retracted: false });
  const [isAsserting, setAsserting] = useState(false);
  const filters = useSettled(typed, 200);
  const selected = query["fact"] ?? null;
  const listing: FactListing = {
    limit: 100,
    include_retracted: filters.retracted,
    ...(filters.owner.trim() ? { owner: filters.owner.trim() } : {}),
    ...(filters.subject.trim() ? { subject: filters.subject.trim() } : {}),
    ...(project ? { project } : {}),
  };
  const pages = usePages<Fact>(JSON.stringify(listing), (cursor) =>
    body(api.POST("/v1/facts/search", { body: { ...listing, ...(cursor ? { cursor } : {}) } })),
  );
  const { rows } = pages;
  const shown = useLoaded(selected ?? "", async () => (selected ? body(api.GET("/v1/facts/{fact_id}", { params: { path: { fact_id: selected } } })) : null));
  const select = (fact: Fact | null) => onSelect({ owner: typed.owner || null, subject: typed.subject || null, fact: fact?.id ?? null });
  const index = rows.findIndex(({ id }) => id === selected);
  const step = (by: number) => {
    const next = rows[Math.min(Math.max(index + by, 0), rows.length - 1)];
    if (next) select(next);
  };
  useKeys({ j: () => step(1), k: () => step(-1) });
  useEffect(() => {
    // a link from another page brings its own filters
    if (query["owner"] !== undefined || query["subject"] !== undefined) setTyped((before) => ({ ...before, owner: query["owner"] ?? "", subject: query["subject"] ?? "" }));
  }, [query["owner"], query["subject"]]);
  const onChanged = (fact: Fact | null) => {
    pages.reload();
    if (fact?.id === selected) shown.reload();
    else select(fact);
  };
  const mayWrite = currentSignIn()?.scopes.write ?? false;
  const isUnfiltered = !filters.owner.trim() && !filters.subject.trim() && !project;
  return (
    <div class={selected ? "facts-panes chosen" : "facts-panes"}>
      <section class="facts-list" aria-label={text.list}>
        <div class="facts-filters" role="search">
          <TextField label={text.owner} type="search" value={typed.owner} onValue={(owner) => setTyped({ ...typed, owner })} />
          <TextField label={text.subject} value={typed.subject} onValue={(subject) => setTyped({ ...typed, subject })} />
          <div class="row spread">
            <CheckField label={text.retracted} checked={typed.retracted} onValue={(retracted) => setTyped({ ...typed, retracted })} />
            {mayWrite && <button onClick={() => setAsserting(true)}>{text.assert}</button>}
          </div>
        </div>
        {pages.error && <ErrorNote error={pages.error} onRetry={pages.reload} />}
        {rows.length > 0 ? (
          <VirtualList rows={rows} keyOf={(fact) => fact.id} estimate={72} label={text.list} class="grow" selected={index} onNearEnd={pages.loadMore}
            render={(fact) => <Row fact={fact} isSelected={fact.id === selected} onSelect={() => select(fact)} />} />
        ) : pages.loading ? (
          <Empty><Loading /></Empty>
        ) : (
          <Empty>
            <p>{isUnfiltered ? text.empty : text.none}</p>
            {isUnfiltered ? <p class="muted">{text.emptyHelp}</p> : <button onClick={() => setTyped({ owner: "", subject: "", retracted: false })}>{strings.conversations.clear}</button>}
          </Empty>
        )}
      </section>
      <section class="facts-detail" aria-label={text.detail}>
        {selected && <button class="quiet back" onClick={() => select(null)}>{text.back}</button>}
        {shown.error && selected && <ErrorNote error={shown.error} onRetry={shown.reload} />}
        {selected && shown.value && shown.value.id === selected ? (
          <FactDetail key={selected} fact={shown.value} mayWrite={mayWrite} onChanged={onChanged} onSelect={select} />
        ) : (
          !selected && <p class="muted">{text.choose}</p>
        )}
      </section>
      {isAsserting && <AssertDialog owner={typed.owner.trim()} project={project} onClose={() => setAsserting(false)} onDone={(fact) => (setAsserting(false), onChanged(fact))} />}
    </div>
  );
}

function Row({ fact, isSelected, onSelect }: { fact: Fact; isSelected: boolean; onSelect: () => void }) {
  return (
    <button type="button" class={isSelected ? "fact-row selected" : "fact-row"} aria-pressed={isSelected} onClick={onSelect}>
      <Statement fact={fact} />
      <span class="row small muted">
        <FactStateBadge fact={fact} />
        <span>{validity(fact)}</span>
        {fact.owner && <span class="clip">{text.of(fact.owner)}</span>}
      </span>
    </button>
  );
}
