// Short names of the types that are generated from the OpenAPI document.
import type { components } from "./schema";

type Schemas = components["schemas"];
export type Conversation = Schemas["Conversation"];
export type ListedConversation = Schemas["ListedConversation"];
export type ConversationSearch = Schemas["ConversationSearch"];
export type Turn = Schemas["Turn"];
export type TurnInput = Schemas["TurnInput"];
export type ToolCall = Schemas["ToolCall"];
export type ContentPart = Schemas["ContentPart"];
export type Summary = Schemas["Summary"];
export type Fact = Schemas["Fact"];
export type Context = Schemas["Context"];
export type ContextRequest = Schemas["ContextRequest"];
export type Explained = Schemas["Explained"];
export type RecallResult = Schemas["RecallResult"];
export type RecallHit = RecallResult["data"][number];
export type RankingConfiguration = Schemas["RankingConfiguration"];
export type EmbeddingSpace = Schemas["EmbeddingSpace"];
export type Erasure = Schemas["Erasure"];
export type Operation = Schemas["Operation"];
export type Verification = Schemas["Verification"];
export type Scope = Schemas["Scope"];
export type Problem = Schemas["Problem"];
export type Role = Schemas["Role"];
