// One fact: what it states, its timeline with a slider through time, its evidence, and its corrections.
import { useMemo, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { useLatest } from "../../api/latest";
import { useLoaded } from "../../api/paging";
import { asApiError, type ApiError } from "../../api/problem";
import type { Fact } from "../../api/types";
import { ErrorNote, Loading, notify } from "../../components/basics";
import { Dialog } from "../../components/dialog";
import { Evidence, FactStateBadge, statementOf, Statement, stateOf, validity } from "../../components/fact";
import { RangeField, TextField } from "../../components/fields";
import { number, time } from "../../lib/format";
import { personLink } from "../../lib/links";
import { fromLocalTime, toLocalTime } from "../../lib/local_time";
import { strings } from "../../strings";

const text = strings.facts;
const DAY_MS = 86_400_000;
const SLIDER_STEPS = 400;

interface Props {
  fact: Fact;
  mayWrite: boolean;
  /** The fact to show in place of the shown one; null: there is none. */
  onChanged: (fact: Fact | null) => void;
  onSelect: (fact: Fact) => void;
}

export function FactDetail({ fact, mayWrite, onChanged, onSelect }: Props) {
  const [dialog, setDialog] = useState<"correct" | "retract" | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const isRetracted = fact.undone || stateOf(fact) === "retracted";
  const undo = async (id: string) => {
    const { fact: now } = await body(api.POST("/v1/facts/{fact_id}/undo", { params: { path: { fact_id: id } } }));
    notify(text.undone);
    onChanged(now);
  };
  const retract = async () => {
    const { fact: now } = await body(api.DELETE("/v1/facts/{fact_id}", { params: { path: { fact_id: fact.id } } }));
    setDialog(null);
    notify(text.retractedNote(statementOf(fact)), () => undo(fact.id));
    onChanged(now ?? fact);
  };
  return (
    <div class="stack">
      <div class="stack fact-head">
        <h2><Statement fact={fact} /></h2>
        <p class="row small">
          <FactStateBadge fact={fact} />
          <span class="muted">{validity(fact)}</span>
          <span class="badge">{text.tiers[fact.tier]}</span>
          <span class="muted number">{text.confidence(fact.confidence)}</span>
          {fact.owner && <a href={personLink(fact.owner)}>{text.of(fact.owner)}</a>}
          {fact.project && <span class="muted">{fact.project}</span>}
        </p>
        {mayWrite && (
          <div class="row">
            <button disabled={isRetracted} onClick={() => setDialog("correct")}>{text.correct}</button>
            <button class="danger" disabled={isRetracted} onClick={() => setDialog("retract")}>{text.retract}</button>
            <button disabled={fact.undone} onClick={() => void undo(fact.id).catch((caught: unknown) => setError(asApiError(caught)))}>{text.undoLast}</button>
          </div>
        )}
        {error && <ErrorNote error={error} />}
      </div>
      <section class="stack">
        <h3>{text.evidence(fact.evidence_count)}</h3>
        <Evidence fact={fact} />
      </section>
      <History fact={fact} onSelect={onSelect} />
      {dialog === "correct" && (
        <CorrectDialog fact={fact} onClose={() => setDialog(null)}
          onDone={(now) => {
            setDialog(null);
            notify(text.corrected, () => undo(now?.id ?? fact.id));
            onChanged(now);
          }} />
      )}
      {dialog === "retract" && <RetractDialog fact={fact} onClose={() => setDialog(null)} onConfirm={retract} />}
    </div>
  );
}

/** Facts of one owner, subject and predicate, oldest first, also retracted ones. */
async function timelineOf(fact: Fact): Promise<Fact[]> {
  const { owner, subject, predicate, conversation_id: conversation } = fact;
  const place = owner !== null ? { owner } : conversation !== null ? { conversation_id: conversation } : {};
  const { data } = await body(api.POST("/v1/facts/search", { body: { subject, predicate, ...place, include_retracted: true, limit: 200 } }));
  return data.filter((one) => one.owner === owner).sort((a, b) => Date.parse(a.valid_from) - Date.parse(b.valid_from) || (a.id < b.id ? -1 : 1));
}

function History({ fact, onSelect }: { fact: Fact; onSelect: (fact: Fact) => void }) {
  const loaded = useLoaded(`${fact.id} ${fact.invalidated_at ?? ""} ${fact.evidence_count}`, () => timelineOf(fact));
  const facts = loaded.value ?? [];
  const [now] = useState(Date.now);
  const [from, to] = useMemo(() => rangeOf(facts.length ? facts : [fact], now), [loaded.value]);
  const [at, setAt] = useState<number | null>(null);
  const shownAt = at ?? now;
  const asOf = new Date(shownAt).toISOString();
  const place = fact.owner !== null ? { owner: fact.owner } : fact.conversation_id !== null ? { conversation_id: fact.conversation_id } : {};
  const truths = useLatest(`${fact.subject} ${asOf}`, async (signal) =>
    body(api.POST("/v1/facts/search", { body: { subject: fact.subject, ...place, as_of: asOf, limit: 100 }, signal })),
  );
  const share = (when: number) => Math.min(100, Math.max(0, ((when - from) / (to - from)) * 100));
  const held = (truths.value?.data ?? []).filter(({ owner }) => owner === fact.owner);
  return (
    <section class="stack">
      <h3>{text.history}</h3>
      {loaded.error && <ErrorNote error={loaded.error} onRetry={loaded.reload} />}
      {!loaded.value && loaded.loading && <Loading />}
      <div class="fact-times">
        {facts.map((one) => {
          const state = stateOf(one, shownAt);
          const start = share(Date.parse(one.valid_from));
          const end = state === "retracted" || state === "undone" ? start : share(one.valid_to === null ? to : Date.parse(one.valid_to));
          return (
            <button key={one.id} type="button" class={`fact-time ${state}`} aria-pressed={one.id === fact.id} onClick={() => onSelect(one)} title={statementOf(one)}>
              <span class="row tight spread small"><span class="clip">{one.object}</span> <span class="muted">{text.states[state]}</span></span>
              <span class="track"><span class="span" style={{ left: `${start}%`, width: `${Math.max(end - start, 0)}%` }} /><i style={{ left: `${share(shownAt)}%` }} /></span>
            </button>
          );
        })}
      </div>
      <RangeField label={text.asOf} min={from} max={to} step={(to - from) / SLIDER_STEPS} value={shownAt} shown={time(asOf)} onValue={setAt} />
      <div class="stack" aria-live="polite">
        <p class="row spread small"><strong>{text.trueThen(fact.subject)}</strong> <span class="muted number">{number(Math.round(truths.tookMs))} ms</span></p>
        {truths.error && <ErrorNote error={truths.error} />}
        {truths.value && held.length === 0 && <p class="muted small">{text.nothingThen}</p>}
        <ul class="truths">
          {held.map((one) => <li key={one.id} class="small"><Statement fact={one} /></li>)}
        </ul>
      </div>
    </section>
  );
}

/** From the first fact to now, or to a later end; at least a day. */
function rangeOf(facts: Fact[], now: number): [number, number] {
  const from = Math.min(...facts.map((fact) => Date.parse(fact.valid_from)), now - DAY_MS);
  const to = Math.max(now, ...facts.map((fact) => Date.parse(fact.valid_from)), ...facts.flatMap(({ valid_to: end }) => (end === null ? [] : [Date.parse(end)])));
  return [from, to];
}

function RetractDialog({ fact, onConfirm, onClose }: { fact: Fact; onConfirm: () => Promise<void>; onClose: () => void }) {
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const confirm = () => {
    setBusy(true);
    onConfirm().catch((caught: unknown) => (setError(asApiError(caught)), setBusy(false)));
  };
  return (
    <Dialog title={text.retractTitle} onClose={onClose}>
      <p><Statement fact={fact} /></p>
      <p class="muted">{text.retractHelp}</p>
      {error && <ErrorNote error={error} />}
      <div class="actions">
        <button onClick={onClose}>{strings.app.cancel}</button>
        <button class="danger primary" disabled={busy} onClick={confirm}>{text.retract}</button>
      </div>
    </Dialog>
  );
}

function CorrectDialog({ fact, onDone, onClose }: { fact: Fact; onDone: (fact: Fact | null) => void; onClose: () => void }) {
  const before = { object: fact.object, from: toLocalTime(fact.valid_from), to: toLocalTime(fact.valid_to) };
  const [typed, setTyped] = useState(before);
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const change = {
    ...(typed.object.trim() !== before.object ? { object: typed.object.trim() } : {}),
    ...(typed.from !== before.from && typed.from ? { valid_from: fromLocalTime(typed.from) } : {}),
    ...(typed.to !== before.to ? { valid_to: typed.to ? fromLocalTime(typed.to) : null } : {}),
  };
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const result = await body(api.PATCH("/v1/facts/{fact_id}", { params: { path: { fact_id: fact.id } }, body: change }));
      onDone(result.fact);
    } catch (caught) {
      setError(asApiError(caught));
      setBusy(false);
    }
  };
  return (
    <Dialog title={text.correctTitle} onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <p class="muted">{text.correctHelp}</p>
        <TextField label={text.objectOf(`${fact.subject} ${fact.predicate}`)} required value={typed.object} onValue={(object) => setTyped({ ...typed, object })} />
        <TextField label={text.validFrom} type="datetime-local" value={typed.from} onValue={(from) => setTyped({ ...typed, from })} />
        <TextField label={text.validTo} type="datetime-local" help={text.validToHelp} value={typed.to} onValue={(to) => setTyped({ ...typed, to })} />
        {error && <ErrorNote error={error} />}
        <div class="actions">
          <button type="button" onClick={onClose}>{strings.app.cancel}</button>
          <button class="primary" disabled={busy || !typed.object.trim() || Object.keys(change).length === 0}>{text.correct}</button>
        </div>
      </form>
    </Dialog>
  );
}
