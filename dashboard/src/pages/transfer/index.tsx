// Exports as downloads, and imports with their progress.
import { useRef, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { usePages } from "../../api/paging";
import { hasScope } from "../../api/session";
import type { ForeignSystem, Operation } from "../../api/types";
import { useAction } from "../../components/actions";
import { ErrorNote, Loading } from "../../components/basics";
import { CheckField, SelectField, TextField } from "../../components/fields";
import { hasEnded, OperationCard, Result, statusClass } from "../../components/operation";
import { PagedTable } from "../../components/table";
import { WorkNote } from "../../components/work_note";
import { bytes, download, time } from "../../lib/format";
import { lastType, readLines } from "../../lib/stream_download";
import { FOREIGN_SYSTEMS } from "../../lib/vocabulary";
import { useWork } from "../../lib/work";
import { strings } from "../../strings";

const text = strings.transfer;

export default function TransferPage() {
  return (
    <div class="stack">
      <div class="page-head"><h1>{text.title}</h1></div>
      {hasScope("read") ? <Export /> : <p class="notice">{text.needsRead}</p>}
      <Import />
    </div>
  );
}

function Export() {
  const [project, setProject] = useState("");
  const [outcome, setOutcome] = useState<{ size: number; isComplete: boolean } | null>(null);
  const work = useWork(text.starting);
  const start = () => {
    setOutcome(null);
    work.run(async (report, signal) => {
      const name = project.trim();
      const stream = await body(api.POST("/v1/export", { body: name ? { project: name } : {}, parseAs: "stream", signal }));
      const lines = await readLines(stream as unknown as ReadableStream<Uint8Array<ArrayBuffer>>, (read) => report(text.read(bytes(read))), signal);
      // the server sends the trailer after the last record
      const isComplete = (await lastType(lines)) === "trailer";
      if (isComplete) download(`turnkeep-${name || "export"}-${new Date().toISOString().slice(0, 10)}.ndjson`, lines, "application/x-ndjson");
      setOutcome({ size: lines.size, isComplete });
    });
  };
  return (
    <form class="card stack" onSubmit={(event) => (event.preventDefault(), start())}>
      <h2>{text.exporting}</h2>
      <p class="small muted">{text.exportHelp}</p>
      <div class="form-grid top"><TextField label={text.project} help={text.projectHelp} value={project} onValue={setProject} /></div>
      <WorkNote work={work} />
      {outcome && <p role="status" class={outcome.isComplete ? "notice good" : "notice error"}>{outcome.isComplete ? text.complete(bytes(outcome.size)) : text.incomplete}</p>}
      <div><button class="primary" disabled={work.progress !== null}>{text.start}</button></div>
    </form>
  );
}

function Import() {
  const [file, setFile] = useState<File | null>(null);
  const [source, setSource] = useState<ForeignSystem | "">("");
  const [dryRun, setDryRun] = useState(true);
  const [started, setStarted] = useState<{ operation: Operation; dryRun: boolean }[]>([]);
  const sending = useAction();
  const running = useRef<AbortController | null>(null);
  const earlier = usePages<Operation>("imports", async (cursor) => {
    if (!hasScope("read")) return { data: [], has_more: false, next_cursor: null };
    return body(api.GET("/v1/operations", { params: { query: { kind: "import", limit: 20, ...(cursor ? { cursor } : {}) } } }));
  });
  const send = () =>
    sending.run(async () => {
      if (!file) return;
      running.current = new AbortController();
      const operation = await body(
        api.POST("/v1/import", {
          params: { query: { dry_run: dryRun, ...(source ? { source } : {}) } },
          headers: { "Content-Type": file.name.endsWith(".gz") ? "application/gzip" : "application/x-ndjson" },
          // the file itself, which the browser sends without reading it into memory
          body: file as unknown as string,
          bodySerializer: (given) => given,
          signal: running.current.signal,
        }),
      );
      setStarted([{ operation, dryRun }, ...started]);
    });
  return (
    <>
      <form class="card stack" onSubmit={(event) => (event.preventDefault(), void send())}>
        <h2>{text.importing}</h2>
        <p class="small muted">{text.importHelp}</p>
        <div class="form-grid top">
          <div class="field">
            <label for="import-file">{text.file}</label>
            <input id="import-file" type="file" required onChange={(event) => setFile(event.currentTarget.files?.[0] ?? null)} />
          </div>
          <SelectField label={text.source} value={source} onValue={setSource} options={[["", text.turnkeep], ...FOREIGN_SYSTEMS.map((one) => [one, one] as const)]} />
        </div>
        <CheckField label={text.dryRun} checked={dryRun} onValue={setDryRun} />
        {sending.error && sending.error.status > 0 && <ErrorNote error={sending.error} />}
        {sending.busy && <Loading label={text.uploading} />}
        <div class="row">
          <button class="primary" disabled={!file || sending.busy}>{dryRun ? text.check : text.submit}</button>
          {sending.busy && <button type="button" onClick={() => running.current?.abort()}>{text.cancel}</button>}
        </div>
      </form>
      {started.map(({ operation, dryRun: checked }) => <OperationCard key={operation.id} first={operation} title={checked ? text.checked : text.imported} onEnd={earlier.reload} />)}
      <h2>{text.earlier}</h2>
      <PagedTable label={text.earlier} pages={earlier} keyOf={({ id }) => id} empty={<p>{text.none}</p>}
        columns={[
          { title: strings.audit.time, render: (one) => <time dateTime={one.created_at}>{time(one.created_at)}</time> },
          { title: strings.keys.state, render: (one) => <span class={statusClass(one.status)}>{strings.operation.statuses[one.status]}</span> },
          { title: strings.audit.counts, render: (one) => (one.error ? <>{one.error.title} <code>{one.error.code}</code></> : one.result && <Result value={one.result} />) },
          { title: "", render: (one) => !hasEnded(one) && !started.some(({ operation }) => operation.id === one.id) && <button onClick={() => setStarted([{ operation: one, dryRun: false }, ...started])}>{text.follow}</button> },
        ]} />
    </>
  );
}
