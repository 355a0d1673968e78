/** An answer as the chunks that `useChat` reads: made of its turns, and of the events of the conversation. */

import type { UIMessageChunk } from "ai";
import { chunkOfRequest, requestOf } from "./ai_approvals.js";
import { callsOf, outputOfTurn, parsed, textOfTurn, type ToolOutput } from "./ai_messages.js";
import { answeredBy, isLive, LAST } from "./ai_turns.js";
import type { LiveEvent } from "./follow.js";
import type { Turn } from "./generated/api/index.js";
import type { Conversation } from "./turnkeep.js";

export type Chunk = UIMessageChunk;

/** Tool results are stored at once after the last step; without them for this long the answer has ended. */
const RESULTS_MS = 10_000;
export const UNFINISHED = "The answer ended before it was complete. Send the message again.";

/** Where a page continues an answer that it has in part. */
export interface AnswerStart {
  seq: number;
  messageId: string;
}

/** The chunks of the answer to a message, from its beginning or a later step to its end. */
export function answerChunks(chat: Conversation, asked: Turn, from?: AnswerStart): ReadableStream<Chunk> {
  const stop = new AbortController();
  const chunks = written(chat, asked, from, stop);
  return new ReadableStream<Chunk>({
    async pull(controller) {
      const { done, value } = await chunks.next();
      if (done === true) controller.close();
      else controller.enqueue(value);
    },
    cancel: () => stop.abort(),
  });
}

