// One conversation: its transcript, which grows live, its timeline with summaries and facts, and what can be changed.
import { useLocation } from "preact-iso";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { useLoaded } from "../../api/paging";
import { currentSignIn } from "../../api/session";
import type { Fact, Turn } from "../../api/types";
import { ErrorNote, Loading, notify, notifyError } from "../../components/basics";
import { ErasureNote, useErasure } from "../../components/erasure";
import { VirtualList } from "../../components/virtual_list";
import { WorkNote } from "../../components/work_note";
import { createStore } from "../../lib/store";
import { useSettled } from "../../lib/settled";
import { useWork } from "../../lib/work";
import type { PageProps } from "../../registry";
import { strings } from "../../strings";
import { EraseTurnDialog, ForkDialog, ReviseDialog, type ErasedNote } from "./dialogs";
import { factsOfTurns } from "./facts_of_turns";
import { ConversationHead } from "./head";
import { useHistory } from "./history";
import { useLiveTurns } from "./live";
import { Timeline, type InView } from "./timeline";
import { TurnView, type TurnActions } from "./turn_view";
import { rowsOf, type TranscriptRow } from "./versions";
import { WriterBox } from "./writer_box";
import "./conversation.css";

const text = strings.conversation;
const NO_FACTS: Fact[] = [];
const NO_VERSIONS: Turn[] = [];
const CHANGES_SETTLE_MS = 600;
type TurnDialog = { kind: keyof TurnActions; turn: Turn } | { kind: "forkAll" };

