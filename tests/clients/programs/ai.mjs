// Scenarios of the chat route for the AI SDK, by name; each prints what the test compares, as JSON.
import { isStepCount, readUIMessageStream, streamText, tool } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { Turnkeep } from "@turnkeep/client";
import { history, reply, resume } from "@turnkeep/client/ai";
import { z } from "zod";

const [, , scenario, given = "{}"] = process.argv;
const { text = "" } = JSON.parse(given);
const turnkeep = new Turnkeep({ retries: { minWaitMs: 10, maxWaitMs: 1000 } });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const usage = { inputTokens: { total: 1 }, outputTokens: { total: 2 } };
const finish = (reason) => ({ type: "finish", finishReason: { unified: reason, raw: reason }, usage });
const words = (said) => said.match(/\S+\s*/g) ?? [];
const spoken = (said) => [
  { type: "stream-start", warnings: [] },
  { type: "text-start", id: "1" },
  ...words(said).map((delta) => ({ type: "text-delta", id: "1", delta })),
  { type: "text-end", id: "1" },
  finish("stop"),
];

/** A model that gives one answer after the other, and keeps the prompts. `goOn` holds an answer up after its fifth word. */
function modelOf(answers, goOn = Promise.resolve()) {
  const model = new MockLanguageModelV4({
    doStream: async ({ abortSignal }) => {
      const answer = answers[model.doStreamCalls.length - 1];
      const chunks = typeof answer === "string" ? spoken(answer) : answer;
      const stopped = new Promise((_, reject) => abortSignal?.addEventListener("abort", () => reject(abortSignal.reason)));
      stopped.catch(() => undefined);
      let next = 0;
      const pull = async (controller) => {
        if (next === 7) await Promise.race([goOn, stopped]).catch((reason) => controller.error(reason));
        if (next < chunks.length) controller.enqueue(chunks[next++]);
        else controller.close();
      };
      return { stream: new ReadableStream({ pull }, { highWaterMark: 0 }) };
    },
  });
  return model;
}
/** A promise, and the function that keeps it. */
function gate() {
  let open;
  return [new Promise((resolve) => { open = resolve; }), () => open()];
}
/** Continue the answer of a chat; one that was just asked for is open a moment later. */
async function continued(chat) {
  for (;;) {
    const response = await resume(chat);
    if (response.status !== 204) return response;
    await sleep(20);
  }
}
const prompts = (model) => model.doStreamCalls.map(({ prompt }) => prompt);
const message = (id, said) => ({ id, role: "user", parts: [{ type: "text", text: said }] });
const post = (chat, id, said, model, { tools, abortSignal, ...options } = {}) =>
  reply(chat, message(id, said), (prompt) => streamText({
    model, ...prompt, tools, abortSignal, stopWhen: isStepCount(5), onError: () => undefined, maxRetries: 0,
  }), options);

