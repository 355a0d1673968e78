// The recall playground: one query in two configurations side by side, with marks that make an evaluation.
import { useLocation } from "preact-iso";
import { useMemo, useRef, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { useLatest } from "../../api/latest";
import { useLoaded } from "../../api/paging";
import { currentSignIn, session } from "../../api/session";
import type { RecallHit } from "../../api/types";
import { notify } from "../../components/basics";
import { CheckField, RangeField, SelectField, TextField } from "../../components/fields";
import { WorkNote } from "../../components/work_note";
import { download } from "../../lib/format";
import { isWide } from "../../lib/window";
import { useWork } from "../../lib/work";
import { strings } from "../../strings";
import { KINDS, PLAIN, SCOPES, SIDES, recall, requestOf, type Configuration, type EntryKind, type Question, type SearchScope, type Side } from "./configuration";
import { CUTS, figuresOf, idOf, readMarks, storeMarks, withMark, withRanks, type Mark, type MarkedQuery, type Ranking } from "./marks";
import { replayFile } from "./replay_file";
import { ConfigurationForm, SideView } from "./side_view";
import "./recall.css";

const text = strings.recall;
const DEFAULT_K = 25;
const LARGEST_K = 200;

interface Asked extends Question {
  k: number;
  kinds: readonly EntryKind[];
}

const startScope = (query: Record<string, string>): SearchScope => {
  if (query["conversation"]) return { kind: "conversation", name: query["conversation"] };
  if (query["owner"]) return { kind: "owner", name: query["owner"] };
  const { project } = session.get();
  return project ? { kind: "project", name: project } : { kind: "all", name: "" };
};

export default function RecallPage() {
  const { query: given } = useLocation();
  const scopes = currentSignIn()?.scopes;
  const mayWeigh = (scopes?.admin || scopes?.operator) ?? false;
  const [typed, setTyped] = useState<Asked>(() => ({ query: given["q"] ?? "", scope: startScope(given), k: DEFAULT_K, kinds: ["turn"] }));
  // a link with a query shows its hits at once
  const [asked, setAsked] = useState<Asked | null>(() => (given["q"]?.trim() && isNamed(typed.scope) ? { ...typed, query: given["q"].trim() } : null));
  const [areOptionsOpen] = useState(isWide);
  const [isComparing, setComparing] = useState(false);
  const [configurations, setConfigurations] = useState<Record<Side, Configuration>>({ a: PLAIN, b: { ...PLAIN, mode: "text" } });
  const spaces = useLoaded(String(scopes?.operator), async () => (scopes?.operator ? (await body(api.GET("/v1/admin/embedding-spaces"))).data : null));
  const answers = { a: useSide(asked, configurations.a, true), b: useSide(asked, configurations.b, isComparing) };
  const shown = isComparing ? SIDES : SIDES.slice(0, 1);

  const [marks, setMarks] = useState(readMarks);
  const keep = (change: (before: MarkedQuery[]) => MarkedQuery[]) =>
    setMarks((before) => {
      const next = change(before);
      storeMarks(next);
      return next;
    });
  const latest = useRef({ asked, configurations, answers, shown });
  latest.current = { asked, configurations, answers, shown };
  const onMark = useMemo(
    () => (hit: RecallHit, mark: Mark) => {
      const now = latest.current;
      if (!now.asked || !hit.conversation_id) return;
      const ranks: Partial<Record<Side, Ranking>> = {};
      for (const side of now.shown) {
        const { value } = now.answers[side];
        if (value) ranks[side] = rankingOf(value.data, now.asked, now.configurations[side]);
      }
      const { query, scope } = now.asked;
      const turn = { id: hit.id, conversation: hit.conversation_id };
      keep((before) => withMark(before, { query, scope }, turn, mark, ranks));
    },
    [],
  );
  const marked = asked ? marks.find((one) => idOf(one) === idOf(asked)) : undefined;
  const places = (side: Side) => new Map(answers[side].value?.data.map((hit, index) => [hit.id, index + 1]));
  const sign = (side: Side) => signature(configurations[side], (asked ?? typed).kinds);
  const set = (change: Partial<Asked>) => setTyped({ ...typed, ...change });
  const needsName = !isNamed(typed.scope);
  const submit = (event: Event) => {
    event.preventDefault();
    const query = typed.query.trim();
    if (query && !needsName) setAsked({ ...typed, query, scope: { ...typed.scope, name: typed.scope.name.trim() } });
  };
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.intro}</span>
      </div>
      <form class="card stack" onSubmit={submit}>
        <div class="ask">
          <TextField label={text.query} type="search" value={typed.query} onValue={(query) => set({ query })} />
          <button class="primary" disabled={!typed.query.trim() || needsName}>{text.search}</button>
        </div>
        <details class="more-options" open={areOptionsOpen}>
          <summary>{text.options}</summary>
          <div class="options">
            <SelectField label={text.scope} value={typed.scope.kind} options={SCOPES.map((kind) => [kind, text.scopes[kind]] as const)}
              onValue={(kind) => set({ scope: { kind, name: kind === "project" ? (session.get().project ?? "") : "" } })} />
            {typed.scope.kind !== "all" && (
              <TextField label={text.scopeNames[typed.scope.kind]} required value={typed.scope.name} onValue={(name) => set({ scope: { ...typed.scope, name } })} />
            )}
            <RangeField label={text.k} min={1} max={LARGEST_K} step={1} value={typed.k} shown={String(typed.k)} onValue={(k) => set({ k })} />
            <fieldset class="kinds">
              <legend>{text.kindsOf}</legend>
              {KINDS.filter((kind) => kind !== "memory" || scopes?.admin).map((kind) => (
                <CheckField key={kind} label={text.kinds[kind]} checked={typed.kinds.includes(kind)} onValue={(isOn) => set({ kinds: toggled(typed.kinds, kind, isOn) })} />
              ))}
            </fieldset>
          </div>
          <CheckField label={text.compare} checked={isComparing} onValue={setComparing} />
          <div class={isComparing ? "two" : "one"}>
            {shown.map((side) => (
              <ConfigurationForm key={side} name={text.sides[side]} value={configurations[side]} spaces={spaces.value} mayWeigh={mayWeigh}
                onChange={(change) => setConfigurations((before) => ({ ...before, [side]: { ...before[side], ...change } }))} />
            ))}
          </div>
        </details>
      </form>
      <Evaluation marks={marks} keep={keep} shown={shown} configurations={configurations} kinds={(asked ?? typed).kinds} sign={sign}
        onOpen={(question) => (set({ ...question }), setAsked({ ...typed, ...question }))} />
      {asked ? (
        <div class={isComparing ? "two" : "one"}>
          {shown.map((side) => (
            <SideView key={side} name={text.sides[side]} answer={answers[side]} figures={figuresOf(marks, side, sign(side))} marked={marked}
              others={isComparing ? places(side === "a" ? "b" : "a") : null} onMark={onMark} />
          ))}
        </div>
      ) : (
        <p class="muted">{text.start}</p>
      )}
    </div>
  );
}