export default function ConversationPage({ params }: PageProps) {
  const id = params["id"] ?? "";
  const { route, query } = useLocation();
  const path = { conversation_id: id };
  const isLeaving = useRef(false);
  const [dialog, setDialog] = useState<TurnDialog | null>(null);
  const [erased, setErased] = useState<ErasedNote | null>(null);
  const work = useWork(text.exporting(0));
  const erasure = useErasure();
  const live = useLiveTurns(id, () => {
    if (isLeaving.current) return;
    notify(text.deleted);
    route("/dashboard");
  });
  const head = useLoaded(id, () => body(api.GET("/v1/conversations/{conversation_id}", { params: { path } })));
  const changes = useSettled(live.committed.size + live.superseded.size + live.erased.size, CHANGES_SETTLE_MS);
  useEffect(() => {
    if (changes) head.reload();
  }, [changes]);

  // the place to show: a turn by its id, a position, or the newest turns
  const wanted = query["turn"] ?? "";
  const target = useLoaded(`${id} ${wanted}`, async () => {
    const turn = wanted ? await body(api.GET("/v1/conversations/{conversation_id}/turns/{turn_id}", { params: { path: { ...path, turn_id: wanted } } })) : null;
    return { wanted, position: turn?.position ?? null };
  });
  const at = Number(query["at"]) || null;
  const around = !wanted ? at : target.error ? null : target.value?.wanted === wanted ? target.value.position : undefined;
  const history = useHistory(id, around);

  const readThrough = history.reachesEnd ? Number.POSITIVE_INFINITY : history.turns.reduce((most, { position }) => Math.max(most, position ?? 0), 0);
  const turns = useMemo(
    () => rowsOf(history.turns, live, history.loading ? 0 : readThrough),
    [history.turns, live.committed, live.superseded, live.erased, readThrough, history.loading],
  );
  const rows = useMemo<TranscriptRow[]>(
    () => (history.reachesEnd && live.pending.length > 0 ? [...turns, ...live.pending.map((turn) => ({ turn, versions: NO_VERSIONS }))] : turns),
    [turns, live.pending, history.reachesEnd],
  );
  const selected = around === null || around === undefined ? -1 : turns.findIndex(({ turn }) => turn.position === around);
  const newest = Math.max(history.turns.at(0)?.position ?? 0, ...[...live.committed.values()].map(({ position }) => position ?? 0), turns.at(-1)?.turn.position ?? 0);

  const summaryChanges = useSettled(live.summaries, CHANGES_SETTLE_MS);
  const facts = useLoaded(`${id} ${useSettled(live.facts, CHANGES_SETTLE_MS)}`, () => factsOfTurns(id));
  const placedFacts = useMemo(() => {
    if (!facts.value) return [];
    const { bySource, positions } = facts.value;
    const places = new Map([...positions, ...turns.map(({ turn }) => [turn.id, turn.position ?? 0] as const)]);
    return [...bySource].flatMap(([source, ones]) => {
      const position = places.get(source);
      return position ? ones.map((fact) => ({ fact, position })) : [];
    });
  }, [facts.value, turns]);
  const [inView] = useState(() => createStore<InView>({ from: 0, to: 0 }));
  const [jumps, setJumps] = useState(0);
  const go = useMemo(
    () => (position: number) => {
      setJumps((count) => count + 1);
      route(`/dashboard/conversations/${id}?at=${position}`, true);
    },
    [id],
  );
  const actions = useMemo<TurnActions>(
    () => ({
      revise: (turn) => setDialog({ kind: "revise", turn }),
      fork: (turn) => setDialog({ kind: "fork", turn }),
      erase: (turn) => setDialog({ kind: "erase", turn }),
    }),
    [],
  );
  const conversation = head.value;
  const title = conversation ? conversation.title || conversation.external_id || id : text.title;
  const mayWrite = currentSignIn()?.scopes.write ?? false;
  const restore = async () => {
    await api.POST("/v1/conversations/{conversation_id}/restore", { params: { path } });
    location.reload();
  };
  if (erasure.operation) {
    return (
      <div class="conversation-note stack">
        <a class="small" href="/dashboard">{text.back}</a>
        <ErasureNote run={erasure} />
      </div>
    );
  }
  // also an id that is none
  if (head.error && (head.error.code === "conversation_trashed" || head.error.status === 404 || head.error.status === 422)) {
    return (
      <div class="conversation-note stack">
        <a class="small" href="/dashboard">{text.back}</a>
        <h1>{text.title}</h1>
        <ErrorNote error={head.error} />
        {head.error.code === "conversation_trashed" && mayWrite && <div><button class="primary" onClick={() => void restore().catch(notifyError)}>{text.restore}</button></div>}
      </div>
    );
  }
  const close = () => setDialog(null);
  return (
    <>
      <ConversationHead id={id} conversation={conversation} title={title} isConnected={live.isConnected} work={work} erasure={erasure}
        onChanged={head.reload} onFork={() => setDialog({ kind: "forkAll" })} onLeave={() => (isLeaving.current = true)} />
      {(head.error || history.error || target.error || facts.error || work.progress !== null || work.error || erased) && (
        <div class="conversation-note stack">
          {head.error && <ErrorNote error={head.error} onRetry={head.reload} />}
          {history.error && <ErrorNote error={history.error} onRetry={history.reload} />}
          {target.error && <ErrorNote error={target.error} />}
          {facts.error && <ErrorNote error={facts.error} onRetry={facts.reload} />}
          <WorkNote work={work} />
          {erased && <ErasedTurnsNote note={erased} onClose={() => setErased(null)} />}
        </div>
      )}
      {newest > 1 && <Timeline id={id} last={newest} revision={summaryChanges} facts={placedFacts} inView={inView} onGo={go} />}
      {rows.length > 0 ? (
        <VirtualList key={history.generation} rows={rows} keyOf={({ turn }) => String(turn.position ?? turn.id)} estimate={110} label={text.transcript} role="log" class="grow"
          fromEnd selected={selected} jumps={jumps} align="center" onNearStart={history.loadOlder} onNearEnd={history.loadNewer}
          onRange={(first, last) => inView.set({ from: rows[first]?.turn.position ?? 0, to: rows[last]?.turn.position ?? newest })}
          render={({ turn, versions }, index) => (
            <TurnView turn={turn} versions={versions} facts={facts.value?.bySource.get(turn.id) ?? NO_FACTS} isTarget={index === selected} actions={mayWrite ? actions : null} />
          )} />
      ) : (
        <div class="empty grow">{history.loading ? <Loading /> : <p>{text.empty}</p>}</div>
      )}
      {!history.reachesEnd && rows.length > 0 && <div class="to-end"><button onClick={() => route(`/dashboard/conversations/${id}`, true)}>{text.toEnd}</button></div>}
      {mayWrite && <WriterBox id={id} />}
      {dialog?.kind === "revise" && <ReviseDialog id={id} turn={dialog.turn} onClose={close} onDone={(count) => (close(), notify(text.revised(count)))} />}
      {dialog?.kind === "erase" && <EraseTurnDialog id={id} turn={dialog.turn} onClose={close} onDone={(note) => (close(), setErased(note))} />}
      {(dialog?.kind === "fork" || dialog?.kind === "forkAll") && (
        <ForkDialog id={id} title={title} through={dialog.kind === "fork" ? dialog.turn : null} onClose={close}
          onDone={(fork) => (close(), notify(text.forked), route(`/dashboard/conversations/${fork.id}`))} />
      )}
    </>
  );
}

function ErasedTurnsNote({ note, onClose }: { note: ErasedNote; onClose: () => void }) {
  return (
    <section class="notice good stack" role="status">
      <p class="row spread"><strong>{text.erasedTurn(note.position, note.erased.length)}</strong> <button class="quiet" onClick={onClose}>{strings.app.close}</button></p>
      <p class="small">{text.erasedHelp(note.rev)}</p>
      <details class="small"><summary>{text.erasedIds}</summary><ul>{note.erased.map((one) => <li key={one}><code>{one}</code></li>)}</ul></details>
    </section>
  );
}
