import { useEffect, useRef } from "preact/hooks";
import { useLoaded, type Loaded } from "../api/paging";

/** Read one object, as `useLoaded` does, and again after each interval while the page is visible. */
export function usePolled<T>(key: string, load: () => Promise<T>, everyMs: number): Loaded<T> {
  const loaded = useLoaded(key, load);
  const reload = useRef(loaded.reload);
  reload.current = loaded.reload;
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && reload.current(), everyMs);
    return () => clearInterval(timer);
  }, [key, everyMs]);
  return loaded;
}
