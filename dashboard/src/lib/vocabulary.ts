// Closed sets of the API whose members the user chooses from. The compiler refuses a list that lacks a member.
import type { Action, EventType, ForeignSystem, ObjectKind } from "../api/types";

const all =
  <T extends string>() =>
  <const A extends readonly T[]>(values: [Exclude<T, A[number]>] extends [never] ? A : never): readonly T[] => values;

export const ACTIONS = all<Action>()([
  "conversations.create", "conversations.update", "conversations.delete", "conversations.trash", "conversations.restore",
  "conversations.fork", "conversations.undo_compact", "turns.append", "turns.open", "turns.resume", "turns.commit", "turns.abort",
  "turns.revise", "turns.erase", "summaries.create", "facts.create", "facts.update", "facts.retract", "facts.undo", "facts.extract",
  "memories.store", "memories.delete", "memories.search", "recall.search", "contexts.build", "agents.ask", "tools.call", "tokens.create",
  "tokens.revoke", "keys.create", "keys.rotate", "keys.revoke", "keys.limit", "keys.list", "tenants.create", "tenants.update",
  "tenants.limit", "tenants.read", "limits.read", "stats.read", "samples.read", "slow_calls.list", "replicas.list", "usage.list", "erasures.start",
  "erasures.end", "erasures.list", "exports.read", "imports.start", "imports.end", "owners.read", "operations.cancel", "webhooks.create",
  "webhooks.update", "webhooks.rotate", "webhooks.test", "webhooks.replay", "webhooks.disable", "webhooks.delete", "webhooks.list",
  "jobs.list", "jobs.read", "jobs.retry", "jobs.cancel", "spaces.list", "spaces.add", "spaces.compare", "spaces.switch", "spaces.drop",
  "responses.delete", "audit.list", "audit.verify", "audit.lose",
]);
export const OBJECT_KINDS = all<ObjectKind>()([
  "conversation", "turn", "summary", "fact", "memory", "key", "tenant", "job", "embedding_space", "tool", "operation", "erasure", "import",
  "webhook",
]);
export const EVENT_TYPES = all<EventType>()([
  "conversation.created", "conversation.updated", "conversation.trashed", "conversation.restored", "conversation.deleted",
  "turn.committed", "turn.superseded", "turn.erased", "summary.created", "fact.recorded", "fact.updated", "fact.retracted", "fact.deleted",
]);
export const FOREIGN_SYSTEMS = all<ForeignSystem>()([
  "chatgpt", "claude", "openai", "open_webui", "librechat", "mem0", "zep", "letta", "langgraph", "honcho",
]);