async function* written(
  chat: Conversation, asked: Turn, from: AnswerStart | undefined, stop: AbortController,
): AsyncGenerator<Chunk, void> {
  const answer = new AnswerReader(asked.id, from?.messageId);
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    for await (const event of chat.follow({ afterSeq: from?.seq ?? asked.seq ?? 0, signal: stop.signal })) {
      yield* answer.read(event);
      if (answer.hasEnded) break;
      if (answer.isWaitingForResults) timer ??= setTimeout(() => stop.abort(), RESULTS_MS);
    }
    yield* answer.end();
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

/** Chunks of committed turns of an answer, after what the page has, and without its end: the page continues it. */
export function* replayed(asked: Turn, turns: Turn[], from?: AnswerStart): Generator<Chunk, void> {
  const answer = new AnswerReader(asked.id, from?.messageId);
  if (from !== undefined) yield { type: "start", messageId: from.messageId };
  for (const turn of turns) if ((turn.seq ?? 0) > (from?.seq ?? 0)) yield* answer.committed(turn);
  yield* answer.closeStep();
  yield* answer.withoutResult();
}

/**
 * Makes chunks of events.
 *
 * Until its end, an answer has an open turn at each moment: the turn of a step is open before that of the step before is
 * committed, or given up.
 */
class AnswerReader {
  readonly #askedId: string;
  /** The ids of the turns of the answer, also of superseded ones: their revisions belong to it. */
  readonly #ids = new Set<string>();
  readonly #open = new Set<string>();
  readonly #messageId: string | undefined;
  #isStarted = false;
  #isInStep = false;
  #isAborted = false;
  /** The last page of the snapshot was read. */
  #isCurrent = false;
  /** The results that follow the last step; null before it. */
  #results: number | null = null;
  /** Calls that were approved, and whose result is unknown so far. */
  readonly #unknown = new Map<string, ToolOutput>();
  /** The turn whose text is shown, and how much was sent, in code points. */
  #shown: { id: string; sent: number } | null = null;

  constructor(askedId: string, messageId?: string) {
    this.#askedId = askedId;
    this.#messageId = messageId;
  }

  get hasEnded(): boolean {
    return this.#isCurrent && (this.#results === 0 || this.#isAborted);
  }

  get isWaitingForResults(): boolean {
    return this.#results !== null;
  }

  *read(event: LiveEvent): Generator<Chunk, void> {
    switch (event.type) {
      case "snapshot":
        for (const turn of event.turns) yield* this.committed(turn);
        this.#isCurrent = !event.more;
        if (event.more) break;
        this.#open.clear();
        for (const { turn, parts } of event.pending)
          for (const { part, text } of [{ part: "content", text: "" }, ...parts])
            if (this.#opened(turn) && part === "content") yield* this.#text(turn, text);
        this.#isAborted = this.#results === null && this.#open.size === 0;
        break;
      case "turn.opened":
        if (this.#opened(event.turn)) yield* this.#show(event.turn.id);
        break;
      case "turn.delta":
        if (this.#open.has(event.turn_id) && event.part === "content") yield* this.#text({ id: event.turn_id }, event.delta, event.offset);
        break;
      case "turn.committed":
        yield* this.committed(event.turn);
        break;
      case "turn.aborted":
        if (!this.#open.delete(event.turn_id)) break;
        if (this.#shown?.id === event.turn_id) {
          yield { type: "reset-step" };
          this.#shown = null;
        }
        this.#isAborted = this.#open.size === 0;
    }
  }

  /** The chunks of a committed turn; none if it is not of the answer. */
  *committed(turn: Turn): Generator<Chunk, void> {
    const isKnown = answeredBy(turn) === this.#askedId || (turn.supersedes !== null && this.#ids.has(turn.supersedes));
    if (!isKnown || this.#ids.has(turn.id)) return;
    this.#ids.add(turn.id);
    if (!isLive(turn)) return;
    if (turn.role === "tool") {
      yield* this.#result(turn);
      return;
    }
    yield* this.withoutResult();
    yield* this.#text(turn, textOfTurn(turn));
    yield { type: "text-end", id: turn.id };
    for (const { id, name, arguments: given } of callsOf(turn)) {
      yield { type: "tool-input-available", toolCallId: id, toolName: name, input: parsed(given) };
      const request = requestOf(turn, id);
      if (request !== undefined) yield chunkOfRequest(id, request);
    }
    [this.#shown, this.#results] = [null, lastResults(turn)];
    this.#open.delete(turn.id);
  }

  /** The end of the answer, or that it is incomplete. */
  *end(): Generator<Chunk, void> {
    if (this.#shown !== null) yield { type: "text-end", id: this.#shown.id };
    yield* this.closeStep();
    yield this.#results === null ? { type: "error", errorText: UNFINISHED } : { type: "finish" };
  }

  *closeStep(): Generator<Chunk, void> {
    if (this.#isInStep) yield { type: "finish-step" };
    this.#isInStep = false;
  }

  #opened(turn: Turn): boolean {
    if (answeredBy(turn) !== this.#askedId) return false;
    this.#open.add(turn.id);
    this.#results = null; // the page ran tools, and the answer goes on
    return true;
  }

  /** Errors for the calls that the answer goes on without. */
  *withoutResult(): Generator<Chunk, void> {
    for (const output of this.#unknown.values()) yield chunkOfOutput(output);
    this.#unknown.clear();
  }

  *#result(turn: Turn): Generator<Chunk, void> {
    const output = outputOfTurn(turn);
    const { id, decision } = output;
    if (decision !== undefined) {
      const { id: approvalId, ...answer } = decision;
      yield { type: "tool-approval-response", approvalId, ...answer };
    }
    if (output.kind === "unknown") this.#unknown.set(id, output);
    else {
      this.#unknown.delete(id);
      yield chunkOfOutput(output);
    }
    if (this.#results !== null) this.#results = Math.max(0, this.#results - 1);
  }

  /** Begin to show a turn, unless the turn before it is still written. */
  *#show(id: string): Generator<Chunk, void> {
    if (this.#shown !== null) return;
    if (!this.#isStarted) yield { type: "start", messageId: this.#messageId ?? id };
    yield* this.closeStep();
    [this.#isStarted, this.#isInStep, this.#shown] = [true, true, { id, sent: 0 }];
    yield { type: "start-step" };
    yield { type: "text-start", id };
  }

  /** Text of a turn at an offset: what was sent already is left out. */
  *#text({ id }: { id: string }, text: string, offset = 0): Generator<Chunk, void> {
    yield* this.#show(id);
    if (this.#shown?.id !== id) return;
    const points = Array.from(text).slice(Math.max(0, this.#shown.sent - offset));
    if (points.length === 0) return;
    this.#shown.sent += points.length;
    yield { type: "text-delta", id, delta: points.join("") };
  }
}

/** How many tool results follow the last step of an answer; null for a step that another one follows. */
function lastResults(turn: Turn): number | null {
  const results = turn.metadata[LAST];
  if (typeof results === "number") return results;
  return callsOf(turn).length === 0 ? 0 : null;
}

function chunkOfOutput(output: ToolOutput): Chunk {
  const toolCallId = output.id;
  if (output.kind === "denied") return { type: "tool-output-denied", toolCallId };
  if (output.kind === "error" || output.kind === "unknown") return { type: "tool-output-error", toolCallId, errorText: output.text };
  return { type: "tool-output-available", toolCallId, output: output.kind === "json" ? output.value : output.text };
}
