/**
 * The state of a followed conversation: its turns, and the text of its open turns so far.
 *
 * The text follows the offsets of the events, which count code points. So text that a server lost before it was durable
 * disappears here too, and a repeated event changes nothing.
 */

import type { LiveEvent } from "./follow.js";
import type { Turn } from "./generated/api/index.js";

export class ConversationView {
  readonly #turns = new Map<number, Turn>();
  #open = new Map<string, Map<string, string[]>>();

  /** The live turns that the events contained, by position. */
  get turns(): Turn[] {
    return [...this.#turns].sort(([one], [other]) => one - other).map(([, turn]) => turn);
  }

  /** The content of each open turn so far, by turn id. */
  get openTexts(): Map<string, string> {
    return new Map([...this.#open].map(([id, parts]) => [id, (parts.get("content") ?? []).join("")]));
  }

  /** Apply an event; those that do not concern turns change nothing. */
  apply(event: LiveEvent): void {
    switch (event.type) {
      case "snapshot":
        event.turns.forEach((turn) => this.#put(turn));
        if (!event.more)
          this.#open = new Map(
            event.pending.map(({ turn, parts }) => [
              turn.id, new Map(parts.map(({ part, text }) => [part, Array.from(text)])),
            ]),
          );
        break;
      case "turn.opened":
        if (!this.#open.has(event.turn.id)) this.#open.set(event.turn.id, new Map());
        break;
      case "turn.delta": {
        const parts = this.#open.get(event.turn_id) ?? new Map<string, string[]>();
        const before = (parts.get(event.part) ?? []).slice(0, event.offset);
        this.#open.set(event.turn_id, parts.set(event.part, before.concat(Array.from(event.delta))));
        break;
      }
      case "turn.committed":
        this.#open.delete(event.turn.id);
        this.#put(event.turn);
        break;
      case "turn.superseded":
      case "turn.erased":
        this.#remove(event.turn_id);
        break;
      case "turn.aborted":
        this.#open.delete(event.turn_id);
    }
  }

  #put(turn: Turn): void {
    if (turn.superseded_by !== null || turn.erased_at !== null) this.#remove(turn.id);
    else if (turn.position !== null) this.#turns.set(turn.position, turn);
  }

  #remove(turnId: string): void {
    for (const [position, turn] of this.#turns) if (turn.id === turnId) this.#turns.delete(position);
  }
}
