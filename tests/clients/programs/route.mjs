// Calls the chat route of the guide with a model that repeats what it receives.
import { simulateReadableStream } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { GET, POST } from "./0.js";

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 2 } };
const model = new MockLanguageModelV4({
  doStream: async ({ prompt }) => {
    const said = `You said: ${prompt.at(-1).content[0].text}`;
    const chunks = [
      { type: "stream-start", warnings: [] }, { type: "text-start", id: "1" }, { type: "text-delta", id: "1", delta: said },
      { type: "text-end", id: "1" }, { type: "finish", finishReason: { unified: "stop", raw: "stop" }, usage },
    ];
    return { stream: simulateReadableStream({ chunks }) };
  },
});
globalThis.AI_SDK_DEFAULT_PROVIDER = { languageModel: () => model };
const route = { params: Promise.resolve({ id: "trip" }) };
for (const [id, text] of [["m1", "I eat no peanuts."], ["m2", "What may I cook?"]]) {
  const messages = [{ id, role: "user", parts: [{ type: "text", text }] }];
  const body = JSON.stringify({ messages, trigger: "submit-message" });
  const answer = await (await POST(new Request("http://page/", { method: "POST", body }), route)).text();
  console.log(answer.match(/"delta":"(.*?)"/)[1]);
}
console.log((await GET(new Request("http://page/"), route)).status);
process.exit(0);
