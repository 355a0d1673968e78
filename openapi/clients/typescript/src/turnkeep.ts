/** The client: `Turnkeep`, and its conversations. */

import { chat, type ChatOptions, type ChatResult, type ModelCall } from "./chat.js";
import { follow, type FollowOptions, type LiveEvent } from "./follow.js";
import type { AppendResult, Context, ContextRequest, ConversationCreate, Operations, Turn, TurnInput } from "./generated/api/index.js";
import { items } from "./paging.js";
import { DEFAULT_RETRIES, type RetryPolicy } from "./retries.js";
import { type StreamOptions, TurnWriter } from "./stream.js";
import { operationsOf, type Server } from "./transport.js";

export interface TurnkeepOptions {
  /** By default `TURNKEEP_URL`, else a server on this machine. */
  url?: string;
  /** An API key or a conversation token. By default `TURNKEEP_API_KEY`. */
  apiKey?: string;
  timeoutMs?: number;
  /** How long a stream tries to continue while the server does not answer. */
  reconnectTimeoutMs?: number;
  retries?: Partial<RetryPolicy>;
  fetch?: typeof fetch;
  /** Node 20 has none: pass that of the package `ws`, or streams use HTTP. */
  WebSocket?: typeof WebSocket;
}

const URL_HERE = "http://127.0.0.1:8765";

/** A server and a key. `api` has all operations; `conversation` returns one conversation. */
export class Turnkeep {
  readonly api: Operations;
  readonly #server: Server;

  constructor(options: TurnkeepOptions = {}) {
    const apiKey = options.apiKey ?? setting("TURNKEEP_API_KEY");
    if (!apiKey) throw new TypeError("There is no API key: pass `apiKey`, or set TURNKEEP_API_KEY.");
    this.#server = {
      url: checked((options.url ?? setting("TURNKEEP_URL") ?? URL_HERE).replace(/\/+$/, "")),
      apiKey,
      timeoutMs: options.timeoutMs ?? 30_000,
      reconnectTimeoutMs: options.reconnectTimeoutMs ?? 120_000,
      retries: { ...DEFAULT_RETRIES, ...options.retries },
      fetch: options.fetch ?? ((input, init) => globalThis.fetch(input, init)),
      WebSocket: options.WebSocket ?? globalThis.WebSocket,
    };
    this.api = operationsOf(this.#server);
  }

  /**
   * Create a conversation, or return the one that has this external id. Rejects with `conversation_owned` if it has
   * another owner, or other participants.
   */
  async conversation(externalId?: string, options: Omit<ConversationCreate, "external_id"> = {}): Promise<Conversation> {
    const body = externalId === undefined ? options : { ...options, external_id: externalId };
    return this.conversationById((await this.api.createConversation({ body })).id);
  }

  /** The conversation with this id; nothing is sent. */
  conversationById(id: string): Conversation {
    return new Conversation(this.#server, this.api, id);
  }
}

export interface AppendOptions {
  expectedSeq?: number;
  idempotencyKey?: string;
}

/** One conversation of a server. */
export class Conversation {
  readonly id: string;
  /** All operations. */
  readonly api: Operations;
  readonly #server: Server;

  constructor(server: Server, api: Operations, id: string) {
    this.id = id;
    this.#server = server;
    this.api = api;
  }

  /** Append turns, all or none. They are sent again after a failure, and nothing is stored twice. */
  async append(turns: TurnInput | TurnInput[], options: AppendOptions = {}): Promise<AppendResult> {
    const { expectedSeq, idempotencyKey } = options;
    return this.api.appendTurns({
      path: this.#path,
      body: { turns: [turns].flat(), ...(expectedSeq === undefined ? {} : { expected_seq: expectedSeq }) },
      headers: idempotencyKey === undefined ? {} : { "Idempotency-Key": idempotencyKey },
    });
  }

  /** Build the message list for a model call; `options` are the other fields of the request. */
  async context(tokenBudget: number, options: Omit<ContextRequest, "token_budget"> = {}): Promise<Context> {
    return this.api.buildContext({ path: this.#path, body: { ...options, token_budget: tokenBudget } });
  }

  /** Iterate over all live turns, oldest first; `limit` is the size of a page. */
  turns({ limit = 100 } = {}): AsyncGenerator<Turn, void> {
    return items((cursor) =>
      this.api.listTurns({ path: this.#path, query: { order: "asc", limit, ...(cursor === undefined ? {} : { cursor }) } }),
    );
  }

  /**
   * Build the context, call the model, and store message and answer in one append.
   *
   * If another writer appended in the meantime, the context is built and the model is called again, at most three times.
   * `modelCall` takes messages in the format of OpenAI, and returns a text, a message, or several.
   */
  chat(modelCall: ModelCall, message: string, options: ChatOptions = {}): Promise<ChatResult> {
    return chat(this.api, this.id, modelCall, message, options);
  }

  /** A writer of a turn whose text arrives in pieces. It continues after lost connections. */
  stream(options: StreamOptions = {}): TurnWriter {
    return new TurnWriter(this.#server, this.api, this.id, options);
  }

  /** Iterate over the events of the conversation, without an end. It continues after lost connections. */
  follow(options: FollowOptions = {}): AsyncGenerator<LiveEvent, void> {
    return follow(this.#server, this.id, options);
  }

  get #path(): { conversation_id: string } {
    return { conversation_id: this.id };
  }
}

/** A URL that can be one of a server. The error does not repeat it: it may be a key in the wrong place. */
function checked(url: string): string {
  if (!/^https?:\/\/[^/]/i.test(url))
    throw new TypeError(`The URL of the server must begin with http:// or https://, as in ${URL_HERE}.`);
  // the client adds the path; that of OpenAI's API ends in /v1, too
  if (/\/(v1|mcp)$/.test(url)) throw new TypeError(`Leave the path out of the URL of the server, as in ${URL_HERE}.`);
  return url;
}

/** A variable of the environment, where the runtime has one. */
function setting(name: string): string | undefined {
  const runtime = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return runtime.process?.env?.[name] || undefined;
}
