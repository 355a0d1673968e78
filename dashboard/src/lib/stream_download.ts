// A download that arrives as a stream of lines: its size while it is read, and whether its end arrived.
const LAST_BYTES = 64 * 1024;

/** Read a stream to its end. Raises the error of the stream, also when `signal` aborts it. */
export async function readLines(stream: ReadableStream<Uint8Array<ArrayBuffer>>, onBytes: (bytes: number) => void, signal: AbortSignal): Promise<Blob> {
  const reader = stream.getReader();
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  let bytes = 0;
  const onAbort = () => void reader.cancel();
  signal.addEventListener("abort", onAbort);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      signal.throwIfAborted();
      if (done) return new Blob(chunks, { type: "application/x-ndjson" });
      chunks.push(value);
      bytes += value.byteLength;
      onBytes(bytes);
    }
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}

/** The type of the last line. */
export async function lastType(lines: Blob): Promise<string | null> {
  const end = await lines.slice(Math.max(0, lines.size - LAST_BYTES)).text();
  try {
    return (JSON.parse(end.trimEnd().split("\n").at(-1) ?? "") as { type?: string }).type ?? null;
  } catch {
    return null;
  }
}
