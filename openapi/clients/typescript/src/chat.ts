/** A turn of a chat: build the context, call the model, and store what is new, in one append that refuses conflicts. */

import { TurnkeepError } from "./errors.js";
import type { Append, Context, ContextRequest, Message, Operations, Turn } from "./generated/api/index.js";

/** A message in the format of OpenAI. */
export type ModelMessage = { role: string; content?: unknown; [member: string]: unknown };
export type ModelReply = string | ModelMessage | ModelMessage[];
export type ModelCall = (messages: ModelMessage[]) => ModelReply | Promise<ModelReply>;

/** How a turn of a chat is made. `context` goes over what this client asks for. */
export interface ChatOptions {
  actor?: string;
  assistant?: string;
  system?: string;
  tokenBudget?: number;
  context?: Partial<ContextRequest>;
}

/** The answer, the turns as they were stored, and the context that the model received. */
export interface ChatResult {
  text: string;
  turns: Turn[];
  context: Context;
  /** How often the model was called; more than once if another writer was faster. */
  attempts: number;
}

const MAX_ATTEMPTS = 3;
/** More than the tokens that the frame of a message costs in any format. */
const MESSAGE_TOKENS = 16;
const NO_BUDGET = 10_000_000;
const MAX_QUERY = 32_768;
/** A long message that was just stored is found by its meaning when its vectors are made. */
const WAIT_FOR_VECTORS_MS = 300;

/** Store the message and the reply, all or nothing; for a conflict, build again and call the model again. */
export async function chat(
  api: Operations, conversationId: string, modelCall: ModelCall, message: string, options: ChatOptions,
): Promise<ChatResult> {
  for (let attempts = 1; ; attempts += 1) {
    const context = await build(api, conversationId, message, options);
    const said: ModelMessage = { role: "user", content: message };
    const isNamed = context.messages.some((one) => "name" in one);
    if (options.actor !== undefined && isNamed) said.name = options.actor;
    const reply = await modelCall([...context.messages.map(asMessage), said]);
    checkReply(reply);
    const body = bodyOf(message, reply, options, context.as_of_seq);
    try {
      const stored = await api.appendTurns({ path: { conversation_id: conversationId }, body });
      return { text: textOf(reply), turns: stored.turns, context, attempts };
    } catch (error) {
      const isConflict = error instanceof TurnkeepError && error.code === "conversation_advanced";
      if (!isConflict || attempts >= MAX_ATTEMPTS) throw error;
    }
  }
}

async function build(api: Operations, conversationId: string, message: string, options: ChatOptions): Promise<Context> {
  const budget = options.tokenBudget ?? 8_000;
  const needed = (await messageTokens(api, conversationId, message, budget)) + MESSAGE_TOKENS;
  const body: ContextRequest = {
    token_budget: Math.max(1, budget - needed),
    query: Array.from(message).slice(0, MAX_QUERY).join("") || null,
    semantic_recall: { k: 5 },
    wait_for_vectors_ms: WAIT_FOR_VECTORS_MS,
    ...(options.system === undefined ? {} : { system: options.system }),
    ...options.context,
  };
  return api.buildContext({ path: { conversation_id: conversationId }, body });
}

/** The tokens of the new message, or a higher number that costs no request. */
async function messageTokens(
  api: Operations, conversationId: string, message: string, budget: number,
): Promise<number> {
  const size = new TextEncoder().encode(message).length; // a token of any tokenizer has at least one byte
  if (size <= budget / 4) return size;
  const body: ContextRequest = { token_budget: NO_BUDGET, recent_turns: 1, system: message };
  const { usage } = await api.buildContext({ path: { conversation_id: conversationId }, body });
  return usage.sections.system.requested;
}

function bodyOf(message: string, reply: ModelReply, options: ChatOptions, expectedSeq: number): Append {
  const said = { role: "user", content: message, ...(options.actor === undefined ? {} : { actor: options.actor }) };
  const assistant = options.assistant === undefined ? {} : { actor: options.assistant };
  const replies =
    typeof reply === "string" ? [{ role: "assistant", content: reply, ...assistant }] : Array.isArray(reply) ? reply : [reply];
  const turns = [said, ...replies] as Append["turns"]; // checked by the server
  return { turns, expected_seq: expectedSeq, ...(typeof reply === "string" ? {} : { format: "openai" }) };
}

/** Throw for a value that is no reply, which a function in plain JavaScript can return. */
function checkReply(reply: unknown): void {
  const isMessage = (one: unknown): boolean => typeof one === "object" && one !== null && !Array.isArray(one);
  if (typeof reply === "string" || isMessage(reply) || (Array.isArray(reply) && reply.length > 0 && reply.every(isMessage))) return;
  const kind = Array.isArray(reply) ? "a list without messages" : String(reply);
  throw new TypeError(
    `The function that calls the model returned ${kind}. Return a text, a message in the format of OpenAI, or a list of messages.`,
  );
}

function asMessage(message: Message): ModelMessage {
  return message as ModelMessage; // of the format `openai`, which was asked for
}

/** The text of the last message of a reply. */
function textOf(reply: ModelReply): string {
  if (typeof reply === "string") return reply;
  const content = (Array.isArray(reply) ? reply.at(-1) : reply)?.content;
  return typeof content === "string" ? content : content === undefined || content === null ? "" : JSON.stringify(content);
}
