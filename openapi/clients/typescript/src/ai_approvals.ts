/**
 * Approvals of tools: their requests, what the page decides, and the calls that were approved.
 *
 * The requests are in the metadata of the step that has the calls. Invariant: an approved call runs at most once. Before it
 * runs, a result "unknown" is stored under an id that follows from the call. Of several requests one stores it, and runs
 * the call. The result of the tool is its revision. So a call that a dead process ran stays unknown, and is not run again.
 */

import type { DynamicToolUIPart, ModelMessage, ToolUIPart } from "ai";
import { type Call, callsOf, type Decision, outputOfPart, parsed, textOfOutput, type ToolOutput } from "./ai_messages.js";
import type { Chunk } from "./ai_resume.js";
import { answeredBy, ANSWERS, idOf } from "./ai_turns.js";
import type { Turn, TurnInput } from "./generated/api/index.js";
import type { Conversation } from "./turnkeep.js";

type RequestChunk = Extract<Chunk, { type: "tool-approval-request" }>;
/** What the model's call asked; the names are those of the parts of a page. */
export type ApprovalRequest = { id: string; requestReason?: string; isAutomatic?: boolean; signature?: string; inputSchemaInput?: unknown };
type ModelParts<Role extends string> = Exclude<Extract<ModelMessage, { role: Role }>["content"], string>;

/** In the metadata of a step: the requests for approval of its calls, by the ids of the calls. */
export const APPROVALS = "ai_sdk_approvals";

export const UNKNOWN = "The user approved this call. Its result is unknown: it may have run, or not.";

/** Decided calls of a step. */
export interface DecidedStep {
  turn: Turn;
  decisions: Map<string, Decision>;
}

export function requestOf({ metadata }: Turn, callId: string): ApprovalRequest | undefined {
  const requests = metadata[APPROVALS];
  if (typeof requests !== "object" || requests === null || !Object.hasOwn(requests, callId)) return undefined;
  return (requests as Record<string, ApprovalRequest>)[callId];
}

export function requestOfChunk({ approvalId, reason, isAutomatic, signature, ...chunk }: RequestChunk): ApprovalRequest {
  return {
    id: approvalId,
    ...(reason === undefined ? {} : { requestReason: reason }),
    ...(isAutomatic === undefined ? {} : { isAutomatic }),
    ...(signature === undefined ? {} : { signature }),
    ...("inputSchemaInput" in chunk ? { inputSchemaInput: chunk.inputSchemaInput } : {}),
  };
}

export function chunkOfRequest(toolCallId: string, { id, requestReason, ...request }: ApprovalRequest): RequestChunk {
  return { type: "tool-approval-request", toolCallId, approvalId: id, ...(requestReason === undefined ? {} : { reason: requestReason }), ...request };
}

/** What the page sends of a call without a result: a decision, or the output of a tool that it ran. Throws a TypeError for others. */
export function sentFor(step: Turn, { id }: Call, part: ToolUIPart | DynamicToolUIPart | undefined): { decision: Decision } | { output: ToolOutput } {
  const request = requestOf(step, id);
  if (part?.state !== "approval-responded" && (request === undefined || request.isAutomatic === true)) return { output: outputOfPart(id, part) };
  const approval = part?.approval;
  if (request === undefined || request.isAutomatic === true || approval?.approved === undefined || approval.id !== request.id)
    throw new TypeError("The message lacks the answer to a request for approval: add it with `addToolApprovalResponse`.");
  const { approved, reason } = approval;
  const decision = { id: request.id, approved, ...(reason === undefined ? {} : { reason }) };
  if (part?.state === "approval-responded") return { decision };
  return { output: { ...outputOfPart(id, part), decision } };
}

/** The result of a call that was denied. */
export function denied(id: string, decision: Decision, by = "The user"): ToolOutput {
  const { reason } = decision;
  return { id, kind: "denied", text: `${by} denied this call${reason === undefined ? "." : `: ${reason}`}`, decision };
}

