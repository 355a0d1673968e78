// Changes of a conversation that need a question first: revise a turn, fork, erase a turn.
import { useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { asApiError, type ApiError } from "../../api/problem";
import type { Conversation, Turn } from "../../api/types";
import { ErrorNote } from "../../components/basics";
import { ConfirmByName, Dialog } from "../../components/dialog";
import { CheckField, TextField } from "../../components/fields";
import { clipped, textOf } from "../../lib/turn_text";
import { strings } from "../../strings";

const text = strings.conversation;

interface TurnDialogProps {
  id: string;
  turn: Turn;
  onClose: () => void;
}

export function ReviseDialog({ id, turn, onClose, onDone }: TurnDialogProps & { onDone: (superseded: number) => void }) {
  const before = typeof turn.content === "string" ? turn.content : "";
  const [content, setContent] = useState(before);
  const [truncates, setTruncates] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const [header] = useState(once);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const result = await body(
        api.POST("/v1/conversations/{conversation_id}/turns/{turn_id}/revisions", {
          params: { path: { conversation_id: id, turn_id: turn.id }, header },
          body: { content, truncate_after: truncates, ...(turn.tool_calls.length ? { tool_calls: turn.tool_calls } : {}) },
        }),
      );
      onDone(result.superseded_count);
    } catch (caught) {
      setError(asApiError(caught));
      setBusy(false);
    }
  };
  return (
    <Dialog title={text.reviseTitle(turn.position ?? 0)} onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <p class="muted">{text.reviseHelp}</p>
        <textarea rows={8} aria-label={text.content} value={content} onInput={(event) => setContent(event.currentTarget.value)} />
        <CheckField label={text.truncate} checked={truncates} onValue={setTruncates} />
        {error && <ErrorNote error={error} />}
        <div class="actions">
          <button type="button" onClick={onClose}>{strings.app.cancel}</button>
          <button class="primary" disabled={busy || !content.trim() || (content === before && !truncates)}>{text.revise}</button>
        </div>
      </form>
    </Dialog>
  );
}

interface ForkProps {
  id: string;
  title: string;
  /** The last turn of the fork; null: all turns. */
  through: Turn | null;
  onClose: () => void;
  onDone: (fork: Conversation) => void;
}

export function ForkDialog({ id, title, through, onClose, onDone }: ForkProps) {
  const [name, setName] = useState(text.forkName(title));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const [header] = useState(once);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const fork = api.POST("/v1/conversations/{conversation_id}/fork", {
        params: { path: { conversation_id: id }, header },
        body: { ...(through ? { through: through.id } : {}), ...(name.trim() ? { title: name.trim() } : {}) },
      });
      onDone(await body(fork));
    } catch (caught) {
      setError(asApiError(caught));
      setBusy(false);
    }
  };
  return (
    <Dialog title={text.forkTitle} onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <p class="muted">{through ? text.forkThrough(through.position ?? 0) : text.forkAll}</p>
        <TextField label={text.titleOf} value={name} onValue={setName} />
        {error && <ErrorNote error={error} />}
        <div class="actions">
          <button type="button" onClick={onClose}>{strings.app.cancel}</button>
          <button class="primary" disabled={busy}>{text.fork}</button>
        </div>
      </form>
    </Dialog>
  );
}

/** What an erasure of turns removed. */
export interface ErasedNote {
  position: number;
  erased: string[];
  rev: number;
}

export function EraseTurnDialog({ id, turn, onClose, onDone }: TurnDialogProps & { onDone: (note: ErasedNote) => void }) {
  const erase = async () => {
    const { erased, rev } = await body(
      api.DELETE("/v1/conversations/{conversation_id}/turns", { params: { path: { conversation_id: id }, query: { ids: [turn.id] } } }),
    );
    onDone({ position: turn.position ?? 0, erased, rev });
  };
  return (
    <ConfirmByName title={text.eraseTurnTitle(turn.position ?? 0)} help={text.eraseTurnHelp(turn.actor, clipped(textOf(turn), 120))} name={text.turnName(turn.position ?? 0)}
      action={text.erase} onConfirm={erase} onClose={onClose} />
  );
}
