// Sign in with an API key.
import { useEffect, useRef, useState } from "preact/hooks";
import { identify } from "../../api/identity";
import { ApiError, asApiError } from "../../api/problem";
import { addSignIn } from "../../api/session";
import { ErrorNote } from "../../components/basics";
import { strings } from "../../strings";

const text = strings.signIn;

export function SignInPage({ onDone, onCancel }: { onDone: () => void; onCancel?: () => void }) {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const field = useRef<HTMLInputElement>(null);
  // not by the attribute `autofocus`: the browser complains of it where an element has the focus already
  useEffect(() => field.current?.focus(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const signIn = await identify(key.trim());
      if (!signIn.scopes.read && !signIn.scopes.admin && !signIn.scopes.operator) throw new ApiError(403, "forbidden", text.cannotRead, null, false, []);
      addSignIn(signIn);
      onDone();
    } catch (caught) {
      setError(asApiError(caught));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form class="card stack" onSubmit={(event) => void submit(event)} autocomplete="off">
        <h1>{strings.app.name}</h1>
        <p class="muted">{text.intro}</p>
        <div class="field">
          <label for="key">{text.key}</label>
          <input ref={field} id="key" type="password" required autocomplete="off" spellcheck={false} placeholder="tk_…"
            aria-describedby="key-help" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
          <p class="help" id="key-help">{text.help} {text.storage}</p>
        </div>
        {error && <ErrorNote error={error} />}
        <div class="row">
          <button class="primary" disabled={busy || !key.trim()}>
            {busy && <span class="spinner" />} {busy ? text.checking : text.submit}
          </button>
          {onCancel && <button type="button" onClick={onCancel}>{strings.app.cancel}</button>}
        </div>
      </form>
    </main>
  );
}