/**
 * Store that approved calls run now, and return their results "unknown" by the ids of the calls.
 *
 * `writer` is the id of the turn that this request writes: it makes the results differ from those of other requests.
 * Rejects with `turn_id_conflict` if another request runs one of the calls, or stored its denial.
 */
export async function startCalls(chat: Conversation, { turn, decisions }: DecidedStep, writer: string): Promise<Map<string, Turn>> {
  const approved = [...decisions].filter(([, { approved }]) => approved);
  if (approved.length === 0) return new Map();
  const results = approved.map(async ([id, decision]) =>
    resultOf(turn, { id, kind: "unknown", text: UNKNOWN, decision }, { ai_sdk_writer: writer }),
  );
  const { turns } = await chat.append(await Promise.all(results));
  return new Map(turns.map((result) => [result.tool_call_id ?? "", result]));
}

/** Replace the result "unknown" of a call by its output. */
export async function endCall(chat: Conversation, unknown: Turn, output: ToolOutput, decision: Decision): Promise<void> {
  const { role, ...result } = await resultOf(unknown, { ...output, decision: { ...decision, approved: output.kind !== "denied" } });
  await chat.api.reviseTurn({ path: { conversation_id: chat.id, turn_id: unknown.id }, body: result });
}

/** The turn of a result, under an id that follows from the step, or from the result that it replaces. */
export async function resultOf(turn: Turn, output: ToolOutput, metadata: TurnInput["metadata"] = {}): Promise<TurnInput> {
  const { decision } = output;
  return {
    id: await idOf(turn.id, "result", output.id),
    role: "tool", tool_call_id: output.id, content: textOfOutput(output),
    metadata: {
      ai_sdk_output: output.kind, [ANSWERS]: answeredBy(turn), ...(decision === undefined ? {} : { ai_sdk_decision: decision }), ...metadata,
    },
  };
}

/** A prompt that lets the SDK run the approved calls: a context has no calls without results. */
export function withApproved(prompt: ModelMessage[], { turn, decisions }: DecidedStep): ModelMessage[] {
  const calls: ({ toolCallId: string } & ModelParts<"assistant">[number])[] = [];
  const responses: ModelParts<"tool"> = [];
  for (const { id, name, arguments: given } of callsOf(turn)) {
    const [request, decision] = [requestOf(turn, id), decisions.get(id)];
    if (request === undefined || decision?.approved !== true) continue;
    const { requestReason: reason, id: approvalId, ...others } = request;
    calls.push(
      { type: "tool-call", toolCallId: id, toolName: name, input: parsed(given) },
      { type: "tool-approval-request", approvalId, toolCallId: id, ...(reason === undefined ? {} : { reason }), ...others },
    );
    responses.push({ type: "tool-approval-response", approvalId, approved: true, ...(decision.reason === undefined ? {} : { reason: decision.reason }) });
  }
  if (calls.length === 0) return prompt;
  const before = prompt.map((message) => withOtherIds(message, new Set(calls.map(({ toolCallId }) => toolCallId))));
  const last = before.at(-1);
  const text: ModelParts<"assistant"> = last?.role === "assistant" && typeof last.content !== "string" ? last.content : [];
  return [
    ...(text.length === 0 ? before : before.slice(0, -1)),
    { role: "assistant", content: [...text, ...calls] },
    { role: "tool", content: responses },
  ];
}

/** A message whose calls have none of some ids: models that number their calls repeat ids, which providers refuse. */
function withOtherIds(message: ModelMessage, ids: Set<string>): ModelMessage {
  const other = <Part extends { type: string }>(part: Part): Part =>
    "toolCallId" in part && ids.has(String(part.toolCallId)) ? { ...part, toolCallId: `${String(part.toolCallId)}_before` } : part;
  if (message.role === "assistant" && typeof message.content !== "string") return { ...message, content: message.content.map(other) };
  return message.role === "tool" ? { ...message, content: message.content.map(other) } : message;
}
