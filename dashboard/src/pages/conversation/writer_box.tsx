// The box in which the user writes a turn as any actor.
import { useState } from "preact/hooks";
import { api, once } from "../../api/client";
import { asApiError, type ApiError } from "../../api/problem";
import type { Role } from "../../api/types";
import { ErrorNote } from "../../components/basics";
import { strings } from "../../strings";

const text = strings.conversation;

export function WriterBox({ id }: { id: string }) {
  const [content, setContent] = useState("");
  const [actor, setActor] = useState("");
  const [role, setRole] = useState<Role>("user");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const send = async () => {
    if (!content.trim() || busy) return;
    setBusy(true);
    setError(null);
    try {
      await api.POST("/v1/conversations/{conversation_id}/turns", {
        params: { path: { conversation_id: id }, header: once() },
        body: { turns: [{ role, content, ...(actor.trim() ? { actor: actor.trim() } : {}) }] },
      });
      setContent("");
    } catch (caught) {
      setError(asApiError(caught));
    }
    setBusy(false);
  };
  return (
    <form class="writer" aria-label={text.write} onSubmit={(event) => (event.preventDefault(), void send())}>
      {error && <ErrorNote error={error} />}
      <textarea rows={2} aria-label={text.write} placeholder={text.placeholder} value={content} onInput={(event) => setContent(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && void send()} />
      <div class="row tight">
        <select aria-label={text.role} value={role} onChange={(event) => setRole(event.currentTarget.value as Role)}>
          {(["user", "assistant", "system"] as const).map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
        <input aria-label={text.actor} placeholder={text.actor} value={actor} onInput={(event) => setActor(event.currentTarget.value)} />
        <button class="primary" disabled={busy || !content.trim()}>{text.send}</button>
      </div>
    </form>
  );
}
