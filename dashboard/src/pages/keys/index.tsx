// The keys of the tenant: create, rotate and revoke them. A secret is shown once.
import { useLocation } from "preact-iso";
import { useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { identify } from "../../api/identity";
import { usePages } from "../../api/paging";
import { addSignIn, currentSignIn, hasScope } from "../../api/session";
import type { Key, KeyMade, Scope } from "../../api/types";
import { Ago } from "../../components/ago";
import { FormDialog, SecretDialog, useAction } from "../../components/actions";
import { ErrorNote, notify } from "../../components/basics";
import { ConfirmByName } from "../../components/dialog";
import { CheckField, itemsOf, SelectField, TextField } from "../../components/fields";
import { statusClass } from "../../components/operation";
import { PagedTable } from "../../components/table";
import { time } from "../../lib/format";
import { fromLocalTime } from "../../lib/local_time";
import { strings } from "../../strings";

const text = strings.keys;
const SCOPES = ["read", "write", "admin", "operator"] as const satisfies readonly Scope[];
type Open = { act: "create" } | { act: "rotate" | "revoke"; key: Key } | { act: "made"; key: KeyMade } | null;

export default function KeysPage() {
  const pages = usePages<Key>("keys", (cursor) => body(api.GET("/v1/admin/keys", { params: { query: { limit: 50, ...(cursor ? { cursor } : {}) } } })));
  const [open, setOpen] = useState<Open>(null);
  const close = () => setOpen(null);
  const made = (key: KeyMade) => (setOpen({ act: "made", key }), pages.reload());
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.intro}</span>
        <button class="primary push" onClick={() => setOpen({ act: "create" })}>{text.create}</button>
      </div>
      <PagedTable label={text.title} pages={pages} keyOf={(key) => key.id} empty={<p>{text.empty}</p>}
        columns={[
          { title: text.name, render: (key) => <><strong>{key.name}</strong> {key.id === currentSignIn()?.keyId && <span class="badge accent">{text.own}</span>}<br /><code class="small muted">{key.id}</code></> },
          { title: text.scopes, render: (key) => <span class="row">{key.scopes.map((scope) => <span class="badge" key={scope}>{scope}</span>)}</span> },
          { title: text.restrictions, render: restrictionOf },
          { title: text.state, render: (key) => <span class={statusClass(key.state)}>{text.states[key.state]}</span> },
          { title: text.expires, render: (key) => (key.expires_at ? <time dateTime={key.expires_at}>{time(key.expires_at)}</time> : <span class="muted">{text.never}</span>) },
          { title: text.lastUsed, render: (key) => (key.last_used_at ? <Ago at={key.last_used_at} /> : <span class="muted">{text.never}</span>) },
          {
            title: "",
            render: (key) => (
              <span class="row">
                <a class="button small" href={`/dashboard/audit?key_id=${key.id}`}>{text.audit}</a>
                {key.state === "valid" && (
                  <>
                    <a class="button small" href={`/dashboard/limits?key=${key.id}&name=${encodeURIComponent(key.name)}`}>{text.limits}</a>
                    <button onClick={() => setOpen({ act: "rotate", key })}>{text.rotate}</button>
                    <button class="danger" onClick={() => setOpen({ act: "revoke", key })}>{text.revoke}</button>
                  </>
                )}
              </span>
            ),
          },
        ]} />
      {open?.act === "create" && <CreateKey onMade={made} onClose={close} />}
      {open?.act === "rotate" && <RotateKey row={open.key} onMade={made} onClose={close} />}
      {open?.act === "revoke" && <RevokeKey row={open.key} onDone={() => (close(), pages.reload())} onClose={close} />}
      {open?.act === "made" && <KeyDialog made={open.key} onClose={close} />}
    </div>
  );
}

function restrictionOf(key: Key) {
  const names = [...(key.projects ?? []), ...(key.owners ?? [])];
  return names.length ? <span class="row">{names.map((name) => <span class="badge" key={name}>{name}</span>)}</span> : <span class="muted">{text.unrestricted}</span>;
}

interface KeyDialogProps {
  made: KeyMade;
  onClose: () => void;
  title?: string;
  help?: string;
  useLabel?: string;
}

