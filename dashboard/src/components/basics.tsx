// Small pieces that all pages use.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { asApiError, type ApiError } from "../api/problem";
import { createStore, useStore } from "../lib/store";
import { strings } from "../strings";

export function ErrorNote({ error, onRetry }: { error: ApiError; onRetry?: () => void }) {
  return (
    <div class="notice error stack" role="alert">
      <p>
        <strong>{error.message}</strong> {error.remedy}
      </p>
      {error.fields.length > 0 && (
        <ul>
          {error.fields.map(({ pointer, detail }) => (
            <li key={pointer}>
              <code>{pointer}</code> {detail}
            </li>
          ))}
        </ul>
      )}
      <p class="row small">
        {error.requestId && (
          <span>
            {strings.errors.requestId} <code>{error.requestId}</code>
          </span>
        )}
        {error.status > 0 && (
          <a href={`/docs/errors#${encodeURIComponent(error.code)}`} target="_blank">
            {strings.errors.help}
          </a>
        )}
        {onRetry && <button onClick={onRetry}>{strings.app.retry}</button>}
      </p>
    </div>
  );
}

export function Loading({ label = strings.app.loading }: { label?: string }) {
  return (
    <p class="row muted" role="status">
      <span class="spinner" /> {label}
    </p>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

export function CopyButton({ text, label = strings.app.copy }: { text: () => string; label?: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text());
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return <button onClick={() => void copy()}>{copied ? strings.app.copied : label}</button>;
}

interface Message {
  id: number;
  text: string;
  undo: (() => Promise<void>) | undefined;
}

const messages = createStore<Message[]>([]);
let nextMessage = 0;
const remove = (id: number) => messages.set(messages.get().filter((message) => message.id !== id));

/** Show a short message for some seconds, with a button that undoes what it reports. */
export function notify(text: string, undo?: () => Promise<void>): void {
  const id = ++nextMessage;
  messages.set([...messages.get(), { id, text, undo }]);
  setTimeout(remove, undo ? 12_000 : 5000, id);
}

/** Show an error that belongs to no place of the page. */
export function notifyError(caught: unknown): void {
  const { message, remedy, requestId } = asApiError(caught);
  notify(strings.errors.line(message, remedy, requestId));
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {useStore(messages).map(({ id, text, undo }) => (
        <div class="toast" key={id}>
          {text}
          {undo && (
            <button class="quiet" onClick={() => (remove(id), void undo().catch(notifyError))}>{strings.app.undo}</button>
          )}
        </div>
      ))}
    </div>
  );
}
