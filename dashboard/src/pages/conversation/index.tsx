// One conversation: its transcript, which grows live, a box to write a turn, its chain verified, its erasure.
import { useLocation } from "preact-iso";
import { useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { useLoaded, usePages } from "../../api/paging";
import { asApiError, type ApiError } from "../../api/problem";
import { currentSignIn } from "../../api/session";
import type { Role, Turn } from "../../api/types";
import { ErrorNote, Loading, notify } from "../../components/basics";
import { ConfirmByName } from "../../components/dialog";
import { VirtualList } from "../../components/virtual_list";
import type { PageProps } from "../../registry";
import { strings } from "../../strings";
import { useLiveTurns } from "./live";
import { TurnView } from "./turn_view";
import "./conversation.css";

const text = strings.conversation;

export default function ConversationPage({ params }: PageProps) {
  const id = params["id"] ?? "";
  const { route } = useLocation();
  const head = useLoaded(id, () => body(api.GET("/v1/conversations/{conversation_id}", { params: { path: { conversation_id: id } } })));
  // the newest first, then older ones while the user scrolls up
  const pages = usePages<Turn>(id, (cursor) =>
    body(
      api.GET("/v1/conversations/{conversation_id}/turns", {
        params: { path: { conversation_id: id }, query: { order: "desc", limit: 100, include_superseded: true, ...(cursor ? { cursor } : {}) } },
      }),
    ),
  );
  const live = useLiveTurns(id, () => {
    notify(text.deleted);
    route("/dashboard");
  });
  const [deleting, setDeleting] = useState(false);
  const turns = newestVersions(pages.rows, live.committed);
  const rows = [...turns, ...live.pending.map((turn) => ({ turn, versions: [] as Turn[] }))];
  const conversation = head.value;
  const title = conversation?.title ?? conversation?.external_id ?? id;
  const mayWrite = currentSignIn()?.scopes.write ?? false;

  const verify = async () => {
    try {
      const result = await body(api.GET("/v1/conversations/{conversation_id}/verify", { params: { path: { conversation_id: id } } }));
      notify(result.first_break ? text.broken(result.first_break.what, result.first_break.seq) : text.valid(result.turns));
    } catch (error) {
      notify(asApiError(error).message);
    }
  };
  const deleteConversation = async () => {
    await api.DELETE("/v1/conversations/{conversation_id}", { params: { path: { conversation_id: id } } });
    route("/dashboard");
  };
  return (
    <>
      <div class="conversation-head">
        <a class="small" href="/dashboard">{text.back}</a>
        <div class="page-head">
          <h1 class="clip">{title}</h1>
          <span class={live.isConnected ? "badge good" : "badge"} role="status">{live.isConnected ? text.live.live : text.live.connecting}</span>
          {conversation && <span class="small muted number">{text.tokens(conversation.token_count)}</span>}
          <span class="row push">
            <a class="button" href={`/dashboard/conversations/${id}/context`}>{strings.context.open}</a>
            <button onClick={() => void verify()}>{text.verify}</button>
            {mayWrite && <button class="danger" onClick={() => setDeleting(true)}>{text.delete}</button>}
          </span>
        </div>
      </div>
      {head.error && <div class="conversation-note"><ErrorNote error={head.error} onRetry={head.reload} /></div>}
      {pages.error && <div class="conversation-note"><ErrorNote error={pages.error} onRetry={pages.reload} /></div>}
      {rows.length > 0 ? (
        <VirtualList rows={rows} keyOf={({ turn }) => String(turn.position ?? turn.id)} estimate={110} label={text.transcript} role="log" class="grow" fromEnd
          onNearStart={pages.loadMore} render={({ turn, versions }) => <TurnView turn={turn} versions={versions} />} />
      ) : (
        <div class="empty grow">{pages.loading ? <Loading /> : <p>{text.empty}</p>}</div>
      )}
      {mayWrite && <WriterBox id={id} />}
      {deleting && (
        <ConfirmByName title={text.deleteConversation} help={text.deleteHelp} name={title} action={text.delete} onConfirm={deleteConversation} onClose={() => setDeleting(false)} />
      )}
    </>
  );
}

/** The turn that is valid at each position, in order, with the versions that it superseded. */
function newestVersions(read: Turn[], live: Map<string, Turn>): { turn: Turn; versions: Turn[] }[] {
  const byPosition = new Map<number, Turn[]>();
  for (const turn of new Map([...read.map((turn) => [turn.id, turn] as const), ...live]).values()) {
    if (turn.position === null) continue;
    byPosition.set(turn.position, [...(byPosition.get(turn.position) ?? []), turn]);
  }
  return [...byPosition.entries()]
    .sort(([a], [b]) => a - b)
    .flatMap(([, versions]) => {
      versions.sort((a, b) => (b.seq ?? 0) - (a.seq ?? 0));
      const [turn, ...older] = versions;
      // a position whose newest version was truncated has no valid turn
      return turn && turn.superseded_by === null ? [{ turn, versions: older }] : [];
    });
}

function WriterBox({ id }: { id: string }) {
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
