// What a key is and what it may do, as the API says it.
import { api, body } from "./client";
import type { SignIn } from "./session";

export async function identify(key: string): Promise<SignIn> {
  const own = await body(api.GET("/v1/keys/self", { headers: { Authorization: `Bearer ${key}` } }));
  const has = new Set<string>(own.scopes);
  return {
    key,
    keyId: own.id,
    label: own.name === null ? own.tenant_name : `${own.tenant_name} · ${own.name}`,
    tenantId: own.tenant_id,
    tenantName: own.tenant_name,
    projects: own.projects,
    expiresAt: own.expires_at,
    agentId: own.agent_id,
    scopes: { read: has.has("read"), write: has.has("write"), admin: has.has("admin"), operator: has.has("operator") },
  };
}
