// Long-term memories: by owner and agent, with their content, and their deletion.
import { useState } from "preact/hooks";
import { agentHeader } from "../../api/agent_header";
import { api, body } from "../../api/client";
import { usePages } from "../../api/paging";
import { currentSignIn } from "../../api/session";
import type { Memory } from "../../api/types";
import { Ago } from "../../components/ago";
import { Empty, ErrorNote, Loading, notify } from "../../components/basics";
import { ConfirmByName } from "../../components/dialog";
import { TextField } from "../../components/fields";
import { time } from "../../lib/format";
import { personLink } from "../../lib/links";
import { useSettled } from "../../lib/settled";
import { clipped } from "../../lib/turn_text";
import { strings } from "../../strings";

const text = strings.memories;

export function MemoriesPane({ owner }: { owner: string }) {
  const scopes = currentSignIn()?.scopes;
  const [typed, setTyped] = useState({ owner, agent: "" });
  const filters = useSettled(typed, 200);
  const agent = filters.agent.trim();
  const listing = { limit: 100, ...(filters.owner.trim() ? { owner: filters.owner.trim() } : {}), ...(agent && scopes?.admin ? { agent_id: agent } : {}) };
  const header = agentHeader(agent);
  const pages = usePages<Memory>(JSON.stringify([listing, header]), (cursor) =>
    body(api.POST("/v1/memories/list", { params: { header }, body: { ...listing, ...(cursor ? { cursor } : {}) } })),
  );
  return (
    <div class="facts-scroll stack">
      <div class="facts-filters wide" role="search">
        <TextField label={strings.facts.owner} type="search" value={typed.owner} onValue={(value) => setTyped({ ...typed, owner: value })} />
        <TextField label={text.agent} help={scopes?.admin ? text.agentHelpAdmin : text.agentHelp} value={typed.agent} onValue={(value) => setTyped({ ...typed, agent: value })} />
      </div>
      {pages.error && <ErrorNote error={pages.error} onRetry={pages.reload} />}
      {pages.rows.length > 0 ? (
        <>
          <MemoryList memories={pages.rows} onDeleted={(id) => pages.update((rows) => rows.filter((row) => row.id !== id))} />
          {pages.hasMore && <button disabled={pages.loading} onClick={pages.loadMore}>{strings.app.more}</button>}
        </>
      ) : pages.loading ? (
        <Loading />
      ) : (
        !pages.error && <Empty><p>{text.empty}</p><p class="muted">{text.emptyHelp}</p></Empty>
      )}
    </div>
  );
}

export function MemoryList({ memories, onDeleted }: { memories: Memory[]; onDeleted: (id: string) => void }) {
  const [deleting, setDeleting] = useState<Memory | null>(null);
  const mayDelete = currentSignIn()?.scopes.admin ?? false;
  const remove = async (memory: Memory) => {
    await api.DELETE("/v1/memories/{memory_id}", { params: { path: { memory_id: memory.id } } });
    setDeleting(null);
    notify(text.deleted);
    onDeleted(memory.id);
  };
  return (
    <>
      <ul class="memories">
        {memories.map((memory) => (
          <li key={memory.id} class="card stack">
            <p class="memory-text">{memory.content}</p>
            <p class="row small muted">
              <span class="badge">{memory.agent_id}</span>
              {memory.owner && <a href={personLink(memory.owner)}>{strings.facts.of(memory.owner)}</a>}
              <Ago at={memory.created_at} />
              {memory.stored_at.length > 1 && <span class="number" title={memory.stored_at.map(time).join(", ")}>{text.storedTimes(memory.stored_at.length)}</span>}
              {memory.expires_at && <span>{strings.conversations.expires(time(memory.expires_at))}</span>}
              {mayDelete && <button class="quiet danger push" aria-label={text.deleteLabel(clipped(memory.content, 60))} onClick={() => setDeleting(memory)}>{strings.conversation.delete}</button>}
            </p>
            {Object.keys(memory.metadata).length > 0 && <details class="small"><summary>{text.metadata}</summary><pre>{JSON.stringify(memory.metadata, null, 2)}</pre></details>}
          </li>
        ))}
      </ul>
      {deleting && (
        <ConfirmByName title={text.deleteTitle} help={text.deleteHelp(clipped(deleting.content, 120))} name={deleting.id.slice(-6)} action={strings.conversation.delete}
          onConfirm={() => remove(deleting)} onClose={() => setDeleting(null)} />
      )}
    </>
  );
}
