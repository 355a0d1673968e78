// Reads an AsyncAPI document from standard input with the parser of those who specify it; any finding fails.
import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";

const { document, diagnostics } = await new Parser().parse(readFileSync(0, "utf8"));
for (const { code, message, path, severity } of diagnostics) {
  console.error(`${["error", "warning", "information", "hint"][severity]}: ${path.join("/")}: ${message} (${code})`);
}
if (!document || diagnostics.length > 0) process.exit(1);
console.log(
  `AsyncAPI ${document.version()}: ${document.allChannels().length} channels, ` +
    `${document.allOperations().length} operations, ${document.allMessages().length} messages; nothing found`,
);
