// Scenarios of the chat route for the AI SDK, by name; each prints what the test compares, as JSON.
import { AbstractChat, DefaultChatTransport, isStepCount, lastAssistantMessageIsCompleteWithApprovalResponses, lastAssistantMessageIsCompleteWithToolCalls, readUIMessageStream, streamText, tool } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { Turnkeep } from "@turnkeep/client";
import { history, reply, resume, stop } from "@turnkeep/client/ai";
import { z } from "zod";
import { asUlid, idOf, openNext } from "./node_modules/@turnkeep/client/dist/ai_turns.js";

const [, , scenario, given = "{}"] = process.argv;
const { text = "", otherKey, where } = JSON.parse(given);
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

/** A model that gives one answer after the other, and keeps the prompts. `goOn` holds an answer up before its chunk `held`, after its fifth word. */
function modelOf(answers, goOn = Promise.resolve(), held = 7) {
  const model = new MockLanguageModelV4({
    doStream: async ({ abortSignal }) => {
      const answer = answers[model.doStreamCalls.length - 1];
      const chunks = typeof answer === "string" ? spoken(answer) : answer;
      const stopped = new Promise((_, reject) => abortSignal?.addEventListener("abort", () => reject(abortSignal.reason)));
      stopped.catch(() => undefined);
      let next = 0;
      const pull = async (controller) => {
        if (next === held) await Promise.race([goOn, stopped]).catch((reason) => controller.error(reason));
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
    model, ...prompt, tools, ...(abortSignal && { abortSignal }), stopWhen: isStepCount(5), onError: () => undefined, maxRetries: 0,
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

/** The message that a page makes of a response, or continues. */
async function pageOf(response, message) {
  const chunks = [];
  for await (const chunk of chunksOf(response)) chunks.push(chunk);
  let last = null;
  const stream = new ReadableStream({ start(controller) { chunks.forEach((one) => controller.enqueue(one)); controller.close(); } });
  for await (const one of readUIMessageStream({ message, stream, onError: () => undefined })) last = one;
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
  /** The process of the route died, or the model failed, many times with one message. */
  async failedOften() {
    globalThis.WebSocket = undefined; // so that all calls are counted
    let calls = 0;
    const counting = new Turnkeep({ fetch: (...request) => { calls += 1; return fetch(...request); } });
    const chat = await counting.conversation("ai-failed-often");
    await pageOf(await post(chat, "m1", "Tell me.", modelOf([[{ type: "error", error: new Error("down") }]])));
    const [asked] = await history(chat);
    for (let attempt = 1; attempt < 130; attempt += 1)
      await (await openNext(chat, asked, undefined, { step: 0, attempt })).writer.abort("it failed");
    const model = modelOf(["All of it."]);
    calls = 0;
    const page = await pageOf(await post(chat, "m1", "Tell me.", model));
    const first = calls;
    const repeated = await pageOf(await post(chat, "m1", "Tell me.", model));
    return { texts: [textOf(page), textOf(repeated)], modelCalls: model.doStreamCalls.length, calls: [first, calls - first] };
  },
  /** A later message is sent again after each of many edits of the message before it. */
  async editedOften() {
    const chat = await turnkeep.conversation("ai-edited-often");
    const edit = (number) => chat.api.reviseTurn({ path: { conversation_id: chat.id, turn_id: number }, body: { content: `${number}`, truncate_after: true } });
    const { turns: [first] } = await chat.append({ role: "user", content: "first" });
    let id = first.id;
    let later = await idOf("message", chat.id, "", "m2");
    for (let number = 0; number < 110; number += 1) {
      await chat.append({ id: later, role: "user", content: "And?" });
      id = (await edit(id)).turn.id;
      later = await idOf(asUlid(later), "again");
    }
    return textOf(await pageOf(await post(chat, "m2", "And?", modelOf(["Yes."]))));
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
    for (const _ of [1, 2]) await pageOf(await reply(chat, asked, (prompt) => streamText({ model, ...prompt })));
    const [shown] = await history(chat);
    if ((await superseded(chat)).length !== 2) throw new Error("a picture that is sent again is an edited message");
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

/** The state of a page, as the SDK's packages for frameworks have it. */
class PageState {
  status = "ready"; error = undefined; messages = [];
  pushMessage = (message) => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (index, message) => { this.messages = this.messages.with(index, message); };
  snapshot = (value) => structuredClone(value);
}
class Page extends AbstractChat {}
/** A page of the SDK whose requests go to a route of this process. */
function openPage(chat, model, { tools, messages = [], ...options } = {}) {
  const state = Object.assign(new PageState(), { messages });
  const call = (prompt) => streamText({ model, ...prompt, tools, stopWhen: isStepCount(5), onError: () => undefined });
  const route = async (_, { method = "GET", body }) => {
    if (method === "GET") return resume(chat);
    const { messages, trigger } = JSON.parse(body);
    return reply(chat, messages.at(-1), call, { actor: "mia", regenerate: trigger === "regenerate-message" });
  };
  const transport = new DefaultChatTransport({
    fetch: route,
    prepareSendMessagesRequest: ({ messages, trigger }) => ({ body: { messages: messages.slice(-1), trigger } }),
  });
  return new Page({ id: "page", state, transport, ...options });
}
const seen = (page) => page.messages.map((message) => [message.role, textOf(message)]);
const superseded = async (chat) => {
  const { data } = await chat.api.listTurns({ path: { conversation_id: chat.id }, query: { include_superseded: true, order: "asc" } });
  return data.map(({ content, status, superseded_by: by }) => [content, status, by !== null]);
};

const warmCall = [{ type: "stream-start", warnings: [] }, { type: "tool-call", toolCallId: "c", toolName: "weather", input: "{}" }, finish("tool-calls")];
const warmTools = (ran) => ({ weather: tool({ inputSchema: z.object({}), execute: async () => { ran(); return { degrees: 21 }; } }) });


const callOf = (toolCallId, toolName, input = {}) => ({ type: "tool-call", toolCallId, toolName, input: JSON.stringify(input) });
const calling = (...calls) => [{ type: "stream-start", warnings: [] }, ...calls, finish("tool-calls")];
const pay = callOf("pay-1", "pay", { euros: 5 });
/** A tool that needs an approval, and notes what it does. */
const payTools = (ran, execute = async ({ euros }) => ({ paid: euros })) => ({
  pay: tool({ inputSchema: z.object({ euros: z.number() }), needsApproval: true, execute: async (input) => { ran.push(input); return execute(input); } }),
});
const approving = { sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses, onError: (error) => console.error(error) };
const toolsOf = ({ parts }) => parts.filter(({ toolCallId }) => toolCallId).map(({ toolCallId, state, approval, output, errorText }) => [toolCallId, state, approval?.approved ?? null, output ?? errorText ?? null]);
const resultsIn = (prompt) => prompt.filter(({ role }) => role === "tool").flatMap(({ content }) => content).map(({ toolCallId, output }) => [toolCallId, output?.type, output?.value]);
const approvalOf = (page, id) => page.messages.at(-1).parts.find(({ toolCallId }) => toolCallId === id).approval.id;
const settled = async (page, said) => { while (!["ready", "error"].includes(page.status) || textOf(page.messages.at(-1)) !== said) await sleep(20); };
/** The newest message of a page with an answer to each request for approval, without sending it. */
const answered = (message, approved, reason) => ({ ...message, parts: message.parts.map((part) => (part.state === "approval-requested"
  ? { ...part, state: "approval-responded", approval: { ...part.approval, approved, ...(reason && { reason }) } } : part)) });

Object.assign(scenarios, {
  /** Of three calls, one needs no approval, one is approved, and one is denied, on a page that was reloaded at another process. */
  async approvals() {
    const chat = await turnkeep.conversation("ai-approvals");
    const ran = [];
    const tools = { ...payTools(ran), ...warmTools(() => ran.push("weather")) };
    const model = modelOf([calling(callOf("w", "weather"), pay, callOf("pay-2", "pay", { euros: 900 })), "Paid five."]);
    const first = openPage(chat, model, { tools, ...approving });
    await first.sendMessage({ text: "Pay both." });
    const elsewhere = await new Turnkeep().conversation("ai-approvals");
    const page = openPage(elsewhere, model, { tools, messages: await history(elsewhere), ...approving });
    const asked = [toolsOf(first.messages.at(-1)), toolsOf(page.messages.at(-1))];
    const forged = [];
    for (const state of [{ state: "output-available", output: "paid" }, { state: "approval-responded", approval: { id: "another", approved: true } }, {}]) {
      const parts = page.messages.at(-1).parts.map((part) => (part.toolCallId === "pay-1" ? { ...part, ...state } : part));
      const message = answered({ ...page.messages.at(-1), parts }, true);
      if (state.state === undefined) message.parts = page.messages.at(-1).parts;
      forged.push(await reply(elsewhere, message, () => null, { actor: "mia" }).catch(({ name, message }) => [name, message]));
    }
    const ranBefore = [...ran];
    await page.addToolApprovalResponse({ id: approvalOf(page, "pay-1"), approved: true });
    await page.addToolApprovalResponse({ id: approvalOf(page, "pay-2"), approved: false, reason: "too much" });
    await settled(page, "Paid five.");
    const reloaded = await history(chat);
    const repeated = await pageOf(await post(chat, reloaded[0].id, "Pay both.", model, { actor: "mia", tools }));
    return {
      asked, forged, ranBefore, ran, page: toolsOf(page.messages.at(-1)), reloaded: toolsOf(reloaded.at(-1)), repeated: [toolsOf(repeated), textOf(repeated)],
      prompt: resultsIn(prompts(model)[1]), calls: model.doStreamCalls.length, ids: new Set([page.messages.at(-1).id, reloaded.at(-1).id, repeated.id]).size,
      messages: [page.messages.length, reloaded.length], stored: (await stored(chat)).map(([role]) => role),
    };
  },
  /** The same page is open twice, and both users answer at one moment: alike, and differently. */
  async approvedTogether() {
    const results = [];
    for (const [name, answers] of [["alike", [true, true, true]], ["apart", [true, false, true, false]]]) {
      const chats = await Promise.all(answers.map(() => new Turnkeep().conversation(`ai-approved-${name}`)));
      const ran = [];
      const tools = payTools(ran, () => sleep(200).then(() => ({ paid: 5 })));
      const model = modelOf([calling(pay), "Done."]);
      await pageOf(await post(chats[0], "m1", "Pay.", model, { tools }));
      const message = (await history(chats[0])).at(-1);
      const call = (prompt) => streamText({ model, ...prompt, tools, stopWhen: isStepCount(5) });
      const pages = await Promise.all(answers.map(async (approved, index) => {
        const sent = answered(message, approved);
        return pageOf(await reply(chats[index], sent, call), structuredClone(sent));
      }));
      const shown = (await history(chats[0])).at(-1);
      results.push({ ran: ran.length, calls: model.doStreamCalls.length, texts: pages.map(textOf), tools: pages.map(toolsOf), shown: toolsOf(shown), prompt: resultsIn(prompts(model)[1]) });
    }
    return results;
  },
  /** The model fails after the tool: the result stays. */
  async approvedAndFailed() {
    const chat = await turnkeep.conversation("ai-approved-failed");
    const ran = [];
    const tools = payTools(ran);
    const model = modelOf([calling(pay), [{ type: "error", error: new Error("down") }], "Paid."]);
    await pageOf(await post(chat, "m1", "Pay.", model, { tools }));
    const sent = answered((await history(chat)).at(-1), true);
    const ask = () => reply(chat, sent, (prompt) => streamText({ model, ...prompt, tools, onError: () => undefined, maxRetries: 0 })).then((response) => pageOf(response, structuredClone(sent)));
    const [failed, again] = [await ask(), await ask()];
    return { ran: ran.length, failed: [toolsOf(failed), failed.types.includes("error")], again: [toolsOf(again), textOf(again)], prompt: resultsIn(prompts(model)[2]) };
  },
  /** The tool runs when the user stops the answer; the approval is sent again, and the first process goes on late. */
  async approvedAndStopped() {
    const chat = await turnkeep.conversation("ai-approved-stopped");
    const ran = [];
    const [held, goOn] = gate();
    const [reached, reach] = gate();
    const tools = payTools(ran);
    const model = modelOf([calling(pay), "It may be paid.", "Late."]);
    await pageOf(await post(chat, "m1", "Pay.", model, { tools }));
    const sent = answered((await history(chat)).at(-1), true);
    const call = (prompt) => streamText({ model, ...prompt, tools, onError: () => undefined });
    // this process is slow: it stores that the call runs after another one has run it
    const slow = new Turnkeep({ fetch: async (url, init) => {
      if (init.body && new TextDecoder().decode(init.body).includes('"ai_sdk_writer"')) { reach(); await held; }
      return fetch(url, init);
    } });
    const late = reply(slow.conversationById(chat.id), sent, call).then((response) => pageOf(response, structuredClone(sent)), (error) => ({ types: [error.code], parts: [] }));
    await reached;
    await stop(chat);
    const page = await pageOf(await reply(chat, sent, call), structuredClone(sent));
    goOn();
    return { late: (await late).types.at(-1), page: [toolsOf(page), textOf(page)], ran: ran.length, calls: model.doStreamCalls.length, stored: (await stored(chat)).map(([role]) => role) };
  },
  /** A rule of the model's call approves or denies; an approval that was not answered ends with the next message. */
  async ruled() {
    const chat = await turnkeep.conversation("ai-ruled");
    const ran = [];
    const tools = payTools(ran);
    const model = modelOf([calling(pay, callOf("pay-2", "pay", { euros: 900 })), "Paid five.", calling(callOf("pay-3", "pay", { euros: 6 })), "So be it."]);
    const rule = ({ euros }) => (euros > 100 ? { type: "denied", reason: "over the limit" } : euros === 5 ? "approved" : "user-approval");
    const ask = (id, said) => reply(chat, message(id, said), (prompt) => streamText({ model, ...prompt, tools, toolApproval: { pay: rule }, stopWhen: isStepCount(5) })).then(pageOf);
    const page = await ask("m1", "Pay both.");
    await ask("m2", "And six.");
    const last = await ask("m3", "Forget it.");
    const shown = await history(chat);
    return { page: toolsOf(page), shown: shown.flatMap(toolsOf), prompt: resultsIn(prompts(model)[1]), ran: ran.length, last: textOf(last), lastPrompt: resultsIn(prompts(model)[3]).map(([id]) => id) };
  },
  /** A signed request, an input that a schema changes, and a model that numbers its calls from the start. */
  async approvedAgain() {
    const chat = await turnkeep.conversation("ai-approved-again");
    const ran = [];
    const tools = { pay: tool({ inputSchema: z.object({ euros: z.string().transform(Number) }), needsApproval: true, execute: async ({ euros }) => { ran.push(euros); return "ok"; } }) };
    const model = modelOf([calling(callOf("c", "pay", { euros: "5" })), "One.", calling(callOf("c", "pay", { euros: "6" })), "Two."]);
    const call = (prompt) => streamText({ model, ...prompt, tools, experimental_toolApprovalSecret: "secret", stopWhen: isStepCount(5) });
    const texts = [];
    for (const id of ["m1", "m2"]) {
      await pageOf(await reply(chat, message(id, "Pay."), call));
      const sent = answered((await history(chat)).at(-1), true);
      texts.push(textOf(await pageOf(await reply(chat, sent, call), structuredClone(sent))));
    }
    return { ran, texts, ids: prompts(model)[3].flatMap(({ content }) => content).filter(({ type }) => type === "tool-call").map(({ toolCallId }) => toolCallId) };
  },
  async together() {
    const [goOn, open] = gate();
    const model = modelOf(["It is a long answer, and there is one of it.", "Another."], goOn);
    const chats = await Promise.all([1, 2, 3, 4, 5, 6].map(() => new Turnkeep().conversation("ai-together")));
    const asked = chats.map((chat) => post(chat, "m1", "Tell me.", model));
    const responses = await Promise.all(asked);
    open();
    const pages = await Promise.all(responses.map(pageOf));
    const calls = model.doStreamCalls.length;
    const again = await Promise.all(chats.map(async (chat) => pageOf(await post(chat, "m1", "Tell me.", model, { regenerate: true }))));
    return {
      calls, texts: pages.map(textOf), ids: new Set(pages.map(({ id }) => id)).size, ends: pages.map(({ types }) => types.at(-1)),
      callsAfter: model.doStreamCalls.length, again: again.map(textOf), stored: await stored(chats[0]), all: await superseded(chats[0]),
    };
  },
  async stoppedElsewhere() {
    const chat = await turnkeep.conversation("ai-stopped-elsewhere");
    const elsewhere = await new Turnkeep().conversation("ai-stopped-elsewhere");
    const [never] = gate();
    const idle = (await stop(elsewhere)).status;
    const model = modelOf(["One two three four five six seven.", "Six.", "Seven."], never);
    const asked = post(chat, "m1", "Tell me.", model);
    const [page, watched] = (await asked).body.tee();
    const shown = pageOf({ body: page });
    const followed = pageOf(await continued(elsewhere));
    for await (const chunk of chunksOf({ body: watched })) if (chunk.delta === "five ") await sleep(400).then(() => stop(elsewhere));
    const [one, two] = [await shown, await followed];
    const again = await pageOf(await post(chat, "m1", "Tell me.", model));
    const silent = modelOf(["Nothing yet."], never, 0);
    const waiting = pageOf(await post(chat, "m2", "And now?", silent));
    await continued(elsewhere).then(({ body }) => body.cancel());
    await stop(elsewhere);
    const empty = await waiting;
    const later = await pageOf(await post(chat, "m2", "And now?", modelOf(["Now."])));
    return {
      idle, shown: [textOf(one), one.types.at(-1)], followed: [textOf(two), two.types.at(-1)], again: textOf(again),
      isStopped: model.doStreamCalls.map(({ abortSignal }) => abortSignal.aborted), empty: [textOf(empty), empty.types.at(-1)],
      later: textOf(later), stored: await stored(chat), resume: (await resume(chat)).status,
    };
  },
  async edited() {
    const chat = await turnkeep.conversation("ai-edited");
    const elsewhere = await new Turnkeep().conversation("ai-edited");
    const [never] = gate();
    await pageOf(await post(chat, "m1", "I eat no nuts.", modelOf(["Noted."])));
    const running = pageOf(await post(chat, "m2", "A cake?", modelOf(["A cake has one two three four."], never)));
    await continued(elsewhere).then(({ body }) => body.cancel());
    const model = modelOf(["Soup it is.", "A pie."]);
    const soup = await pageOf(await post(elsewhere, "m2", "A soup?", model));
    const old = await running;
    const twice = modelOf(["Bread.", "Rice."]);
    const both = await Promise.all(["Bread?", "Rice?"].map(async (said) => pageOf(await post(chat, "m2", said, twice))));
    const last = (await stored(chat)).map(([, said]) => said);
    const [first] = await history(chat);
    const reloaded = await pageOf(await post(chat, first.id, "I eat no eggs.", modelOf(["No eggs."])));
    const back = await pageOf(await post(chat, "m1", "I eat no nuts.", modelOf(["No nuts."])));
    const gone = await pageOf(await post(chat, "m2", "A cake?", modelOf(["A cake."])));
    return {
      soup: textOf(soup), old: old.types.at(-1), prompt: JSON.stringify(prompts(model)).includes("cake"), last, both: both.map(textOf),
      reloaded: textOf(reloaded), back: textOf(back), gone: textOf(gone), stored: (await stored(chat)).map(([, said]) => said),
    };
  },
  async editedMeanwhile() {
    const elsewhere = await turnkeep.conversation("ai-meanwhile-edited");
    const results = [];
    globalThis.WebSocket = undefined;
    for (const place of ["/context", "/turns/open"]) { // before the model is called, and before the answer is opened
      let isFirst = true;
      const slow = new Turnkeep({ fetch: async (url, init) => {
        if (isFirst && init.method === "POST" && url.endsWith(place)) {
          isFirst = false;
          await pageOf(await post(elsewhere, place, "New?", modelOf(["New."])));
        }
        return fetch(url, init);
      } });
      const model = modelOf(["Old."]);
      const page = await pageOf(await post(slow.conversationById(elsewhere.id), place, "Old?", model));
      results.push([page.types.at(-1), model.doStreamCalls.length]);
    }
    return [results, (await stored(elsewhere)).map(([, said]) => said)];
  },
  /** The old text is answered between the steps of an edit: opened before the revision, committed before its abort. */
  async editedAtCommit() {
    const chat = await turnkeep.conversation("ai-edited-at-commit");
    await pageOf(await post(chat, "m1", "Old?", modelOf([[{ type: "error", error: new Error("down") }]])));
    const [goOn, open] = gate();
    let old;
    const model = modelOf(["New."]);
    const again = () => post(chat, "m1", "New?", model).then(pageOf);
    const slow = new Turnkeep({ fetch: async (url, init) => {
      if (url.endsWith("/revisions")) old ??= pageOf(await post(chat, "m1", "Old?", modelOf(["One two three four five six."], goOn)));
      if (url.endsWith("/abort")) {
        open();
        await old;
        await again(); // the edited message once more, while the old answer is not removed yet
      }
      return fetch(url, init);
    } });
    const page = await pageOf(await post(slow.conversationById(chat.id), "m1", "New?", modelOf(["Not this."])));
    return [textOf(await old), textOf(page), (await stored(chat)).map(([, said]) => said), prompts(model)[0].map(({ role }) => role)];
  },
  /** Many requests at one moment with few texts of one message: sent, edited, regenerated, stopped. */
  async storm() {
    const chats = await Promise.all([1, 2, 3].map(() => new Turnkeep().conversation("ai-storm")));
    const pick = (list) => list[Math.floor(Math.random() * list.length)];
    const echo = new MockLanguageModelV4({ doStream: async ({ prompt, abortSignal }) => {
      const chunks = spoken(`You said ${prompt.at(-1).content[0].text}, and nothing else.`);
      const pull = async (controller) => {
        await sleep(Math.random() * 15);
        if (abortSignal.aborted) controller.error(abortSignal.reason);
        else if (chunks.length > 0) controller.enqueue(chunks.shift());
        else controller.close();
      };
      return { stream: new ReadableStream({ pull }, { highWaterMark: 0 }) };
    } });
    const wrong = [];
    const one = async () => {
      await sleep(Math.random() * 2000);
      const said = pick(["one", "two", "three"]);
      if (Math.random() < 0.15) return stop(pick(chats));
      const page = await pageOf(await post(pick(chats), "m1", said, echo, { regenerate: Math.random() < 0.2 }));
      const text = textOf(page);
      if (text !== "" && !`You said ${said}, and nothing else.`.startsWith(text)) wrong.push([said, text]);
    };
    await Promise.all([...Array(30).keys()].map(one));
    const last = await pageOf(await post(chats[0], "m1", "last", echo));
    const running = (await resume(chats[0])).status;
    return { wrong, last: textOf(last), stored: (await stored(chats[0])).map(([, said]) => said), running, calls: echo.doStreamCalls.length };
  },
  async tenants() {
    const id = "01JZZZZZZZZZZZZZZZZZZZZZZZ";
    const pages = [];
    for (const [server, said] of [[turnkeep, "mine"], [new Turnkeep({ apiKey: otherKey }), "yours"]]) {
      const chat = await server.conversation("ai-tenants", { id });
      pages.push(await pageOf(await post(chat, "m1", "Whose?", modelOf([`It is ${said}.`]))));
      await pageOf(await post(chat, "m1", "Whose is it?", modelOf([`It is still ${said}.`])));
      pages.push(...(await stored(chat)).map(([, content]) => content));
    }
    return pages.map((one) => (typeof one === "string" ? one : textOf(one)));
  },
  async room() {
    const chat = await turnkeep.conversation("ai-room");
    await pageOf(await post(chat, "m1", "I am Mia.", modelOf(["Hello Mia."]), { actor: "mia" }));
    await pageOf(await post(chat, "m1", "I am Jonas.", modelOf(["Hello Jonas."]), { actor: "jonas" }));
    const [mia] = await history(chat);
    await pageOf(await post(chat, mia.id, "I am nobody.", modelOf(["Hello."]), { actor: "jonas" }));
    for (const id of ["../../x", "01JZZZZZZZZZZZZZZZZZZZZZZZ", mia.id, "", undefined])
      await reply(chat, { id, role: "assistant", parts: [] }, () => null, { actor: "jonas" }).then(
        () => { throw new Error("accepted"); }, (error) => { if (!(error instanceof TypeError)) throw error; },
      );
    return (await stored(chat)).map(([, said]) => said);
  },
  async pageTools() {
    const chat = await turnkeep.conversation("ai-page-tools");
    const call = (id) => ({ type: "tool-call", toolCallId: id, toolName: "place", input: "{}" });
    const model = modelOf([
      [{ type: "stream-start", warnings: [] }, call("call-1"), call("call-2"), finish("tool-calls")], "You are in Lisbon.", "No.",
    ]);
    const tools = { place: tool({ inputSchema: z.object({}) }) };
    const page = openPage(chat, model, {
      tools, sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls, onError: (error) => console.error(error),
      onToolCall: async ({ toolCall }) => {
        if (toolCall.toolCallId === "call-1") page.addToolOutput({ tool: "place", toolCallId: "call-1", output: { city: "Lisbon" } });
      },
    });
    await page.sendMessage({ text: "Where am I?" });
    const waiting = structuredClone(page.messages.at(-1));
    const refused = await reply(chat, waiting, () => null, { actor: "mia" }).catch((error) => error.message);
    const foreign = await reply(chat, waiting, () => null, { actor: "jonas" }).catch((error) => error.message);
    await page.addToolOutput({ tool: "place", toolCallId: "call-2", state: "output-error", errorText: "No signal." });
    while (page.status !== "ready" || textOf(page.messages.at(-1)) === "") await sleep(20);
    const sent = { ...page.messages.at(-1), parts: page.messages.at(-1).parts.filter(({ type }) => type !== "text") };
    const repeats = await Promise.all([1, 2].map(() => reply(chat, sent, () => null, { actor: "mia" }).then((response) => pageOf(response, structuredClone(sent)))));
    const resent = await pageOf(await post(chat, page.messages[0].id, "Where am I?", model, { actor: "mia" }));
    const ignored = modelOf(["So be it."]);
    const next = modelOf([[{ type: "stream-start", warnings: [] }, call("call-3"), finish("tool-calls")]]);
    await pageOf(await post(chat, "m2", "And now?", next, { actor: "mia", tools }));
    const other = await pageOf(await post(chat, "m3", "Forget it.", ignored, { actor: "mia", tools }));
    return {
      seen: seen(page), states: page.messages[1].parts.map(({ type, state }) => [type, state]), refused, foreign,
      prompt: prompts(model)[1].flatMap(({ content }) => content).map(({ type, output }) => [type, output?.value]),
      calls: model.doStreamCalls.length, repeats: repeats.map(textOf), resent: textOf(resent), other: textOf(other),
      stored: await stored(chat), ids: [...new Set([page.messages[1].id, resent.id, (await history(chat))[1].id])].length,
    };
  },
  async page() {
    const chat = await turnkeep.conversation("ai-page");
    const model = modelOf(["Lisbon.", "Porto.", "Faro.", "Evora."]);
    const page = openPage(chat, model);
    const steps = [];
    const note = async () => steps.push([seen(page), (await stored(chat)).map(([role, said]) => [role, said])]);
    await page.sendMessage({ text: "A town?" });
    await note();
    await page.regenerate();
    await note();
    await page.sendMessage({ text: "A town by the sea?", messageId: page.messages[0].id });
    await note();
    const reloaded = openPage(chat, model, { messages: await history(chat) });
    await reloaded.regenerate();
    steps.push([seen(reloaded), (await stored(chat)).map(([role, said]) => [role, said])]);
    return { steps, calls: model.doStreamCalls.length, all: (await superseded(chat)).length };
  },
  async lastStep() {
    const chat = await turnkeep.conversation("ai-last-step");
    const [model, tools] = [modelOf([warmCall]), warmTools(() => undefined)];
    const ask = () => reply(chat, message("m1", "Warm?"), (prompt) => streamText({ model, ...prompt, tools }));
    const pages = [await pageOf(await ask()), await pageOf(await ask())];
    return [pages.map(({ parts, types }) => [parts.at(-1).state, types.at(-1)]), model.doStreamCalls.length, await stored(chat)];
  },
  async erased() {
    const chat = await turnkeep.conversation("ai-erased");
    await pageOf(await post(chat, "m1", "A name?", modelOf(["Anna."])));
    const [, { id }] = await history(chat);
    await chat.api.eraseTurn({ path: { conversation_id: chat.id, turn_id: id } });
    const page = await pageOf(await post(chat, "m1", "A name?", modelOf(["Berta."])));
    return [textOf(page), (await stored(chat)).map(([, said]) => said)];
  },
  /** A message of another author is edited while an answer before it is written. */
  async beside() {
    const chat = await turnkeep.conversation("ai-beside");
    const [goOn, open] = gate();
    const mia = pageOf(await post(chat, "m1", "Tell me.", modelOf(["One two three four five six."], goOn), { actor: "mia" }));
    await pageOf(await post(chat, "m1", "And me?", modelOf(["Yes."]), { actor: "jonas" }));
    await pageOf(await post(chat, "m1", "And us?", modelOf(["All."]), { actor: "jonas" }));
    open();
    return [textOf(await mia), (await stored(chat)).map(([, said]) => said)];
  },
  /** The route of a process that is killed: in the first or second step of an answer, or before results are stored. */
  async dying() {
    const [never] = gate();
    const held = async (url, init) => {
      const isResults = where === "results" && init.body && new TextDecoder().decode(init.body).includes('"tool_call_id"');
      if (!isResults) return fetch(url, init);
      console.error("kill");
      return never;
    };
    const chat = await new Turnkeep({ fetch: held }).conversation(`ai-dying-${where}`);
    if (where.startsWith("approved")) {
      const asking = modelOf([calling(pay), "It is paid, one two three four."], never);
      const killing = payTools([], () => { if (where === "approved") console.error("kill"); return where === "approved" ? never : { paid: 5 }; });
      await pageOf(await post(chat, "m1", "Pay.", asking, { tools: killing, actor: "mia" }));
      const sent = answered((await history(chat)).at(-1), true);
      const { body } = await reply(chat, sent, (prompt) => streamText({ model: asking, ...prompt, tools: killing }), { actor: "mia" });
      for await (const chunk of chunksOf({ body })) if (chunk.delta === "one ") break;
      console.error("kill");
      await never;
    }
    const said = "It is one two three four five.";
    const model = modelOf(where === "first" ? [said] : [warmCall, said], never);
    const response = await post(chat, "m1", "Is it warm?", model, { tools: warmTools(() => undefined) });
    for await (const chunk of chunksOf(response)) if (chunk.delta === "three ") break;
    await sleep(500); // until the text is durable
    console.error("kill");
    await never;
  },
  /** After the process of an approved call has died: reload, follow, go on, and send another message. */
  async survivedApproval() {
    const chat = await turnkeep.conversation(`ai-dying-${where}`);
    const ran = [];
    const tools = payTools(ran);
    const model = modelOf(["It may be paid.", "Bye."]);
    const reload = async () => openPage(await new Turnkeep().conversation(`ai-dying-${where}`), model, { tools, messages: await history(chat), ...approving, onError: () => undefined });
    const page = await reload();
    const during = toolsOf(page.messages.at(-1));
    await page.resumeStream();
    const after = await reload();
    await after.sendMessage(); // goes on with the answer
    await after.sendMessage({ text: "And?" });
    const messages = (await history(chat)).map((message) => [message.role, textOf(message), toolsOf(message)]);
    return { during, resumed: page.status, ran: ran.length, calls: model.doStreamCalls.length, messages, results: prompts(model).map(resultsIn) };
  },
  async survived() {
    const chat = await turnkeep.conversation(`ai-dying-${where}`);
    const model = modelOf(["It is warm."]);
    const runs = [];
    const ask = async () => pageOf(await post(chat, "m1", "Is it warm?", model, { tools: warmTools(() => runs.push(1)) }));
    const [followed, resumed] = await Promise.all([ask(), resume(chat).then(pageOf)]);
    const running = model.doStreamCalls.length;
    const pages = await Promise.all([ask(), ask()]);
    const { data } = await chat.api.listTurns({ path: { conversation_id: chat.id }, query: { status: ["aborted"] } });
    return {
      followed: [textOf(followed), followed.types.at(-1)], resumed: resumed.types.at(-1), running, calls: model.doStreamCalls.length, runs: runs.length,
      pages: pages.map(textOf), ids: new Set([...pages, followed].map(({ id }) => id)).size, stored: await stored(chat),
      states: pages[0].parts.map(({ type, state }) => [type, state]), prompt: prompts(model)[0].map(({ role, content }) => [role, content.at(-1).output?.value ?? null]),
      aborted: data.map(({ content }) => content),
    };
  },
});

await sleep(0);
console.log(JSON.stringify(await scenarios[scenario]()));
process.exit(0);
