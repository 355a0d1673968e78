/** Follows a conversation by server-sent events, across lost connections and restarts of the server. */

import { errorOfFrame, errorOfResponse, TurnkeepError } from "./errors.js";
import type { FollowConversationResponse } from "./generated/api/index.js";
import { backoff, sleep } from "./retries.js";
import { connectionFailed, type Server } from "./transport.js";

export type LiveEvent = FollowConversationResponse;

export interface FollowOptions {
  afterRev?: number;
  afterSeq?: number;
  /** Ends the iteration, also while it waits for an event. */
  signal?: AbortSignal;
}

/** Longer than the pauses between the comments that keep an event stream alive. */
const SILENCE_MS = 60_000;

/** Yield the events of a conversation. Each connection continues after the last event that had an id. */
export async function* follow(
  server: Server, conversationId: string, options: FollowOptions,
): AsyncGenerator<LiveEvent, void> {
  let query = new URLSearchParams();
  if (options.afterRev !== undefined) query.set("after_rev", String(options.afterRev));
  if (options.afterSeq !== undefined) query.set("after_seq", String(options.afterSeq));
  let lastId: string | null = null;
  let lostAt: number | null = Date.now();
  for (let attempt = 0; ; attempt += 1) {
    try {
      const onAlive = (): void => {
        lostAt = null;
      };
      for await (const { id, event } of connection(server, conversationId, query, lastId, onAlive, options.signal)) {
        attempt = 0;
        lastId = id ?? lastId;
        if (event.type === "error") throw errorOfFrame(event);
        if (event.type === "reread") {
          query = new URLSearchParams({ after_rev: String(event.after_rev) });
          lastId = null;
          break;
        }
        yield event;
      }
    } catch (error) {
      if (options.signal?.aborted === true) return;
      if (!(error instanceof TurnkeepError)) throw error;
      lostAt ??= Date.now();
      if (!error.isRetryable || Date.now() - lostAt > server.reconnectTimeoutMs) throw error;
      await sleep(Math.max(backoff(server.retries, attempt), error.retryAfterMs ?? 0));
    }
  }
}

/** The events of one connection with their ids; a retryable error ends it. `onAlive` is called for all that arrives. */
async function* connection(
  server: Server, conversationId: string, query: URLSearchParams, lastId: string | null, onAlive: () => void,
  signal: AbortSignal | undefined,
): AsyncGenerator<{ id: string | null; event: LiveEvent }, void> {
  const headers = new Headers({ Accept: "text/event-stream", Authorization: `Bearer ${server.apiKey}` });
  if (lastId !== null) headers.set("Last-Event-ID", lastId);
  const stop = new AbortController();
  const end = (): void => stop.abort();
  signal?.addEventListener("abort", end);
  if (signal?.aborted === true) end();
  let timer = setTimeout(end, server.timeoutMs);
  const path = `${server.url}/v1/conversations/${encodeURIComponent(conversationId)}/events?${query}`;
  try {
    const response = await server.fetch(path, { headers, signal: stop.signal });
    if (!response.ok || response.body === null)
      throw errorOfResponse(response.status, response.headers, await response.text());
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let [rest, id, data]: [string, string | null, string] = ["", null, ""];
    for (;;) {
      clearTimeout(timer);
      timer = setTimeout(end, SILENCE_MS);
      const { done, value } = await reader.read();
      if (done) throw new Error("the event stream ended");
      onAlive();
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        const [, name, text] = /^([^:\r]*)(?:: ?(.*?))?\r?$/s.exec(line) ?? [];
        if (name === "id") id = text ?? "";
        else if (name === "data") data += text ?? "";
        else if (name === "" && text === undefined && data !== "") {
          yield { id, event: JSON.parse(data) as LiveEvent };
          [id, data] = [null, ""];
        }
      }
    }
  } catch (failure) {
    throw failure instanceof TurnkeepError ? failure : connectionFailed(server, failure);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
    end(); // also if the caller stops reading
  }
}
