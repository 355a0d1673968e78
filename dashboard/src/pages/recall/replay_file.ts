// The marked queries as a file that `bench/replay.py` reads: whole conversations, and the right turns as evidence.
import { api, body } from "../../api/client";
import type { Turn } from "../../api/types";
import { textOf } from "../../lib/turn_text";
import { strings } from "../../strings";
import type { MarkedQuery } from "./marks";

const text = strings.recall;
/** A pause that starts another session. */
const SESSION_GAP_MS = 60 * 60 * 1000;
const SINGLE_HOP = 4;
const MULTI_HOP = 1;
const MONTHS = "January February March April May June July August September October November December".split(" ");

interface Spoken {
  speaker: string;
  dia_id: string;
  text: string;
}

export interface Sample {
  sample_id: string;
  conversation: Record<string, string | Spoken[]>;
  qa: { question: string; category: number; evidence: string[] }[];
}

/** Read all conversations that have a right turn. Raises ApiError. */
export async function replayFile(marks: MarkedQuery[], report: (progress: string) => void, signal: AbortSignal): Promise<Sample[]> {
  const conversations = [...new Set(marks.flatMap(({ right }) => Object.values(right)))];
  const samples: Sample[] = [];
  for (const [index, id] of conversations.entries()) {
    const turns: Turn[] = [];
    for (let cursor: string | null = null, more = true; more; ) {
      report(text.reading(index + 1, conversations.length, turns.length));
      const page: { data: Turn[]; has_more: boolean; next_cursor: string | null } = await body(
        api.GET("/v1/conversations/{conversation_id}/turns", {
          params: { path: { conversation_id: id }, query: { order: "asc", limit: 200, ...(cursor ? { cursor } : {}) } },
          signal,
        }),
      );
      turns.push(...page.data);
      cursor = page.next_cursor;
      more = page.has_more && cursor !== null;
    }
    samples.push(sampleOf(id, turns, marks));
  }
  return samples;
}

export function sampleOf(id: string, turns: Turn[], marks: MarkedQuery[]): Sample {
  const conversation: Record<string, string | Spoken[]> = {};
  const keys = new Map<string, string>();
  const speakers = new Set<string>();
  let session: Spoken[] = [];
  let number = 0;
  let last = Number.NEGATIVE_INFINITY;
  for (const turn of turns) {
    const said = textOf(turn);
    if (!said.trim()) continue; // erased turns, and those without text
    const when = Date.parse(turn.occurred_at);
    if (when - last > SESSION_GAP_MS) {
      number += 1;
      session = [];
      conversation[`session_${number}`] = session;
      conversation[`session_${number}_date_time`] = sessionTime(new Date(when));
    }
    last = when;
    const key = `D${number}:${session.length + 1}`;
    keys.set(turn.id, key);
    speakers.add(turn.actor);
    session.push({ speaker: turn.actor, dia_id: key, text: said });
  }
  const [first = "a", second = first] = speakers;
  const qa = marks.flatMap(({ query, right }) => {
    const evidence = Object.keys(right).flatMap((turn) => (right[turn] === id ? (keys.get(turn) ?? []) : []));
    return evidence.length ? [{ question: query, category: evidence.length > 1 ? MULTI_HOP : SINGLE_HOP, evidence }] : [];
  });
  return { sample_id: id, conversation: { speaker_a: first, speaker_b: second, ...conversation }, qa };
}

/** Such as "01:56 PM on 08 May, 2023", in UTC. */
function sessionTime(when: Date): string {
  const two = (value: number) => String(value).padStart(2, "0");
  const hour = when.getUTCHours();
  const clock = `${two(hour % 12 || 12)}:${two(when.getUTCMinutes())} ${hour < 12 ? "AM" : "PM"}`;
  return `${clock} on ${two(when.getUTCDate())} ${MONTHS[when.getUTCMonth()]}, ${when.getUTCFullYear()}`;
}