/** Show the text of a new key, and offer to use it here. */
export function KeyDialog({ made, onClose, title = text.made, help = text.madeHelp, useLabel = text.use }: KeyDialogProps) {
  const { route } = useLocation();
  const signing = useAction();
  const use = async () => {
    const signIn = await identify(made.key);
    onClose();
    addSignIn(signIn);
    route("/dashboard");
  };
  return (
    <SecretDialog title={title} help={help} secret={made.key} onClose={onClose}>
      {signing.error && <ErrorNote error={signing.error} />}
      <div><button disabled={signing.busy} onClick={() => void signing.run(use)}>{useLabel}</button></div>
    </SecretDialog>
  );
}

function CreateKey({ onMade, onClose }: { onMade: (key: KeyMade) => void; onClose: () => void }) {
  const [form, setForm] = useState({ name: "", projects: "", owners: "", expires: "", agent: "", scopes: ["read", "write"] as Scope[] });
  const set = (change: Partial<typeof form>) => setForm({ ...form, ...change });
  const isRestricted = itemsOf(form.projects) !== null || itemsOf(form.owners) !== null;
  const scopes = isRestricted ? form.scopes.filter((scope) => scope === "read" || scope === "write") : form.scopes;
  const [header] = useState(once);
  const create = async () => {
    const projects = itemsOf(form.projects);
    const owners = itemsOf(form.owners);
    const expires_at = form.expires && fromLocalTime(form.expires);
    onMade(
      await body(
        api.POST("/v1/admin/keys", {
          params: { header },
          body: { name: form.name, scopes, long_term_enabled: true, ...(projects && { projects }), ...(owners && { owners }), ...(expires_at && { expires_at }), ...(form.agent && { agent_id: form.agent }) },
        }),
      ),
    );
  };
  return (
    <FormDialog title={text.create} action={text.create} onSubmit={create} onClose={onClose} disabled={!form.name || scopes.length === 0}>
      <TextField label={text.name} help={text.nameHelp} required value={form.name} onValue={(name) => set({ name })} />
      <fieldset class="choices">
        <legend>{text.scopes}</legend>
        {SCOPES.filter((scope) => hasScope(scope)).map((scope) => (
          <CheckField key={scope} label={<span><strong>{scope}</strong> <span class="small muted">{text.scopeHelp[scope]}</span></span>} checked={scopes.includes(scope)}
            disabled={isRestricted && (scope === "admin" || scope === "operator")}
            onValue={(has) => set({ scopes: SCOPES.filter((one) => (one === scope ? has : form.scopes.includes(one))) })} />
        ))}
      </fieldset>
      <TextField label={text.projects} value={form.projects} onValue={(projects) => set({ projects })} />
      <TextField label={text.owners} help={text.restrictedHelp} value={form.owners} onValue={(owners) => set({ owners })} />
      <div class="form-grid">
        <TextField label={text.expires} help={text.expiresHelp} type="datetime-local" value={form.expires} onValue={(expires) => set({ expires })} />
        <TextField label={text.agent} help={text.agentHelp} value={form.agent} onValue={(agent) => set({ agent })} />
      </div>
    </FormDialog>
  );
}

function RotateKey({ row, onMade, onClose }: { row: Key; onMade: (key: KeyMade) => void; onClose: () => void }) {
  const [grace, setGrace] = useState<keyof typeof text.graces>("3600");
  const [header] = useState(once);
  const rotate = async () =>
    onMade(await body(api.POST("/v1/admin/keys/{key_id}/rotate", { params: { path: { key_id: row.id }, header }, body: { grace_s: Number(grace) } })));
  return (
    <FormDialog title={text.rotateTitle(row.name)} action={text.rotate} onSubmit={rotate} onClose={onClose}>
      <p>{text.rotateHelp}</p>
      <SelectField label={text.grace} value={grace} onValue={setGrace} options={Object.entries(text.graces) as [typeof grace, string][]} />
    </FormDialog>
  );
}

function RevokeKey({ row, onDone, onClose }: { row: Key; onDone: () => void; onClose: () => void }) {
  const revoke = async () => {
    await api.DELETE("/v1/admin/keys/{key_id}", { params: { path: { key_id: row.id } } });
    notify(text.revoked(row.name));
    onDone();
  };
  return <ConfirmByName title={text.revokeTitle} help={text.revokeHelp} name={row.name} action={text.revoke} onConfirm={revoke} onClose={onClose} />;
}
