"""Writes `app/routers/documents/errors.html`: the page that the `type` of a problem leads to.

Usage: `python -m scripts.site.error_page`. A server shows the page without the other documents, so a link to one of
them becomes its text.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.core.error_codes import ERROR_CODES
from scripts.reference.error_advice import ERROR_ADVICE

ROOT: Final = Path(__file__).parents[2]
TARGET: Final = ROOT / "app/routers/documents/errors.html"
_INLINE: Final = re.compile(r"`(?P<code>[^`]+)`|\[(?P<text>[^\]]+)\]\((?P<target>[^)]+)\)")
_HEAD: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Error codes · Turnkeep</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/dashboard/demo/demo.css">
<link rel="stylesheet" href="/docs/errors.css">

<header class="bar">
  <p><a href="/">Turnkeep</a> · <a href="/docs">API documentation</a></p>
  <h1>Error codes</h1>
  <p>Every error of the API is a problem (<code>application/problem+json</code>, RFC 9457). Its <code>type</code> leads
    to its code on this page. Use <code>code</code> in programs: its meaning never changes. <code>errors</code> names
    the wrong fields, and <code>request_id</code> finds the request in the log.</p>
  <p>A <b class="again">retryable</b> request can succeed later: send the same request again, after
    <code>Retry-After</code> if the response has it, with the same turn ids or <code>Idempotency-Key</code>, so that
    nothing is stored twice. Correct the request before you send any other one again.</p>
</header>
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A code with its title, where it is met, and what to do."""

    code: str
    title: str
    where: str
    is_retryable: bool
    advice: str


def entries() -> list[Entry]:
    """Return all codes in their order."""
    return [_entry(code, title, *ERROR_ADVICE[code]) for code, title in ERROR_CODES.items()]


def write_page(codes: Sequence[Entry]) -> str:
    """Return the page in HTML."""
    links = "\n".join(f'  <a href="#{entry.code}"><code>{entry.code}</code></a>' for entry in codes)
    sections = "\n".join(_section(entry) for entry in codes)
    return f'{_HEAD}\n<nav class="codes" aria-label="All codes">\n{links}\n</nav>\n\n{sections}\n</html>\n'


def _entry(code: str, title: str, where: str, advice: str) -> Entry:
    return Entry(code, title, where.removesuffix(", retryable"), where.endswith(", retryable"), advice)


def _section(entry: Entry) -> str:
    again = ' <b class="again">retryable</b>' if entry.is_retryable else ""
    return (
        f'<section class="card code" id="{entry.code}">\n'
        f'  <h2><a href="#{entry.code}"><code>{entry.code}</code></a> <b>{_inline(entry.where)}</b>{again}</h2>\n'
        f'  <p class="title">{_inline(entry.title)}</p>\n'
        f"  <p>{_inline(entry.advice)}</p>\n"
        "</section>"
    )


def _inline(text: str) -> str:
    """Return a text in HTML: code, and links to codes of this page."""
    pieces: list[str] = []
    at = 0
    for found in _INLINE.finditer(text):
        pieces.append(html.escape(text[at : found.start()], quote=False))
        if found["code"] is not None:
            pieces.append(f"<code>{html.escape(found['code'], quote=False)}</code>")
        else:
            label, target = html.escape(found["text"], quote=False), found["target"]
            pieces.append(f'<a href="{target}">{label}</a>' if target.startswith(("#", "https:")) else label)
        at = found.end()
    return "".join([*pieces, html.escape(text[at:], quote=False)])


if __name__ == "__main__":
    TARGET.write_text(write_page(entries()))
