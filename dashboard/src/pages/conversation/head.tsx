// The head of a conversation: its title and state, and what can be done with the whole of it.
import { useLocation } from "preact-iso";
import { useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { ApiError } from "../../api/problem";
import { currentSignIn } from "../../api/session";
import type { Conversation } from "../../api/types";
import { notify, notifyError } from "../../components/basics";
import { ConfirmByName } from "../../components/dialog";
import type { ErasureRun } from "../../components/erasure";
import { Menu } from "../../components/menu";
import { download, number } from "../../lib/format";
import { personLink, recallLink } from "../../lib/links";
import { lastType, readLines } from "../../lib/stream_download";
import type { Work } from "../../lib/work";
import { strings } from "../../strings";

const text = strings.conversation;

interface Props {
  id: string;
  conversation: Conversation | null;
  title: string;
  isConnected: boolean;
  work: Work;
  erasure: ErasureRun;
  onChanged: () => void;
  onFork: () => void;
  /** The page is about to be left, since the conversation goes away. */
  onLeave: () => void;
}

export function ConversationHead({ id, conversation, title, isConnected, work, erasure, onChanged, onFork, onLeave }: Props) {
  const { route } = useLocation();
  const scopes = currentSignIn()?.scopes;
  const [dialog, setDialog] = useState<"delete" | "erase" | null>(null);
  const path = { conversation_id: id };

  const verify = async () => {
    const result = await body(api.GET("/v1/conversations/{conversation_id}/verify", { params: { path } }));
    notify(result.first_break ? text.broken(result.first_break.what, result.first_break.seq) : text.valid(result.turns));
  };
  const change = async (members: { archived?: boolean; pinned?: boolean; facts?: { enabled: boolean } }, done: string, before: typeof members) => {
    await api.PATCH("/v1/conversations/{conversation_id}", { params: { path }, body: members });
    onChanged();
    notify(done, async () => {
      await api.PATCH("/v1/conversations/{conversation_id}", { params: { path }, body: before });
      onChanged();
    });
  };
  const trash = async () => {
    onLeave();
    await api.POST("/v1/conversations/{conversation_id}/trash", { params: { path } });
    notify(text.trashedNote(title), async () => {
      await api.POST("/v1/conversations/{conversation_id}/restore", { params: { path } });
      route(`/dashboard/conversations/${id}`);
    });
    route("/dashboard");
  };
  const remove = async () => {
    onLeave();
    await api.DELETE("/v1/conversations/{conversation_id}", { params: { path } });
    notify(text.deleted);
    route("/dashboard");
  };
  const save = () =>
    work.run(async (progress, signal) => {
      const { data } = await api.GET("/v1/conversations/{conversation_id}/export", { params: { path }, parseAs: "stream", signal });
      const lines = await readLines(data as unknown as ReadableStream<Uint8Array<ArrayBuffer>>, (bytes) => progress(text.exporting(bytes)), signal);
      if ((await lastType(lines)) !== "trailer") throw new ApiError(0, "export_incomplete", text.exportIncomplete, null, true, []);
      download(`conversation-${id}.jsonl`, lines);
    });
  const { archived = false, pinned = false, facts, owner } = conversation ?? {};
  const act = (call: () => Promise<void>) => () => void call().catch(notifyError);
  return (
    <div class="conversation-head">
      <a class="small" href="/dashboard">{text.back}</a>
      <div class="page-head">
        <h1 class="clip">{title}</h1>
        <span class={isConnected ? "badge good" : "badge"} role="status">{isConnected ? text.live.live : text.live.connecting}</span>
        {pinned && <span class="badge accent">{strings.conversations.states.pinned}</span>}
        {archived && <span class="badge">{strings.conversations.states.archived}</span>}
        <span class="row push">
          <a class="button" href={`/dashboard/conversations/${id}/context`}>{strings.context.open}</a>
          <Menu label={text.more}>
            <a class="button quiet" href={recallLink({ conversation: id })}>{text.searchHere}</a>
            <button class="quiet" onClick={act(verify)}>{text.verify}</button>
            <button class="quiet" onClick={save} disabled={work.progress !== null}>{text.exportAll}</button>
            {scopes?.write && conversation && (
              <>
                <button class="quiet" onClick={onFork}>{text.fork}</button>
                <button class="quiet" onClick={act(() => change({ pinned: !pinned }, pinned ? text.unpinned : text.pinned, { pinned }))}>{pinned ? text.unpin : text.pin}</button>
                <button class="quiet" onClick={act(() => change({ archived: !archived }, archived ? text.unarchived : text.archived, { archived }))}>{archived ? text.unarchive : text.archive}</button>
                <button class="quiet" onClick={act(() => change({ facts: { enabled: !facts?.enabled } }, facts?.enabled ? text.factsOff : text.factsOn, { facts: { enabled: facts?.enabled ?? false } }))}>
                  {facts?.enabled ? text.stopFacts : text.startFacts}
                </button>
                <button class="quiet" title={text.trashHelp} onClick={act(trash)}>{text.trash}</button>
                {scopes.admin ? (
                  <button class="quiet danger" onClick={() => setDialog("erase")}>{text.eraseConversation}</button>
                ) : (
                  <button class="quiet danger" onClick={() => setDialog("delete")}>{text.delete}</button>
                )}
              </>
            )}
          </Menu>
        </span>
      </div>
      {conversation && (
        <p class="row small muted number conversation-facts">
          <span>{strings.conversations.turns(conversation.turn_count)}</span>
          <span>{text.tokens(conversation.token_count)}</span>
          <span>{strings.conversations.retention[conversation.retention]}</span>
          {owner && (scopes?.admin ? <a href={personLink(owner)}>{owner}</a> : <span class="clip">{owner}</span>)}
          <span class="clip">{conversation.project}</span>
          {conversation.forked_from && <a href={`/dashboard/conversations/${conversation.forked_from}`}>{text.forkedFrom}</a>}
          {conversation.last_seq > 0 && <span>{text.lastSeq(number(conversation.last_seq))}</span>}
        </p>
      )}
      {dialog === "delete" && <ConfirmByName title={text.deleteConversation} help={text.deleteHelp} name={title} action={text.delete} onConfirm={remove} onClose={() => setDialog(null)} />}
      {dialog === "erase" && (
        <ConfirmByName title={text.eraseConversation} help={text.eraseHelp} name={title} action={text.erase} onClose={() => setDialog(null)}
          onConfirm={async () => {
            onLeave();
            await erasure.start({ conversation_id: id });
            setDialog(null);
          }} />
      )}
    </div>
  );
}
