// The agent whose memories a key without the scope `admin` sees, as a header names it.
import { currentSignIn } from "./session";

export type AgentHeader = { "X-Agent-Id"?: string };

const HEADER_TEXT = /^[\x20-\x7e]+$/;

/** Empty with the scope `admin`, without an agent, and for a name that a header cannot carry. */
export function agentHeader(agent: string | null | undefined): AgentHeader {
  return agent && !currentSignIn()?.scopes.admin && HEADER_TEXT.test(agent) ? { "X-Agent-Id": agent } : {};
}
