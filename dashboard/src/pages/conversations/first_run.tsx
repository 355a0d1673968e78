// What to do in an empty installation, and a sample conversation that is written through the API.
import { useLocation } from "preact-iso";
import { useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { asApiError, type ApiError } from "../../api/problem";
import { currentSignIn } from "../../api/session";
import type { TurnInput } from "../../api/types";
import { CopyButton, ErrorNote } from "../../components/basics";
import { strings } from "../../strings";

const text = strings.firstRun;
const CALL = `curl -s ${location.origin}/v1/conversations \\
  -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' \\
  -d '{"title": "My first conversation", "owner": "me"}'`;

export function FirstRun() {
  const { route } = useLocation();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const mayWrite = currentSignIn()?.scopes.write ?? false;
  const load = async () => {
    setBusy(true);
    setError(null);
    try {
      const { id } = await body(
        api.POST("/v1/conversations", {
          params: { header: once() },
          body: { title: text.sampleTitle, owner: "mia", participants: [{ actor: "mia" }, { actor: "jonas" }, { actor: "planner" }], facts: { enabled: true } },
        }),
      );
      const { SAMPLE } = await import("./sample");
      await body(
        api.POST("/v1/conversations/{conversation_id}/turns", {
          params: { path: { conversation_id: id }, header: once() },
          body: { turns: SAMPLE satisfies TurnInput[] },
        }),
      );
      route(`/dashboard/conversations/${id}`);
    } catch (caught) {
      setError(asApiError(caught));
      setBusy(false);
    }
  };
  return (
    <div class="empty">
      <h2>{text.title}</h2>
      <p class="muted">{text.intro}</p>
      <ol class="steps">
        {text.steps.map(([title, help]) => (
          <li key={title}>
            <div><strong>{title}</strong><p class="muted">{help}</p></div>
          </li>
        ))}
      </ol>
      {mayWrite ? (
        <button class="primary" disabled={busy} onClick={() => void load()}>
          {busy && <span class="spinner" />} {busy ? text.loading : text.load}
        </button>
      ) : (
        <p>{text.needsWrite}</p>
      )}
      {error && <ErrorNote error={error} />}
      <pre><code>{CALL}</code></pre>
      <CopyButton text={() => CALL} />
    </div>
  );
}
