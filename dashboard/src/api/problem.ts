// Errors of the API (RFC 9457), as an exception that says what to do.
import { strings } from "../strings";
import type { Problem } from "./types";

export class ApiError extends Error {
  override name = "ApiError";

  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly requestId: string | null,
    readonly retryable: boolean,
    readonly fields: { pointer: string; detail: string }[],
  ) {
    super(detail);
  }

  /** What the user can do, in one sentence. */
  get remedy(): string {
    const remedies: Record<string, string> = strings.remedies;
    return remedies[this.code] ?? (this.retryable ? strings.remedies.retryable : strings.remedies.other);
  }
}

export function problemOf(response: Response, body: unknown): ApiError {
  const problem = (body !== null && typeof body === "object" ? body : {}) as Partial<Problem>;
  return new ApiError(
    response.status,
    problem.code ?? "unknown",
    problem.detail ?? strings.errors.status(response.status),
    problem.request_id ?? response.headers.get("X-Request-Id"),
    problem.retryable ?? response.status >= 500,
    (problem.errors ?? []).map(({ pointer, detail }) => ({ pointer, detail })),
  );
}

export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError(0, "unreachable", strings.errors.unreachable, null, true, []);
}
