/**
 * The two ways to write an open turn: frames of a WebSocket, and calls over HTTP.
 *
 * A channel belongs to one connection. `LostError` means that another connection can continue from the durable text.
 */

import { errorOfClose, errorOfFrame, TurnkeepError } from "./errors.js";
import type { Ending, Operations, Opening, Turn } from "./generated/api/index.js";
import type { Server } from "./transport.js";

/** The connection was lost, or the server wants the text again from the durable offset. */
export class LostError extends Error {}

/** Takes the part and its durable offset. */
export type OnAck = (part: string, durable: number) => void;
export type Offsets = Map<string, number>;

/** One connection that writes a turn. */
export interface Channel {
  open(opening: Opening): Promise<Offsets>;
  resume(turnId: string, writer: string): Promise<Offsets>;
  send(turnId: string, part: string, offset: number, delta: string): Promise<void>;
  commit(turnId: string, ending: Ending): Promise<Turn>;
  abort(turnId: string, reason: string): Promise<void>;
  /** Renew the lease of the turn. */
  ping(turnId: string, offset: number): Promise<void>;
  /** Throw the error of the connection if it has failed. */
  check(): void;
  close(): void;
}

const RESUMABLE = new Set(["stream_gap", "stream_fenced", "length_mismatch"]);

function classify(error: unknown): unknown {
  if (!(error instanceof TurnkeepError)) return error;
  return error.isRetryable || RESUMABLE.has(error.code) ? new LostError(error.message, { cause: error }) : error;
}

type Opened = { durable_offset?: number | null; parts?: { part: string; durable_offset: number }[] | null };

function offsetsOf(opened: Opened): Offsets {
  const found: Offsets = new Map(opened.durable_offset == null ? [] : [["content", opened.durable_offset]]);
  for (const { part, durable_offset } of opened.parts ?? []) found.set(part, durable_offset);
  return found;
}

/** Writes by calls of the API; each is answered before the next is sent. */
export class HttpChannel implements Channel {
  readonly #api: Operations;
  readonly #conversationId: string;
  readonly #onAck: OnAck;

  constructor(api: Operations, conversationId: string, onAck: OnAck) {
    this.#api = api;
    this.#conversationId = conversationId;
    this.#onAck = onAck;
  }

  async open(opening: Opening): Promise<Offsets> {
    return offsetsOf(await this.#call(this.#api.openTurn({ path: this.#path(), body: opening })));
  }

  async resume(turnId: string, writer: string): Promise<Offsets> {
    return offsetsOf(await this.#call(this.#api.resumeTurn({ path: this.#path(turnId), body: { writer } })));
  }

  async send(turnId: string, part: string, offset: number, delta: string): Promise<void> {
    const taken = await this.#call(this.#api.appendChunk({ path: this.#path(turnId), body: { part, offset, delta } }));
    this.#onAck(part, taken.durable_offset);
  }

  async commit(turnId: string, ending: Ending): Promise<Turn> {
    return this.#call(this.#api.commitTurn({ path: this.#path(turnId), body: ending }));
  }

  async abort(turnId: string, reason: string): Promise<void> {
    await this.#call(this.#api.abortTurn({ path: this.#path(turnId), body: { reason } }));
  }

  async ping(turnId: string, offset: number): Promise<void> {
    await this.send(turnId, "content", offset, "");
  }

  check(): void {
    // nothing fails between two calls
  }

  close(): void {
    // nothing is open between two calls
  }

  #path(turnId = ""): { conversation_id: string; turn_id: string } {
    return { conversation_id: this.#conversationId, turn_id: turnId };
  }

  async #call<Result>(sent: Promise<Result>): Promise<Result> {
    try {
      return await sent;
    } catch (error) {
      throw classify(error);
    }
  }
}

type Frame = { type: string; id?: string | null; turn?: Turn; part?: string | null } & Opened;

/** Writes by frames: chunks are sent without waiting for their acks. */
export class WebSocketChannel implements Channel {
  readonly #socket: WebSocket;
  readonly #onAck: OnAck;
  readonly #wake: () => void;
  readonly #waiting = new Map<string, { resolve: (frame: Frame) => void; reject: (error: unknown) => void }>();
  #failure: unknown = null;
  #frames = 0;

