// Scenarios of the TypeScript client, by name; each prints what the test compares, as JSON.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { Conversation, ConversationView, items, Turnkeep, TurnkeepError } from "@turnkeep/client";

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const [, , scenario, given = "{}"] = process.argv;
const { text = "", transport = "auto", count = 0, killAt = -1 } = JSON.parse(given);
const turnkeep = new Turnkeep({ retries: { minWaitMs: 10, maxWaitMs: 1000 } });
/** Ask a web server that is no Turnkeep. */
async function askStranger() {
  const server = createServer((_, response) => response.writeHead(404).end("<h1>Not Found</h1>"));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await new Turnkeep({ url: `http://127.0.0.1:${server.address().port}` }).conversation("lost");
  } finally {
    server.close();
  }
}
const contents = async (conversation, limit = 100) => {
  const found = [];
  for await (const turn of conversation.turns({ limit })) found.push(turn.content);
  return found;
};

const scenarios = {
  async append() {
    const conversation = await turnkeep.conversation("retried");
    for (let number = 0; number < count; number += 1)
      await conversation.append({ role: "user", content: `turn ${number}` });
    return contents(conversation, 200);
  },
  async pages() {
    const conversation = await turnkeep.conversation("paged");
    await conversation.append([...Array(7).keys()].map((number) => ({ role: "user", content: `turn ${number}` })));
    for (const name of ["a", "b", "c"]) await turnkeep.conversation(name, { owner: "mia" });
    const names = [];
    const list = (cursor) => turnkeep.api.listConversations({ query: { owner: "mia", limit: 2, cursor } });
    for await (const one of items(list)) names.push(one.external_id);
    return [await contents(conversation, 3), names.sort()];
  },
  async owned() {
    const first = await turnkeep.conversation("ticket", { owner: "mia" });
    const refusal = await turnkeep.conversation("ticket", { owner: "eve" }).catch((error) => error);
    const ids = [await turnkeep.conversation("ticket"), await turnkeep.conversation("ticket", { owner: "mia" })];
    return [refusal instanceof TurnkeepError, refusal.code, refusal.message, ids.every(({ id }) => id === first.id)];
  },
  async chat() {
    const seen = [];
    const kitchen = await turnkeep.conversation("kitchen", { owner: "mia" });
    await kitchen.chat(async () => "Noted.", "I eat no peanuts.", { actor: "mia" });
    const again = await new Turnkeep().conversation("kitchen");
    const model = async (messages) => {
      seen.push(JSON.stringify(messages));
      if (seen.length === 1) await again.append({ role: "user", content: "meanwhile" });
      return { role: "assistant", content: "Risotto." };
    };
    const { text, attempts } = await again.chat(model, "What may I cook?", { actor: "mia" });
    return [text, attempts, seen.at(-1).includes("peanuts"), await contents(again)];
  },
  async errors() {
    const conversation = await turnkeep.conversation("errors");
    const error = await conversation
      .append({ role: "user", content: "Hello." }, { expectedSeq: 7 })
      .catch((refused) => refused);
    const nowhere = new Turnkeep({ url: "http://127.0.0.1:1", retries: { maxRetries: 0 } });
    const lost = await nowhere.api.getHealth().catch((refused) => refused);
    const { code, status, problem, requestId, remedy } = error;
    return [error instanceof TurnkeepError, code, status, problem.seq, Boolean(requestId && remedy), lost.code];
  },
  async mistakes() {
    const conversation = await turnkeep.conversation("mistakes");
    const messageOf = async (call) => (await Promise.resolve().then(call).catch((thrown) => thrown)).message;
    return [
      await messageOf(() => conversation.append({ role: "user", text: "Hello." })),
      await messageOf(() => conversation.chat(async () => undefined, "Hello.")),
      await messageOf(() => conversation.chat(async () => [], "Hello.")),
      await messageOf(() => new Turnkeep({ url: "127.0.0.1:8765" })),
      await messageOf(() => new Turnkeep({ url: "http://127.0.0.1:8765/v1/" })),
      await messageOf(askStranger),
      await contents(conversation),
    ];
  },
  async stream() {
    const conversation = await turnkeep.conversation(`streamed-${transport}`);
    const view = new ConversationView();
    const following = (async () => {
      for await (const event of conversation.follow()) {
        view.apply(event);
        if (event.type === "turn.committed" || view.turns.length > 0) return;
      }
    })();
    async function* units() {
      for (let at = 0; at < text.length; at += 5) {
        if (at === killAt * 5) console.error("kill");
        yield text.slice(at, at + 5); // also through the middle of a surrogate pair
        await sleep(killAt < 0 ? 0 : 10);
      }
    }
    const writer = conversation.stream({ actor: "planner", transport });
    const turn = await writer.writeAll(units());
    await following;
    const followed = view.turns.map(({ content }) => content);
    return { content: turn.content, stored: await contents(conversation), followed, reconnections: writer.reconnections };
  },
  async aborted() {
    const conversation = await turnkeep.conversation("aborted");
    const writer = conversation.stream({ transport });
    const failing = async function* () {
      yield "half a ";
      throw new RangeError("model");
    };
    const error = await writer.writeAll(failing()).catch((thrown) => thrown);
    const path = { conversation_id: conversation.id, turn_id: writer.turnId };
    return [error.name, (await turnkeep.api.getTurn({ path })).status, await contents(conversation)];
  },
  async idle() {
    // nothing happens for longer than the time of reconnections, which begins with the loss
    const brief = new Turnkeep({ retries: { minWaitMs: 10, maxWaitMs: 100 }, reconnectTimeoutMs: 300 });
    const conversation = await brief.conversation("idle");
    const seen = [];
    const following = (async () => {
      for await (const event of conversation.follow()) {
        if (event.type === "turn.committed") seen.push(event.turn.content);
        if (event.type === "snapshot") seen.push(...event.turns.map((turn) => turn.content));
        if (seen.length > 0) return;
      }
    })();
    const writer = conversation.stream({ transport: "websocket" });
    await writer.write("Half a ");
    for (let cuts = 0; cuts < 2; cuts += 1) {
      await sleep(800);
      console.error("kill");
    }
    await sleep(300);
    await writer.write("sentence.");
    const turn = await writer.commit();
    await following;
    setTimeout(() => process.exit(), 500).unref(); // the proxy of the test does not pass on that a side has closed
    return [turn.content, seen, writer.reconnections > 0];
  },
  async events() {
    let connections = 0;
    const counting = (input, init) => {
      if (String(input).includes("/events")) connections += 1;
      return fetch(input, init);
    };
    const brief = new Turnkeep({ timeoutMs: 300, fetch: counting });
    const conversation = await brief.conversation("events");
    const stop = new AbortController();
    const path = { conversation_id: conversation.id };
    const { stream } = await brief.api.followConversation({ path, signal: stop.signal });
    for await (const event of stream) {
      if (event.type === "turn.committed") {
        stop.abort();
        return [connections, event.turn.content];
      }
      if (event.type !== "snapshot") continue;
      await sleep(600); // longer than the time for an answer
      await conversation.append({ role: "user", content: "At last." });
    }
  },
  async methods() {
    return Object.getOwnPropertyNames(Conversation.prototype);
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
