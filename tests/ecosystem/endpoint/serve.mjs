// An endpoint with OpenAI's API on loopback, around one model file and one slot, as a person's own machine has it.
//
// GET /v1/models, GET /open (how many calls are open) and POST /v1/chat/completions: plain and streamed, JSON schemas as grammars, tools in the template of
// Qwen (ChatML with <tool_call>). Requests wait for the slot in their order. A client that leaves frees its place, or
// stops its answer. Each call is a line of the log, with its request and its answer.
import { appendFileSync } from "node:fs";
import http from "node:http";
import { parseArgs } from "node:util";
import { getLlama, LlamaCompletion, LlamaText, SpecialTokensText } from "node-llama-cpp";

const { values: options } = parseArgs({
  options: {
    model: { type: "string" }, name: { type: "string" }, log: { type: "string" },
    port: { type: "string" }, window: { type: "string", default: "8192" },
  },
});
const WINDOW = Number(options.window);
const LEAST_ANSWER = 16;

// one thread: several wait for each other at every token, which is 15 times slower where all cores have other work
const llama = await getLlama({ gpu: false, build: "never", maxThreads: 1, logLevel: "error" });
const model = await llama.loadModel({ modelPath: options.model });
const context = await model.createContext({ contextSize: WINDOW });
const completion = new LlamaCompletion({ contextSequence: context.getSequence() });
const ends = ["<|im_end|>", "<|im_start|>"].map((text) => [...model.tokenize(text, true)]);

class Refused extends Error {
  constructor(message, code, status = 400) {
    super(message);
    Object.assign(this, { code, status });
  }
}

// The prompt

const TOOLS = (tools) => `

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
${tools.map((tool) => JSON.stringify(tool)).join("\n")}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>`;

function textOf(message) {
  const { content, tool_calls: calls = [] } = message;
  const text = Array.isArray(content) ? content.map((part) => part.text ?? "").join("") : content ?? "";
  const written = calls.map(({ function: { name, arguments: given } }) =>
    `\n<tool_call>\n{"name": ${JSON.stringify(name)}, "arguments": ${given || "{}"}}\n</tool_call>`);
  return message.role === "tool" ? `<tool_response>\n${text}\n</tool_response>` : text + written.join("");
}

function promptOf({ messages, tools = [] }) {
  const turns = messages.map((message) => ({
    role: { developer: "system", tool: "user" }[message.role] ?? message.role, text: textOf(message),
  }));
  if (turns[0]?.role !== "system") turns.unshift({ role: "system", text: "You are a helpful assistant." });
  if (tools.length) turns[0].text += TOOLS(tools);
  const marks = (text) => new SpecialTokensText(text);
  const parts = turns.flatMap(({ role, text }) => [marks(`<|im_start|>${role}\n`), text, marks("<|im_end|>\n")]);
  return LlamaText([...parts, marks("<|im_start|>assistant\n")]).tokenize(model.tokenizer);
}

function callsIn(text) {
  const calls = [];
  for (const [, written] of text.matchAll(/<tool_call>(.*?)(?:<\/tool_call>|$)/gs)) {
    try {
      const { name, arguments: given } = JSON.parse(written);
      const id = `call_${Math.random().toString(36).slice(2, 10)}`;
      calls.push({ id, type: "function", function: { name: String(name), arguments: JSON.stringify(given ?? {}) } });
    } catch {
      // it stays text, as with other servers
    }
  }
  return calls;
}

async function grammarOf(format) {
  if (!format || format.type === "text") return undefined;
  if (format.type === "json_object") return llama.getGrammarFor("json");
  try {
    return await llama.createGrammarForJsonSchema(format.json_schema.schema);
  } catch (error) {
    throw new Refused(`response_format json_schema is not supported here: ${error.message}`, "invalid_schema");
  }
}

// One call

let lastInQueue = Promise.resolve();

async function inSlot(signal, work) {
  const before = lastInQueue;
  let leave;
  lastInQueue = new Promise((resolve) => { leave = resolve; });
  const gone = new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
  await Promise.race([before, gone]);
  try {
    if (signal.aborted) throw new Error("gone");
    return await work();
  } finally {
    before.then(leave);
  }
}

