// The progress of long work, with a button that cancels it; its error, if it failed.
import type { Work } from "../lib/work";
import { strings } from "../strings";
import { ErrorNote } from "./basics";

export function WorkNote({ work }: { work: Work }) {
  if (work.error) return <ErrorNote error={work.error} />;
  if (work.progress === null) return null;
  return (
    <div class="notice row spread" role="status">
      <span class="row"><span class="spinner" /> {work.progress}</span>
      <button onClick={work.cancel}>{strings.app.cancel}</button>
    </div>
  );
}
