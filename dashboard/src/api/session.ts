// The keys of this browser tab. They are in its sessionStorage only, and go to this server only, in a header.
import { createStore } from "../lib/store";
import type { Scope } from "./types";

export interface SignIn {
  key: string;
  keyId: string;
  /** The names of the tenant and of the key. */
  label: string;
  tenantId: string;
  tenantName: string;
  /** The projects that the key is restricted to; null for all. */
  projects: string[] | null;
  expiresAt: string | null;
  /** The agent that the key belongs to; null: the one that a request names. */
  agentId: string | null;
  scopes: { read: boolean; write: boolean; admin: boolean; operator: boolean };
}

export interface Session {
  signIns: SignIn[];
  current: number;
  /** Lists show this project only; null: all projects. */
  project: string | null;
}

const STORED = "turnkeep.dashboard";
const NOBODY: Session = { signIns: [], current: 0, project: null };

function read(): Session {
  try {
    return { ...NOBODY, ...(JSON.parse(sessionStorage.getItem(STORED) ?? "{}") as Partial<Session>) };
  } catch {
    return NOBODY;
  }
}

export const session = createStore<Session>(read());
session.subscribe((value) => {
  if (value.signIns.length) sessionStorage.setItem(STORED, JSON.stringify(value));
  else sessionStorage.removeItem(STORED);
});

export function currentSignIn(value: Session = session.get()): SignIn | null {
  return value.signIns[value.current] ?? null;
}

/** Where the marks of the recall playground are kept while a key is signed in. */
export const marksStorage = (signIn: SignIn | null): string => `${STORED}.marks.${signIn?.label ?? ""}`;

export function addSignIn(signIn: SignIn): void {
  const { signIns } = session.get();
  const others = signIns.filter(({ key }) => key !== signIn.key);
  session.set({ signIns: [...others, signIn], current: others.length, project: null });
}

export function switchSignIn(index: number): void {
  session.set({ ...session.get(), current: index, project: null });
}

export function chooseProject(project: string | null): void {
  session.set({ ...session.get(), project });
}

/** Whether the current key has one of these scopes. */
export function hasScope(...scopes: Scope[]): boolean {
  const has = currentSignIn()?.scopes;
  return has !== undefined && scopes.some((scope) => has[scope]);
}

/** Forget the current key, with what was marked under it. */
export function signOut(): void {
  sessionStorage.removeItem(marksStorage(currentSignIn()));
  const { signIns, current } = session.get();
  session.set({ signIns: signIns.filter((_, index) => index !== current), current: 0, project: null });
}
