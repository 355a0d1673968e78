// The request of the inspector as a call that a program can make. The key is named, never written.
import type { ContextRequest } from "../../api/types";

const address = (id: string) => `${location.origin}/v1/conversations/${encodeURIComponent(id)}/context`;

type Headers = Record<string, string>;

export function asCurl(id: string, request: ContextRequest, more: Headers): string {
  const json = JSON.stringify(request).replaceAll("'", String.raw`'\''`);
  const headers = Object.entries(more).map(([name, value]) => ` -H '${name}: ${value.replaceAll("'", String.raw`'\''`)}'`).join("");
  return `curl -s ${address(id)} \\\n  -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json'${headers} \\\n  -d '${json}'`;
}

export function asPython(id: string, request: ContextRequest, more: Headers): string {
  const headers = Object.entries(more).map(([name, value]) => `, ${JSON.stringify(name)}: ${JSON.stringify(value)}`).join("");
  return [
    "import json, os, urllib.request",
    `body = json.loads(${JSON.stringify(JSON.stringify(request))})`,
    `request = urllib.request.Request(${JSON.stringify(address(id))}, json.dumps(body).encode(), {`,
    `    "Authorization": f"Bearer {os.environ['KEY']}", "Content-Type": "application/json"${headers}})`,
    "print(json.load(urllib.request.urlopen(request))[\"messages\"])",
  ].join("\n");
}

export function asTypeScript(id: string, request: ContextRequest, more: Headers): string {
  const headers = Object.entries(more).map(([name, value]) => `, ${JSON.stringify(name)}: ${JSON.stringify(value)}`).join("");
  return [
    `const response = await fetch(${JSON.stringify(address(id))}, {`,
    '  method: "POST",',
    `  headers: { Authorization: \`Bearer \${process.env.KEY}\`, "Content-Type": "application/json"${headers} },`,
    `  body: JSON.stringify(${JSON.stringify(request)}),`,
    "});",
    "const { messages } = await response.json();",
  ].join("\n");
}
