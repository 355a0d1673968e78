/** Writes the answer of a model as streamed turns: one for each step, and one for each tool result. */

import type { UIMessage } from "ai";
import { type ApprovalRequest, APPROVALS, type DecidedStep, denied, endCall, requestOfChunk, resultOf, sentFor, startCalls } from "./ai_approvals.js";
import { type Call, callsOf, type Decision, outputOf, type ToolOutput } from "./ai_messages.js";
import type { AnswerStart, Chunk } from "./ai_resume.js";
import { answeredBy, ANSWERS, asUlid, ENDED, findTurn, hasCode, idOf, LAST, openingOf, openNext, type OpenStep, turnOf, ULID } from "./ai_turns.js";
import type { Turn, TurnInput } from "./generated/api/index.js";
import type { Conversation } from "./turnkeep.js";

/** Where an answer begins, or goes on after tools that the page ran. */
export interface Beginning {
  asked: Turn;
  step: number;
  /** What the page has of the answer already. */
  from?: AnswerStart;
  /** The calls whose requests for approval the page has answered, and the step that has them. */
  decided?: DecidedStep;
}

/**
 * Writes an answer from the chunks that a page receives, too.
 *
 * Invariant: until its end an answer has an open turn, so a reader of its turns knows whether it is still written.
 */
export class AnswerWriter {
  readonly #chat: Conversation;
  readonly #asked: Turn;
  readonly #assistant: string | undefined;
  readonly #losing = new AbortController();
  #open: OpenStep;
  #isOver = false;
  #isStepOver = false;
  #isEmpty = true;
  #calls: Call[] = [];
  #outputs: ToolOutput[] = [];
  /** Of the calls of this step, by their ids. */
  #requests: Record<string, ApprovalRequest> = {};
  #decisions = new Map<string, Decision>();
  /** The calls of the step before that run now: they have a result "unknown". */
  #running = new Map<string, { unknown: Turn; decision: Decision }>();

  constructor(chat: Conversation, asked: Turn, open: OpenStep, assistant: string | undefined) {
    this.#chat = chat;
    this.#asked = asked;
    this.#assistant = assistant;
    this.#open = open;
    this.#watch(open);
  }

  /** Aborts when another process has ended the answer. */
  get lost(): AbortSignal {
    return this.#losing.signal;
  }

  /** The id of the open turn. */
  get turnId(): string {
    return asUlid(this.#open.writer.turnId);
  }

  /** Store that approved calls run now. False if another request runs or denied one: it writes the answer. */
  async startCalls(step: DecidedStep): Promise<boolean> {
    try {
      for (const [id, unknown] of await startCalls(this.#chat, step, this.turnId)) {
        const decision = step.decisions.get(id);
        if (decision !== undefined) this.#running.set(id, { unknown, decision });
      }
      return true;
    } catch (error) {
      if (!hasCode(error, "turn_id_conflict")) throw error;
      await this.abort("another request runs the approved call");
      return false;
    }
  }

  async take(chunk: Chunk): Promise<void> {
    if (this.#isOver) return;
    switch (chunk.type) {
      case "start-step":
        if (this.#isStepOver) await this.#nextStep();
        return;
      case "text-delta":
        this.#isEmpty &&= chunk.delta === "";
        return this.#open.writer.write(chunk.delta);
      case "tool-input-available":
      case "tool-input-error":
        this.#calls.push({ id: chunk.toolCallId, name: chunk.toolName, arguments: JSON.stringify(chunk.input ?? {}) });
        if (chunk.type === "tool-input-error") this.#outputs.push({ id: chunk.toolCallId, kind: "error", text: chunk.errorText });
        return;
      case "tool-approval-request":
        this.#requests[chunk.toolCallId] = requestOfChunk(chunk);
        return;
      case "tool-approval-response": {
        const { approvalId: id, approved, reason } = chunk;
        const decided = Object.entries(this.#requests).find(([, request]) => request.id === id);
        if (decided !== undefined) this.#decisions.set(decided[0], { id, approved, ...(reason === undefined ? {} : { reason }) });
        return;
      }
      case "tool-output-available":
      case "tool-output-error": {
        const output = outputOf(chunk);
        return output === null ? undefined : this.#take(output);
      }
      case "tool-output-denied": {
        const id = chunk.toolCallId;
        const decision = this.#decisions.get(id) ?? this.#running.get(id)?.decision ?? { id: this.#requests[id]?.id ?? id, approved: false };
        return this.#take(denied(id, { ...decision, approved: false }, "A rule"));
      }
      case "reset-step":
        return this.#againStep();
      case "finish-step": // stored when it is known whether another step follows
        this.#isStepOver = true;
        return;
      case "finish":
      case "abort": // the user stopped it: what was written stays
        return this.#end();
      case "error":
        return this.abort("the model failed");
    }
  }

  /** Give up the open turn, if the answer has not ended, also by another process. */
  async abort(reason: string): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    await this.#open.writer.abort(reason).catch((error: unknown) => {
      if (!hasCode(error, ...ENDED)) throw error;
    });
  }

  async #take(output: ToolOutput): Promise<void> {
    const call = this.#running.get(output.id);
    const decision = this.#decisions.get(output.id);
    if (call === undefined) return void this.#outputs.push(decision === undefined ? output : { ...output, decision });
    this.#running.delete(output.id);
    await endCall(this.#chat, call.unknown, output, call.decision);
  }

  async #end(): Promise<void> {
    if (this.#isEmpty && this.#calls.length === 0) return this.abort("the model wrote nothing");
    this.#isOver = true;
    await this.#store({ [LAST]: this.#outputs.length });
  }

  async #nextStep(): Promise<void> {
    const next = await this.#opened({ step: this.#open.step + 1, attempt: 0 });
    await this.#store({});
    this.#begin(next);
  }

  /** The model is called again for this step. */
  async #againStep(): Promise<void> {
    const { writer, step, attempt } = this.#open;
    const next = await this.#opened({ step, attempt: attempt + 1 });
    await writer.abort("the model is called again");
    this.#begin(next);
  }

