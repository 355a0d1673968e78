/** Messages of the AI SDK and turns of Turnkeep, each made of the other. */

import type { DynamicToolUIPart, ModelMessage, ToolUIPart, UIMessage } from "ai";
import { requestOf, UNKNOWN } from "./ai_approvals.js";
import type { Chunk } from "./ai_resume.js";
import type { Context, ContentPart, Turn, TurnInput } from "./generated/api/index.js";
import type { Conversation } from "./turnkeep.js";

export type Call = { id: string; name: string; arguments: string };
/** The answer to the request for approval with this id. */
export type Decision = { id: string; approved: boolean; reason?: string };
/** The output of a tool: a text, a value, or the text of an error; of a call that was denied, or whose result is unknown, a text. */
export type ToolOutput = { id: string; decision?: Decision } & (
  | { kind: "text" | "error" | "denied" | "unknown"; text: string }
  | { kind: "json"; value: unknown }
);

type StoredFile = { file_data: string; file_url: string; filename: string };
type Block = { type: string; [member: string]: unknown };
type AssistantParts = Exclude<Extract<ModelMessage, { role: "assistant" }>["content"], string>;
type UserParts = Exclude<Extract<ModelMessage, { role: "user" }>["content"], string>;
type ToolParts = Extract<ModelMessage, { role: "tool" }>["content"];

/** The content of a user's message: its text, or its parts if it has files. */
export function contentOf(message: UIMessage): TurnInput["content"] {
  const parts = message.parts.flatMap((part): ContentPart[] => {
    if (part.type === "text") return [{ type: "text", text: part.text }];
    if (part.type !== "file") return [];
    if (part.mediaType.startsWith("image/")) return [{ type: "image_url", image_url: { url: part.url } }];
    const data = part.url.startsWith("data:") ? { file_data: part.url } : { file_url: part.url };
    return [{ type: "file", file: { ...data, filename: part.filename ?? "file" } }];
  });
  if (parts.some(({ type }) => type !== "text")) return parts;
  return parts.map((part) => ("text" in part ? part.text : "")).join("\n");
}

/** The output in a chunk; null if it is preliminary. */
export function outputOf(chunk: Extract<Chunk, { type: "tool-output-available" | "tool-output-error" }>): ToolOutput | null {
  const id = chunk.toolCallId;
  if (chunk.type === "tool-output-error") return { id, kind: "error", text: chunk.errorText };
  if (chunk.preliminary === true) return null;
  return typeof chunk.output === "string"
    ? { id, kind: "text", text: chunk.output }
    : { id, kind: "json", value: chunk.output };
}

/** The output of a call in a part of a message, whose tool the page ran. Throws a TypeError if it has none. */
export function outputOfPart(id: string, part: ToolUIPart | DynamicToolUIPart | undefined): ToolOutput {
  if (part?.state === "output-error") return { id, kind: "error", text: part.errorText };
  if (part?.state !== "output-available") throw new TypeError("The message lacks the output of a tool: add it with `addToolOutput`.");
  return typeof part.output === "string" ? { id, kind: "text", text: part.output } : { id, kind: "json", value: part.output };
}

export function textOfOutput(output: ToolOutput): string {
  return output.kind === "json" ? JSON.stringify(output.value ?? null) : output.text;
}

/** The text of a turn. */
export function textOfTurn({ content }: Turn): string {
  if (typeof content === "string" || content === null) return content ?? "";
  return content.map((part) => ("text" in part ? String(part.text) : "")).join("\n");
}

/** The output that a turn has; one that this module did not write is a text. */
export function outputOfTurn(turn: Turn): ToolOutput {
  const [id, text, kind] = [turn.tool_call_id ?? "", textOfTurn(turn), turn.metadata["ai_sdk_output"]];
  const decision = turn.metadata["ai_sdk_decision"] as Decision | undefined;
  const given = { id, ...(decision === undefined ? {} : { decision }) };
  if (kind === "json") return { ...given, kind, value: parsed(text) };
  return { ...given, kind: kind === "error" || kind === "denied" || kind === "unknown" ? kind : "text", text };
}

/** The calls that a turn has. */
export function callsOf(turn: Turn): Call[] {
  return (turn.tool_calls as Partial<Call>[]).map(({ id = "", name = "", arguments: given = "{}" }) => ({
    id, name, arguments: typeof given === "string" ? given : JSON.stringify(given),
  }));
}

export function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * The history of a conversation as messages for `useChat({ messages })`, oldest first: the turns between two of a user are
 * one message for each actor.
 */
export async function history(chat: Conversation): Promise<UIMessage[]> {
  const messages: (UIMessage & { actor?: string })[] = [];
  for await (const turn of chat.turns()) {
    if (turn.erased_at !== null) continue;
    const last = messages.at(-1);
    if (turn.role === "user") messages.push({ id: turn.id, role: "user", parts: userParts(turn) });
    else if (turn.role === "tool") answerCall(last, outputOfTurn(turn));
    else if (turn.role === "assistant") {
      const isSame = last?.role === "assistant" && last.actor === turn.actor;
      const message = isSame ? last : { id: turn.id, role: "assistant" as const, actor: turn.actor, parts: [] };
      if (isSame) message.parts = message.parts.map(withoutResult);
      else messages.push(message);
      message.parts.push(...assistantParts(turn));
    }
  }
  return messages.map(({ id, role, parts }) => ({ id, role, parts }));
}

