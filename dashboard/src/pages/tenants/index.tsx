// The tenants of the installation, for its operators: create, rename and erase them, and change what they may use.
import { useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { usePages } from "../../api/paging";
import { currentSignIn } from "../../api/session";
import type { KeyMade, Operation, Tenant } from "../../api/types";
import { FormDialog } from "../../components/actions";
import { ConfirmByName } from "../../components/dialog";
import { TextField } from "../../components/fields";
import { OperationCard } from "../../components/operation";
import { PagedTable } from "../../components/table";
import { time } from "../../lib/format";
import { strings } from "../../strings";
import { KeyDialog } from "../keys";

const text = strings.tenants;
type Open = { act: "create" } | { act: "rename" | "erase"; tenant: Tenant } | { act: "made"; key: KeyMade } | null;

export default function TenantsPage() {
  const pages = usePages<Tenant>("tenants", (cursor) => body(api.GET("/v1/admin/tenants", { params: { query: { limit: 50, ...(cursor ? { cursor } : {}) } } })));
  const [open, setOpen] = useState<Open>(null);
  const [erasing, setErasing] = useState<{ operation: Operation; name: string } | null>(null);
  const close = () => setOpen(null);
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.intro}</span>
        <button class="primary push" onClick={() => setOpen({ act: "create" })}>{text.create}</button>
      </div>
      <p class="small muted">{text.openHelp}</p>
      {erasing && <OperationCard key={erasing.operation.id} first={erasing.operation} title={text.erasing(erasing.name)} onEnd={pages.reload} />}
      <PagedTable label={text.title} pages={pages} keyOf={(tenant) => tenant.id} empty={<p>{text.empty}</p>}
        columns={[
          { title: text.name, render: (tenant) => <><strong>{tenant.name}</strong> {tenant.id === currentSignIn()?.tenantId && <span class="badge accent">{text.own}</span>}<br /><code class="small muted">{tenant.id}</code></> },
          { title: text.created, render: (tenant) => <time dateTime={tenant.created_at}>{time(tenant.created_at)}</time> },
          {
            title: "",
            render: (tenant) => (
              <span class="row">
                <a class="button small" href={`/dashboard/limits?tenant=${tenant.id}&name=${encodeURIComponent(tenant.name)}`}>{text.limits}</a>
                <button onClick={() => setOpen({ act: "rename", tenant })}>{text.rename}</button>
                <button class="danger" onClick={() => setOpen({ act: "erase", tenant })}>{text.erase}</button>
              </span>
            ),
          },
        ]} />
      {open?.act === "create" && <CreateTenant onClose={close} onMade={(key) => (setOpen({ act: "made", key }), pages.reload())} />}
      {open?.act === "made" && <KeyDialog made={open.key} title={text.made} help={text.madeHelp} useLabel={text.open} onClose={close} />}
      {open?.act === "rename" && <RenameTenant tenant={open.tenant} onClose={close} onDone={() => (close(), pages.reload())} />}
      {open?.act === "erase" && (
        <EraseTenant tenant={open.tenant} onClose={close} onStart={(operation) => (setErasing({ operation, name: open.tenant.name }), close())} />
      )}
    </div>
  );
}

function CreateTenant({ onMade, onClose }: { onMade: (key: KeyMade) => void; onClose: () => void }) {
  const [name, setName] = useState("");
  const [header] = useState(once);
  const create = async () => onMade((await body(api.POST("/v1/admin/tenants", { params: { header }, body: { name } }))).first_key);
  return (
    <FormDialog title={text.create} action={text.create} onSubmit={create} onClose={onClose} disabled={!name}>
      <TextField label={text.name} required value={name} onValue={setName} />
    </FormDialog>
  );
}

function RenameTenant({ tenant, onDone, onClose }: { tenant: Tenant; onDone: () => void; onClose: () => void }) {
  const [name, setName] = useState(tenant.name);
  const rename = async () => {
    await api.PATCH("/v1/admin/tenants/{tenant_id}", { params: { path: { tenant_id: tenant.id } }, body: { name } });
    onDone();
  };
  return (
    <FormDialog title={text.rename} action={text.rename} onSubmit={rename} onClose={onClose} disabled={!name}>
      <TextField label={text.name} required value={name} onValue={setName} />
    </FormDialog>
  );
}

function EraseTenant({ tenant, onStart, onClose }: { tenant: Tenant; onStart: (operation: Operation) => void; onClose: () => void }) {
  const [header] = useState(once);
  const erase = async () => onStart(await body(api.POST("/v1/erasures", { params: { header }, body: { tenant: tenant.id } })));
  return <ConfirmByName title={text.eraseTitle} help={text.eraseHelp} name={tenant.name} action={text.erase} onConfirm={erase} onClose={onClose} />;
}
