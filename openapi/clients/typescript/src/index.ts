/**
 * The client of Turnkeep: appends that are never doubled, and streams that continue after a lost connection.
 *
 * `generated` has the types and operations of the OpenAPI document and is never edited by hand.
 */

export type { ChatOptions, ChatResult, ModelCall, ModelMessage, ModelReply } from "./chat.js";
export { type Code, ConnectionFailedError, type ErrorCode, TurnkeepError } from "./errors.js";
export type { FollowOptions, LiveEvent } from "./follow.js";
export type * from "./generated/api/types.gen.js";
export type { Operations } from "./generated/api/sdk.gen.js";
export { items, type Page } from "./paging.js";
export type { RetryPolicy } from "./retries.js";
export { type StreamOptions, TurnWriter } from "./stream.js";
export { type AppendOptions, Conversation, Turnkeep, type TurnkeepOptions } from "./turnkeep.js";
export { ConversationView } from "./view.js";
