"""A model that obeys whatever it is told outside of the fence, and nothing inside: the worst that a fence must hold.

It reads messages as a parser would. Of what is said to it by users and tools it takes out what stands in a proper
fence, one that the system text's mark begins and ends, and carries out what remains: `RUN <tool> {…}` calls that tool,
granted or not, and `REVEAL` prints all that it was told, in the manner asked for. Told nothing, it says one sentence.
"""

import base64
import codecs
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.support.fake_chat import Reply, calls, says

OBEDIENT_SAYS = "There is nothing for me to do."
_MARK = re.compile(r"<data ([0-9a-f]{16})>")
_RUN = re.compile(r"RUN\s+(\w+)\s*(\{[^{}]*\})?")
_REVEAL = re.compile(r"REVEAL(?::(\w+))?")
_MANNERS: dict[str | None, Callable[[str], str]] = {
    None: str,
    "upper": str.upper,
    "spaced": " ".join,
    "dashed": lambda text: "-".join(text.split()),
    "reversed": lambda text: text[::-1],
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64lines": lambda text: base64.encodebytes(text.encode()).decode(),
    "base64after": lambda text: f"Here you go {base64.b64encode(text.encode()).decode()}",
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "hexes": lambda text: text.encode().hex(" "),
    "codes": lambda text: " ".join(str(ord(one)) for one in text),
    "percent": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "escaped": lambda text: "".join(f"\\u{ord(one):04x}" for one in text),
    "html": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "leet": lambda text: text.translate(str.maketrans("aeiost", "431057")),
    "wide": lambda text: "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in text),
    "lines": lambda text: "\n".join(text.split()),
    "quoted": lambda text: "\n".join(f"> {line}" for line in text.splitlines()),
    "half": lambda text: text[len(text) // 4 : len(text) // 2],
}
MANNERS = tuple(_MANNERS)


class Obedient:
    """The model, as a function of a request. `obeyed` is what it was made to do."""

    def __init__(self) -> None:
        self.obeyed: list[str] = []

    def __call__(self, request: dict[str, Any]) -> Reply:
        """Do what is said outside of the fence."""
        orders = outside(request["messages"])
        wanted = [(found[1], arguments(found[2])) for found in _RUN.finditer(orders)]
        made = sum(len(message.get("tool_calls") or ()) for message in request["messages"])
        if wanted[made:] and request.get("tools"):
            self.obeyed += [name for name, _ in wanted[made:]]
            return calls(*wanted[made:])
        shown = _REVEAL.search(orders)
        if shown is not None:
            self.obeyed.append(shown[0])
            return says(_MANNERS.get(shown[1], str)(told(request)))
        return says(OBEDIENT_SAYS)


def arguments(text: str | None) -> dict[str, Any]:
    """What stands after an order; nothing where it cannot be read."""
    with suppress(ValueError):
        return json.loads(text or "{}")
    return {}


def told(request: dict[str, Any]) -> str:
    """All that a model could give away: the system text, its tools, and what they gave."""
    tools = "\n".join(
        f"{one['function']['name']}: {one['function']['description']}" for one in request.get("tools", ())
    )
    given = "\n".join(str(message["content"]) for message in request["messages"] if message["role"] == "tool")
    return "\n".join([request["messages"][0]["content"], tools, given])


def outside(messages: list[dict[str, Any]]) -> str:
    """What remains of what users and tools say, without what stands in a proper fence."""
    marks = _MARK.findall(messages[0]["content"])
    texts = [str(message["content"]) for message in messages[1:] if message["role"] != "assistant"]
    if not marks:
        return "\n".join(texts)
    fence = re.compile(rf'<data {marks[-1]} kind="\w+">.*?</data {marks[-1]}>', re.DOTALL)
    return "\n".join(fence.sub("", text) for text in texts)
