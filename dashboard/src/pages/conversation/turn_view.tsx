// One turn of the transcript.
import Markdown from "../../components/markdown";
import type { ContentPart, ToolCall, Turn } from "../../api/types";
import { ago, hue, time } from "../../lib/format";
import { strings } from "../../strings";

const text = strings.conversation;

export function TurnView({ turn, versions }: { turn: Turn; versions: Turn[] }) {
  const isTool = turn.role === "tool";
  return (
    <article class={`turn ${hue(turn.actor)}`} aria-label={`${turn.role} ${turn.actor}`}>
      <header class="row small">
        <strong class="turn-actor">{turn.actor}</strong>
        <span class="badge">{turn.role}</span>
        {turn.status === "pending" && <span class="badge accent">{text.pending}</span>}
        {turn.position !== null && <span class="muted number">{turn.position}</span>}
        <time class="muted" dateTime={turn.occurred_at} title={time(turn.occurred_at)}>{ago(turn.occurred_at)}</time>
      </header>
      {turn.erased_at ? (
        <p class="muted">{text.erased}</p>
      ) : isTool ? (
        <details><summary>{text.toolResult}</summary><Content content={turn.content} plain /></details>
      ) : (
        <Content content={turn.content} />
      )}
      {turn.tool_calls.map((call, index) => <Call key={index} call={call} />)}
      {turn.tool_results.map((result) => (
        <details key={result.tool_call_id}><summary>{text.toolResult} <code>{result.tool_call_id}</code></summary><Content content={result.content ?? null} plain /></details>
      ))}
      {versions.length > 0 && (
        <details class="small muted">
          <summary>{text.superseded(versions.length)}</summary>
          {versions.map((version) => <div key={version.id} class="old-version"><Content content={version.content} /></div>)}
        </details>
      )}
    </article>
  );
}

function Content({ content, plain = false }: { content: string | ContentPart[] | null; plain?: boolean }) {
  if (content === null) return null;
  if (typeof content === "string") return plain ? <pre>{content}</pre> : <Markdown text={content} />;
  return (
    <>
      {content.map((part, index) => {
        const value = (part as { text?: unknown }).text;
        if (typeof value === "string") return plain ? <pre key={index}>{value}</pre> : <Markdown key={index} text={value} />;
        return <details key={index}><summary>{text.otherPart} {String(part.type ?? "")}</summary><pre>{JSON.stringify(part, null, 2)}</pre></details>;
      })}
    </>
  );
}

function Call({ call }: { call: ToolCall }) {
  const { name, arguments: given } = "function" in call ? (call.function as { name: string; arguments: unknown }) : (call as { name?: string; arguments?: unknown });
  return (
    <details>
      <summary>{text.toolCall} <code>{name ?? ""}</code></summary>
      <p class="small muted">{text.arguments}</p>
      <pre>{typeof given === "string" ? given : JSON.stringify(given ?? call, null, 2)}</pre>
    </details>
  );
}