const isNamed = ({ kind, name }: Asked["scope"]): boolean => kind === "all" || name.trim() !== "";

const signature = (configuration: Configuration, kinds: readonly EntryKind[]): string => JSON.stringify([configuration, kinds]);

function rankingOf(hits: RecallHit[], { k, kinds }: { k: number; kinds: readonly EntryKind[] }, configuration: Configuration): Ranking {
  return { configuration: signature(configuration, kinds), k, ids: hits.map(({ id }) => id) };
}

const toggled = (kinds: readonly EntryKind[], kind: EntryKind, isOn: boolean): readonly EntryKind[] => {
  const next = KINDS.filter((one) => (one === kind ? isOn : kinds.includes(one)));
  return next.length ? next : kinds;
};

function useSide(asked: Asked | null, configuration: Configuration, isShown: boolean) {
  const request = asked && isShown ? requestOf(asked, configuration, asked.k, asked.kinds) : null;
  return useLatest(request ? JSON.stringify(request) : null, async (signal) => {
    if (!request) throw new Error("nothing is asked");
    return recall(request, signal);
  });
}

interface EvaluationProps {
  marks: MarkedQuery[];
  keep: (change: (before: MarkedQuery[]) => MarkedQuery[]) => void;
  shown: readonly Side[];
  configurations: Record<Side, Configuration>;
  kinds: readonly EntryKind[];
  sign: (side: Side) => string;
  onOpen: (question: Question) => void;
}

/** The marked queries: figures of each side, all of them asked again, and the file for a replay. */
function Evaluation({ marks, keep, shown, configurations, kinds, onOpen }: EvaluationProps) {
  const work = useWork(text.working);
  if (marks.length === 0) return null;
  const askAll = () =>
    work.run(async (report, signal) => {
      for (const [index, question] of marks.entries()) {
        report(text.asking(index + 1, marks.length));
        const k = Math.max(...CUTS, DEFAULT_K);
        const ranks: Partial<Record<Side, Ranking>> = {};
        for (const side of shown) {
          const { data } = await recall(requestOf(question, configurations[side], k, kinds), signal);
          ranks[side] = rankingOf(data, { k, kinds }, configurations[side]);
        }
        keep((before) => withRanks(before, question, ranks));
      }
    });
  const save = () =>
    work.run(async (report, signal) => {
      const samples = await replayFile(marks, report, signal);
      download("turnkeep-marks.json", `${JSON.stringify(samples, null, 1)}\n`);
      notify(text.exported(samples.length));
    });
  const forget = (question: MarkedQuery) => {
    keep((before) => before.filter((one) => idOf(one) !== idOf(question)));
    notify(text.forgotten, async () => keep((before) => [...before, question]));
  };
  const rightTurns = marks.reduce((sum, { right }) => sum + Object.keys(right).length, 0);
  return (
    <details class="card evaluation">
      <summary><strong>{text.evaluation}</strong> <span class="muted small number">{text.markedCount(marks.length, rightTurns)}</span></summary>
      <div class="stack">
        <p class="small muted">{text.evaluationHelp}</p>
        <ul class="marked">
          {marks.map((one) => (
            <li key={idOf(one)} class="row tight">
              <button type="button" class="quiet grow clip" onClick={() => onOpen({ query: one.query, scope: one.scope })}>{one.query}</button>
              <span class="small muted number">{text.markCounts(Object.keys(one.right).length, Object.keys(one.wrong).length)}</span>
              <button type="button" class="quiet" aria-label={text.forgetLabel(one.query)} onClick={() => forget(one)}>{text.forget}</button>
            </li>
          ))}
        </ul>
        <div class="row">
          <button type="button" disabled={work.progress !== null} onClick={askAll}>{text.askAll}</button>
          <button type="button" disabled={work.progress !== null || rightTurns === 0} onClick={save}>{text.exportMarks}</button>
        </div>
        <WorkNote work={work} />
      </div>
    </details>
  );
}
