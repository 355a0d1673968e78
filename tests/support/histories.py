"""Random histories in each message format, with the messages that a context in this format shows of them.

`history(format, rng)` is pure: the same seed gives the same history. It covers parallel, unanswered and interleaved
calls, thinking, reasoning, media, transcripts, unknown members, integers of 64 bits, empty and absent content, and
system messages in several places. The shapes follow the providers' schemas.
"""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from app.formats.schemas import Format
from app.formats.unsent import UNSENT_BLOCKS, UNSENT_MEMBERS

Message = dict[str, Any]

UNSENT_ITEMS = frozenset({
    "additional_tools", "compaction", "compaction_trigger", "item_reference", "mcp_approval_request",
    "mcp_approval_response",
})  # fmt: skip
"""Types of items of Responses that a context leaves out. Items of types that no schema has are left out too."""
ITEMS_WITH_ID = frozenset({
    "code_interpreter_call", "computer_call", "file_search_call", "image_generation_call", "local_shell_call",
    "local_shell_call_output", "mcp_call", "mcp_list_tools", "program", "program_output", "reasoning",
    "tool_search_call", "tool_search_output", "web_search_call",
})  # fmt: skip
"""Types of items of Responses that keep their id."""

PNG: Final = "data:image/png;base64,iVBORw0KGgo="
PDF: Final = "data:application/pdf;base64,JVBERi0="
WORDS: Final = (
    "Kiel",
    "rain",
    "Straße",
    "東京",
    "👩‍👩‍👧",
    "two\nlines",
    '"quoted"',
    "<b>&</b>",
    "C++",
    "10 €",
    "\u200bzero",
)
TOOLS: Final = ("weather", "get-time", "lookup_2")
WIDE: Final = (2**53 + 1, 1234567890123456789, -(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class History:
    """Messages as they are given, and as a context in the same format shows them. `system`: text beside them."""

    format: Format
    messages: list[Message]
    shown: list[Message]
    system: str | None = None


@dataclass(slots=True)
class Builder:
    """A history that grows: `give` adds a message that is shown as given but for unsent members."""

    format: Format
    rng: Random
    given: list[Message] = field(default_factory=list[Message])
    shown: list[Message] = field(default_factory=list[Message])
    systems: list[str] = field(default_factory=list[str])
    number: int = 0
    wide: bool = True

    def give(self, message: Message, *, shown: bool = True) -> None:
        self.given.append(copy.deepcopy(message))
        if shown:
            self.show(message)

    def show(self, message: Message) -> None:
        self.shown.append(without_unsent(self.format, message))

    def call_id(self) -> str:
        self.number += 1
        styles = [f"call_{self.number}", f"toolu_{self.number:020}", f"c-{self.number}"]
        if self.format in {Format.OPENAI, Format.WORKERS_AI}:
            styles.append(f"functions.weather:{self.number}")
        return self.rng.choice(styles)

    def text(self) -> str:
        self.number += 1
        return f"{' '.join(self.rng.choices(WORDS, k=self.rng.randint(1, 4)))} {self.number}"

    def maybe(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def value(self, depth: int = 0) -> Any:
        simple: list[Any] = [None, True, 0, -1.5, "", self.rng.choice(WORDS), 2**53 - 1]
        if depth < 2 and self.maybe(0.3):
            return [self.value(depth + 1) for _ in range(self.rng.randint(0, 2))]
        if depth < 2 and self.maybe(0.3):
            return {f"m{number}": self.value(depth + 1) for number in range(self.rng.randint(0, 2))}
        return self.rng.choice(simple)

    def unknown(self, chance: float = 0.3) -> Message:
        return {f"x_{self.rng.choice('abc')}": self.value()} if self.maybe(chance) else {}

    def arguments(self) -> Message:
        number = self.integer()
        choices: list[Message] = [
            {},
            {"city": self.text()},
            {"channel_id": number},
            {"deep": [{"id": number}]},
            {"nothing": None, "list": []},
        ]
        return self.rng.choice(choices)

    def integer(self) -> int:
        return self.rng.choice(WIDE if self.wide else (7, 2**53 - 1))


def without_unsent(target: Format, message: Message, *, part: bool = False) -> Message:
    """Return a message or a part without the members that contexts do not send again."""
    left_out = UNSENT_MEMBERS[target]["part" if part else "message"]
    if target is Format.OPENAI_RESPONSES and message.get("type") in ITEMS_WITH_ID:
        left_out -= {"id"}
    shown = {name: value for name, value in copy.deepcopy(message).items() if name not in left_out}
    for name in ("content", "output", "tool_calls"):
        if isinstance(shown.get(name), list):
            parts: list[Message] = [part for part in shown[name] if part.get("type") not in UNSENT_BLOCKS[target]]
            shown[name] = [without_unsent(target, part, part=True) for part in parts]
    return shown


def history(target: Format, rng: Random, *, steps: int | None = None) -> History:
    """Return a random history of a format."""
    builder = Builder(target, rng)
    choices = _STEPS[target]
    _START[target](builder)
    for _ in range(rng.randint(1, 7) if steps is None else steps):
        rng.choice(choices)(builder)
    return _FINISH[target](builder)


# --- chat completions and Workers AI


def _chat_part(b: Builder) -> Message:
    parts: list[Message] = [
        {"type": "text", "text": b.text()},
        {"type": "text", "text": b.text(), **b.unknown()},
        {"type": "image_url", "image_url": {"url": PNG}},
    ]
    if b.format is Format.OPENAI:
        parts += [
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
            {"type": "file", "file": {"file_id": "file-1"}},
            {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}},
        ]
    part = b.rng.choice(parts)
    return part | ({"cache_control": {"type": "ephemeral"}} if b.maybe(0.15) else {})


def _chat_content(b: Builder, *, media: bool = False) -> Any:
    if b.maybe(0.6):
        return b.text()
    text = {"type": "text", "text": b.text(), **b.unknown(0.2)}
    return [text, *(_chat_part(b) if media else {"type": "text", "text": b.text()} for _ in range(b.rng.randint(0, 2)))]


def _chat_user(b: Builder) -> None:
    name = {"name": b.rng.choice(["ana", "bob-2"])} if b.format is Format.OPENAI and b.maybe(0.2) else {}
    b.give({"role": "user", "content": _chat_content(b, media=True), **name, **b.unknown()})


def _chat_answer(b: Builder) -> None:
    message: Message = {"role": "assistant", "content": _chat_content(b)}
    extras: list[Message] = [
        {},
        {"reasoning_content": b.text()},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "eJw="}]},
        {"refusal": None, "annotations": [], "audio": None},
        b.unknown(1),
        {"cache_control": {"type": "ephemeral"}},
    ]
    b.give(message | b.rng.choice(extras))


