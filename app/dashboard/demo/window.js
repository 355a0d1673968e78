// One window on the conversation. The left one also plays the model.

import { Live } from "./live.js";
import { scriptCount, words } from "./model.js";

const WRITER = "demo-model";
const RETRY_MS = 1000;
const SHOWN_BEFORE_ANSWER_MS = 600;
const one = (id) => document.getElementById(id);
const side = location.hash === "#left" ? "left" : "right";
const stored = JSON.parse(sessionStorage.getItem("turnkeep-demo") ?? "null");
const shown = new Map(); // by turn id: its element
let writing = null; // {turnId, words, at, offset, timer}: what this window writes
let resuming = null;

one("name").textContent = side === "left" ? "The model’s window" : "Your window";
one(side === "left" ? "model" : "say").hidden = false;

const live = stored && new Live(stored.id, stored[side], { changed, grown, state: say_state, lost: refused });
if (!live) say_state("lost", "start the demo first");

function say_state(kind, text) {
  one("state").className = `state ${kind}`;
  one("state").textContent = text;
  if (kind === "lost") halt();
}

// what is shown

function changed() {
  const list = [...live.turns.values()].sort((a, b) => a.position - b.position);
  const open = [...live.open.values()];
  const leaving = new Set(open.map(({ turn }) => turn.supersedes));
  const items = [
    ...list.map((turn) => item(turn, turn.content ?? "(erased)", leaving.has(turn.id) ? "leaving" : "")),
    ...open.map(({ turn, parts }) => item(turn, (parts.get("content") ?? []).join(""), "open")),
  ];
  stay_at_end(() => one("turns").replaceChildren(...items));
  one("empty").hidden = items.length > 0;
  const kept = new Set(items);
  for (const [id, element] of shown) if (!kept.has(element)) shown.delete(id);
  const { writers } = live;
  one("presence").textContent = writers.length
    ? `${writers.join(" and ")} ${writers.length > 1 ? "are" : "is"} writing …`
    : "";
  if (side === "left") model_looks();
}

function item(turn, text, mark) {
  let element = shown.get(turn.id);
  if (!element) {
    element = document.createElement("li");
    const who = element.appendChild(document.createElement("div"));
    const said = element.appendChild(document.createElement("div"));
    [who.className, said.className] = ["who", "text"];
    shown.set(turn.id, element);
  }
  element.className = `turn ${turn.role} ${mark}`;
  element.dataset.id = turn.id;
  element.setAttribute("aria-busy", String(mark === "open"));
  const instead = mark === "open" && turn.supersedes !== null;
  element.firstChild.textContent = turn.actor + (instead ? ", instead of the answer above" : "");
  if (element.lastChild.textContent !== text) element.lastChild.textContent = text;
  return element;
}

function grown(turnId, part, added) {
  const element = shown.get(turnId);
  if (part !== "content" || !element) return;
  stay_at_end(() => {
    if (added === null) element.lastChild.textContent = live.open.get(turnId).parts.get(part).join("");
    else element.lastChild.append(added);
  });
}

// Scrolls along for a reader who is at the end, and leaves one alone who has scrolled up.
function stay_at_end(change) {
  const log = one("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// the user

one("say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const content = one("text").value.trim();
  if (!content) return;
  try {
    await live.ask("append", { turns: [{ role: "user", content }] });
    one("text").value = "";
  } catch (error) {
    one("presence").textContent = error.message;
  }
});

// the model

function model_looks() {
  const mine = [...live.open.values()].find(({ writer }) => writer === WRITER);
  // an open turn of this writer that nobody writes: this window was reloaded, or the key's holder opened it
  if (mine && writing?.turnId !== mine.turn.id && resuming !== mine.turn.id) resume(mine.turn);
  if (!mine && writing) halt();
  buttons();
  const last = last_turn();
  if (!mine && !writing && last?.role === "user" && one("by-itself").checked) {
    setTimeout(() => last === last_turn() && !live.open.size && !writing && write(), SHOWN_BEFORE_ANSWER_MS);
  }
}

const last_turn = () => live.turns.get(Math.max(...live.turns.keys()));
const next_script = () => (last_answer()?.metadata.demo_script + 1 || 0) % scriptCount;

function last_answer() {
  return [...live.turns.values()].filter(({ role }) => role === "assistant").sort((a, b) => b.position - a.position)[0];
}

function opening(more) {
  return {
    writer: WRITER,
    turn: { role: "assistant", actor: "model", model: "demo", metadata: { demo_script: next_script() }, ...more },
  };
}

async function write() {
  const wanted = opening();
  writing = { turnId: null };
  buttons();
  try {
    const { turn_id } = await live.ask("open", wanted);
    go_on(turn_id, wanted.turn.metadata.demo_script, 0);
  } catch (error) {
    refused(error);
  }
}

async function resume(turn) {
  resuming = turn.id;
  try {
    const { durable_offset } = await live.ask("resume", { turn_id: turn.id, writer: WRITER });
    go_on(turn.id, turn.metadata.demo_script ?? 0, durable_offset);
  } catch (error) {
    refused(error);
  } finally {
    resuming = null;
  }
}

// Writes on from an offset in code points; what of a word is durable already is not sent again.
function go_on(turnId, script, from) {
  halt();
  let at = 0;
  const rest = [];
  for (const word of words(script)) {
    const points = Array.from(word);
    if (at + points.length > from) rest.push(points.slice(Math.max(0, from - at)).join(""));
    at += points.length;
  }
  writing = { turnId, rest, offset: from, timer: null };
  buttons();
  next_word();
}

function next_word() {
  const { turnId, rest } = writing;
  if (!rest.length) return end("commit");
  const delta = rest.shift();
  live.ask("chunk", { turn_id: turnId, offset: writing.offset, delta }).catch(refused);
  writing.offset += Array.from(delta).length;
  writing.timer = setTimeout(next_word, Number(one("speed").value));
}

async function end(type) {
  if (!writing?.turnId) return;
  const { turnId, offset } = writing;
  clearTimeout(writing.timer);
  try {
    await live.ask(type, { turn_id: turnId, ...(type === "commit" ? { length: offset } : { reason: "given up" }) });
  } catch (error) {
    refused(error);
  }
}

function halt() {
  clearTimeout(writing?.timer);
  writing = null;
  buttons();
}

// What is still open is resumed: after a lost connection from the next snapshot, else in a moment. Only whoever was
// fenced off gives way, to another window of the same writer.
function refused(error) {
  halt();
  if (!error.code) return;
  one("presence").textContent = error.message;
  if (error.code !== "stream_fenced") setTimeout(model_looks, RETRY_MS);
}

function buttons() {
  const busy = writing !== null || resuming !== null;
  one("write").disabled = busy;
  one("stop").disabled = one("abort").disabled = !writing?.turnId;
  one("again").disabled = busy || !live || !last_answer() || window.parent === window;
}

one("model").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!writing) write();
});
one("stop").addEventListener("click", () => end("commit"));
one("abort").addEventListener("click", () => end("abort"));
one("again").addEventListener("click", () => {
  const message = { ask: "regenerate", opening: opening({ supersedes: last_answer().id }) };
  window.parent.postMessage(message, location.origin);
});
window.addEventListener("message", ({ origin, source, data }) => {
  if (origin === location.origin && source === window.parent && data?.refused) one("presence").textContent = data.refused;
});
