/**
 * The turns of a chat of the AI SDK, under ids that follow from the message.
 *
 * Invariant: two requests with the same message reach the same turn of the message, and the same turn of its answer. The
 * server opens a turn for one writer only, so one of the requests calls the model.
 */

import type { UIMessage } from "ai";
import { callsOf, contentOf } from "./ai_messages.js";
import { TurnkeepError } from "./errors.js";
import type { PendingTurn, Turn, TurnInput } from "./generated/api/index.js";
import { sleep } from "./retries.js";
import type { TurnWriter } from "./stream.js";
import type { Conversation } from "./turnkeep.js";

/** In the metadata of each turn of an answer: the id of the turn that it answers. */
export const ANSWERS = "ai_sdk_answers";
/** In the metadata of the last step of an answer: the number of tool results that follow it. */
export const LAST = "ai_sdk_last";

const MAX_TRIES = 100;
const MAX_ERASED = 100;
const EDITED = "the message was edited";
const MAX_SEQ = Number.MAX_SAFE_INTEGER;
/** So soon a writer learns that its turn was stopped, if the model is silent. */
const PING_MS = 1_000;
/** The codes of calls on a turn that another process has ended. */
export const ENDED = ["turn_committed", "turn_aborted"];
export const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;

/** An id that follows from names. A hash, because pages choose ids as they like. */
export async function idOf(...names: (string | number)[]): Promise<string> {
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(JSON.stringify(["ai-sdk", ...names])));
  const bytes = new Uint8Array(hash, 0, 16);
  [bytes[6], bytes[8]] = [((bytes[6] ?? 0) & 0x0f) | 0x80, ((bytes[8] ?? 0) & 0x3f) | 0x80]; // a UUID of version 8
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** A UUID in the form that the server writes ids in. */
export function asUlid(uuid: string): string {
  let [rest, text] = [BigInt(`0x${uuid.replaceAll("-", "")}`), ""];
  for (let digit = 0; digit < 26; digit += 1, rest >>= 5n) text = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[Number(rest & 31n)] + text;
  return text;
}

export function turnOf(chat: Conversation, turnId: string): Promise<Turn> {
  return chat.api.getTurn({ path: { conversation_id: chat.id, turn_id: turnId } });
}

/** A turn, or null if there is none with this id. */
export async function findTurn(chat: Conversation, turnId: string): Promise<Turn | null> {
  return turnOf(chat, turnId).catch((error: unknown) => {
    if (hasCode(error, "not_found")) return null;
    throw error;
  });
}

/** The committed live turns after a position of the log, and the answers that are being written, the newest last. */
export async function openingOf(chat: Conversation, seq = MAX_SEQ): Promise<{ later: Turn[]; running: PendingTurn[] }> {
  const later: Turn[] = [];
  const stop = new AbortController();
  try {
    for await (const event of chat.follow({ afterSeq: seq, signal: stop.signal })) {
      if (event.type !== "snapshot") continue;
      later.push(...event.turns.filter(isLive));
      if (!event.more) return { later, running: event.pending.filter(({ turn }) => answeredBy(turn) !== null) };
    }
  } finally {
    stop.abort();
  }
  return { later, running: [] };
}

/** The id of the turn that a turn of an answer answers; null for other turns. */
export function answeredBy({ metadata }: Turn): string | null {
  const answered = metadata[ANSWERS];
  return typeof answered === "string" ? answered : null;
}

export function isLive(turn: Turn): boolean {
  return turn.erased_at === null && turn.superseded_by === null;
}

/**
 * Store a message of the user, and return its live turn.
 *
 * A message that is sent again is stored once. With another text, or with `regenerate` after its answer, it is revised,
 * and the turns after it are superseded. `actor` is the author: a page cannot reach messages of other authors.
 */