function userParts(turn: Turn): UIMessage["parts"] {
  if (typeof turn.content === "string" || turn.content === null) return [{ type: "text", text: turn.content ?? "" }];
  return turn.content.map((part): UIMessage["parts"][number] => {
    const { text, image_url: image, file } = part as { text?: string; image_url?: { url: string }; file?: Partial<StoredFile> };
    if (image !== undefined) return { type: "file", mediaType: "image", url: image.url };
    const url = file?.file_data ?? file?.file_url;
    if (url === undefined) return { type: "text", text: text ?? `[${String(part.type)}]` };
    return { type: "file", mediaType: /^data:([^;,]+)/.exec(url)?.[1] ?? "application/octet-stream", url, filename: file?.filename ?? "file" };
  });
}

function assistantParts(turn: Turn): UIMessage["parts"] {
  const text = textOfTurn(turn);
  const said: UIMessage["parts"] = text === "" ? [] : [{ type: "text", text, state: "done" }];
  const calls = callsOf(turn).map((call): UIMessage["parts"][number] => {
    const part = { type: `tool-${call.name}` as const, toolCallId: call.id, input: parsed(call.arguments) };
    const approval = requestOf(turn, call.id);
    return approval === undefined ? { ...part, state: "input-available" } : { ...part, state: "approval-requested", approval };
  });
  return [{ type: "step-start" }, ...said, ...calls];
}

function answerCall(message: UIMessage | undefined, output: ToolOutput): void {
  const index = message?.parts.findIndex((part) => "toolCallId" in part && part.toolCallId === output.id) ?? -1;
  const part = message?.parts[index];
  if (message === undefined || part === undefined) return;
  const request = "approval" in part ? part.approval : undefined;
  const decision = output.decision ?? (request === undefined ? undefined : { id: request.id, approved: output.kind !== "denied" });
  const approval = decision === undefined ? {} : { approval: { ...request, ...decision } };
  message.parts[index] = { ...part, ...approval, ...ended(output) } as UIMessage["parts"][number];
}

/** The state of a call with an output, on the page. One whose result is unknown may still run. */
function ended(output: ToolOutput) {
  switch (output.kind) {
    case "json":
      return { state: "output-available" as const, output: output.value };
    case "text":
      return { state: "output-available" as const, output: output.text };
    case "error":
      return { state: "output-error" as const, errorText: output.text };
    case "denied":
      return { state: "output-denied" as const };
    case "unknown":
      return { state: "approval-responded" as const };
  }
}

/** A part of a message whose answer goes on: a call whose result is still unknown gets none any more. */
function withoutResult(part: UIMessage["parts"][number]): UIMessage["parts"][number] {
  if (!("state" in part) || part.state !== "approval-responded") return part;
  return { ...part, state: "output-error", errorText: UNKNOWN } as UIMessage["parts"][number];
}

/** The prompt that a context in the format of Anthropic is. */
export function promptOf(context: Context): { instructions?: string; messages: ModelMessage[] } {
  const names = new Map<string, string>();
  const messages = (context.messages as unknown as { role: string; content: string | Block[] }[]).flatMap(
    ({ role, content }) => {
      const blocks: Block[] = typeof content === "string" ? [{ type: "text", text: content }] : content;
      return role === "assistant" ? assistantMessage(blocks, names) : userMessages(blocks, names);
    },
  );
  return { ...(context.system === null ? {} : { instructions: context.system }), messages };
}

function assistantMessage(blocks: Block[], names: Map<string, string>): ModelMessage[] {
  const content: AssistantParts = [];
  for (const block of blocks)
    if (block.type === "text") content.push({ type: "text", text: String(block["text"]) });
    else if (block.type === "tool_use") {
      const [toolCallId, toolName] = [String(block["id"]), String(block["name"])];
      names.set(toolCallId, toolName);
      content.push({ type: "tool-call", toolCallId, toolName, input: block["input"] });
    }
  return content.length === 0 ? [] : [{ role: "assistant", content }];
}

function userMessages(blocks: Block[], names: Map<string, string>): ModelMessage[] {
  const results: ToolParts = [];
  const content: UserParts = [];
  for (const block of blocks)
    if (block.type === "tool_result") {
      const toolCallId = String(block["tool_use_id"]);
      const value = textOfBlocks(block["content"]);
      const type = block["is_error"] === true ? ("error-text" as const) : ("text" as const);
      results.push({ type: "tool-result", toolCallId, toolName: names.get(toolCallId) ?? "tool", output: { type, value } });
    } else content.push(userPart(block));
  return [
    ...(results.length === 0 ? [] : [{ role: "tool" as const, content: results }]),
    ...(content.length === 0 ? [] : [{ role: "user" as const, content }]),
  ];
}

function userPart(block: Block): UserParts[number] {
  if (block.type === "text") return { type: "text", text: String(block["text"]) };
  const source = block["source"] as { type?: string; url?: string; data?: string; media_type?: string } | undefined;
  const mediaType = source?.media_type ?? (block.type === "image" ? "image" : "application/octet-stream");
  if (source?.url !== undefined) return { type: "file", mediaType, data: new URL(source.url) };
  if (source?.data !== undefined) return { type: "file", mediaType, data: source.data };
  return { type: "text", text: `[${block.type}]` };
}

function textOfBlocks(content: unknown): string {
  if (typeof content === "string") return content;
  return ((content ?? []) as Block[]).map((block) => (block.type === "text" ? String(block["text"]) : `[${block.type}]`)).join("\n");
}
