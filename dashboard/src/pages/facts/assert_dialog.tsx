// A fact that the user asserts.
import { useState } from "preact/hooks";
import { api, body, once } from "../../api/client";
import { asApiError, type ApiError } from "../../api/problem";
import type { Fact } from "../../api/types";
import { ErrorNote } from "../../components/basics";
import { Dialog } from "../../components/dialog";
import { TextField } from "../../components/fields";
import { strings } from "../../strings";

const text = strings.facts;

interface Props {
  owner: string;
  project: string | null;
  onDone: (fact: Fact | null) => void;
  onClose: () => void;
}

export function AssertDialog({ owner, project, onDone, onClose }: Props) {
  const [typed, setTyped] = useState({ owner, subject: "", predicate: "", object: "" });
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const set = (change: Partial<typeof typed>) => setTyped({ ...typed, ...change });
  const [subject, predicate, object] = [typed.subject.trim(), typed.predicate.trim(), typed.object.trim()];
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const { fact } = await body(
        api.POST("/v1/facts", {
          params: { header: once() },
          body: { subject, predicate, object, ...(typed.owner.trim() ? { owner: typed.owner.trim() } : {}), ...(project ? { project } : {}) },
        }),
      );
      onDone(fact);
    } catch (caught) {
      setError(asApiError(caught));
      setBusy(false);
    }
  };
  return (
    <Dialog title={text.assert} onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <TextField label={text.owner} help={text.ownerHelp} value={typed.owner} onValue={(value) => set({ owner: value })} />
        <TextField label={text.subject} required value={typed.subject} placeholder="mia" onValue={(value) => set({ subject: value })} />
        <TextField label={text.predicate} required value={typed.predicate} placeholder="lives in" onValue={(value) => set({ predicate: value })} />
        <TextField label={text.object} required value={typed.object} placeholder="Bremen" onValue={(value) => set({ object: value })} />
        {error && <ErrorNote error={error} />}
        <div class="actions">
          <button type="button" onClick={onClose}>{strings.app.cancel}</button>
          <button class="primary" disabled={busy || !subject || !predicate || !object}>{text.assert}</button>
        </div>
      </form>
    </Dialog>
  );
}
