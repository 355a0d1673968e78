// The text of a turn, without its other parts.
import type { Turn } from "../api/types";

type Content = Turn["content"];

export function contentText(content: Content): string {
  if (content === null) return "";
  if (typeof content === "string") return content;
  return content.flatMap((part) => { const { text } = part as { text?: unknown }; return typeof text === "string" ? [text] : []; }).join("\n");
}

/** The content of a turn as text; that of its tool results where it has none. */
export function textOf(turn: Turn): string {
  return contentText(turn.content) || turn.tool_results.map((result) => contentText(result.content ?? null)).join("\n");
}

/** The beginning of a text, on one line. */
export function clipped(text: string, most = 160): string {
  const line = text.replaceAll(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** Markdown as plain text: without the marks of emphasis, code, headings, quotes, links and tables. */
export function withoutMarks(text: string): string {
  return text
    .replaceAll(/^\s*(?:```|~~~).*$/gm, " ")
    .replaceAll(/\|(?:\s*:?-{3,}:?\s*\|)+/g, " ")
    .replaceAll(/\s*\|\s*/g, "  ")
    .replaceAll(/!?\[([^[\]\n]*)\]\([^()\s]*\)/g, "$1")
    .replaceAll(/\*\*|`+|^\s*(?:#{1,6}|>)\s/gm, "")
    .replaceAll(/(^|[\s(])\*([^\s*](?:[^*\n]*[^\s*])?)\*(?=[\s).,;:!?]|$)/gm, "$1$2")
    .trim();
}
