// The webhooks of the tenant.
import { useLocation } from "preact-iso";
import { useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { usePages } from "../../api/paging";
import { hasScope } from "../../api/session";
import type { EventType, Webhook } from "../../api/types";
import { FormDialog, SecretDialog } from "../../components/actions";
import { CheckField, TextField } from "../../components/fields";
import { PagedTable } from "../../components/table";
import { time } from "../../lib/format";
import { EVENT_TYPES } from "../../lib/vocabulary";
import { strings } from "../../strings";

const text = strings.webhooks;

export default function WebhooksPage() {
  const { route } = useLocation();
  const pages = usePages<Webhook>("webhooks", (cursor) => body(api.GET("/v1/webhooks", { params: { query: { limit: 50, ...(cursor ? { cursor } : {}) } } })));
  const [creating, setCreating] = useState(false);
  const [made, setMade] = useState<{ id: string; secret: string } | null>(null);
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.intro}</span>
        <button class="primary push" onClick={() => setCreating(true)}>{text.create}</button>
      </div>
      <PagedTable label={text.title} pages={pages} keyOf={({ id }) => id} empty={<p>{text.empty}</p>}
        columns={[
          { title: text.url, render: (one) => <><a href={`/dashboard/webhooks/${one.id}`}>{one.url}</a>{one.description && <><br /><span class="small muted">{one.description}</span></>}</> },
          { title: text.types, render: (one) => <Types types={one.event_types} /> },
          { title: text.project, render: (one) => one.project ?? <span class="muted">{strings.app.any}</span> },
          { title: text.state, render: (one) => <WebhookState webhook={one} /> },
        ]} />
      {creating && <CreateWebhook onClose={() => setCreating(false)} onMade={(webhook) => (setCreating(false), setMade(webhook), pages.reload())} />}
      {made && <SecretDialog title={text.made} help={text.madeHelp} secret={made.secret} onClose={() => route(`/dashboard/webhooks/${made.id}`)} />}
    </div>
  );
}

export function Types({ types }: { types: readonly string[] | null }) {
  return types ? <span class="row">{types.map((type) => <span class="badge" key={type}>{type}</span>)}</span> : <span class="muted">{text.allTypes}</span>;
}

export function WebhookState({ webhook }: { webhook: Webhook }) {
  return (
    <span class="row">
      <span class={webhook.enabled ? "badge good" : "badge bad"}>{webhook.enabled ? text.enabled : text.disabled[webhook.disabled_reason ?? "request"]}</span>
      {webhook.failing_since && <span class="badge warn">{text.failing(time(webhook.failing_since))}</span>}
      <span class="badge">{webhook.include_content ? text.withContent : text.idsOnly}</span>
    </span>
  );
}

function CreateWebhook({ onMade, onClose }: { onMade: (made: { id: string; secret: string }) => void; onClose: () => void }) {
  const [form, setForm] = useState({ url: "", description: "", project: "", types: [] as EventType[], content: hasScope("read") });
  const [header] = useState(once);
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const create = async () =>
    onMade(
      await body(
        api.POST("/v1/webhooks", {
          params: { header },
          body: {
            url: form.url, include_content: form.content,
            ...(form.description ? { description: form.description } : {}), ...(form.project ? { project: form.project } : {}), ...(form.types.length ? { event_types: form.types } : {}),
          },
        }),
      ),
    );
  return (
    <FormDialog title={text.create} action={text.create} onSubmit={create} onClose={onClose} disabled={!form.url}>
      <TextField label={text.url} type="url" required placeholder="https://" value={form.url} onValue={(url) => set({ url })} />
      <TextField label={text.description} value={form.description} onValue={(description) => set({ description })} />
      <TextField label={text.project} value={form.project} onValue={(project) => set({ project })} />
      <fieldset class="choices columns">
        <legend>{text.types}</legend>
        {EVENT_TYPES.map((type) => (
          <CheckField label={type} key={type} checked={form.types.includes(type)} onValue={(has) => set({ types: EVENT_TYPES.filter((one) => (one === type ? has : form.types.includes(one))) })} />
        ))}
      </fieldset>
      <p class="small muted">{text.typesHelp}</p>
      <CheckField label={text.content} checked={form.content} disabled={!hasScope("read")} onValue={(content) => set({ content })} />
    </FormDialog>
  );
}
