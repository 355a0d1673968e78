// Server-sent events read with fetch, since an EventSource cannot send the key in a header.
import { currentSignIn } from "./session";

const LONGEST_WAIT_MS = 15_000;

export interface EventStream {
  close(): void;
}

/** Follow an event stream, across lost connections, from the last event that was received. */
export function followEvents(
  path: string,
  on: { event(type: string, data: unknown): void; connected(isConnected: boolean): void },
): EventStream {
  const stopped = new AbortController();
  void (async () => {
    let lastId: string | null = null;
    let waitMs = 500;
    while (!stopped.signal.aborted) {
      try {
        const headers: Record<string, string> = { Authorization: `Bearer ${currentSignIn()?.key ?? ""}` };
        if (lastId !== null) headers["Last-Event-ID"] = lastId;
        const response = await fetch(path, { headers, signal: stopped.signal });
        if (response.status === 401 || response.status === 403 || response.status === 404) break;
        if (!response.ok || !response.body) throw new Error(String(response.status));
        on.connected(true);
        waitMs = 500;
        for await (const { id, type, data } of parsed(response.body)) {
          if (id !== null) lastId = id;
          const event = JSON.parse(data) as unknown;
          try {
            on.event(type, event);
          } catch (error) {
            reportError(error); // a defect of the page, which another connection would not mend
          }
        }
      } catch {
        // the connection was lost, or refused for the moment: connect again below
      }
      if (stopped.signal.aborted) return;
      on.connected(false);
      await new Promise((later) => setTimeout(later, waitMs * (0.5 + Math.random() / 2)));
      waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
    }
    on.connected(false);
  })();
  return { close: () => stopped.abort() };
}

async function* parsed(stream: ReadableStream<Uint8Array>): AsyncGenerator<{ id: string | null; type: string; data: string }> {
  const reader = stream.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split(/\r?\n\r?\n/);
    text = blocks.pop() ?? "";
    for (const block of blocks) {
      let id: string | null = null;
      let type = "message";
      const data: string[] = [];
      for (const line of block.split(/\r?\n/)) {
        if (line.startsWith("id:")) id = line.slice(3).trim();
        else if (line.startsWith("event:")) type = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length) yield { id, type, data: data.join("\n") };
    }
  }
}