/** The chunks of a response, as a page reads them. */
async function* chunksOf(response) {
  let rest = "";
  for await (const part of response.body.pipeThrough(new TextDecoderStream())) {
    const events = (rest + part).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: {")) yield JSON.parse(event.slice(6));
  }
}

/** The message that a page makes of a response. */
async function pageOf(response) {
  const chunks = [];
  for await (const chunk of chunksOf(response)) chunks.push(chunk);
  let last = null;
  const stream = new ReadableStream({ start(controller) { chunks.forEach((one) => controller.enqueue(one)); controller.close(); } });
  for await (const one of readUIMessageStream({ stream, onError: () => undefined })) last = one;
  return { id: last?.id, parts: last?.parts ?? [], types: chunks.map(({ type }) => type) };
}
const textOf = ({ parts }) => parts.filter(({ type }) => type === "text").map((part) => part.text).join("");
const stored = async (chat) => {
  const found = [];
  for await (const turn of chat.turns()) if (turn.erased_at === null) found.push([turn.role, turn.content, turn.tool_calls.length]);
  return found;
};

const scenarios = {
  async chat() {
    const chat = await turnkeep.conversation("ai-chat", { owner: "mia" });
    const first = await pageOf(await post(chat, "m1", "I eat no peanuts.", modelOf(["Noted."]), { actor: "mia" }));
    const again = await new Turnkeep().conversation("ai-chat");
    const model = modelOf(["Risotto, then."]);
    const second = await pageOf(await post(again, "m2", "What may I cook?", model, { actor: "mia", system: "You cook." }));
    const repeated = await pageOf(await post(again, "m2", "What may I cook?", modelOf([]), { actor: "mia" }));
    const shown = await history(again);
    return {
      texts: [textOf(first), textOf(second), textOf(repeated)],
      sameMessage: second.id === repeated.id && shown.at(-1).id === second.id,
      last: second.types.at(-1),
      prompt: prompts(model)[0].map(({ role, content }) => [role, typeof content === "string" ? content : content.map((part) => part.text).join("")]),
      stored: await stored(again),
      shown: shown.map(({ role, parts }) => [role, textOf({ parts })]),
    };
  },
  async tools() {
    const chat = await turnkeep.conversation("ai-tools");
    const call = { type: "tool-call", toolCallId: "call-1", toolName: "weather", input: '{"city":"Lisbon"}' };
    const model = modelOf([[{ type: "stream-start", warnings: [] }, call, finish("tool-calls")], "It is 21 degrees."]);
    const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: async () => ({ degrees: 21 }) });
    const page = await pageOf(await post(chat, "m1", "And in Lisbon?", model, { tools: { weather } }));
    const repeated = await pageOf(await post(chat, "m1", "And in Lisbon?", modelOf([])));
    const next = modelOf(["Yes."]);
    await pageOf(await post(chat, "m2", "Is it warm?", next, { tools: { weather } }));
    const shown = await history(chat);
    const bare = ({ parts }) => parts.map(({ type, text, input, output, state }) => ({ type, text, input, output, state: text === undefined ? state : undefined }));
    return {
      stored: await stored(chat), page: bare(page), repeated: bare(repeated), shown: bare(shown[1]),
      prompt: prompts(next)[0].flatMap(({ content }) => content).map(({ type, toolName, output }) => [type, toolName, output?.value]),
    };
  },
  async resumed() {
    const chat = await turnkeep.conversation("ai-resumed");
    const [goOn, open] = gate();
    const response = await post(chat, "m1", "Tell me.", modelOf([text], goOn));
    const reader = response.body.getReader();
    await reader.read();
    await reader.cancel(); // the page is closed
    const elsewhere = await new Turnkeep().conversation("ai-resumed");
    const opened = await continued(elsewhere);
    open();
    const page = await pageOf(opened);
    const shown = await history(elsewhere);
    return {
      text: textOf(page), stored: (await stored(elsewhere)).at(-1)[1], sameMessage: shown.at(-1).id === page.id,
      types: [...new Set(page.types)], later: (await resume(elsewhere)).status,
    };
  },
  async killed() {
    const chat = await turnkeep.conversation("ai-killed");
    const [goOn, open] = gate();
    const response = await post(chat, "m1", "Tell me.", modelOf([text], goOn));
    const elsewhere = await new Turnkeep().conversation("ai-killed");
    const opened = await continued(elsewhere);
    console.error("kill");
    for (const isUp = () => fetch(`${process.env.TURNKEEP_URL}/healthz`).then(() => true, () => false); await isUp();) await sleep(5);
    open();
    const [page, resumed] = await Promise.all([pageOf(response), pageOf(opened)]);
    return [textOf(page), textOf(resumed), (await stored(elsewhere)).at(-1)[1]];
  },
  async failed() {
    const chat = await turnkeep.conversation("ai-failed");
    const broken = [...spoken("Half a").slice(0, -2), { type: "error", error: new Error("a secret of the provider") }];
    const page = await pageOf(await post(chat, "m1", "Tell me.", modelOf([broken])));
    const after = await stored(chat);
    const again = await pageOf(await post(chat, "m1", "Tell me.", modelOf(["All of it."])));
    return { types: page.types, after, text: textOf(again), stored: await stored(chat) };
  },
  async stopped() {
    const chat = await turnkeep.conversation("ai-stopped");
    const stop = new AbortController();
    const [never] = gate();
    const model = modelOf(["One two three four five six seven eight."], never);
    const [page, watched] = (await post(chat, "m1", "Tell me.", model, { abortSignal: stop.signal })).body.tee();
    const shown = pageOf({ body: page });
    for await (const chunk of chunksOf({ body: watched })) if (chunk.delta === "five ") stop.abort();
    const [, [, content]] = await stored(chat);
    return [textOf(await shown), content];
  },
  async regenerated() {
    const chat = await turnkeep.conversation("ai-regenerated");
    await pageOf(await post(chat, "m1", "A name?", modelOf(["Anna."])));
    const model = modelOf(["Berta."]);
    const page = await pageOf(await post(chat, "m1", "A name?", model, { regenerate: true }));
    return [textOf(page), prompts(model)[0].map(({ role }) => role), await stored(chat)];
  },
  async file() {
    const chat = await turnkeep.conversation("ai-file");
    const picture = { type: "file", mediaType: "image/png", url: "data:image/png;base64,iVBORw0KGgo=" };
    const model = modelOf(["A picture."]);
    const asked = { id: "m1", role: "user", parts: [{ type: "text", text: "What is it?" }, picture] };
    await pageOf(await reply(chat, asked, (prompt) => streamText({ model, ...prompt })));
    const [shown] = await history(chat);
    return [shown.parts.map(({ type, url }) => [type, url]), prompts(model)[0].at(-1).content.map(({ type }) => type)];
  },
  async budget() {
    const chat = await turnkeep.conversation("ai-budget");
    await chat.append([...Array(40).keys()].map((number) => ({ role: number % 2 ? "assistant" : "user", content: `${number} ${"word ".repeat(40)}` })));
    const model = modelOf(["Yes."]);
    await pageOf(await post(chat, "m1", "Do you remember?", model, { tokenBudget: 600 }));
    return JSON.stringify(prompts(model)[0]).match(/word/g).length;
  },
  async meanwhile() {
    const chat = await turnkeep.conversation("ai-meanwhile");
    await pageOf(await post(chat, "m1", "One?", modelOf([[{ type: "error", error: new Error("down") }]]), { actor: "mia" }));
    await chat.append({ role: "user", content: "Two?", actor: "jonas" });
    const page = await pageOf(await post(chat, "m1", "One?", modelOf(["For you."]), { actor: "mia" }));
    return [textOf(page), (await stored(chat)).map(([, content]) => content)];
  },
};

await sleep(0);
console.log(JSON.stringify(await scenarios[scenario]()));
process.exit(0);
