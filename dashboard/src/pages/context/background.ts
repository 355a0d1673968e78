// The facts and memories that a context names by their ids only: each is read once, when a context first names it.
import { useEffect, useRef, useState } from "preact/hooks";
import type { AgentHeader } from "../../api/agent_header";
import { api, body } from "../../api/client";
import type { Explained, Fact, Memory } from "../../api/types";
import { statementOf } from "../../components/fact";
import { clipped } from "../../lib/turn_text";
import type { Known } from "./coverage";

const AT_ONCE = 8;
const MOST_CHARACTERS = 140;

/** What the facts and memories say, by their ids. */
export type Background = ReadonlyMap<string, string>;

const readers = {
  facts: async (id: string) => statementOf(await body<Fact>(api.GET("/v1/facts/{fact_id}", { params: { path: { fact_id: id } } }))),
  memories: async (id: string, header: AgentHeader) =>
    clipped((await body<Memory>(api.GET("/v1/memories/{memory_id}", { params: { path: { memory_id: id }, header } }))).content, MOST_CHARACTERS),
};

export function useBackground(explain: Explained[], known: Known | null, header: AgentHeader): Background {
  const [texts, setTexts] = useState<Background>(new Map());
  const asked = useRef(new Set<string>());
  useEffect(() => {
    if (!known) return;
    const unknown = explain.filter(({ id, section }) => section in readers && !known.facts.has(id) && !asked.current.has(id));
    for (const { id } of unknown) asked.current.add(id);
    void (async () => {
      for (let first = 0; first < unknown.length; first += AT_ONCE) {
        const some = unknown.slice(first, first + AT_ONCE);
        // what was deleted since keeps its id
        const read = await Promise.allSettled(some.map(({ id, section }) => readers[section as keyof typeof readers](id, header)));
        setTexts((before) => new Map([...before, ...read.flatMap((one, index) => (one.status === "fulfilled" ? [[some[index]?.id ?? "", one.value] as const] : []))]));
      }
    })();
  }, [explain, known]);
  return texts;
}
