// One webhook: its deliveries, tests, replays, its secret.
import { useLocation } from "preact-iso";
import { useEffect, useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { useLoaded, usePages } from "../../api/paging";
import type { Delivery, DeliveryStatus, EventType, Operation } from "../../api/types";
import { FormDialog, SecretDialog, useAction } from "../../components/actions";
import { Empty, ErrorNote, Loading, notify } from "../../components/basics";
import { ConfirmByName } from "../../components/dialog";
import { SelectField, TextField } from "../../components/fields";
import { OperationCard, statusClass } from "../../components/operation";
import { PagedTable } from "../../components/table";
import { time } from "../../lib/format";
import { fromLocalTime, toLocalTime } from "../../lib/local_time";
import { EVENT_TYPES } from "../../lib/vocabulary";
import type { PageProps } from "../../registry";
import { strings } from "../../strings";
import { Types, WebhookState } from ".";

const text = strings.webhooks;
const STATUSES = Object.entries(text.statuses) as [DeliveryStatus, string][];
const READ_EACH_MS = 1500;
const WATCHED_MS = 15_000;
const REPLAYED_MS = 7 * 86_400_000;
type Filters = { status: DeliveryStatus | ""; type: EventType | "webhook.test" | "" };

export default function WebhookPage({ params }: PageProps) {
  const path = { webhook_id: params["id"] ?? "" };
  const { route } = useLocation();
  const hook = useLoaded(`webhook ${path.webhook_id}`, () => body(api.GET("/v1/webhooks/{webhook_id}", { params: { path } })));
  const [filters, setFilters] = useState<Filters>({ status: "", type: "" });
  const query = { limit: 50, ...(filters.status ? { status: filters.status } : {}), ...(filters.type ? { type: filters.type } : {}) };
  const deliveries = usePages<Delivery>(`${path.webhook_id} ${JSON.stringify(query)}`, (cursor) =>
    body(api.GET("/v1/webhooks/{webhook_id}/deliveries", { params: { path, query: { ...query, ...(cursor ? { cursor } : {}) } } })),
  );
  const [open, setOpen] = useState<"rotate" | "replay" | "delete" | null>(null);
  const [secret, setSecret] = useState<string | null>(null);
  const [replaying, setReplaying] = useState<Operation | null>(null);
  const acting = useAction();
  const close = () => setOpen(null);
  const webhook = hook.value;
  // the answer of the receiver is there some moments later
  const [sent, setSent] = useState(0);
  useEffect(() => {
    if (sent === 0) return;
    const since = Date.now();
    const timer = setInterval(() => {
      deliveries.reload();
      hook.reload();
      if (Date.now() - since > WATCHED_MS) clearInterval(timer);
    }, READ_EACH_MS);
    return () => clearInterval(timer);
  }, [sent]);

  const test = () =>
    acting.run(async () => {
      await api.POST("/v1/webhooks/{webhook_id}/test", { params: { path, header: once() } });
      notify(text.tested);
      deliveries.reload();
      setSent(sent + 1);
    });
  const replay = (delivery: Delivery) =>
    acting.run(async () => {
      await api.POST("/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/replay", { params: { path: { ...path, delivery_id: delivery.id } } });
      notify(text.replayed);
      setSent(sent + 1);
    });
  const enable = (enabled: boolean) =>
    acting.run(async () => {
      await api.PATCH("/v1/webhooks/{webhook_id}", { params: { path }, body: { enabled } });
      hook.reload();
    });
  const rotate = async () => {
    const made = await body(api.POST("/v1/webhooks/{webhook_id}/rotate-secret", { params: { path, header: once() }, body: {} }));
    close();
    setSecret(made.secret);
  };
  const remove = async () => {
    await api.DELETE("/v1/webhooks/{webhook_id}", { params: { path } });
    route("/dashboard/webhooks");
  };
  return (
    <div class="stack">
      <a class="small" href="/dashboard/webhooks">{text.back}</a>
      {hook.error && <ErrorNote error={hook.error} onRetry={hook.reload} />}
      {!webhook && hook.loading && <Loading />}
      {webhook && (
        <>
          <div class="page-head">
            <h1 class="wrap">{webhook.url}</h1>
            <WebhookState webhook={webhook} />
          </div>
          {webhook.description && <p>{webhook.description}</p>}
          <p class="row"><span class="small muted">{text.types}</span> <Types types={webhook.event_types} /> {webhook.project && <span class="badge">{webhook.project}</span>}</p>
          <div class="row">
            <button class="primary" disabled={acting.busy} onClick={() => void test()}>{text.test}</button>
            <button disabled={acting.busy} onClick={() => void enable(!webhook.enabled)}>{webhook.enabled ? text.disable : text.enable}</button>
            <button onClick={() => setOpen("rotate")}>{text.rotate}</button>
            <button class="danger" onClick={() => setOpen("delete")}>{text.delete}</button>
          </div>
          {acting.error && <ErrorNote error={acting.error} />}
          <div class="page-head">
            <h2>{text.deliveries}</h2>
            <button class="push" onClick={deliveries.reload}>{strings.app.refresh}</button>
            <button onClick={() => setOpen("replay")}>{text.replayDead}</button>
          </div>
          {replaying && <OperationCard key={replaying.id} first={replaying} title={text.replaying} onEnd={deliveries.reload} />}
          <div class="form-grid" role="search">
            <SelectField label={text.status} value={filters.status} onValue={(status) => setFilters({ ...filters, status })} options={[["", strings.app.any], ...STATUSES]} />
            <SelectField label={text.type} value={filters.type} onValue={(type) => setFilters({ ...filters, type })}
              options={[["", strings.app.any], ...EVENT_TYPES.map((type) => [type, type] as const), ["webhook.test", "webhook.test"]]} />
          </div>
          <PagedTable label={text.deliveries} pages={deliveries} keyOf={({ id }) => id} empty={<p>{text.noDeliveries}</p>}
            columns={[
              { title: text.recorded, render: (one) => <time dateTime={one.recorded_at}>{time(one.recorded_at)}</time> },
              { title: text.type, render: (one) => <>{one.type}<br /><code class="small muted">{one.id}</code></> },
              { title: text.status, render: (one) => <span class={statusClass(one.status)}>{text.statuses[one.status]}</span> },
              { title: text.attempts, isNumber: true, render: (one) => one.attempts },
              { title: text.answer, render: (one) => [one.last_status, one.last_error].filter((part) => part !== null).join(" ") },
              { title: text.next, render: (one) => one.next_attempt_at && <time dateTime={one.next_attempt_at}>{time(one.next_attempt_at)}</time> },
              { title: "", render: (one) => <button disabled={acting.busy} onClick={() => void replay(one)}>{text.replay}</button> },
            ]} />
        </>
      )}
      {!webhook && !hook.loading && !hook.error && <Empty><p>{strings.app.notFound}</p></Empty>}
      {open === "rotate" && <FormDialog title={text.rotateTitle} action={text.rotate} onSubmit={rotate} onClose={close}><p>{text.rotateHelp}</p></FormDialog>}
      {open === "replay" && <ReplayDead webhookId={path.webhook_id} onClose={close} onStart={(operation) => (close(), setReplaying(operation))} />}
      {open === "delete" && webhook && <ConfirmByName title={text.deleteTitle} help={text.deleteHelp} name={webhook.url} action={text.delete} onConfirm={remove} onClose={close} />}
      {secret && <SecretDialog title={text.made} help={text.madeHelp} secret={secret} onClose={() => setSecret(null)} />}
    </div>
  );
}

function ReplayDead({ webhookId, onStart, onClose }: { webhookId: string; onStart: (operation: Operation) => void; onClose: () => void }) {
  const [since, setSince] = useState(() => toLocalTime(new Date(Date.now() - REPLAYED_MS).toISOString()));
  const [header] = useState(once);
  const start = async () =>
    onStart(await body(api.POST("/v1/webhooks/{webhook_id}/deliveries/replay", { params: { path: { webhook_id: webhookId }, header }, body: { since: fromLocalTime(since) } })));
  return (
    <FormDialog title={text.replayDead} action={text.replay} onSubmit={start} onClose={onClose} disabled={!since}>
      <p>{text.replayHelp}</p>
      <TextField label={text.since} type="datetime-local" required value={since} onValue={setSince} />
    </FormDialog>
  );
}
