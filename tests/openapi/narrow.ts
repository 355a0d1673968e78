// Lines that must not compile: the generated types are as narrow as the document.
import type { Problem, RecallResult, SnapshotFrame } from "./client";

export function narrow(problem: Problem, result: RecallResult, frame: SnapshotFrame) {
  // @ts-expect-error no code of the catalogue
  if (problem.code === "no_such_code") return;
  for (const hit of result.data) {
    // @ts-expect-error no kind of hit
    if (hit.kind === "note") return;
    // @ts-expect-error the fact of a turn is null
    if (hit.kind === "turn") hit.fact.subject;
  }
  // @ts-expect-error a role of a turn is one of four
  if (frame.turns[0]?.role === "developer") return;
  // @ts-expect-error content is text or parts
  frame.turns[0].content = 1;
}