async function answer(body, line, signal, onText) {
  const tokens = promptOf(body);
  line.prompt_tokens = tokens.length;
  const room = WINDOW - tokens.length;
  if (room < LEAST_ANSWER) {
    const detail = `This model's maximum context length is ${WINDOW} tokens, and the messages have ${tokens.length}.`;
    throw new Refused(detail, "context_length_exceeded");
  }
  const grammar = await grammarOf(body.response_format);
  const most = Math.min(body.max_completion_tokens ?? body.max_tokens ?? room, room - 1);
  return inSlot(signal, async () => {
    line.began = Date.now();
    const { response, metadata } = await completion.generateCompletionWithMeta(tokens, {
      grammar, signal, maxTokens: most, temperature: body.temperature ?? 0.7, seed: body.seed ?? 1,
      stopOnAbortSignal: true, customStopTriggers: ends,
      onTextChunk: (text) => {
        line.first ??= Date.now();
        line.answer += text;
        onText?.(text);
      },
    });
    line.completion_tokens = model.tokenize(line.answer).length;
    const calls = body.tools?.length ? callsIn(response) : [];
    const reason = metadata.stopReason === "maxTokens" ? "length" : "stop";
    return { text: calls.length ? response.split("<tool_call>")[0].trim() : response, calls, reason };
  });
}

// HTTP

let number = 0, open = 0;

async function complete(request, response) {
  open += 1;
  const line = { number: ++number, came: Date.now(), began: null, first: null, prompt_tokens: 0, completion_tokens: 0, answer: "" };
  const gone = new AbortController();
  response.on("close", () => gone.abort());
  try {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    line.request = Buffer.concat(pieces).toString(); // the text itself: JavaScript writes 1.0 as 1
    const body = JSON.parse(line.request);
    line.schema = body.response_format?.json_schema?.name ?? null;
    if (!body.messages?.length) throw new Refused("messages is required", "invalid_request_error");
    const head = { id: `chatcmpl-${line.came}-${line.number}`, created: Math.floor(line.came / 1000), model: options.name };
    await (body.stream ? streamed : whole)(body, head, line, gone.signal, response);
    line.outcome = gone.signal.aborted && !response.writableEnded ? "gone" : "answered";
  } catch (error) {
    line.outcome = gone.signal.aborted ? "gone" : "refused";
    line.error = error.message;
    if (!gone.signal.aborted) {
      if (response.headersSent) response.destroy();
      else send(response, error.status ?? 500, { error: { message: error.message, code: error.code ?? null } });
    }
  } finally {
    line.completion_tokens ||= model.tokenize(line.answer).length;
    appendFileSync(options.log, `${JSON.stringify({ ...line, ended: Date.now() })}\n`);
    open -= 1;
  }
}

function usageOf(line) {
  const { prompt_tokens, completion_tokens } = line;
  return { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens };
}

async function whole(body, head, line, signal, response) {
  const { text, calls, reason } = await answer(body, line, signal);
  if (signal.aborted) return;
  const message = { role: "assistant", content: text || null, ...(calls.length && { tool_calls: calls }) };
  const choice = { index: 0, finish_reason: calls.length ? "tool_calls" : reason, message };
  send(response, 200, { ...head, object: "chat.completion", choices: [choice], usage: usageOf(line) });
}

async function streamed(body, head, line, signal, response) {
  const event = (members) => response.write(`data: ${JSON.stringify({ ...head, object: "chat.completion.chunk", ...members })}\n\n`);
  const chunk = (delta, finish_reason = null) => event({ choices: [{ index: 0, delta, finish_reason }] });
  const begin = () => {
    if (response.headersSent) return;
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    chunk({ role: "assistant", content: "" });
  };
  // with tools, only the whole text shows whether it is a call
  const onText = body.tools?.length ? undefined : (text) => { begin(); chunk({ content: text }); };
  const { text, calls, reason } = await answer(body, line, signal, onText);
  if (signal.aborted) return;
  begin();
  if (!onText && text) chunk({ content: text });
  if (calls.length) chunk({ tool_calls: calls.map((call, index) => ({ index, ...call })) });
  chunk({}, calls.length ? "tool_calls" : reason);
  if (body.stream_options?.include_usage) event({ choices: [], usage: usageOf(line) });
  response.end("data: [DONE]\n\n");
}

function send(response, status, value) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(value));
}

const server = http.createServer((request, response) => {
  const call = `${request.method} ${request.url}`;
  if (call === "POST /v1/chat/completions") complete(request, response);
  else if (call === "GET /v1/models") send(response, 200, { object: "list", data: [{ id: options.name, object: "model" }] });
  else if (call === "GET /open") send(response, 200, { calls: open });
  else send(response, 404, { error: { message: "There is no such path." } });
});
server.listen(Number(options.port), "127.0.0.1");
