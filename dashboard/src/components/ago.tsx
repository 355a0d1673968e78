// How long ago something was. It stays right while the page is open.
import { ago, time } from "../lib/format";
import { createStore, useStore } from "../lib/store";

const EVERY_MS = 20_000;
const clock = createStore(0);
const tick = () => document.visibilityState === "visible" && clock.set(Date.now());
setInterval(tick, EVERY_MS);
document.addEventListener("visibilitychange", tick);

export function Ago({ at, class: name }: { at: string; class?: string }) {
  useStore(clock);
  return <time class={name} dateTime={at} title={time(at)}>{ago(at)}</time>;
}