export async function storeMessage(
  chat: Conversation, message: UIMessage, { actor, regenerate = false }: { actor?: string | undefined; regenerate?: boolean | undefined },
): Promise<Turn> {
  const given: TurnInput = { role: "user", content: contentOf(message), ...(actor === undefined ? {} : { actor }) };
  let id = await rootId(chat, message.id, actor);
  for (let tries = 0; tries < MAX_TRIES; ) {
    const turn = await liveWording(chat, await stored(chat, { ...given, id }));
    if (turn.superseded_by !== null) {
      id = await idOf(turn.id, "again"); // an earlier message was edited, and this one went with the turns after it
      continue;
    }
    const isEdited = !isEqual(turn.content, given.content);
    if (!isEdited && !(regenerate && (await isFollowed(chat, turn)))) return turn;
    try {
      return await revise(chat, turn, given);
    } catch (error) {
      if (!hasCode(error, "already_superseded", "turn_id_conflict")) throw error;
      tries += 1; // another request was faster
    }
  }
  throw new Error(`The message was changed ${MAX_TRIES} times meanwhile.`);
}

/** The id of the first turn of a message: `history` gives messages the ids of their turns, pages choose theirs. */
async function rootId(chat: Conversation, messageId: string, actor: string | undefined): Promise<string> {
  if (ULID.test(messageId)) {
    const turn = await findTurn(chat, messageId);
    if (turn?.role === "user" && turn.actor === (actor ?? "user")) return turn.id;
  }
  return idOf("message", chat.id, actor ?? "", messageId);
}

/** Append a turn, or find the turn of this id, with whatever content. */
async function stored(chat: Conversation, turn: TurnInput & { id: string }): Promise<Turn> {
  try {
    return (await chat.append(turn)).turns[0] as Turn; // of one turn there is one
  } catch (error) {
    if (!hasCode(error, "turn_id_conflict")) throw error;
    return turnOf(chat, turn.id);
  }
}

/** The newest revision of a turn. */
async function liveWording(chat: Conversation, turn: Turn): Promise<Turn> {
  while (turn.superseded_by !== null) {
    const next = await turnOf(chat, turn.superseded_by);
    if (next.supersedes !== turn.id) break; // not a revision: the turn was truncated
    turn = next;
  }
  return turn;
}

/** Whether a message has turns after it, and no answer of its own that is being written. */
async function isFollowed(chat: Conversation, asked: Turn): Promise<boolean> {
  const { later, running } = await openingOf(chat, asked.seq ?? 0);
  return later.length > 0 && !running.some(({ turn }) => answeredBy(turn) === asked.id);
}

async function revise(chat: Conversation, old: Turn, given: TurnInput): Promise<Turn> {
  const { running } = await openingOf(chat);
  for (const { turn } of running) if (answeredBy(turn) === old.id) await abort(chat, turn.id, EDITED);
  const { turn } = await chat.api.reviseTurn({
    path: { conversation_id: chat.id, turn_id: old.id },
    body: { id: await idOf(old.id, "again"), content: given.content, truncate_after: true },
  });
  await dropStaleAnswers(chat, turn);
  return turn;
}

/** End the answers to messages that a revision superseded: they may have been opened, or committed, meanwhile. */
export async function dropStaleAnswers(chat: Conversation, revision: Turn): Promise<void> {
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    const { later, running } = await openingOf(chat, revision.seq ?? 0);
    const open = running.map(({ turn }) => turn);
    const live = new Set([revision, ...later].map(({ id }) => id));
    const stale = new Set<string>();
    for (const answered of new Set([...later, ...open].map(answeredBy)))
      if (answered !== null && !live.has(answered) && !isLive(await turnOf(chat, answered))) stale.add(answered);
    const isStale = (turn: Turn): boolean => stale.has(answeredBy(turn) ?? "");
    for (const { id } of open.filter(isStale)) await abort(chat, id, EDITED);
    const ids = later.filter(isStale).map(({ id }) => id);
    for (let start = 0; start < ids.length; start += MAX_ERASED)
      await chat.api.eraseTurns({ path: { conversation_id: chat.id }, query: { ids: ids.slice(start, start + MAX_ERASED) } });
    if (!open.some(isStale)) return; // else one of them may have been committed before its abort
  }
}

/** End the open turns of the newest running answer: those with a text are committed, the others aborted. */
export async function stopAnswer(chat: Conversation): Promise<void> {
  const { running } = await openingOf(chat);
  const newest = running.at(-1);
  if (newest === undefined) return;
  for (const { turn, parts } of running) {
    if (answeredBy(turn) !== answeredBy(newest.turn)) continue;
    if (parts.some(({ part, text }) => part === "content" && text !== "")) await commit(chat, turn.id);
    else await abort(chat, turn.id, "the user stopped it");
  }
}