def _chat_thought(b: Builder) -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": b.text()}], "closed": True}
    b.give({"role": "assistant", "content": [thought, {"type": "text", "text": b.text()}]})


def _chat_refusal(b: Builder) -> None:
    b.give({"role": "assistant", "content": None, "refusal": b.text(), **b.unknown()})


def _chat_spoken(b: Builder) -> None:
    transcript = b.text()
    b.give({"role": "assistant", "content": None, "audio": {"id": "audio_1", "transcript": transcript}}, shown=False)
    b.show({"role": "assistant", "content": transcript})


def _chat_system(b: Builder) -> None:
    text = b.rng.choice(b.systems) if b.systems and b.maybe(0.3) else b.text()
    role = "developer" if b.format is Format.OPENAI and b.maybe(0.3) else "system"
    is_new = text not in b.systems
    b.give({"role": role, "content": text}, shown=is_new and b.format is Format.OPENAI)
    b.systems += [text] if is_new else []


def _chat_empty(b: Builder) -> None:
    b.give({"role": b.rng.choice(["user", "assistant"]), "content": b.rng.choice(["", " \n", []])}, shown=False)


def _chat_call(b: Builder) -> Message:
    call_id = b.call_id()
    if b.format is Format.OPENAI and b.maybe(0.15):
        return {"id": call_id, "type": "custom", "custom": {"name": b.rng.choice(TOOLS), "input": b.text()}}
    arguments = json.dumps(b.arguments()) if b.maybe(0.8) else b.rng.choice(["{ }", '{"a": 1.0}', "{cut"])
    function: Message = {"name": b.rng.choice(TOOLS), "arguments": arguments, **b.unknown(0.1)}
    extra = {"extra_content": {"google": {"thought_signature": "CsIB="}}} if b.maybe(0.3) else b.unknown(0.2)
    return {"id": call_id, "type": "function", "function": function, **extra}


