// The context inspector: the messages that a model would see, the budget of each section, and why each part is there.
import { useState } from "preact/hooks";
import { agentHeader, type AgentHeader } from "../../api/agent_header";
import { api, body } from "../../api/client";
import { useLatest, type Question } from "../../api/latest";
import { currentSignIn } from "../../api/session";
import type { Context, ContextRequest, Explained } from "../../api/types";
import { CopyButton, ErrorNote, Loading } from "../../components/basics";
import { TextField } from "../../components/fields";
import { number } from "../../lib/format";
import { useSettled } from "../../lib/settled";
import { isWide } from "../../lib/window";
import type { PageProps } from "../../registry";
import { strings } from "../../strings";
import { useBackground } from "./background";
import { Coverage, useKnown, type Known } from "./coverage";
import { MessageView } from "./message_view";
import { Reasons } from "./reasons";
import { asCurl, asPython, asTypeScript } from "./snippets";
import "./context.css";

const text = strings.context;
const FORMATS = ["openai", "openai_responses", "anthropic", "workers_ai", "canonical"] as const;
const SECTIONS = ["system", "recent", "summary", "facts", "memories", "recalled"] as const;
const SMALLEST_BUDGET_LOG2 = 5;
const LARGEST_BUDGET_LOG2 = 17;
const BUDGET_STEP_LOG2 = 0.125;
const TYPING_MS = 200;
const NO_REASONS: Explained[] = [];

interface Options {
  budgetLog2: number;
  query: string;
  actor: string;
  format: (typeof FORMATS)[number];
  summary: boolean;
  facts: boolean;
  memories: boolean;
  recall: boolean;
  agent: string;
}

/** The agent whose memories are read. Null: all agents, which needs the scope `admin`. */
function agentOf(typed: string): string | null {
  const signIn = currentSignIn();
  return typed.trim() || (signIn?.scopes.admin ? null : (signIn?.agentId ?? "default"));
}

function requestOf(options: Options): ContextRequest {
  return {
    token_budget: Math.round(2 ** options.budgetLog2),
    format: options.format,
    include_summary: options.summary,
    include_facts: options.facts,
    explain: true,
    ...(options.memories ? { include_memories: true, ...(agentOf(options.agent) ? { agent_id: agentOf(options.agent) } : {}) } : {}),
    ...(options.recall ? { semantic_recall: { k: 10 } } : {}),
    ...(options.query.trim() ? { query: options.query.trim() } : {}),
    ...(options.actor.trim() ? { as_actor: options.actor.trim() } : {}),
  };
}