async function abort(chat: Conversation, turnId: string, reason: string): Promise<void> {
  await ended(() => chat.api.abortTurn({ path: { conversation_id: chat.id, turn_id: turnId }, body: { reason } }));
}

/** Commit the text so far of a turn that another process writes. */
async function commit(chat: Conversation, turnId: string): Promise<void> {
  let length: number | undefined;
  await ended(async () => {
    const body = { metadata: { [LAST]: 0 }, ...(length === undefined ? {} : { length }) };
    try {
      await chat.api.commitTurn({ path: { conversation_id: chat.id, turn_id: turnId }, body });
    } catch (error) {
      const expected = error instanceof TurnkeepError ? error.problem["expected_offset"] : undefined;
      if (typeof expected === "number") length = expected; // its server has died: the durable text is all there is
      throw error;
    }
  });
}

/** Run a call that ends a turn, again while its writer interferes. It may have been ended by another process. */
async function ended(end: () => Promise<unknown>): Promise<void> {
  for (let tries = 1; ; tries += 1)
    try {
      return void (await end());
    } catch (error) {
      if (hasCode(error, ...ENDED)) return;
      if (tries >= MAX_TRIES || !hasCode(error, "stream_fenced", "stream_gap", "length_mismatch")) throw error;
      await sleep(10 * tries);
    }
}

/** A turn of an answer that this request writes: the number of its step, and how often the step was started before. */
export interface OpenStep {
  writer: TurnWriter;
  step: number;
  attempt: number;
}

/**
 * Open the next turn of the answer to a message, from a step on.
 *
 * Null if another request writes the answer, or it is complete. A step whose turn was aborted is opened under another id.
 */
export async function openNext(
  chat: Conversation, asked: Turn, assistant: string | undefined, from: { step: number; attempt: number } = { step: 0, attempt: 0 },
): Promise<OpenStep | null> {
  let { step, attempt } = from;
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    const writer = chat.stream({
      id: await idOf(asked.id, step, attempt),
      metadata: { [ANSWERS]: asked.id },
      pingMs: PING_MS,
      ...(assistant === undefined ? {} : { actor: assistant }),
    });
    try {
      await writer.open();
      return { writer, step, attempt };
    } catch (error) {
      if (!hasCode(error, "turn_id_conflict")) throw error;
    }
    let taken = await turnOf(chat, writer.turnId);
    if (hasFailed(taken)) [attempt, taken] = await newestAttempt(chat, asked, step, [attempt, taken]);
    if (hasFailed(taken)) attempt += 1;
    else if (taken.status === "pending" || isLast(taken)) return null;
    else [step, attempt] = [step + 1, 0]; // the process that wrote the answer died between two steps
  }
  throw new Error(`The answer was started ${MAX_TRIES} times meanwhile by other requests, and never completed.`);
}

function hasFailed(turn: Turn): boolean {
  return turn.status === "aborted" || turn.erased_at !== null;
}

/** The number and the turn of the newest attempt at a step, from a known one on: of n attempts it reads about 2 log2(n). */
async function newestAttempt(chat: Conversation, asked: Turn, step: number, [known, turn]: [number, Turn]): Promise<[number, Turn]> {
  let newest: [number, Turn] = [known, turn];
  let free = Infinity;
  for (let distance = 1; free - newest[0] > 1; ) {
    const number = free === Infinity ? known + distance : newest[0] + Math.floor((free - newest[0]) / 2);
    const found = await findTurn(chat, await idOf(asked.id, step, number));
    if (found === null) free = number;
    else newest = [number, found];
    distance *= 2;
  }
  return newest;
}

/** Whether no turn of the model follows in the answer. */
export function isLast(turn: Turn): boolean {
  return turn.metadata[LAST] !== undefined || callsOf(turn).length === 0;
}

export function hasCode(error: unknown, ...codes: string[]): boolean {
  return error instanceof TurnkeepError && codes.includes(error.code);
}

/** Whether two JSON values are the same, in any order of members. */
function isEqual(one: unknown, other: unknown): boolean {
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return one === other;
  const [names, others] = [Object.keys(one), Object.keys(other)];
  return (
    Array.isArray(one) === Array.isArray(other) && names.length === others.length &&
    names.every((name) => isEqual((one as Record<string, unknown>)[name], (other as Record<string, unknown>)[name]))
  );
}
