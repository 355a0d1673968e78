// A chat with the client that @hey-api/openapi-ts generates by default, without a cast.
import { buildContext, createConversation, followConversation, generate, recall } from "./client";
import { client } from "./client/client.gen";

export async function chat(baseUrl: string, key: string, read: () => Promise<string | null>, show: (line: string) => void) {
  client.setConfig({ baseUrl, auth: key });
  const created = await createConversation({ body: { owner: "user:maya", title: "Sourdough" } });
  if (created.error) throw new Error(`${created.error.code}: ${created.error.detail}`);
  const conversation_id = created.data.id;
  for (let said = await read(); said !== null; said = await read()) {
    const answer = await generate({ body: { conversation_id, messages: [{ role: "user", content: said }] } });
    if (answer.error?.code === "model_not_configured") return show("Name a chat model first.");
    if (answer.error) throw new Error(answer.error.retryable ? "Try again later." : answer.error.detail);
    show(answer.data.response);
    for (const turn of answer.data.turns)
      for (const call of turn.tool_calls) show(`${turn.actor} calls ${call.id}`);
  }
  const found = await recall({ body: { query: "flour", kinds: ["turn", "fact"] }, throwOnError: true });
  for (const hit of found.data.data)
    if (hit.kind === "fact") show(`${hit.fact.subject} ${hit.fact.predicate} ${hit.fact.object}`);
    else if (hit.kind === "turn" && typeof hit.turn?.content === "string") show(hit.turn.content);
  const context = await buildContext({ path: { conversation_id }, body: { token_budget: 2000 }, throwOnError: true });
  for (const message of context.data.messages)
    for (const part of Array.isArray(message.content) ? message.content : [])
      if (part.type === "text" && "text" in part) show(`${message.role}: ${part.text}`);
  const { stream } = await followConversation({ path: { conversation_id } });
  for await (const event of stream)
    if (event.type === "turn.delta") show(event.delta);
    else if (event.type === "turn.committed") return show(event.turn.id);
}