def _chat_tools(b: Builder) -> None:
    calls = [_chat_call(b) for _ in range(b.rng.randint(1, 3))]
    message: Message = {"role": "assistant", "tool_calls": calls}
    content = b.rng.choice(["absent", None, "", b.text(), [{"type": "text", "text": b.text()}]])
    if content != "absent":
        message["content"] = content
    if b.maybe(0.4):
        message["reasoning_content"] = b.text()
    answered = [call for call in calls if b.maybe(0.85)]
    results = [_chat_result(b, call) for call in answered]
    b.give(message, shown=False)
    has_text = bool(content and content != "absent")
    if answered:
        b.show(message | {"tool_calls": answered})
    elif has_text:
        b.show({name: value for name, value in message.items() if name != "tool_calls"})
    order = b.rng.sample(results, k=len(results))
    between: list[Message] = []
    for result in order:
        if b.maybe(0.1):
            between.append({"role": "user", "content": b.text()})
            b.give(between[-1], shown=False)
        b.give(result, shown=False)
    # results follow their call, in the order of the calls
    for later in [*results, *between]:
        b.show({**later, "content": "" if later["content"] is None else later["content"]})


def _chat_result(b: Builder, call: Message) -> Message:
    name = {"name": call[call["type"]]["name"]} if b.maybe(0.2) else {}
    content = b.rng.choice([b.text(), "", [{"type": "text", "text": b.text()}], '{"id": 1234567890123456789}', None])
    return {"role": "tool", "tool_call_id": call["id"], "content": content, **name, **b.unknown(0.2)}


def _finish_chat(b: Builder) -> History:
    shown = b.shown
    if b.format is Format.WORKERS_AI and b.systems:
        shown = [{"role": "system", "content": "\n\n".join(b.systems)}, *shown]
    return History(b.format, b.given, shown)


# --- Responses


