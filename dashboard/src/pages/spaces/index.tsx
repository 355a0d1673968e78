// Embedding spaces: fill the next one, compare it, switch to it, roll back, and delete what is not needed.
import { useEffect, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { useLoaded } from "../../api/paging";
import type { EmbeddingSpace, SpaceComparison } from "../../api/types";
import { FormDialog, useAction } from "../../components/actions";
import { Empty, ErrorNote, Loading, notify } from "../../components/basics";
import { ConfirmByName } from "../../components/dialog";
import { CheckField } from "../../components/fields";
import { statusClass } from "../../components/operation";
import { DataTable } from "../../components/table";
import { number } from "../../lib/format";
import { strings } from "../../strings";

const text = strings.spaces;
const POLL_MS = 3000;
const COMPARED_HITS = 10;
const nameOf = (space: EmbeddingSpace): string => `${space.provider}/${space.model}/${space.dimensions}`;
const percent = (share: number): string => `${(100 * share).toLocaleString("en", { maximumFractionDigits: 1 })} %`;
type Open = { act: "compare" | "switch" | "drop"; space: EmbeddingSpace } | { act: "rollback" } | null;

export default function SpacesPage() {
  const spaces = useLoaded("spaces", () => body(api.GET("/v1/admin/embedding-spaces")));
  const [open, setOpen] = useState<Open>(null);
  const acting = useAction();
  const rows = spaces.value?.data ?? [];
  const isMoving = rows.some(({ state }) => state === "preparing" || state === "dropping");
  useEffect(() => {
    if (!isMoving) return;
    const timer = setInterval(spaces.reload, POLL_MS);
    return () => clearInterval(timer);
  }, [isMoving]);
  const close = () => setOpen(null);
  const done = () => (close(), notify(text.done), spaces.reload());
  const add = (space: EmbeddingSpace) =>
    acting.run(async () => {
      await api.POST("/v1/admin/embedding-spaces", { body: { provider: space.provider, model: space.model, dimensions: space.dimensions } });
      done();
    });
  const rollBack = async () => {
    await api.POST("/v1/admin/embedding-spaces/rollback");
    done();
  };
  const drop = async (space: EmbeddingSpace) => {
    await api.DELETE("/v1/admin/embedding-spaces/{space_id}", { params: { path: { space_id: space.id } } });
    done();
  };
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        {rows.some(({ previous }) => previous) && <button class="push" onClick={() => setOpen({ act: "rollback" })}>{text.rollback}</button>}
      </div>
      <p class="muted">{text.intro}</p>
      {spaces.error && <ErrorNote error={spaces.error} onRetry={spaces.reload} />}
      {acting.error && <ErrorNote error={acting.error} />}
      {!spaces.value && spaces.loading && <Loading />}
      {spaces.value && rows.length === 0 && <Empty><p>{text.empty}</p></Empty>}
      {rows.map((space) => (
        <section class="card stack" key={space.id} aria-label={nameOf(space)}>
          <div class="row spread">
            <h2 class="wrap">{nameOf(space)}</h2>
            <span class="row">
              <span class={statusClass(space.state)}>{text.states[space.state]}</span>
              <span class="badge">{space.index_ready ? text.indexReady : text.noIndex}</span>
              {!space.configured && <span class="badge warn">{text.notConfigured}</span>}
            </span>
          </div>
          <div>
            <progress aria-label={nameOf(space)} value={space.share} max={1} />
            <p class="small muted number">
              {percent(space.share)} · {text.covered(number(space.covered), number(space.entries), space.exact)} · {text.jobs(number(space.jobs_waiting), number(space.jobs_parked))}
              {space.base_url && <> · {space.base_url}</>}
            </p>
          </div>
          {space.jobs_error && <p class="badge bad">{text.jobsError}: {space.jobs_error}</p>}
          <div class="row">
            {space.state === "idle" && space.configured && <button class="primary" disabled={acting.busy} onClick={() => void add(space)}>{text.add}</button>}
            {(space.state === "preparing" || space.state === "kept") && space.configured && (
              <>
                <button onClick={() => setOpen({ act: "compare", space })}>{text.compare}</button>
                <button class="primary" onClick={() => setOpen({ act: "switch", space })}>{text.switch}</button>
              </>
            )}
            {(space.state === "preparing" || space.state === "kept") && <button class="danger" onClick={() => setOpen({ act: "drop", space })}>{text.drop}</button>}
          </div>
        </section>
      ))}
      {spaces.value && !rows.some(({ state, configured }) => state !== "searched" && configured) && <p class="notice">{text.addHelp}</p>}
      {open?.act === "compare" && <Compare space={open.space} onClose={close} />}
      {open?.act === "switch" && <Switch space={open.space} onDone={done} onClose={close} />}
      {open?.act === "rollback" && <FormDialog title={text.rollbackTitle} action={text.rollback} onSubmit={rollBack} onClose={close}><p>{text.rollbackHelp}</p></FormDialog>}
      {open?.act === "drop" && <ConfirmByName title={text.dropTitle} help={text.dropHelp} name={nameOf(open.space)} action={text.drop} onConfirm={() => drop(open.space)} onClose={close} />}
    </div>
  );
}

function Switch({ space, onDone, onClose }: { space: EmbeddingSpace; onDone: () => void; onClose: () => void }) {
  const [force, setForce] = useState(false);
  const change = async () => {
    await api.POST("/v1/admin/embedding-spaces/{space_id}/switch", { params: { path: { space_id: space.id } }, body: { force } });
    onDone();
  };
  return (
    <FormDialog title={text.switchTitle} action={text.switch} onSubmit={change} onClose={onClose}>
      <p><strong>{nameOf(space)}</strong></p>
      <p>{text.switchHelp}</p>
      {space.share < 1 && <CheckField label={text.force} checked={force} onValue={setForce} />}
    </FormDialog>
  );
}

function Compare({ space, onClose }: { space: EmbeddingSpace; onClose: () => void }) {
  const [queries, setQueries] = useState("");
  const [result, setResult] = useState<{ asked: string[]; found: SpaceComparison } | null>(null);
  const asked = queries.split("\n").map((query) => query.trim()).filter(Boolean);
  const compare = async () => {
    const found = await body(api.POST("/v1/admin/embedding-spaces/{space_id}/compare", { params: { path: { space_id: space.id } }, body: { queries: asked, k: COMPARED_HITS } }));
    setResult({ asked, found });
  };
  return (
    <FormDialog title={text.compare} action={text.run} onSubmit={compare} onClose={onClose} disabled={asked.length === 0}>
      <p>{text.compareHelp}</p>
      <div class="field">
        <label for="compare-queries">{text.queries}</label>
        <textarea id="compare-queries" rows={4} value={queries} onInput={(event) => setQueries(event.currentTarget.value)} />
      </div>
      {result && (
        <div role="status" class="stack">
          <p class="notice">{text.overlap(percent(result.found.overlap), result.found.k)} {text.rank(percent(result.found.rank_agreement))}</p>
          <DataTable label={text.queries} rows={result.found.queries.map((one, index) => ({ ...one, query: result.asked[index] ?? "" }))} keyOf={({ query }) => query}
            columns={[
              { title: text.query, render: ({ query }) => query },
              { title: text.overlapShort, isNumber: true, render: ({ overlap }) => percent(overlap) },
              { title: text.rankShort, isNumber: true, render: ({ rank_agreement }) => percent(rank_agreement) },
            ]} />
        </div>
      )}
    </FormDialog>
  );
}
