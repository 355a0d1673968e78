// Acts of the user: one call at a time with its error, confirmations, and secrets that are shown once.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { asApiError, type ApiError } from "../api/problem";
import { strings } from "../strings";
import { CopyButton, ErrorNote } from "./basics";
import { Dialog } from "./dialog";

export interface Action {
  busy: boolean;
  error: ApiError | null;
  run: (act: () => Promise<void>) => Promise<void>;
}

/** Run one act at a time and keep the error of the last one. */
export function useAction(): Action {
  const [state, setState] = useState({ busy: false, error: null as ApiError | null });
  return {
    ...state,
    run: async (act) => {
      setState({ busy: true, error: null });
      try {
        await act();
        setState({ busy: false, error: null });
      } catch (caught) {
        setState({ busy: false, error: asApiError(caught) });
      }
    },
  };
}

interface FormDialogProps {
  title: string;
  action: string;
  onSubmit: () => Promise<void>;
  onClose: () => void;
  children: ComponentChildren;
  danger?: boolean;
  disabled?: boolean;
}

/** A dialog with a form: the button sends it, and an error is shown in it. */
export function FormDialog({ title, action, onSubmit, onClose, children, danger = false, disabled = false }: FormDialogProps) {
  const sending = useAction();
  return (
    <Dialog title={title} onClose={onClose}>
      <form class="stack" autocomplete="off" onSubmit={(event) => (event.preventDefault(), void sending.run(onSubmit))}>
        {children}
        {sending.error && <ErrorNote error={sending.error} />}
        <div class="actions">
          <button type="button" onClick={onClose}>{strings.app.cancel}</button>
          <button class={danger ? "danger primary" : "primary"} disabled={sending.busy || disabled}>
            {sending.busy && <span class="spinner" />} {action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface SecretProps {
  title: string;
  help: string;
  secret: string;
  onClose: () => void;
  children?: ComponentChildren;
}

/** Show a secret that the API returns once. Only its button closes it, so that no stray key loses the secret. */
export function SecretDialog({ title, help, secret, onClose, children }: SecretProps) {
  return (
    <Dialog title={title} onClose={() => undefined}>
      <p>{help}</p>
      <div class="secret row">
        <code>{secret}</code>
        <CopyButton text={() => secret} />
      </div>
      {children}
      <div class="actions">
        <button class="primary" onClick={onClose}>{strings.app.kept}</button>
      </div>
    </Dialog>
  );
}
