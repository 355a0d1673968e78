/** Sends requests by fetch: with an Idempotency-Key for each logical request, and retries where they are safe. */

import { ConnectionFailedError, errorOfResponse, TurnkeepError } from "./errors.js";
import { createClient } from "./generated/api/client/index.js";
import { Operations } from "./generated/api/index.js";
import { REPEATS } from "./generated/repeats.js";
import { type Repeat, type RetryPolicy, sleep, waitBefore } from "./retries.js";

/** The server and how it is asked. */
export interface Server {
  url: string;
  apiKey: string;
  timeoutMs: number;
  reconnectTimeoutMs: number;
  retries: RetryPolicy;
  fetch: typeof fetch;
  WebSocket: typeof WebSocket | undefined;
}

const NOT_CONNECTED = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);
const REPEAT_HEADER = "x-turnkeep-repeat";

/** All operations of the API, as they are sent by this transport. */
export function operationsOf(server: Server): Operations {
  const client = createClient({
    baseUrl: server.url,
    auth: server.apiKey,
    throwOnError: true,
    fetch: (input, init) => send(server, new Request(input, init)),
  });
  client.interceptors.request.use((request, options) => {
    const repeat: Repeat = REPEATS[`${request.method} ${options.url}`] ?? "unsent";
    // one key for all attempts, so that the server executes the request once
    if (repeat === "key" && !request.headers.has("Idempotency-Key"))
      request.headers.set("Idempotency-Key", crypto.randomUUID());
    request.headers.set(REPEAT_HEADER, repeat); // taken off before the request is sent
    return request;
  });
  return new Operations({ client });
}

async function send(server: Server, request: Request): Promise<Response> {
  const headers = new Headers(request.headers);
  const repeat = (headers.get(REPEAT_HEADER) ?? "unsent") as Repeat;
  headers.delete(REPEAT_HEADER);
  const body = request.body === null ? null : await request.arrayBuffer();
  for (let attempt = 0; ; attempt += 1) {
    let isSent = true;
    let error: TurnkeepError;
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(new DOMException("no answer in time", "TimeoutError")), server.timeoutMs);
    try {
      const signal = AbortSignal.any([request.signal, late.signal]);
      const response = await server.fetch(request.url, { method: request.method, headers, body, signal });
      // events arrive for as long as the caller reads them
      if (response.ok && response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
      const content = await response.arrayBuffer(); // here, so that a connection lost now is tried again
      if (response.ok)
        return new Response(content.byteLength ? content : null, { status: response.status, headers: response.headers });
      error = errorOfResponse(response.status, response.headers, new TextDecoder().decode(content));
    } catch (failure) {
      if (request.signal.aborted) throw failure;
      isSent = isConnected(failure);
      error = connectionFailed(server, failure);
    } finally {
      clearTimeout(timer);
    }
    const wait = waitBefore(server.retries, attempt, error, repeat, isSent);
    if (wait === null) throw error;
    await sleep(wait);
  }
}

/** The error of a server that did not answer. */
export function connectionFailed(server: Server, failure: unknown): ConnectionFailedError {
  const name = failure instanceof Error ? failure.name : "unknown";
  return new ConnectionFailedError(
    `${server.url} did not answer (${name}). Check the URL and that the server runs (\`turnkeep serve\`).`, failure,
  );
}

function isConnected(failure: unknown): boolean {
  const cause = failure instanceof Error ? failure.cause : undefined;
  const code = typeof cause === "object" && cause !== null && "code" in cause ? cause.code : undefined;
  return !(typeof code === "string" && NOT_CONNECTED.has(code));
}
