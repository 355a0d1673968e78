/** An answer that is being written, as the chunks that `useChat` reads: made of the events of the conversation. */

import type { UIMessageChunk } from "ai";
import { callsOf, outputOfTurn, parsed, textOfTurn } from "./ai_messages.js";
import type { LiveEvent } from "./follow.js";
import type { PendingTurn, Turn } from "./generated/api/index.js";
import type { Conversation } from "./turnkeep.js";

export type Chunk = UIMessageChunk;

/** The next turn of an answer is opened at once; without one for this long the answer has ended. */
const NEXT_TURN_MS = 10_000;

/** The committed turns after a position of the log, and the answers that are being written. */
export async function openingOf(chat: Conversation, seq: number): Promise<{ later: Turn[]; running: PendingTurn[] }> {
  const later: Turn[] = [];
  const stop = new AbortController();
  try {
    for await (const event of chat.follow({ afterSeq: seq, signal: stop.signal })) {
      if (event.type !== "snapshot") continue;
      later.push(...event.turns.filter(isLive));
      if (!event.more) return { later, running: event.pending.filter(({ turn }) => turn.role === "assistant") };
    }
  } finally {
    stop.abort();
  }
  return { later, running: [] };
}

/** The chunks of the answer after a position of the log, from its beginning to its end. */
export function answerChunks(chat: Conversation, seq: number): ReadableStream<Chunk> {
  const stop = new AbortController();
  const chunks = written(chat, seq, stop);
  return new ReadableStream<Chunk>({
    async pull(controller) {
      const { done, value } = await chunks.next();
      if (done === true) controller.close();
      else controller.enqueue(value);
    },
    cancel: () => stop.abort(),
  });
}

async function* written(chat: Conversation, seq: number, stop: AbortController): AsyncGenerator<Chunk, void> {
  const answer = new AnswerReader();
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    for await (const event of chat.follow({ afterSeq: seq, signal: stop.signal })) {
      clearTimeout(timer);
      yield* answer.read(event);
      if (answer.isComplete) break;
      if (answer.isBetweenTurns) timer = setTimeout(() => stop.abort(), NEXT_TURN_MS);
    }
    yield* answer.end();
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

class AnswerReader {
  /** The last turn had no calls whose results the model would read. */
  isComplete = false;
  #isBegun = false;
  #isInStep = false;
  /** The text of the open turn that was sent, in code points. */
  #open: { id: string; sent: number } | null = null;

  get isBetweenTurns(): boolean {
    return this.#open === null;
  }

  *read(event: LiveEvent): Generator<Chunk, void> {
    switch (event.type) {
      case "snapshot":
        for (const turn of event.turns.filter(isLive)) yield* this.#committed(turn);
        for (const { turn, parts } of event.more ? [] : event.pending)
          if (turn.role === "assistant") {
            yield* this.#opened(turn);
            for (const { part, text } of parts) if (part === "content") yield* this.#text(text);
          }
        break;
      case "turn.opened":
        if (event.turn.role === "assistant") yield* this.#opened(event.turn);
        break;
      case "turn.delta":
        if (event.turn_id === this.#open?.id && event.part === "content") yield* this.#text(event.delta, event.offset);
        break;
      case "turn.committed":
        yield* this.#committed(event.turn);
        break;
      case "turn.aborted":
        if (event.turn_id === this.#open?.id) {
          yield { type: "reset-step" };
          this.#open = null;
        }
    }
  }

  *end(): Generator<Chunk, void> {
    if (this.#open !== null) yield { type: "text-end", id: this.#open.id };
    if (this.#isInStep) yield { type: "finish-step" };
    yield { type: "finish" };
  }

  *#opened(turn: Turn): Generator<Chunk, void> {
    if (this.#open?.id === turn.id) return;
    if (!this.#isBegun) yield { type: "start", messageId: turn.id };
    if (this.#isInStep) yield { type: "finish-step" };
    [this.#isBegun, this.#isInStep, this.#open] = [true, true, { id: turn.id, sent: 0 }];
    yield { type: "start-step" };
    yield { type: "text-start", id: turn.id };
  }

  /** Text at an offset: what was sent already is left out. */
  *#text(text: string, offset = 0): Generator<Chunk, void> {
    if (this.#open === null) return;
    const points = Array.from(text).slice(Math.max(0, this.#open.sent - offset));
    if (points.length === 0) return;
    this.#open.sent += points.length;
    yield { type: "text-delta", id: this.#open.id, delta: points.join("") };
  }

  *#committed(turn: Turn): Generator<Chunk, void> {
    if (turn.role === "tool") {
      const output = outputOfTurn(turn);
      if (output.kind === "error") yield { type: "tool-output-error", toolCallId: output.id, errorText: output.text };
      else {
        const value = output.kind === "json" ? output.value : output.text;
        yield { type: "tool-output-available", toolCallId: output.id, output: value };
      }
    }
    if (turn.role !== "assistant") return;
    yield* this.#opened(turn);
    yield* this.#text(textOfTurn(turn));
    yield { type: "text-end", id: turn.id };
    const calls = callsOf(turn);
    for (const { id, name, arguments: given } of calls)
      yield { type: "tool-input-available", toolCallId: id, toolName: name, input: parsed(given) };
    this.#open = null;
    this.isComplete = calls.length === 0;
  }
}

function isLive(turn: Turn): boolean {
  return turn.erased_at === null && turn.superseded_by === null;
}
