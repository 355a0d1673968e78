// Modal dialogs, and the confirmation that names what is destroyed.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { asApiError, type ApiError } from "../api/problem";
import { strings } from "../strings";
import { ErrorNote } from "./basics";

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog ref={element} aria-label={title} onCancel={(event) => (event.preventDefault(), onClose())}>
      <div class="stack">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  help: string;
  /** What the user must type: the name or the id of the object. */
  name: string;
  action: string;
  onConfirm: () => Promise<void>;
  onClose: () => void;
}

/** Ask for the name of an object before it is destroyed. */
export function ConfirmByName({ title, help, name, action, onConfirm, onClose }: ConfirmProps) {
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await onConfirm();
    } catch (caught) {
      setError(asApiError(caught));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form class="stack" onSubmit={(event) => void submit(event)}>
        <p>{help}</p>
        <div class="field">
          <label for="confirm-name">{strings.conversation.typeName(name)}</label>
          <input id="confirm-name" autocomplete="off" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        </div>
        {error && <ErrorNote error={error} />}
        <div class="actions">
          <button type="button" onClick={onClose}>
            {strings.app.cancel}
          </button>
          <button class="danger primary" disabled={busy || typed.trim() !== name.trim()}>
            {action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
