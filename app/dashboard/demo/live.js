// A live conversation over WebSocket: what it holds, kept up to date by its frames, across lost connections.

const FINAL = new Map([
  [4400, "the server does not understand this page"],
  [4401, "the token has ended"],
  [4403, "the token is for something else"],
  [4404, "the conversation is gone"],
]);
const LONGEST_WAIT_MS = 10_000;

export class Live {
  turns = new Map(); // by position: what stands there now
  open = new Map(); // by id: {turn, writer, parts}, parts by name: lists of code points, which offsets count
  writers = []; // who writes now
  rev = null; // all that happened up to it is known

  #socket = null;
  #waiting = new Map();
  #next = 0;
  #waitMs = 500;

  constructor(conversation, token, { changed, grown, state, acked, lost }) {
    Object.assign(this, { conversation, token, changed, grown, state, acked, lost });
    this.#connect();
  }

  // Sends a frame; the promise is kept by its ack, and broken by its error or by a lost connection.
  ask(type, members) {
    const id = String(++this.#next);
    return new Promise((kept, broken) => {
      if (this.#socket?.readyState !== WebSocket.OPEN) return broken(new Error("not connected"));
      this.#waiting.set(id, { kept, broken });
      this.#socket.send(JSON.stringify({ type, id, ...members }));
    });
  }

  #connect() {
    const url = new URL(`/v1/conversations/${this.conversation}/live`, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = (this.#socket = new WebSocket(url, ["turnkeep.v1", `bearer.${this.token}`]));
    socket.onopen = () => this.#subscribe(this.rev);
    socket.onmessage = ({ data }) => this.#take(JSON.parse(data));
    socket.onclose = ({ code }) => {
      for (const { broken } of this.#waiting.values()) broken(new Error("the connection is lost"));
      this.#waiting.clear();
      if (FINAL.has(code)) return this.state("lost", FINAL.get(code));
      this.state("lost", "connecting again");
      setTimeout(() => this.#connect(), this.#waitMs * (0.5 + Math.random() / 2));
      this.#waitMs = Math.min(this.#waitMs * 2, LONGEST_WAIT_MS);
    };
  }

  #subscribe(rev) {
    this.ask("subscribe", rev === null ? {} : { after_rev: rev }).catch(() => this.#socket.close());
  }

  #take(frame) {
    switch (frame.type) {
      case "ack":
      case "error":
        return this.#answered(frame);
      case "snapshot":
        frame.turns.forEach((turn) => this.#put(turn));
        if (frame.more) return;
        this.rev = frame.rev;
        this.open = new Map(
          frame.pending.map(({ turn, writer, parts }) => [
            turn.id,
            { turn, writer, parts: new Map(parts.map(({ part, text }) => [part, Array.from(text)])) },
          ]),
        );
        this.writers = frame.pending.map(({ turn }) => turn.actor);
        this.#waitMs = 500;
        this.state("well", "live");
        break;
      case "turn.opened":
        if (!this.open.has(frame.turn.id)) {
          this.open.set(frame.turn.id, { turn: frame.turn, writer: frame.writer, parts: new Map() });
        }
        break;
      case "turn.delta":
        return this.#grow(frame);
      case "turn.committed":
        this.open.delete(frame.turn.id);
        this.#put(frame.turn);
        this.#passed(frame.rev);
        break;
      case "turn.aborted":
        this.open.delete(frame.turn_id);
        break;
      case "turn.superseded":
        this.#remove(frame.turn_id);
        this.#passed(frame.rev);
        break;
      case "turn.erased":
        for (const turn of this.turns.values()) if (turn.id === frame.turn_id) turn.content = null;
        this.#passed(frame.rev);
        break;
      case "presence":
        this.writers = frame.writers.map(({ actor }) => actor);
        break;
      case "reread":
        return this.#subscribe(frame.after_rev);
      default:
        return; // of a newer server
    }
    this.changed();
  }

  #answered(frame) {
    const asked = this.#waiting.get(frame.id);
    this.#waiting.delete(frame.id);
    if (frame.type === "ack") (asked?.kept ?? this.acked)?.(frame);
    else (asked?.broken ?? this.lost)?.(Object.assign(new Error(frame.detail), frame));
  }

  // Cuts the text to the offset, then adds the delta; both count code points, as Array.from does.
  #grow({ turn_id, part, offset, delta }) {
    const parts = this.open.get(turn_id)?.parts;
    const held = parts?.get(part) ?? [];
    if (!parts || offset > held.length) return this.#subscribe(this.rev); // text was missed
    const cut = offset < held.length;
    held.length = offset;
    held.push(...Array.from(delta));
    parts.set(part, held);
    this.grown(turn_id, part, cut ? null : delta);
  }

  // One append gives several turns one rev: until a later one comes, some of them may be missing.
  #passed(rev) {
    this.rev = Math.max(this.rev ?? 0, rev - 1);
  }

  #put(turn) {
    if (turn.superseded_by !== null) this.#remove(turn.id);
    else this.turns.set(turn.position, turn);
  }

  #remove(id) {
    for (const [position, turn] of this.turns) if (turn.id === id) this.turns.delete(position);
  }
}