def _item_content(b: Builder) -> Any:
    if b.maybe():
        return b.text()
    media: list[Message] = [
        {"type": "input_image", "image_url": PNG},
        {"type": "input_image", "file_id": "file-2", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_file", "file_url": "https://example.org/a.pdf"},
    ]
    text = {"type": "input_text", "text": b.text(), **b.unknown(0.2)}
    return [text, *(b.rng.choice(media) for _ in range(b.rng.randint(0, 2)))]


def _item_user(b: Builder) -> None:
    kind = {"type": "message"} if b.maybe() else {}
    b.give({**kind, "role": "user", "content": _item_content(b), **b.unknown(0.2)})


def _item_system(b: Builder) -> None:
    text = b.rng.choice(b.systems) if b.systems and b.maybe(0.3) else b.text()
    b.give({"role": b.rng.choice(["system", "developer"]), "content": text}, shown=text not in b.systems)
    b.systems += [] if text in b.systems else [text]


def _output_message(b: Builder) -> Message:
    if b.maybe(0.3):
        return {"role": "assistant", "content": b.text(), **({"phase": "commentary"} if b.maybe() else {})}
    annotation = {"type": "url_citation", "start_index": 0, "end_index": 1, "title": "t", "url": "https://example.org"}
    text: Message = {"type": "output_text", "text": b.text(), "annotations": [annotation] if b.maybe(0.3) else []}
    parts = [text] if b.maybe(0.8) else [text, {"type": "refusal", "refusal": b.text()}]
    b.number += 1
    message: Message = {"type": "message", "id": f"msg_{b.number}", "role": "assistant", "status": "completed"}
    return {**message, "content": parts, **({"phase": "final_answer"} if b.maybe(0.2) else {}), **b.unknown(0.2)}


def _reasoning(b: Builder, *, whole: bool = True) -> Message:
    b.number += 1
    item: Message = {"type": "reasoning", "id": f"rs_{b.number}", "summary": []}
    if b.maybe():
        item["summary"] = [{"type": "summary_text", "text": b.text()}]
    return item | ({"encrypted_content": "gAAAA", "status": None} if whole else {})


def _hosted(b: Builder) -> Message:
    b.number += 1
    items: list[Message] = [
        {
            "type": "web_search_call",
            "id": f"ws_{b.number}",
            "status": "completed",
            "action": {"type": "search", "query": "x"},
        },
        {"type": "file_search_call", "id": f"fs_{b.number}", "status": "completed", "queries": ["x"], "results": None},
        {
            "type": "code_interpreter_call",
            "id": f"ci_{b.number}",
            "status": "completed",
            "code": "1",
            "container_id": "c",
            "outputs": None,
        },
        {
            "type": "mcp_call",
            "id": f"mcp_{b.number}",
            "name": "t",
            "server_label": "s",
            "arguments": "{}",
            "output": "x",
        },
        {"type": "image_generation_call", "id": f"ig_{b.number}", "status": "completed", "result": "iVBORw0KGgo="},
    ]
    return b.rng.choice(items)


def _item_answer(b: Builder) -> None:
    led = [b.rng.choice([_reasoning, _hosted])(b) for _ in range(b.rng.randint(0, 2))]
    is_whole = b.maybe(0.8) or not any(item["type"] == "reasoning" for item in led)
    if not is_whole:
        led = [_reasoning(b, whole=False), *led]
    for item in led:
        b.give(item, shown=is_whole)
    b.give(_output_message(b))


def _item_call(b: Builder) -> tuple[Message, Message]:
    """Return a call and its output."""
    call_id, tool = b.call_id(), b.rng.choice(TOOLS)
    extra = b.rng.choice([{}, {"id": f"fc_{b.number}", "status": "completed"}, {"namespace": "n"}, b.unknown(1)])
    if b.maybe(0.15):
        call = {"type": "custom_tool_call", "call_id": call_id, "name": tool, "input": b.text()}
        return call | extra, {"type": "custom_tool_call_output", "call_id": call_id, "output": b.text()}
    if b.maybe(0.1):
        call = {"type": "shell_call", "call_id": call_id, "action": {"commands": ["ls"]}, "status": "completed"}
        streams = [{"stdout": b.text(), "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
        return call, {"type": "shell_call_output", "call_id": call_id, "output": streams}
    call = {"type": "function_call", "call_id": call_id, "name": tool, "arguments": json.dumps(b.arguments())} | extra
    image = {"type": "input_image", "image_url": PNG}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": PDF}
    outputs: list[Any] = [b.text(), "", [{"type": "input_text", "text": b.text()}, image], [image], [file]]
    output = {"type": "function_call_output", "call_id": call_id, "output": b.rng.choice(outputs)}
    return call, output | b.rng.choice([{}, {"status": "completed"}, {"id": f"fco_{b.number}"}, b.unknown(1)])


def _item_tools(b: Builder) -> None:
    if b.maybe(0.4):
        b.give(_reasoning(b))
        if b.maybe(0.3):
            b.give(_output_message(b))
    elif b.maybe(0.3):
        b.give(_output_message(b))
    pairs = [_item_call(b) for _ in range(b.rng.randint(1, 3))]
    # the first call is answered: reasoning is left out with its unanswered call
    answered = [pair for at, pair in enumerate(pairs) if at == 0 or b.maybe(0.85)]
    for pair in pairs:
        b.give(pair[0], shown=pair in answered)
    for _, output in b.rng.sample(answered, k=len(answered)):
        if b.maybe(0.1):
            b.give({"role": "user", "content": b.text()})
        b.give(output)


def _item_unsent(b: Builder) -> None:
    b.number += 1
    kind = b.rng.choice(sorted(UNSENT_ITEMS))
    b.give({"type": kind, "id": f"it_{b.number}", **b.unknown(1)}, shown=False)
    _item_user(b)


def _finish_items(b: Builder) -> History:
    return History(b.format, b.given, [{"type": "message", **item} for item in b.shown])


# --- Anthropic


def _cached(b: Builder, block: Message) -> Message:
    return block | ({"cache_control": {"type": "ephemeral"}} if b.maybe(0.2) else {})


def _user_block(b: Builder) -> Message:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    blocks: list[Message] = [
        {"type": "text", "text": b.text()},
        {"type": "image", "source": source},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
            "title": "a",
            "citations": {"enabled": True},
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": b.text()}, "context": "c"},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": b.text()}]}},
        {
            "type": "search_result",
            "source": "https://example.org",
            "title": "t",
            "citations": {"enabled": True},
            "content": [{"type": "text", "text": b.text()}],
        },
        {"type": "container_upload", "file_id": "file_2"},
        {"type": "block_of_tomorrow", "x": b.value()},
    ]
    return _cached(b, b.rng.choice(blocks))


def _claude_user(b: Builder) -> None:
    blocks = [{"type": "text", "text": b.text()}, *(_user_block(b) for _ in range(b.rng.randint(0, 2)))]
    b.give({"role": "user", "content": b.text() if b.maybe(0.4) else blocks})


