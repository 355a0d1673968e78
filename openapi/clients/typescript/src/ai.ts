/**
 * For the AI SDK (`npm install ai`): the server side of `useChat`, with its messages and running answers in Turnkeep.
 *
 * An answer is stored as streamed turns while the model writes it: one turn for each step, and one for each tool result.
 * Invariant: the model is read to its end whether or not the page listens, and a page hears `finish` only after the
 * answer is stored. So a page that comes back, at any process, either continues the answer or finds it in the history.
 */

import { createUIMessageStreamResponse, type ModelMessage, type TextStreamPart, toUIMessageStream, type UIMessage } from "ai";
import { answerChunks, type Chunk, openingOf } from "./ai_resume.js";
import { type Call, contentOf, outputOf, promptOf, textOfOutput, type ToolOutput } from "./ai_messages.js";
import type { ContextRequest, Turn, TurnInput } from "./generated/api/index.js";
import { items } from "./paging.js";
import type { TurnWriter } from "./stream.js";
import type { Conversation } from "./turnkeep.js";

export { history } from "./ai_messages.js";

const MAX_ERASED = 100;

/** What `streamText` takes: spread it into its options. */
export interface Prompt {
  instructions?: string;
  messages: ModelMessage[];
}

/** The result of `streamText`, with any tools. */
export type ModelStream = { stream: ReadableStream<TextStreamPart<any>> };

export interface ReplyOptions {
  /** The actor of the message, and that of the answer. */
  actor?: string;
  assistant?: string;
  system?: string;
  tokenBudget?: number;
  /** Other fields of the context; they go over what this function asks for. */
  context?: Partial<ContextRequest>;
  /** `useChat().regenerate()`: erase the answer to the message, and everything after it, then answer again. */
  regenerate?: boolean;
  /** Keeps a serverless function alive until the answer is stored: `waitUntil` or `after` of the platform. */
  waitUntil?: (stored: Promise<void>) => void;
}

/**
 * Store the message of a page, build the context, and stream the model's answer: the `POST` of a chat route.
 *
 * A message that is sent again, with the same id, is stored once. If it was answered already, or is being answered, this
 * is the answer, and the model is not called. (Two requests at the same moment may both call it.) Throws a TypeError for
 * a message that is not the user's.
 */
export async function reply(
  chat: Conversation, message: UIMessage, callModel: (prompt: Prompt) => ModelStream | Promise<ModelStream>,
  options: ReplyOptions = {},
): Promise<Response> {
  const said = await store(chat, message, options.actor);
  const { later, running } = await openingOf(chat, said.seq ?? 0);
  if (options.regenerate === true) await erase(chat, later);
  else if (running.length > 0 || later.some(({ role }) => role === "assistant")) return responseOf(answerChunks(chat, said.seq ?? 0));
  const context = await chat.context(options.tokenBudget ?? 8_000, {
    semantic_recall: { k: 5 },
    ...(options.system === undefined ? {} : { system: options.system }),
    ...options.context,
    format: "anthropic", // the one format whose authors' names are in the text, as these messages need
  });
  const { stream } = await callModel(promptOf(context));
  const answer = new AnswerWriter(chat, options.assistant);
  const chunks = toUIMessageStream({ stream, generateMessageId: () => answer.id, originalMessages: [message] });
  const [heard, stored] = pump(chunks as ReadableStream<Chunk>, answer);
  options.waitUntil?.(stored);
  return createUIMessageStreamResponse({ stream: heard });
}

/**
 * Continue the answer that is being written, from its beginning: the `GET` of a chat route, for `useChat({ resume: true })`.
 *
 * 204 if there is none.
 */
export async function resume(chat: Conversation): Promise<Response> {
  const seq = await lastQuestion(chat);
  const { running } = await openingOf(chat, seq);
  return running.length === 0 ? new Response(null, { status: 204 }) : responseOf(answerChunks(chat, seq));
}

function responseOf(chunks: ReadableStream<Chunk>): Response {
  return createUIMessageStreamResponse({ stream: chunks });
}

async function store(chat: Conversation, message: UIMessage, actor: string | undefined): Promise<Turn> {
  if (message.role !== "user") throw new TypeError("Pass the newest message of the user: `messages.at(-1)`.");
  const turn: TurnInput = { role: "user", content: contentOf(message), ...(actor === undefined ? {} : { actor }) };
  const stored = await chat.append(turn, { idempotencyKey: await keyOf(chat.id, message.id) });
  return stored.turns[0] as Turn; // of one turn there is one
}

