// Quotas and rates: of the key's tenant, for operators of any tenant (`?tenant=`), and of single keys (`?key=`).
import { useLocation } from "preact-iso";
import { useEffect, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { useLoaded } from "../../api/paging";
import { currentSignIn, hasScope } from "../../api/session";
import type { LimitsView } from "../../api/types";
import { useAction } from "../../components/actions";
import { ErrorNote, Loading, notify } from "../../components/basics";
import { TextField } from "../../components/fields";
import { number, time } from "../../lib/format";
import { strings } from "../../strings";
import "./limits.css";

const text = strings.limits;
const QUOTAS = ["daily_turns", "daily_bytes", "daily_vectors", "daily_model_tokens", "daily_model_cost"] as const;
const RATES = ["read", "write", "chunk", "search", "model"] as const;
type Quota = (typeof QUOTAS)[number];
type Rate = (typeof RATES)[number];

export default function LimitsPage() {
  const { query } = useLocation();
  return query["key"] ? <KeyLimits keyId={query["key"]} name={query["name"] ?? ""} /> : <TenantLimits tenantId={query["tenant"] ?? null} name={query["name"] ?? ""} />;
}

function TenantLimits({ tenantId, name }: { tenantId: string | null; name: string }) {
  const changed = tenantId ?? currentSignIn()?.tenantId ?? "";
  const path = { tenant_id: changed };
  const mayChange = hasScope("operator");
  const limits = useLoaded<LimitsView>(`limits ${tenantId}`, () =>
    body(tenantId || !hasScope("admin") ? api.GET("/v1/admin/tenants/{tenant_id}/limits", { params: { path } }) : api.GET("/v1/admin/limits")),
  );
  const save = async (values: Values<Quota | Rate>) => {
    const pick = <N extends string>(names: readonly N[]) => Object.fromEntries(names.map((one) => [one, values[one as unknown as Quota | Rate]])) as Values<N>;
    await api.PUT("/v1/admin/tenants/{tenant_id}/limits", { params: { path }, body: { quotas: pick(QUOTAS), rates: pick(RATES) } });
    notify(text.saved);
    limits.reload();
  };
  const shown = limits.value;
  return (
    <div class="stack">
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.ofTenant} {name || currentSignIn()?.tenantName} <code>{changed}</code></span>
      </div>
      <p class="muted">{text.intro}</p>
      {limits.error && <ErrorNote error={limits.error} onRetry={limits.reload} />}
      {!shown && limits.loading && <Loading />}
      {shown && (
        <>
          <section class="card stack">
            <h2>{text.quotas}</h2>
            <ul class="quotas">{QUOTAS.map((quota) => <QuotaBar key={quota} name={text.names[quota]} {...shown.quotas[quota]} />)}</ul>
            <p class="small muted">{text.resets(time(shown.resets_at))}</p>
          </section>
          <section class="card stack">
            <h2>{text.rates}</h2>
            {!shown.defaults.rates_enabled && <p class="badge warn">{text.ratesOff}</p>}
            <dl class="pairs number">
              {RATES.map((rate) => [
                <dt key={rate}>{text.names[rate]}</dt>,
                <dd key={`${rate} value`}>{limitText(shown.rates[rate])} {shown.own.rates[rate] === null && <span class="muted small">{text.isDefault}</span>}</dd>,
              ])}
            </dl>
            <p class="small muted">{text.burst(shown.defaults.burst_s)}</p>
          </section>
          {mayChange ? (
            <LimitsForm names={[...QUOTAS, ...RATES]} help={text.changeHelp} onSave={save}
              own={{ ...shown.own.quotas, ...shown.own.rates }} otherwise={{ ...shown.defaults.quotas, ...shown.defaults.rates }} hint={text.defaultIs} />
          ) : (
            <p class="notice">{text.operatorOnly}</p>
          )}
        </>
      )}
    </div>
  );
}

const limitText = (limit: number): string => (limit === 0 ? text.unlimited : number(limit));

function QuotaBar({ name, used, limit }: { name: string; used: number; limit: number }) {
  const label = limit === 0 ? text.usedUnlimited(number(used)) : text.used(number(used), number(limit));
  return (
    <li>
      <span class="row spread"><span>{name}</span> <span class="number muted">{label}</span></span>
      {limit > 0 && <progress aria-label={`${name}: ${label}`} value={Math.min(used, limit)} max={limit} class={used > 0.9 * limit ? "near" : ""} />}
    </li>
  );
}

type Values<N extends string> = Record<N, number | null>;

interface FormProps<N extends string> {
  names: readonly N[];
  /** What is set; null: what holds `otherwise` applies. */
  own: Values<N>;
  otherwise: Record<N, number>;
  hint: (value: string) => string;
  help: string;
  onSave: (values: Values<N>) => Promise<void>;
}

function LimitsForm<N extends Quota | Rate>({ names, own, otherwise, hint, help, onSave }: FormProps<N>) {
  const [typed, setTyped] = useState<Record<string, string>>({});
  const saving = useAction();
  useEffect(() => setTyped(Object.fromEntries(names.map((one) => [one, own[one] === null ? "" : String(own[one])]))), [JSON.stringify(own)]);
  const values = () => Object.fromEntries(names.map((one) => [one, typed[one]?.trim() ? Number(typed[one]) : null])) as Values<N>;
  return (
    <form class="card stack" onSubmit={(event) => (event.preventDefault(), void saving.run(() => onSave(values())))}>
      <h2>{text.change}</h2>
      <p class="small muted">{help}</p>
      <div class="form-grid">
        {names.map((one) => (
          <TextField key={one} label={text.names[one]} type="number" min={0} placeholder={hint(limitText(otherwise[one]))} value={typed[one] ?? ""} onValue={(value) => setTyped({ ...typed, [one]: value })} />
        ))}
      </div>
      {saving.error && <ErrorNote error={saving.error} />}
      <div><button class="primary" disabled={saving.busy}>{text.save}</button></div>
    </form>
  );
}

function KeyLimits({ keyId, name }: { keyId: string; name: string }) {
  const path = { key_id: keyId };
  const limits = useLoaded(`key limits ${keyId}`, () => body(api.GET("/v1/admin/keys/{key_id}/limits", { params: { path } })));
  const save = async (rates: Values<Rate>) => {
    await api.PUT("/v1/admin/keys/{key_id}/limits", { params: { path }, body: rates });
    notify(text.saved);
    limits.reload();
  };
  return (
    <div class="stack">
      <a class="small" href="/dashboard/keys">{text.back}</a>
      <div class="page-head">
        <h1>{text.ofKey}</h1>
        <span class="muted">{name} <code>{keyId}</code></span>
      </div>
      {limits.error && <ErrorNote error={limits.error} onRetry={limits.reload} />}
      {limits.value ? <LimitsForm names={RATES} own={limits.value.own} otherwise={limits.value.tenant} hint={text.ofTenantIs} help={text.keyHelp} onSave={save} /> : limits.loading && <Loading />}
    </div>
  );
}
