// What is asked, and how: the query with its scope, and the two configurations that are compared.
import { api } from "../../api/client";
import type { RankingConfiguration, RecallMode, RecallRequest, RecallResult } from "../../api/types";

export const SIDES = ["a", "b"] as const;
export type Side = (typeof SIDES)[number];

export const SCOPES = ["all", "project", "owner", "conversation"] as const;
export interface SearchScope {
  kind: (typeof SCOPES)[number];
  /** The project, the owner or the conversation's id. */
  name: string;
}

export const KINDS = ["turn", "summary", "fact", "memory"] as const;
export type EntryKind = (typeof KINDS)[number];

export interface Configuration {
  mode: RecallMode;
  minRelevance: number;
  /** An embedding space; null: the searched one. */
  space: number | null;
  weights: Partial<Record<Weight, number>>;
}

export const PLAIN: Configuration = { mode: "hybrid", minRelevance: 0, space: null, weights: {} };

export interface Question {
  query: string;
  scope: SearchScope;
}

/** The weights of the ranking formula with their defaults, as the guide of recall lists them. */
export const WEIGHTS = {
  meaning: 0.7, words: 0.4, share: 0.2, overlap: 0.5, session: 0.3, neighbour: 0.2, answer: 0.3, speaker: 0.1, assistant: 0.3,
  asks: 0.6, instructs: 0.2, first_person: 0.06, quantity: 0.04, wanted: 0.06,
} satisfies Partial<Record<keyof RankingConfiguration, number>>;
export type Weight = keyof typeof WEIGHTS;

const scopeOf = ({ kind, name }: SearchScope): Partial<RecallRequest> => {
  switch (kind) {
    case "all":
      return {};
    case "project":
      return { project: name };
    case "owner":
      return { owner: name };
    case "conversation":
      return { conversation_ids: [name] };
  }
};

export function requestOf({ query, scope }: Question, configuration: Configuration, k: number, kinds: readonly EntryKind[]): RecallRequest {
  return {
    query,
    k,
    kinds: [...kinds],
    mode: configuration.mode,
    neighbours: 1,
    explain: true,
    ...scopeOf(scope),
    ...(configuration.minRelevance > 0 ? { min_relevance: configuration.minRelevance } : {}),
    ...(configuration.space !== null ? { space: configuration.space } : {}),
    ...(Object.keys(configuration.weights).length > 0 ? { configuration: configuration.weights } : {}),
  };
}

export interface Found extends RecallResult {
  /** What the search compared: without an embedder words only, also where both were wanted. */
  compared: RecallMode;
}

/** Search. The answer is JSON, since the request does not accept lines of JSON. */
export async function recall(request: RecallRequest, signal: AbortSignal): Promise<Found> {
  const { data } = await api.POST("/v1/recall", { body: request, signal });
  const found = data as unknown as RecallResult;
  const mode = request.mode ?? "hybrid";
  return { ...found, compared: mode === "hybrid" && found.space === null ? "text" : mode };
}
