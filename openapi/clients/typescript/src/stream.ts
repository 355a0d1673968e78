/**
 * Writes a turn while its text arrives: batches chunks, renews the lease, and continues after a lost connection.
 *
 * Invariant: text stays in memory until the server says that it is durable, so no restart of the server loses any.
 */

import { type Channel, HttpChannel, LostError, WebSocketChannel } from "./channels.js";
import { ConnectionFailedError, TurnkeepError } from "./errors.js";
import type { Ending, Opening, Operations, OpenTurn, Turn } from "./generated/api/index.js";
import { backoff, sleep } from "./retries.js";
import type { Server } from "./transport.js";

export interface StreamOptions {
  /** The id of the turn, so that of several writers one opens it; by default a new one. */
  id?: string;
  role?: OpenTurn["role"];
  actor?: string;
  model?: string;
  supersedes?: string;
  /** `opened`: the turn stands before all turns that are stored after its opening. By default it stands where it is committed. */
  position?: Opening["position"];
  metadata?: OpenTurn["metadata"];
  /** The pause after which a writer without text renews the lease, and learns whether the turn has been ended. */
  pingMs?: number;
  /** `auto`: a WebSocket, and HTTP if there is none. */
  transport?: "auto" | "websocket" | "http";
}

const BATCH_MS = 30;
/** Code points of a chunk: in UTF-8 never more than the 64 KiB that the server accepts. */
const PIECE = 16_000;
/** A quarter of the lease of an open turn. */
const PING_MS = 15_000;
/** Code points that `write` takes before it waits for the connection. */
const MAX_UNSENT = 256_000;
const MAX_FAILED_SOCKETS = 2;

/** The text of a part in code points: `tail` from `base` on is not known to be durable; it is sent up to `sent`. */
class Part {
  base = 0;
  sent = 0;
  tail: string[] = [];
  #half = "";

  get end(): number {
    return this.base + this.tail.length;
  }

