// Markdown of stored texts, which can be hostile: no HTML, no images, links to http, https and mailto only.
import MarkdownIt from "markdown-it";
import { useMemo } from "preact/hooks";
import { strings } from "../strings";

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;
const markdown = new MarkdownIt({ html: false, linkify: false, breaks: true });
markdown.validateLink = (url) => SAFE_LINK.test(url.trim());
markdown.renderer.rules["link_open"] = (tokens, index, options, _environment, self) => {
  tokens[index]?.attrSet("rel", "noopener noreferrer nofollow");
  tokens[index]?.attrSet("target", "_blank");
  return self.renderToken(tokens, index, options);
};
// an image would tell its server that the text was read: show its description and address as text
markdown.renderer.rules["image"] = (tokens, index) => {
  const token = tokens[index];
  const address = token?.attrGet("src") ?? "";
  return markdown.utils.escapeHtml(`[${strings.conversation.image}: ${token?.content ?? ""} ${address}]`);
};
for (const rule of ["th_open", "td_open"]) {
  markdown.renderer.rules[rule] = (tokens, index, options, _environment, self) => {
    const token = tokens[index];
    // the policy of the page forbids style attributes
    if (token?.attrs) token.attrs = token.attrs.filter(([name]) => name !== "style");
    return self.renderToken(tokens, index, options);
  };
}
const LONGEST = 60_000;

export default function Markdown({ text }: { text: string }) {
  const html = useMemo(() => (text.length > LONGEST ? null : markdown.render(text).replaceAll("<pre>", '<pre tabindex="0">')), [text]);
  if (html === null) return <pre class="prose">{text}</pre>;
  return <div class="prose" dangerouslySetInnerHTML={{ __html: html }} />;
}
