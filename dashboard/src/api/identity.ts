// What a key may do. The API has no call that says it, so each scope is tried with a call that changes nothing.
import { api, body } from "./client";
import { ApiError } from "./problem";
import type { SignIn } from "./session";

const NO_CONVERSATION = "00000000000000000000000000";

export async function identify(key: string): Promise<SignIn> {
  const headers = { Authorization: `Bearer ${key}` };
  const read = await allowed(api.GET("/v1/conversations", { headers, params: { query: { limit: 1 } } }));
  const [write, limits, operator] = await Promise.all([
    // without turns nothing can be stored: the answer is 403 without the scope, and an error of the body with it
    allowed(
      api.POST("/v1/conversations/{conversation_id}/turns", {
        headers,
        params: { path: { conversation_id: NO_CONVERSATION } },
        body: { turns: [] },
      }),
    ),
    body(api.GET("/v1/admin/limits", { headers })).catch(nullIfForbidden),
    allowed(api.GET("/v1/admin/tenants", { headers, params: { query: { limit: 1 } } })),
  ]);
  const label = limits?.tenant_id ?? `${key.slice(0, 9)}…`;
  return { key, label, scopes: { read, write, admin: limits !== null, operator } };
}

function nullIfForbidden(error: unknown): null {
  if (error instanceof ApiError && error.status === 403) return null;
  throw error;
}

/** Whether a call is allowed. An invalid key throws. */
async function allowed(call: Promise<unknown>): Promise<boolean> {
  try {
    await call;
    return true;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401 || error.status >= 500 || error.status === 429) throw error;
    return error.status !== 403;
  }
}
