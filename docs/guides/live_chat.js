// Shows a conversation while it grows, across lost connections: see live-chat.md.
const turns = new Map(), open = new Map(); // turns by position; parts of open turns by id
let rev = null, waitMs = 500;

async function connect() {
  const { token, conversation_id } = await (await fetch("/chat-token", { method: "POST" })).json();
  const url = `wss://turnkeep.example.com/v1/conversations/${conversation_id}/live`;
  const socket = new WebSocket(url, ["turnkeep.v1", `bearer.${token}`]);
  const subscribe = (after) => socket.send(JSON.stringify({ type: "subscribe", ...(after === null ? {} : { after_rev: after }) }));
  const knows = (after) => (rev = Math.max(rev ?? 0, after));
  const away = (id) => turns.forEach((turn, at) => turn.id === id && turns.delete(at));
  const put = (turn) => (turn.superseded_by ? away(turn.id) : turns.set(turn.position, turn));

  const take = {
    snapshot(frame) {
      frame.turns.forEach(put);
      if (frame.more) return;
      open.clear();
      for (const { turn, parts } of frame.pending) {
        open.set(turn.id, new Map(parts.map(({ part, text }) => [part, Array.from(text)])));
      }
      knows(frame.rev);
      waitMs = 500;
    },
    "turn.opened": ({ turn }) => open.has(turn.id) || open.set(turn.id, new Map()),
    "turn.delta"({ turn_id, part, offset, delta }) {
      const held = open.get(turn_id)?.get(part) ?? []; // code points: "👋".length is 2, Array.from("👋").length is 1
      if (!open.has(turn_id) || offset > held.length) return subscribe(rev);
      open.get(turn_id).set(part, [...held.slice(0, offset), ...Array.from(delta)]);
    },
    "turn.committed"({ rev, turn }) { open.delete(turn.id); put(turn); knows(rev - 1); },
    "turn.superseded"({ rev, turn_id }) { away(turn_id); knows(rev - 1); },
    "turn.erased"({ rev, turn_id }) { away(turn_id); knows(rev - 1); },
    "turn.aborted": ({ turn_id }) => open.delete(turn_id),
    reread: ({ after_rev }) => subscribe(after_rev),
    error: ({ code, retryable }) => (retryable ? socket.close() : console.error(code)), // closed: connects again below
  };
  socket.onopen = () => subscribe(rev);
  socket.onmessage = ({ data }) => {
    const frame = JSON.parse(data);
    take[frame.type]?.(frame); // unknown types are ignored
    show(turns, open); // your function; join the list of each open part
  };
  socket.onclose = ({ code }) => {
    if (code === 4403 || code === 4404) return; // connecting again cannot help
    setTimeout(connect, waitMs * (0.5 + Math.random() / 2)); // 4401: the token has expired; connect() gets another
    waitMs = Math.min(waitMs * 2, 10_000);
  };
}
connect();
