// All pages. A page is added with one line here and a folder under pages/; its code is loaded when it is opened.
import type { ComponentType } from "preact";
import { strings } from "./strings";
import type { Scope } from "./api/types";

export interface PageProps {
  /** Parts of the path, such as `id`. Values that may have a dot or a slash belong into the query instead. */
  params: Record<string, string>;
}

export interface PageEntry {
  path: string;
  title: string;
  /** Its place in the navigation; pages without one are reached from others. */
  group?: keyof typeof strings.app.groups;
  /** Scopes of which a key needs one. */
  scope: Scope | readonly Scope[];
  /** The page fills the window and scrolls inside. */
  fill?: boolean;
  load: () => Promise<{ default: ComponentType<PageProps> }>;
}

export const scopesOf = ({ scope }: PageEntry): readonly Scope[] => (typeof scope === "string" ? [scope] : scope);

export const pages: PageEntry[] = [
  { path: "/dashboard", title: strings.conversations.title, group: "memory", scope: "read", fill: true, load: () => import("./pages/conversations") },
  { path: "/dashboard/conversations/:id", title: strings.conversation.title, scope: "read", fill: true, load: () => import("./pages/conversation") },
  { path: "/dashboard/conversations/:id/context", title: strings.context.title, scope: "read", load: () => import("./pages/context") },
  { path: "/dashboard/facts", title: strings.facts.title, group: "memory", scope: "read", fill: true, load: () => import("./pages/facts") },
  { path: "/dashboard/person", title: strings.person.title, group: "memory", scope: "admin", load: () => import("./pages/person") },
  { path: "/dashboard/recall", title: strings.recall.title, group: "understand", scope: "read", load: () => import("./pages/recall") },
  { path: "/dashboard/operations", title: strings.operations.title, group: "operate", scope: ["admin", "operator"], load: () => import("./pages/operations") },
  { path: "/dashboard/jobs", title: strings.jobs.title, group: "operate", scope: ["admin", "operator"], load: () => import("./pages/jobs") },
  { path: "/dashboard/spaces", title: strings.spaces.title, group: "operate", scope: "operator", load: () => import("./pages/spaces") },
  { path: "/dashboard/keys", title: strings.keys.title, group: "administer", scope: "admin", load: () => import("./pages/keys") },
  { path: "/dashboard/tenants", title: strings.tenants.title, group: "administer", scope: "operator", load: () => import("./pages/tenants") },
  { path: "/dashboard/limits", title: strings.limits.title, group: "administer", scope: ["admin", "operator"], load: () => import("./pages/limits") },
  { path: "/dashboard/audit", title: strings.audit.title, group: "administer", scope: "admin", load: () => import("./pages/audit") },
  { path: "/dashboard/erasures", title: strings.erasures.title, group: "administer", scope: "admin", load: () => import("./pages/erasures") },
  { path: "/dashboard/transfer", title: strings.transfer.title, group: "administer", scope: "admin", load: () => import("./pages/transfer") },
  { path: "/dashboard/webhooks", title: strings.webhooks.title, group: "administer", scope: "admin", load: () => import("./pages/webhooks") },
  { path: "/dashboard/webhooks/:id", title: strings.webhooks.title, scope: "admin", load: () => import("./pages/webhooks/detail") },
];
