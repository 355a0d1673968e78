import { useEffect, useState } from "preact/hooks";

/** A value, some time after its last change: for fields whose every key would start a request. */
export function useSettled<T>(value: T, afterMs: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), afterMs);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}
