// The only place that calls the server. Paths and bodies are checked against the OpenAPI document at compile time.
import createClient, { type Middleware } from "openapi-fetch";
import { problemOf } from "./problem";
import type { paths } from "./schema";
import { currentSignIn } from "./session";

const authorize: Middleware = {
  onRequest({ request }) {
    const signIn = currentSignIn();
    if (signIn && !request.headers.has("Authorization")) request.headers.set("Authorization", `Bearer ${signIn.key}`);
    return request;
  },
  async onResponse({ response }) {
    if (!response.ok) throw problemOf(response, await response.clone().json().catch(() => null));
  },
};

export const api = createClient<paths>({
  baseUrl: location.origin,
  fetch: (request) => fetch(request),
});
api.use(authorize);

/** The body of a response. Errors were thrown before, so a body is there for each call that has one. */
export async function body<T>(call: Promise<{ data?: T }>): Promise<T> {
  return (await call).data as T;
}

/** A header that makes a call repeatable: the same key is executed once. */
export const once = (): { "Idempotency-Key": string } => ({ "Idempotency-Key": crypto.randomUUID() });
