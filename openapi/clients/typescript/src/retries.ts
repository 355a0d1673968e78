/** When a request is sent again, and after which delay. */

import { ConnectionFailedError, type TurnkeepError } from "./errors.js";

/** When a request may be sent again: always; with its Idempotency-Key; only if it was not executed. */
export type Repeat = "safe" | "key" | "unsent";

/** Limits of retries: how many, and the longest delay that is waited for. */
export interface RetryPolicy {
  maxRetries: number;
  minWaitMs: number;
  maxWaitMs: number;
  maxRetryAfterMs: number;
}

export const DEFAULT_RETRIES: RetryPolicy = { maxRetries: 5, minWaitMs: 250, maxWaitMs: 8_000, maxRetryAfterMs: 60_000 };

/** Codes of requests that were refused before anything was done. */
const NOT_EXECUTED = new Set(["rate_limited", "overloaded", "not_ready", "too_many_failed_keys"]);

/** The delay before the next attempt, or null if there is none. `attempt` starts at 0. */
export function waitBefore(
  policy: RetryPolicy, attempt: number, error: TurnkeepError, repeat: Repeat, isSent: boolean,
): number | null {
  if (attempt >= policy.maxRetries || !isRepeatable(error, repeat, isSent)) return null;
  const asked = error.retryAfterMs ?? 0;
  return asked > policy.maxRetryAfterMs ? null : Math.max(asked, backoff(policy, attempt));
}

/** An exponential delay; random, so that clients do not come back at one moment. */
export function backoff(policy: RetryPolicy, attempt: number): number {
  return Math.min(policy.maxWaitMs, policy.minWaitMs * 2 ** Math.min(attempt, 30)) * (0.5 + Math.random() / 2);
}

export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

function isRepeatable(error: TurnkeepError, repeat: Repeat, isSent: boolean): boolean {
  if (!isSent) return true;
  if (repeat === "unsent") return error.isRetryable && NOT_EXECUTED.has(error.code);
  return error.isRetryable || error instanceof ConnectionFailedError;
}
