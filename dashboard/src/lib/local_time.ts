// Times of fields of the type `datetime-local`, which have no zone: that of the browser is meant.

/** Such as "2026-01-05T10:30"; empty for null. */
export function toLocalTime(iso: string | null): string {
  if (iso === null) return "";
  const when = new Date(iso);
  return new Date(when.getTime() - when.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export const fromLocalTime = (local: string): string => new Date(local).toISOString();