def _thought(b: Builder) -> Message:
    thoughts: list[Message] = [
        {"type": "thinking", "thinking": b.text(), "signature": "EqQB"},
        {"type": "thinking", "thinking": "", "signature": "EqQC"},
        {"type": "redacted_thinking", "data": "EmwK"},
    ]
    return b.rng.choice(thoughts)


def _server_tools(b: Builder) -> list[Message]:
    b.number += 1
    use, answer = f"srvtoolu_{b.number}", b.text()
    found = {"type": "web_search_result", "url": "https://example.org", "title": answer, "encrypted_content": "Eq"}
    pairs: list[list[Message]] = [
        [
            {"type": "server_tool_use", "id": use, "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": use, "content": [found]},
        ],
        [
            {"type": "server_tool_use", "id": use, "name": "bash_code_execution", "input": {"command": "ls"}},
            {
                "type": "bash_code_execution_tool_result",
                "tool_use_id": use,
                "content": {
                    "type": "bash_code_execution_result",
                    "stdout": answer,
                    "stderr": "",
                    "return_code": 0,
                    "content": [],
                },
            },
        ],
        [
            {"type": "mcp_tool_use", "id": use, "name": "t", "server_name": "s", "input": {"n": b.integer()}},
            {
                "type": "mcp_tool_result",
                "tool_use_id": use,
                "is_error": False,
                "content": [{"type": "text", "text": answer}],
            },
        ],
    ]
    return b.rng.choice(pairs)


def _claude_text(b: Builder) -> Message:
    cited = {
        "type": "char_location",
        "cited_text": "x",
        "document_index": 0,
        "start_char_index": 0,
        "end_char_index": 1,
    }
    return _cached(b, {"type": "text", "text": b.text()} | ({"citations": [cited]} if b.maybe(0.2) else {}))


def _claude_blocks(b: Builder) -> list[Message]:
    blocks: list[Message] = [_thought(b)] if b.maybe(0.6) else []
    for _ in range(b.rng.randint(0, 3)):
        blocks += b.rng.choice([lambda: [_claude_text(b)], lambda: [_thought(b)], lambda: _server_tools(b)])()
    if b.maybe(0.1):
        blocks.append({"type": "thinking", "thinking": b.text(), "signature": ""})
    return blocks


def _claude_answer(b: Builder) -> None:
    if b.maybe(0.3):
        b.give({"role": "assistant", "content": b.text()})
        return
    blocks = [*_claude_blocks(b), _claude_text(b)]
    b.give({"role": "assistant", "content": blocks}, shown=False)
    b.show({"role": "assistant", "content": _without_unsigned(blocks)})


def _without_unsigned(blocks: Sequence[Message]) -> list[Message]:
    return [block for block in blocks if block["type"] != "thinking" or block["signature"]]


def _claude_result(b: Builder, use: Message) -> Message:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": b.text()}]}
    contents: list[Any] = [
        b.text(),
        "",
        [],
        [{"type": "text", "text": b.text()}],
        [{"type": "text", "text": b.text()}, image],
        [image],
        [found],
        [{"type": "tool_reference", "tool_name": "weather"}],
    ]
    result: Message = {"type": "tool_result", "tool_use_id": use["id"]}
    if b.maybe(0.8):
        result["content"] = b.rng.choice(contents)
    if b.maybe(0.2):
        result |= {"content": b.text(), "is_error": b.maybe()}
    return _cached(b, result)


def _claude_tools(b: Builder) -> None:
    blocks = _claude_blocks(b)
    uses: list[Message] = []
    for _ in range(b.rng.randint(1, 3)):
        call = {"type": "tool_use", "id": b.call_id(), "name": b.rng.choice(TOOLS), "input": b.arguments()}
        uses.append(_cached(b, call | ({"caller": {"type": "direct"}} if b.maybe(0.2) else b.unknown(0.1))))
        blocks += [uses[-1], *([_thought(b)] if b.maybe(0.2) else [])]
    answered = [use for use in uses if b.maybe(0.9)]
    results = [_claude_result(b, use) for use in answered]
    left = [block for block in _without_unsigned(blocks) if block["type"] != "tool_use" or block in answered]
    b.give({"role": "assistant", "content": blocks}, shown=False)
    if answered or any(block["type"] == "text" for block in left):
        b.show({"role": "assistant", "content": left})
    rest = [{"type": "text", "text": b.text()}] if b.maybe(0.3) or not results else []
    b.give({"role": "user", "content": [*b.rng.sample(results, k=len(results)), *rest]}, shown=False)
    b.show({"role": "user", "content": [*results, *rest]})


