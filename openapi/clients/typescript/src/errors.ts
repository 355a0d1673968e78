/** Errors of the client. `code` is stable and narrows the error; `remedy` says what to do. */

import { REMEDIES, type ErrorCode } from "./generated/errors.js";

export type { ErrorCode };

/** A code of the catalogue, one of this client, or one of a newer server. */
export type Code = ErrorCode | "connection_failed" | "http_error" | (string & {});

interface Facts {
  status?: number;
  requestId?: string | null;
  isRetryable?: boolean;
  retryAfterMs?: number | null;
  problem?: Record<string, unknown>;
  cause?: unknown;
}

/** A request that failed. */
export class TurnkeepError extends Error {
  readonly code: Code;
  readonly detail: string;
  readonly status: number;
  readonly requestId: string | null;
  readonly remedy: string;
  readonly isRetryable: boolean;
  readonly retryAfterMs: number | null;
  /** The whole response: some codes have members of their own, such as `seq`. */
  readonly problem: Record<string, unknown>;

  constructor(code: Code, detail: string, facts: Facts = {}) {
    const remedy = code in REMEDIES ? REMEDIES[code as ErrorCode] : "";
    const [first = "", ...others] = remedy.split(". ");
    // a remedy begins with what is wrong, as the detail does; the fields of this request say more than it
    const advice = adviceOf(detail, facts.problem) ?? (detail.includes(first) ? others.join(". ") : remedy);
    const said = `${detail} ${advice}`.trim();
    super(`${code}: ${said}${facts.requestId ? ` (request ${facts.requestId})` : ""}`, { cause: facts.cause });
    this.name = "TurnkeepError";
    this.code = code;
    this.detail = detail;
    this.status = facts.status ?? 0;
    this.requestId = facts.requestId ?? null;
    this.remedy = remedy;
    this.isRetryable = facts.isRetryable ?? false;
    this.retryAfterMs = facts.retryAfterMs ?? null;
    this.problem = facts.problem ?? {};
  }
}

/** There was no answer: it is not known whether the request was executed. */
export class ConnectionFailedError extends TurnkeepError {
  constructor(detail: string, cause?: unknown) {
    super("connection_failed", detail, { isRetryable: true, cause });
    this.name = "ConnectionFailedError";
  }
}

const MAX_SHOWN_FIELDS = 5;

/** What is wrong with each field that the detail does not name, such as "/turns/0/text: Unknown field `text`."; null without fields. */
function adviceOf(detail: string, problem: Record<string, unknown> = {}): string | null {
  const fields = Array.isArray(problem.errors) ? (problem.errors as Record<string, unknown>[]) : [];
  if (fields.length === 0) return null;
  // the detail of an invalid request names its first field
  const start = detail.includes(String(fields[0]?.detail)) ? 1 : 0;
  return fields
    .slice(start, MAX_SHOWN_FIELDS)
    .map(({ pointer, in: place, detail }) => `${String(pointer || place)}: ${String(detail)}`)
    .join(" ");
}

const PROXY_STATUSES = new Set([502, 503, 504]);
/** Statuses that another service than a Turnkeep answers to its paths. */
const STRANGER_STATUSES = new Set([301, 302, 303, 307, 308, 404, 405]);

/** The error of a response; one that no Turnkeep sent has the code `http_error`. */
export function errorOfResponse(status: number, headers: Headers, text: string): TurnkeepError {
  let problem: Record<string, unknown> = {};
  try {
    const parsed: unknown = JSON.parse(text);
    if (typeof parsed === "object" && parsed !== null && "code" in parsed) problem = parsed as Record<string, unknown>;
  } catch {
    // no problem document
  }
  const isProblem = typeof problem.code === "string";
  const facts: Facts = {
    status,
    requestId: typeof problem.request_id === "string" ? problem.request_id : headers.get("x-request-id"),
    isRetryable: isProblem ? problem.retryable === true : PROXY_STATUSES.has(status),
    retryAfterMs: retryAfterMs(headers),
    problem,
  };
  if (!isProblem) {
    const advice = STRANGER_STATUSES.has(status) ? ": is `url` a Turnkeep?" : ".";
    return new TurnkeepError("http_error", `The server answers ${status} without a problem document${advice}`, facts);
  }
  return new TurnkeepError(String(problem.code), String(problem.detail ?? ""), facts);
}

/** The error of an `error` frame. */
export function errorOfFrame(frame: object): TurnkeepError {
  const problem = frame as Record<string, unknown>;
  const facts = { isRetryable: problem.retryable === true, problem };
  return new TurnkeepError(String(problem.code), String(problem.detail ?? ""), facts);
}

const FINAL_CLOSES: Readonly<Record<number, ErrorCode>> = {
  1003: "invalid_request",
  1007: "invalid_request",
  1009: "chunk_too_large",
  4400: "invalid_request",
  4401: "unauthenticated",
  4403: "forbidden",
  4404: "not_found",
};

/** The error of a close code after which another connection cannot help. */
export function errorOfClose(closeCode: number, reason: string): TurnkeepError | null {
  const code = FINAL_CLOSES[closeCode];
  if (code === undefined) return null;
  return new TurnkeepError(reason in REMEDIES ? reason : code, `The server closed the connection with ${closeCode}.`);
}

function retryAfterMs(headers: Headers): number | null {
  const value = headers.get("retry-after");
  if (value === null) return null;
  if (/^\d+$/.test(value)) return Number(value) * 1000;
  // by the server's clock: that of this machine may differ
  const wait = Date.parse(value) - Date.parse(headers.get("date") ?? value);
  return Number.isNaN(wait) ? null : Math.max(0, wait);
}
