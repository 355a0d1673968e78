// Light or dark: as the system says, or as the user chose in this browser.
import { createStore } from "./store";

export type Scheme = "light" | "dark";
const STORED = "turnkeep.scheme";
const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = (): Scheme | null => {
  const value = localStorage.getItem(STORED);
  return value === "light" || value === "dark" ? value : null;
};

export const scheme = createStore<Scheme>(chosen() ?? (system.matches ? "dark" : "light"));
const apply = (value: Scheme) => (document.documentElement.dataset["scheme"] = value);
scheme.subscribe(apply);
apply(scheme.get());
system.addEventListener("change", () => scheme.set(chosen() ?? (system.matches ? "dark" : "light")));

export function switchScheme(): void {
  const next = scheme.get() === "dark" ? "light" : "dark";
  localStorage.setItem(STORED, next);
  scheme.set(next);
}