export default function ContextPage({ params }: PageProps) {
  const id = params["id"] ?? "";
  const isAdmin = currentSignIn()?.scopes.admin ?? false;
  const [options, setOptions] = useState<Options>({ budgetLog2: 11, query: "", actor: "", format: "openai", summary: true, facts: true, memories: isAdmin, recall: true, agent: "" });
  const [areOptionsOpen] = useState(isWide);
  // typed words start a request when the user pauses; a step of the slider starts one at once
  const query = useSettled(options.query, TYPING_MS);
  const actor = useSettled(options.actor, TYPING_MS);
  const agent = useSettled(options.agent, TYPING_MS);
  const settled = { ...options, query, actor, agent };
  const request = requestOf(settled);
  const header = agentHeader(request.agent_id);
  const questionOf = (asked: ContextRequest): Question<Context> => ({
    key: `${id} ${JSON.stringify(asked)}`,
    load: (signal) => body(api.POST("/v1/conversations/{conversation_id}/context", { params: { path: { conversation_id: id }, header }, body: asked, signal })),
  });
  // one more move like the last one, or back
  const [move, setMove] = useState(0);
  const moved = move === 0 ? [] : [options.budgetLog2 + move, options.budgetLog2 - move];
  const ahead = moved.filter((budgetLog2) => budgetLog2 >= SMALLEST_BUDGET_LOG2 && budgetLog2 <= LARGEST_BUDGET_LOG2);
  const { key, load } = questionOf(request);
  const built = useLatest(key, load, ahead.map((budgetLog2) => questionOf(requestOf({ ...settled, budgetLog2 }))));
  const known = useKnown(id);
  const set = (change: Partial<Options>) => setOptions({ ...options, ...change });
  const moveBudget = (budgetLog2: number) => {
    setMove(budgetLog2 - options.budgetLog2 || BUDGET_STEP_LOG2);
    set({ budgetLog2 });
  };
  return (
    <div class="stack">
      <a class="small" href={`/dashboard/conversations/${id}`}>{text.back}</a>
      <div class="page-head">
        <h1>{text.title}</h1>
        <span class="muted">{text.intro}</span>
      </div>
      <div class="inspector">
        <form class="card stack" onSubmit={(event) => event.preventDefault()}>
          <div class="field">
            <label for="budget">{text.budget}: {number(Math.round(2 ** options.budgetLog2))}</label>
            <input id="budget" type="range" min={SMALLEST_BUDGET_LOG2} max={LARGEST_BUDGET_LOG2} step={BUDGET_STEP_LOG2} value={options.budgetLog2}
              aria-valuetext={text.tokens(Math.round(2 ** options.budgetLog2))} onFocus={() => moveBudget(options.budgetLog2)} onInput={(event) => moveBudget(Number(event.currentTarget.value))} />
          </div>
          <details class="more-options stack" open={areOptionsOpen}>
            <summary>{strings.recall.options}</summary>
            <div class="field">
              <label for="query">{text.query}</label>
              <input id="query" type="search" value={options.query} aria-describedby="query-help" onInput={(event) => set({ query: event.currentTarget.value })} />
              <p class="help" id="query-help">{text.queryHelp}</p>
            </div>
            <div class="field">
              <label for="format">{text.format}</label>
              <select id="format" value={options.format} onChange={(event) => set({ format: event.currentTarget.value as Options["format"] })}>
                {FORMATS.map((format) => <option key={format} value={format}>{format}</option>)}
              </select>
            </div>
            <div class="field">
              <label for="actor">{text.actor}</label>
              <input id="actor" value={options.actor} onInput={(event) => set({ actor: event.currentTarget.value })} />
            </div>
            <fieldset class="sections">
              <legend>{text.sections}</legend>
              {(["summary", "facts", "memories", "recall"] as const).map((name) => (
                <label class="check" key={name}>
                  <input type="checkbox" checked={options[name]} onChange={(event) => set({ [name]: event.currentTarget.checked })} /> {text.optional[name]}
                </label>
              ))}
            </fieldset>
            {options.memories && <TextField label={text.agent} help={isAdmin ? strings.memories.agentHelpAdmin : strings.memories.agentHelp} value={options.agent} onValue={(value) => set({ agent: value })} />}
            <div class="row">
              <CopyButton label={text.copyCurl} text={() => asCurl(id, request, header)} />
              <CopyButton label={text.copyPython} text={() => asPython(id, request, header)} />
              <CopyButton label={text.copyTypeScript} text={() => asTypeScript(id, request, header)} />
            </div>
          </details>
        </form>
        <div class="stack">
          {built.error ? <ErrorNote error={built.error} /> : built.value ? <Built id={id} known={known} context={built.value} tookMs={built.tookMs} header={header} /> : <Loading />}
        </div>
      </div>
    </div>
  );
}

interface BuiltProps {
  id: string;
  context: Context;
  tookMs: number;
  known: Known | null;
  header: AgentHeader;
}

function Built({ id, context, tookMs, known, header }: BuiltProps) {
  const { usage, gap, degraded, explain } = context;
  const background = useBackground(explain ?? NO_REASONS, known, header);
  return (
    <div class="built">
      <div class="stack">
        <section class="card stack" aria-label={text.budget}>
          <p class="row spread number">
            <strong>{text.used(usage.used, usage.budget)}</strong> <span class="muted small">{text.took(tookMs)}</span>
          </p>
          <div class="budget-bar">
            {SECTIONS.map((name) => (
              <span key={name} class={`part ${name}`} title={`${text.names[name]}: ${text.tokens(usage.sections[name].used)}`}
                style={{ width: `${(100 * usage.sections[name].used) / usage.budget}%` }} />
            ))}
          </div>
          <ul class="legend small number">
            {SECTIONS.filter((name) => usage.sections[name].requested > 0).map((name) => (
              <li key={name}>
                <i class={`part ${name}`} /> {text.names[name]} {number(usage.sections[name].used)}
                {usage.sections[name].dropped > 0 && <span class="muted"> ({number(usage.sections[name].dropped)} {text.dropped})</span>}
              </li>
            ))}
          </ul>
          <Coverage id={id} context={context} known={known} />
          <p class={gap ? "badge warn" : "badge good"}>{gap ? text.gap(gap.turns, gap.from_position, gap.to_position) : text.noGap}</p>
          {degraded.map((code) => <p key={code} class="badge warn">{text.degraded[code] ?? text.missing(code)}</p>)}
        </section>
        <Reasons id={id} explain={explain ?? NO_REASONS} known={known} background={background} />
      </div>
      <section class="card stack messages" aria-label={text.messages} tabIndex={0}>
        <h2>{text.messages}</h2>
        {context.system && <MessageView json={JSON.stringify({ role: "system", content: context.system }, null, 2)} />}
        {/* counted from the end, where a larger budget changes nothing: it shows older turns */}
        {context.messages.map((message, index) => <MessageView key={context.messages.length - index} json={JSON.stringify(message, null, 2)} />)}
      </section>
    </div>
  );
}