  private constructor(socket: WebSocket, onAck: OnAck, wake: () => void) {
    this.#socket = socket;
    this.#onAck = onAck;
    this.#wake = wake;
    socket.onmessage = ({ data }) => this.#take(JSON.parse(String(data)) as Frame);
    socket.onerror = () => this.#fail(new LostError("the connection was lost"));
    socket.onclose = ({ code, reason }) => this.#fail(errorOfClose(code, reason) ?? new LostError(`closed with ${code}`));
  }

  /** Connect. Rejects with LostError; a browser does not say why a connection failed. */
  static connect(server: Server, conversationId: string, onAck: OnAck, wake: () => void): Promise<WebSocketChannel> {
    const Socket = server.WebSocket;
    if (Socket === undefined) throw new TypeError("There is no WebSocket.");
    const url = `${server.url.replace(/^http/, "ws")}/v1/conversations/${encodeURIComponent(conversationId)}/live`;
    // a browser cannot set headers, so the key is in a subprotocol
    const socket = new Socket(url, ["turnkeep.v1", `bearer.${server.apiKey}`]);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        socket.close();
        reject(new LostError("the server does not accept a connection in time"));
      }, server.timeoutMs);
      socket.onopen = () => {
        clearTimeout(timer);
        resolve(new WebSocketChannel(socket, onAck, wake));
      };
      const refuse = (error: unknown): void => {
        clearTimeout(timer);
        reject(error);
      };
      socket.onerror = () => refuse(new LostError("the server cannot be reached")); // some runtimes send no `close`
      socket.onclose = ({ code, reason }) => refuse(errorOfClose(code, reason) ?? new LostError(`closed with ${code}`));
    });
  }

  async open(opening: Opening): Promise<Offsets> {
    return offsetsOf(await this.#ask({ type: "open", ...opening }));
  }

  async resume(turnId: string, writer: string): Promise<Offsets> {
    return offsetsOf(await this.#ask({ type: "resume", turn_id: turnId, writer }));
  }

  async send(turnId: string, part: string, offset: number, delta: string): Promise<void> {
    this.#send({ type: "chunk", turn_id: turnId, part, offset, delta });
  }

  async commit(turnId: string, ending: Ending): Promise<Turn> {
    const { turn } = await this.#ask({ type: "commit", turn_id: turnId, ...ending });
    if (turn === undefined) throw new LostError("the answer to the commit has no turn");
    return turn;
  }

  async abort(turnId: string, reason: string): Promise<void> {
    await this.#ask({ type: "abort", turn_id: turnId, reason });
  }

  async ping(turnId: string, offset: number): Promise<void> {
    await this.send(turnId, "content", offset, ""); // unlike `ping`, it is refused if the turn has been ended
  }

  check(): void {
    if (this.#failure !== null) throw this.#failure;
  }

  close(): void {
    this.#socket.onclose = this.#socket.onmessage = null;
    this.#socket.onerror = () => undefined; // the package `ws` throws an error that has no handler
    this.#socket.close();
  }

  #ask(frame: object): Promise<Frame> {
    const id = String((this.#frames += 1));
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      try {
        this.#send({ ...frame, id });
      } catch (error) {
        this.#waiting.delete(id);
        reject(error);
      }
    });
  }

  #send(frame: object): void {
    this.check();
    if (this.#socket.readyState !== 1) throw new LostError("the connection was lost");
    this.#socket.send(JSON.stringify(frame));
  }

  #take(frame: Frame): void {
    const id = frame.id ?? "";
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (frame.type === "ack") {
      if (waiting) waiting.resolve(frame);
      else if (frame.durable_offset != null) this.#onAck(frame.part ?? "content", frame.durable_offset);
    } else if (frame.type === "error") {
      const error = classify(errorOfFrame(frame));
      if (waiting) waiting.reject(error);
      else this.#fail(error);
    }
  }

  #fail(failure: unknown): void {
    this.#failure ??= failure;
    for (const { reject } of this.#waiting.values()) reject(failure);
    this.#waiting.clear();
    this.#wake();
  }
}