  async #opened(from: { step: number; attempt: number }): Promise<OpenStep> {
    const open = await openNext(this.#chat, this.#asked, this.#assistant, from);
    if (open === null) throw new Error("Another process writes this answer.");
    this.#watch(open);
    return open;
  }

  async #store(metadata: Record<string, unknown>): Promise<void> {
    const requests = Object.keys(this.#requests).length === 0 ? {} : { [APPROVALS]: this.#requests };
    const turn = await this.#open.writer.commit({ tool_calls: this.#calls, metadata: { ...metadata, ...requests } });
    // if `stop` was faster, the turn has no calls
    if (callsOf(turn).length === this.#calls.length) await appendResults(this.#chat, turn, this.#outputs);
  }

  #begin(open: OpenStep): void {
    this.#open = open;
    [this.#isStepOver, this.#isEmpty, this.#calls, this.#outputs] = [false, true, [], []];
    [this.#requests, this.#decisions, this.#running] = [{}, new Map(), new Map()];
  }

  #watch({ writer: { lost } }: OpenStep): void {
    const onLost = (): void => this.#losing.abort(lost.reason);
    lost.addEventListener("abort", onLost);
    if (lost.aborted) onLost();
  }
}

/** Store results of the calls of a turn; those that are stored already stay. */
async function appendResults(chat: Conversation, turn: Turn, outputs: ToolOutput[]): Promise<Turn[]> {
  const results = outputs.map((output) => resultOf(turn, output));
  if (results.length === 0) return [];
  try {
    return (await chat.append(await Promise.all(results))).turns;
  } catch (error) {
    if (!hasCode(error, "turn_id_conflict")) throw error;
    return []; // another request was faster, with other outputs
  }
}

/** The turns of an answer so far. */
async function turnsOf(chat: Conversation, asked: Turn): Promise<Turn[]> {
  const { later } = await openingOf(chat, asked.seq ?? 0);
  return later.filter((turn) => answeredBy(turn) === asked.id);
}

/**
 * The turns of an answer that goes on. Calls without a result get one, so that the model can go on: those that were denied,
 * and those that a dead process ran. Calls that were approved now get none: the model's call runs them.
 */
export async function resultsStored(chat: Conversation, asked: Turn, decided?: DecidedStep): Promise<Turn[]> {
  const turns = await turnsOf(chat, asked);
  const answered = new Set(turns.map(({ tool_call_id }) => tool_call_id));
  const steps = turns.filter(({ role }) => role === "assistant");
  for (const step of steps) {
    const open = callsOf(step).filter(({ id }) => !answered.has(id));
    const outputs = open.flatMap(({ id }): ToolOutput[] => {
      const decision = decided?.turn.id === step.id ? decided.decisions.get(id) : undefined;
      if (decision === undefined) return [{ id, kind: "error", text: "The call was interrupted." }];
      return decision.approved ? [] : [denied(id, decision)];
    });
    turns.push(...(await appendResults(chat, step, outputs)));
  }
  return turns;
}

/**
 * Store the outputs of tools that the page ran: those in an answer that it sends back, with what the user decided.
 *
 * Throws a TypeError for a message that is no answer to a message of `actor`, or lacks the output of a call, or the answer
 * to a request for approval.
 */
export async function storeOutputs(chat: Conversation, message: UIMessage, actor = "user"): Promise<Beginning> {
  const unknown = new TypeError("Pass the newest message of the user, or the answer that awaits outputs of tools: `messages.at(-1)`.");
  if (!ULID.test(message.id)) throw unknown;
  const first = await findTurn(chat, message.id);
  if (first === null) throw unknown;
  const asked = await turnOf(chat, answeredBy(first) ?? message.id);
  if (asked.id === message.id || asked.actor !== actor || asked.superseded_by !== null) throw unknown;
  const parts = new Map(message.parts.flatMap((part) => ("toolCallId" in part ? [[part.toolCallId, part] as const] : [])));
  const turns = await turnsOf(chat, asked);
  const steps = turns.filter(({ role }) => role === "assistant");
  const index = steps.map((step) => callsOf(step).some(({ id }) => parts.has(id))).lastIndexOf(true);
  const step = steps[index];
  if (step === undefined) throw unknown;
  const answered = new Set(turns.map(({ tool_call_id }) => tool_call_id));
  const open = callsOf(step).filter(({ id }) => !answered.has(id));
  const outputs: ToolOutput[] = [];
  const decisions = new Map<string, Decision>();
  for (const call of open) {
    const sent = sentFor(step, call, parts.get(call.id));
    if ("output" in sent) outputs.push(sent.output);
    else decisions.set(call.id, sent.decision);
  }
  await appendResults(chat, step, outputs);
  return { asked, step: index + 1, from: { seq: step.seq ?? 0, messageId: message.id }, decided: { turn: step, decisions } };
}
