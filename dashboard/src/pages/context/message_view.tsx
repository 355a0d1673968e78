// One message of a context as a person reads it, whatever the format of its provider; its JSON is one click away.
import { memo } from "../../lib/memo";
import { strings } from "../../strings";

const text = strings.context;

interface Readable {
  role: string;
  name: string | null;
  texts: string[];
  calls: { name: string; given: string }[];
}

type Members = Record<string, unknown>;
const isObject = (value: unknown): value is Members => typeof value === "object" && value !== null && !Array.isArray(value);
const words = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** Reads messages of OpenAI and Anthropic, items of Responses, and turns. */
function readableOf(message: Members): Readable {
  const { role, type, name, actor, content, output, tool_calls: toolCalls } = message;
  const found: Readable = { role: words(role ?? type ?? ""), name: null, texts: [], calls: [] };
  if (type === "function_call") found.calls.push({ name: words(name), given: words(message["arguments"] ?? "") });
  else if (typeof (actor ?? name) === "string") found.name = String(actor ?? name);
  if (output !== undefined) found.texts.push(words(output));
  for (const part of typeof content === "string" ? [content] : Array.isArray(content) ? content : []) readPart(part, found);
  for (const call of Array.isArray(toolCalls) ? toolCalls : []) {
    const called = isObject(call) && isObject(call["function"]) ? call["function"] : call;
    if (isObject(called)) found.calls.push({ name: words(called["name"] ?? ""), given: words(called["arguments"] ?? {}) });
  }
  return found;
}

function readPart(part: unknown, found: Readable): void {
  if (typeof part === "string") found.texts.push(part);
  else if (!isObject(part)) found.texts.push(words(part));
  else if (typeof part["text"] === "string") found.texts.push(part["text"]);
  else if (part["type"] === "tool_use") found.calls.push({ name: words(part["name"]), given: words(part["input"]) });
  else if (part["type"] === "tool_result") for (const one of Array.isArray(part["content"]) ? part["content"] : [part["content"]]) readPart(one, found);
  else found.texts.push(words(part));
}

/** `json` is the message: a string, so that a message that stays is not rendered again. */
export const MessageView = memo(function MessageView({ json }: { json: string }) {
  const { role, name, texts, calls } = readableOf(JSON.parse(json) as Members);
  return (
    <article class="message" aria-label={name ? `${role} ${name}` : role}>
      <p class="row small"><span class="badge">{role}</span> {name && <strong>{name}</strong>}</p>
      {texts.map((one, index) => <p key={index} class="message-text">{one}</p>)}
      {calls.map((call, index) => (
        <details key={index} class="small"><summary>{strings.conversation.toolCall} <code>{call.name}</code></summary><pre tabIndex={0}>{call.given}</pre></details>
      ))}
      <details class="small"><summary class="muted">{text.asJson}</summary><pre tabIndex={0}>{json}</pre></details>
    </article>
  );
});
