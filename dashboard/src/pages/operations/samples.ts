// Samples of metrics of the processes that have answered. Each replica keeps its own, and any of them may answer.
import { useEffect, useState } from "preact/hooks";
import { api, body } from "../../api/client";
import { asApiError, type ApiError } from "../../api/problem";
import type { MetricSample, MetricSamples } from "../../api/types";

const DEFAULT_INTERVAL_S = 10;

export interface Processes {
  known: Map<string, MetricSamples>;
  /** The process that answered last. */
  last: string | null;
  error: ApiError | null;
}

/** Read the samples of so many minutes, again after each interval while the page is visible. */
export function useSamples(minutes: number, isAllowed: boolean): Processes {
  const [state, setState] = useState<Processes>({ known: new Map(), last: null, error: null });
  useEffect(() => {
    if (!isAllowed) return;
    let isCurrent = true;
    let timer: ReturnType<typeof setTimeout>;
    const read = async () => {
      if (document.visibilityState === "visible") {
        try {
          const samples = await body(api.GET("/v1/admin/samples", { params: { query: { minutes } } }));
          if (isCurrent) setState(({ known }) => ({ known: new Map(known).set(samples.process_id, samples), last: samples.process_id, error: null }));
        } catch (error) {
          if (isCurrent) setState((before) => ({ ...before, error: asApiError(error) }));
        }
      }
      if (isCurrent) timer = setTimeout(() => void read(), DEFAULT_INTERVAL_S * 1000);
    };
    void read();
    return () => void ((isCurrent = false), clearTimeout(timer));
  }, [minutes, isAllowed]);
  return state;
}

export type RouteClass = MetricSample["route_classes"][number];

/** The classes that have requests in any of the samples, the busiest first. */
export function classesOf(samples: MetricSample[]): string[] {
  const requests = new Map<string, number>();
  for (const one of samples.flatMap(({ route_classes }) => route_classes)) {
    if (one.requests > 0) requests.set(one.route_class, (requests.get(one.route_class) ?? 0) + one.requests);
  }
  return [...requests].sort(([, first], [, second]) => second - first).map(([name]) => name);
}

/** One figure of a class in each sample; `missing` where it had no requests. */
export const ofClass = (samples: MetricSample[], name: string, figure: (one: RouteClass, sample: MetricSample) => number | null, missing: number | null): (number | null)[] =>
  samples.map((sample) => {
    const found = sample.route_classes.find(({ route_class }) => route_class === name);
    return found ? figure(found, sample) : missing;
  });