def _claude_system(b: Builder) -> None:
    text = b.rng.choice(b.systems) if b.systems and b.maybe(0.3) else b.text()
    b.give({"role": "system", "content": text if b.maybe() else [{"type": "text", "text": text}]}, shown=False)
    b.systems += [] if text in b.systems else [text]


def _claude_empty(b: Builder) -> None:
    blank = [{"type": "text", "text": " "}]
    b.give({"role": "assistant", "content": b.rng.choice(["", blank])}, shown=False)


def _finish_claude(b: Builder) -> History:
    return History(b.format, b.given, merged(b.shown), "\n\n".join(b.systems) or None)


def merged(messages: Sequence[Message]) -> list[Message]:
    """Return messages of Anthropic with neighbours of one role as one message."""
    result: list[Message] = []
    for message in messages:
        if result and result[-1]["role"] == message["role"]:
            result[-1] = {
                **result[-1],
                "content": [*_as_blocks(result[-1]["content"]), *_as_blocks(message["content"])],
            }
        else:
            result.append(message)
    return result


def _as_blocks(content: Any) -> list[Message]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


# --- canonical


def _own_user(b: Builder) -> None:
    b.give({"role": "user", "content": _chat_content(b)})


def _own_answer(b: Builder) -> None:
    b.give(
        {"role": "assistant", "content": _chat_content(b), "metadata": {"n": 1}}
        if b.maybe(0.2)
        else {"role": "assistant", "content": _chat_content(b)}
    )


def _own_system(b: Builder) -> None:
    b.give({"role": "system", "content": b.text()})


def _own_tools(b: Builder) -> None:
    calls: list[Message] = [
        {
            "id": b.call_id(),
            "name": b.rng.choice(TOOLS),
            "arguments": b.arguments() if b.maybe() else "{}",
            **b.unknown(0.2),
        }
        for _ in range(b.rng.randint(1, 3))
    ]
    b.give({"role": "assistant", "content": b.text() if b.maybe() else None, "tool_calls": calls})
    image = {"type": "image_url", "image_url": {"url": PNG}}
    for call in calls:
        content = b.rng.choice([b.text(), "", [{"type": "text", "text": b.text()}, image]])
        error = {"is_error": True} if b.maybe(0.2) else {}
        b.give({"role": "tool", "tool_call_id": call["id"], "content": content, **error})


def _finish_own(b: Builder) -> History:
    return History(b.format, b.given, b.shown)


_Step = Callable[[Builder], None]
_CHAT: Final[list[_Step]] = [
    _chat_user,
    _chat_answer,
    _chat_thought,
    _chat_refusal,
    _chat_spoken,
    _chat_system,
    _chat_empty,
    _chat_tools,
    _chat_tools,
]
_CLAUDE: Final[list[_Step]] = [
    _claude_user,
    _claude_answer,
    _claude_tools,
    _claude_tools,
    _claude_system,
    _claude_empty,
]
_STEPS: Final[dict[Format, list[_Step]]] = {
    Format.OPENAI: _CHAT,
    Format.WORKERS_AI: _CHAT,
    Format.OPENAI_RESPONSES: [_item_user, _item_system, _item_answer, _item_tools, _item_tools, _item_unsent],
    Format.ANTHROPIC: _CLAUDE,
    Format.CANONICAL: [_own_user, _own_answer, _own_system, _own_tools],
}
_START: Final[dict[Format, _Step]] = {
    Format.OPENAI: _chat_user,
    Format.WORKERS_AI: _chat_user,
    Format.OPENAI_RESPONSES: _item_user,
    Format.ANTHROPIC: _claude_user,
    Format.CANONICAL: _own_user,
}
_FINISH: Final[dict[Format, Callable[[Builder], History]]] = {
    Format.OPENAI: _finish_chat,
    Format.WORKERS_AI: _finish_chat,
    Format.OPENAI_RESPONSES: _finish_items,
    Format.ANTHROPIC: _finish_claude,
    Format.CANONICAL: _finish_own,
}
