// Conversations found by what was said in them: turns that have words of the search, one for each conversation.
import { useEffect, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { asApiError, type ApiError } from "../../api/problem";
import type { Conversation, RecallResult } from "../../api/types";
import { clipped, withoutMarks } from "../../lib/turn_text";

/** Shorter words are in most turns. */
const FEWEST_CHARACTERS = 3;
const TURNS = 40;
const MOST_CONVERSATIONS = 8;
const BEFORE_WORD = 40;

export interface Said {
  conversation: Conversation;
  turn: string;
  actor: string;
  snippet: string;
}

export interface SaidSearch {
  found: Said[];
  loading: boolean;
  error: ApiError | null;
}

export interface Words {
  query: string;
  owner: string;
  project: string | null;
}

const NOTHING: SaidSearch = { found: [], loading: false, error: null };

/** Search when `words` change; what runs is cancelled. Null: search nothing. */
export function useSaid(words: Words | null): SaidSearch {
  const [state, setState] = useState(NOTHING);
  const wanted = words && words.query.trim().length >= FEWEST_CHARACTERS ? words : null;
  useEffect(() => {
    if (!wanted) return setState(NOTHING);
    const stop = new AbortController();
    setState({ ...NOTHING, loading: true });
    search(wanted, stop.signal)
      .then((found) => !stop.signal.aborted && setState({ ...NOTHING, found }))
      .catch((error: unknown) => !stop.signal.aborted && setState({ ...NOTHING, error: asApiError(error) }));
    return () => stop.abort();
  }, [JSON.stringify(wanted)]);
  return state;
}

async function search({ query, owner, project }: Words, signal: AbortSignal): Promise<Said[]> {
  // by words: by meaning, every turn matches a little
  const request = { query: query.trim(), k: TURNS, kinds: ["turn" as const], mode: "text" as const, ...(owner ? { owner } : {}), ...(project ? { project } : {}) };
  const { data } = (await body(api.POST("/v1/recall", { body: request, signal }))) as unknown as RecallResult;
  const best = new Map<string, { turn: string; actor: string; snippet: string }>();
  for (const hit of data) {
    if (hit.kind !== "turn" || !hit.conversation_id || best.has(hit.conversation_id) || best.size === MOST_CONVERSATIONS) continue;
    best.set(hit.conversation_id, { turn: hit.id, actor: hit.turn?.actor ?? "", snippet: snippetOf(hit.text, query) });
  }
  const read = await Promise.allSettled(
    [...best.keys()].map((id) => body(api.GET("/v1/conversations/{conversation_id}", { params: { path: { conversation_id: id } }, signal }))),
  );
  // what was deleted since is left out
  return read.flatMap((one) => {
    const said = one.status === "fulfilled" ? best.get(one.value.id) : undefined;
    return one.status === "fulfilled" && said ? [{ conversation: one.value, ...said }] : [];
  });
}

/** The text from shortly before the first word of the query. */
function snippetOf(said: string, query: string): string {
  const plain = withoutMarks(said).replaceAll(/\s+/g, " ");
  const lower = plain.toLowerCase();
  const places = query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => lower.indexOf(word)).filter((at) => at >= 0);
  const first = places.length ? Math.min(...places) : 0;
  const start = first > BEFORE_WORD ? lower.indexOf(" ", first - BEFORE_WORD) + 1 : 0;
  return `${start > 0 ? "… " : ""}${clipped(plain.slice(start))}`;
}
