// The facts of a conversation, by the turns that state them.
import { api, body } from "../../api/client";
import type { Fact } from "../../api/types";

const MOST_PAGES = 5;
/** Source turns whose positions are read for the timeline; those of other turns are known once they are read. */
const MOST_SOURCES = 64;
const AT_ONCE = 8;

export interface FactsOfTurns {
  bySource: Map<string, Fact[]>;
  positions: Map<string, number>;
}

export async function factsOfTurns(id: string): Promise<FactsOfTurns> {
  const bySource = await factsBySource(id);
  const positions = new Map<string, number>();
  const sources = [...bySource.keys()].slice(0, MOST_SOURCES);
  for (let first = 0; first < sources.length; first += AT_ONCE) {
    const turns = sources.slice(first, first + AT_ONCE).map((turn) =>
      body(api.GET("/v1/conversations/{conversation_id}/turns/{turn_id}", { params: { path: { conversation_id: id, turn_id: turn } } })),
    );
    // a turn that was erased meanwhile has no place
    for (const read of await Promise.allSettled(turns)) {
      if (read.status === "fulfilled" && read.value.position !== null) positions.set(read.value.id, read.value.position);
    }
  }
  return { bySource, positions };
}

async function factsBySource(id: string): Promise<Map<string, Fact[]>> {
  const found = new Map<string, Fact[]>();
  let cursor: string | null = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const read: { data: Fact[]; next_cursor: string | null; has_more: boolean } = await body(
      api.POST("/v1/facts/search", { body: { conversation_id: id, limit: 200, ...(cursor ? { cursor } : {}) } }),
    );
    for (const fact of read.data) for (const turn of fact.source_turn_ids) found.set(turn, [...(found.get(turn) ?? []), fact]);
    if (!read.has_more || !read.next_cursor) break;
    cursor = read.next_cursor;
  }
  return found;
}