  /** Add text. Half of a surrogate pair at its end waits for the other half. */
  add(delta: string): void {
    const text = this.#half + delta;
    this.#half = /[\ud800-\udbff]$/.exec(text)?.[0] ?? "";
    for (const point of text.slice(0, text.length - this.#half.length)) this.tail.push(point);
  }

  dropDurable(durable: number): void {
    if (durable <= this.base || durable > this.end) return;
    this.tail = this.tail.slice(durable - this.base);
    this.base = durable;
  }
}

/** An open turn: `write` its text, then `commit` or `abort`; or `writeAll` of an iterable. */
export class TurnWriter {
  readonly turnId: string;
  /** Aborts, with the error as its reason, when the turn cannot be written any more: another process has ended it. */
  readonly lost: AbortSignal;
  /** How often the turn was continued over another connection. */
  reconnections = 0;
  /** The committed turn. */
  turn: Turn | null = null;

  readonly #server: Server;
  readonly #api: Operations;
  readonly #conversationId: string;
  readonly #opening: Opening;
  readonly #writer = crypto.randomUUID();
  readonly #parts = new Map([["content", new Part()]]);
  readonly #waiters = new Set<() => void>();
  readonly #losing = new AbortController();
  readonly #opened: Promise<void>;
  readonly #pingMs: number;
  #isOpened: () => void = () => undefined;
  #transport: "auto" | "websocket" | "http";
  #ending: { commit: Ending } | { abort: string } | null = null;
  #running: Promise<void> | null = null;
  #failure: { error: unknown } | null = null;
  #isResuming = false;
  #isAwake = false;
  #failedSockets = 0;
  #attempt = 0;
  /** When the connection was lost; null while there is one. */
  #lostAt: number | null = null;

  constructor(server: Server, api: Operations, conversationId: string, options: StreamOptions) {
    const { id = crypto.randomUUID(), role = "assistant", transport = "auto", pingMs = PING_MS, position, ...others } = options;
    this.turnId = id;
    this.lost = this.#losing.signal;
    this.#opened = new Promise((resolve) => (this.#isOpened = resolve));
    this.#pingMs = pingMs;
    this.#server = server;
    this.#api = api;
    this.#conversationId = conversationId;
    this.#opening = {
      turn: { ...others, role, id: this.turnId },
      writer: this.#writer,
      ...(position === undefined ? {} : { position }),
    };
    this.#transport = transport === "auto" && server.WebSocket === undefined ? "http" : transport;
  }

  /** Write all texts of an iterable, then commit. If it throws, the turn is aborted. */
  async writeAll(texts: AsyncIterable<string> | Iterable<string>): Promise<Turn> {
    try {
      for await (const text of texts) await this.write(text);
    } catch (error) {
      await this.abort("the writer failed").catch(() => undefined); // what was thrown is raised
      throw error;
    }
    return this.commit();
  }

  /** Open the turn before its first text. Rejects with `turn_id_conflict` if another writer has opened it. */
  async open(): Promise<void> {
    this.#start();
    await Promise.race([this.#opened, this.#running]);
    if (this.#failure !== null) throw this.#failure.error;
  }

  /** Add text. Resolves when it is taken into memory; waits if the connection is much slower than the writer. */
  async write(delta: string, part = "content"): Promise<void> {
    if (this.#ending !== null) throw new TypeError("The turn has ended: text can be written before commit or abort.");
    this.#start();
    let written = this.#parts.get(part);
    if (written === undefined) this.#parts.set(part, (written = new Part()));
    written.add(delta);
    this.#wake();
    while (this.#unsent() > MAX_UNSENT && this.#failure === null) await sleep(BATCH_MS);
    if (this.#failure !== null) throw this.#failure.error;
  }

  /** Commit the turn, and return it. */
  async commit(ending: Omit<Ending, "length"> = {}): Promise<Turn> {
    await this.#end({ commit: { ...ending, length: this.#parts.get("content")?.end ?? 0 } });
    if (this.turn === null) throw new TypeError("The turn was aborted.");
    return this.turn;
  }

  /** Abort the turn: its text is in no context. */
  async abort(reason = ""): Promise<void> {
    await this.#end({ abort: reason });
  }

  async #end(ending: { commit: Ending } | { abort: string }): Promise<void> {
    this.#ending ??= ending;
    this.#start();
    this.#wake();
    await this.#running;
    if (this.#failure !== null) throw this.#failure.error;
  }

  #start(): void {
    this.#running ??= this.#run().catch((error: unknown) => {
      this.#failure = { error };
      this.#losing.abort(error);
    });
  }

  #unsent(): number {
    return [...this.#parts.values()].reduce((sum, part) => sum + part.end - part.sent, 0);
  }

  #wake(): void {
    this.#isAwake = true;
    for (const waiter of this.#waiters) waiter();
  }

  /** Wait until there is something to do. False after the pause for a ping. */
  #woken(): Promise<boolean> {
    if (this.#isAwake) return Promise.resolve(true);
    return new Promise((resolve) => {
      const finish = (isAwake: boolean): void => {
        clearTimeout(timer);
        this.#waiters.delete(waiter);
        resolve(isAwake);
      };
      const waiter = (): void => finish(true);
      const timer = setTimeout(() => finish(false), this.#pingMs);
      this.#waiters.add(waiter);
    });
  }

  async #run(): Promise<void> {
    for (;;) {
      try {
        return await this.#writeOverOneConnection();
      } catch (error) {
        if (!(error instanceof LostError)) throw error;
        await this.#pause(error);
      }
    }
  }

  async #pause(lost: LostError): Promise<void> {
    const limit = this.#server.reconnectTimeoutMs;
    this.#lostAt ??= Date.now();
    if (Date.now() - this.#lostAt > limit)
      throw new ConnectionFailedError(`The turn could not be continued for ${limit / 1000} s: ${lost.message}.`, lost);
    this.reconnections += 1;
    await sleep(backoff(this.#server.retries, this.#attempt));
    this.#attempt += 1;
  }

  async #writeOverOneConnection(): Promise<void> {
    const channel = await this.#connect();
    try {
      if (await this.#attach(channel)) await this.#pump(channel);
    } finally {
      channel.close();
    }
  }

  async #connect(): Promise<Channel> {
    const onAck = (part: string, durable: number): void => {
      this.#parts.get(part)?.dropDurable(durable);
      this.#lostAt = null;
      this.#attempt = 0;
    };
    if (this.#transport === "http") return new HttpChannel(this.#api, this.#conversationId, onAck);
    try {
      const channel = await WebSocketChannel.connect(this.#server, this.#conversationId, onAck, () => this.#wake());
      this.#failedSockets = -Infinity; // WebSockets work here
      return channel;
    } catch (error) {
      this.#failedSockets += 1;
      if (error instanceof LostError && this.#transport === "auto" && this.#failedSockets >= MAX_FAILED_SOCKETS)
        if (await this.#isServerReachable()) this.#transport = "http"; // a proxy that lets no WebSocket through
      throw error;
    }
  }

  async #isServerReachable(): Promise<boolean> {
    return this.#server.fetch(`${this.#server.url}/healthz`).then((response) => response.ok, () => false);
  }

  /** Open or continue the turn on a connection. False if an earlier commit or abort was executed. */
  async #attach(channel: Channel): Promise<boolean> {
    let offsets: Map<string, number>;
    try {
      // the id is chosen here, so an `open` whose answer was lost opens no second turn
      offsets = await (this.#isResuming
        ? channel.resume(this.turnId, this.#writer)
        : channel.open(this.#opening));
    } catch (error) {
      if (error instanceof TurnkeepError && this.#ending !== null) return this.#ended(error, this.#ending);
      throw error;
    }
    this.#isResuming = true;
    for (const [name, part] of this.#parts) {
      part.dropDurable(offsets.get(name) ?? 0);
      part.sent = Math.max(part.base, offsets.get(name) ?? 0);
    }
    this.#lostAt = null;
    this.#isOpened();
    return true;
  }

  /** The answer to the commit or the abort was lost: look the turn up. */
  async #ended(error: TurnkeepError, ending: { commit: Ending } | { abort: string }): Promise<false> {
    if (error.code !== ("commit" in ending ? "turn_committed" : "turn_aborted")) throw error;
    if ("commit" in ending)
      this.turn = await this.#api.getTurn({ path: { conversation_id: this.#conversationId, turn_id: this.turnId } });
    return false;
  }

  async #pump(channel: Channel): Promise<void> {
    for (;;) {
      this.#isAwake = false;
      channel.check();
      await this.#sendUnsent(channel);
      if (this.#ending !== null && this.#unsent() === 0) {
        if ("commit" in this.#ending) this.turn = await channel.commit(this.turnId, this.#ending.commit);
        else await channel.abort(this.turnId, this.#ending.abort);
        return;
      }
      if (!(await this.#woken())) await channel.ping(this.turnId, this.#parts.get("content")?.sent ?? 0);
      if (this.#ending === null) await sleep(BATCH_MS); // collects a batch
    }
  }

  async #sendUnsent(channel: Channel): Promise<void> {
    for (const [name, part] of this.#parts)
      while (part.sent < part.end) {
        const start = part.sent - part.base;
        const piece = part.tail.slice(start, start + PIECE);
        await channel.send(this.turnId, name, part.sent, piece.join(""));
        part.sent += piece.length;
      }
  }
}