/** The idempotency key of a message: a hash, because pages choose ids as they like. */
async function keyOf(...names: string[]): Promise<string> {
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(JSON.stringify(names)));
  return `ai-sdk-${Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

async function erase(chat: Conversation, turns: Turn[]): Promise<void> {
  const ids = turns.map(({ id }) => id);
  for (let start = 0; start < ids.length; start += MAX_ERASED)
    await chat.api.eraseTurns({ path: { conversation_id: chat.id }, query: { ids: ids.slice(start, start + MAX_ERASED) } });
}

/** The seq of the newest turn of a user; 0 without one. */
async function lastQuestion(chat: Conversation): Promise<number> {
  const path = { conversation_id: chat.id };
  const newest = items((cursor) => chat.api.listTurns({ path, query: { order: "desc", limit: 20, ...(cursor === undefined ? {} : { cursor }) } }));
  for await (const turn of newest) if (turn.role === "user" && turn.erased_at === null) return turn.seq ?? 0;
  return 0;
}

/** Writes an answer from the chunks that a page receives, too. */
class AnswerWriter {
  /** The id of the answer as a message: that of its first turn. */
  readonly id: string;
  readonly #chat: Conversation;
  readonly #assistant: string | undefined;
  #turn: TurnWriter;
  #isOpen = false;
  #isEmpty = true;
  #calls: Call[] = [];
  #outputs: ToolOutput[] = [];

  constructor(chat: Conversation, assistant: string | undefined) {
    this.#chat = chat;
    this.#assistant = assistant;
    this.#turn = this.#newTurn();
    this.id = asUlid(this.#turn.turnId);
  }

  async take(chunk: Chunk): Promise<void> {
    switch (chunk.type) {
      case "start-step":
        return this.#write("");
      case "text-delta":
        return this.#write(chunk.delta);
      case "tool-input-available":
        await this.#write("");
        this.#calls.push({ id: chunk.toolCallId, name: chunk.toolName, arguments: JSON.stringify(chunk.input ?? {}) });
        return;
      case "tool-output-available":
      case "tool-output-error":
      case "tool-output-denied": {
        const output = outputOf(chunk);
        if (output !== null) this.#outputs.push(output);
        return;
      }
      case "reset-step":
        return this.abort("the model is asked again");
      case "finish-step":
      case "finish":
      case "abort": // the user stopped it: what was written stays
        return this.#store();
      case "error":
        return this.abort("the model failed");
    }
  }

  /** Give up the turn that is open, if any. */
  async abort(reason: string): Promise<void> {
    if (this.#isOpen) await this.#turn.abort(reason).finally(() => this.#next());
  }

  async #write(text: string): Promise<void> {
    this.#isOpen = true;
    this.#isEmpty &&= text === "";
    await this.#turn.write(text);
  }

  async #store(): Promise<void> {
    if (!this.#isOpen) return;
    if (this.#isEmpty && this.#calls.length === 0) return this.abort("the model wrote nothing");
    const [turn, outputs] = [this.#turn, this.#outputs];
    await turn.commit({ tool_calls: this.#calls });
    this.#next();
    const results = outputs.map((output): TurnInput => ({
      role: "tool", tool_call_id: output.id, content: textOfOutput(output), metadata: { ai_sdk_output: output.kind },
    }));
    if (results.length > 0) await this.#chat.append(results, { idempotencyKey: await keyOf(this.#chat.id, turn.turnId) });
  }

  #next(): void {
    this.#turn = this.#newTurn();
    [this.#isOpen, this.#isEmpty, this.#calls, this.#outputs] = [false, true, [], []];
  }

  #newTurn(): TurnWriter {
    return this.#chat.stream(this.#assistant === undefined ? {} : { actor: this.#assistant });
  }
}

/** A UUID in the form that the server writes ids in. */
function asUlid(uuid: string): string {
  let [rest, text] = [BigInt(`0x${uuid.replaceAll("-", "")}`), ""];
  for (let digit = 0; digit < 26; digit += 1, rest >>= 5n) text = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[Number(rest & 31n)] + text;
  return text;
}

/** Read an answer to its end and write it; return what the page receives, and when all is stored. */
function pump(chunks: ReadableStream<Chunk>, answer: AnswerWriter): [ReadableStream<Chunk>, Promise<void>] {
  let page: ReadableStreamDefaultController<Chunk> | null = null;
  const heard = new ReadableStream<Chunk>({
    start: (controller) => void (page = controller),
    cancel: () => void (page = null), // the page is gone; the answer goes on
  });
  const run = async (): Promise<void> => {
    const reader = chunks.getReader();
    try {
      for (let read = await reader.read(); !read.done; read = await reader.read()) {
        await answer.take(read.value);
        page?.enqueue(read.value);
      }
    } catch (error) {
      await answer.abort("the writer failed").catch(() => undefined);
      page?.enqueue({ type: "error", errorText: "The answer could not be stored." });
      throw error;
    } finally {
      page?.close();
    }
  };
  const stored = run();
  stored.catch(() => undefined); // for who passes no `waitUntil`
  return [heard, stored];
}
