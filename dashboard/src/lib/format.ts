// Times, numbers and names as the user reads them.
const TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const STEPS: [number, Intl.RelativeTimeFormatUnit][] = [[60, "second"], [60, "minute"], [24, "hour"], [7, "day"], [5, "week"]];

export const time = (iso: string): string => TIME.format(new Date(iso));

export function ago(iso: string): string {
  let value = (Date.parse(iso) - Date.now()) / 1000;
  for (const [size, unit] of STEPS) {
    if (Math.abs(value) < size) return RELATIVE.format(Math.round(value), unit);
    value /= size;
  }
  return TIME.format(new Date(iso));
}

// made once: a list formats thousands of numbers while it scrolls
const NUMBER = new Intl.NumberFormat("en");
export const number = (value: number): string => NUMBER.format(value);

/** One of eight colours, the same for the same actor everywhere. */
export function hue(actor: string): string {
  let hash = 7;
  for (const character of actor) hash = (hash * 31 + (character.codePointAt(0) ?? 0)) >>> 0;
  return `hue-${hash % 8}`;
}

export function download(name: string, content: BlobPart, type = "application/json"): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: number): string {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toLocaleString("en", { maximumFractionDigits: 1 })} ${UNITS[unit]}`;
}
