"""The window of a chat model: the tokens that it reads and writes in one call, and the sizes of requests.

An endpoint that refuses a request as too long usually names its window. Such a text may quote the prompt, so a number
is believed only if the refused request was longer, and only for the tenant of that request: another tenant's texts do
not change the requests of a tenant.
"""

import re
from typing import Final

from app.core.ids import TenantId

MIN_WINDOW: Final = 256
_LEAST_GUESS: Final = 2048
_LEAST_INPUT: Final = 128
_MARGIN_TOKENS: Final = 400
"""Tokens of instructions and of a schema in words."""
_MARGIN_SHARE: Final = 10
"""A tenth of the window is left free, because counts are estimates for the model's own tokenizer."""
_LONGEST_TEXT: Final = 1000
_MAX_WINDOWS: Final = 10_000
_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
# texts of OpenAI and vLLM, llama.cpp, Mistral, LM Studio, Anthropic, Gemini, text-generation-inference
_PATTERNS: Final = (
    re.compile(r"maximum context length(?: is|:)? (\d+)"),
    re.compile(r"maximum context length"),
    re.compile(r"available context size \((\d+)"),
    re.compile(r"exceeds? the (?:available )?context (?:size|window|length)"),
    re.compile(r"(\d+) maximum context length"),
    re.compile(r"context length of only (\d+)"),
    re.compile(r"prompt is too long: \d+ tokens > (\d+) maximum"),
    re.compile(r"maximum number of tokens allowed \((\d+)\)"),
    re.compile(r"`inputs` tokens \+ `max_new_tokens` must be <= (\d+)"),
)


def input_tokens(window: int, *, output: int, max_tokens: int) -> int:
    """Return how many tokens of turns one request may show: at most `max_tokens`, and what the window leaves for them.

    `output` is the maximum of the answer. A margin remains for instructions and for errors of estimates. A window that
    leaves too little gives a least number: such a request may be refused.
    """
    left = window - output - _MARGIN_TOKENS - window // _MARGIN_SHARE
    return min(max_tokens, max(_LEAST_INPUT, left))


def output_tokens(window: int, *, max_tokens: int) -> int:
    """Return the maximum of an answer: `max_tokens`, and at most a quarter of the window."""
    return max(1, min(max_tokens, window // 4))


def is_too_long(code: object, text: str) -> bool:
    """Return whether an endpoint refuses a request because it is longer than the window."""
    return code in _CODES or _match(text) is not None


def learnt_window(text: str, *, request_tokens: int, window: int) -> int:
    """Return the window of a model after its endpoint has refused a request of about `request_tokens` as too long.

    `window` is the window so far. Without a believable number in the text, three quarters of the request may fit, and
    a small window is not guessed. A request beyond the window shows nothing then.
    """
    longest = min(window, request_tokens)
    match = _match(text)
    named = int(match[1]) if match is not None and match.lastindex else 0
    if MIN_WINDOW <= named <= longest:
        return named
    return window if request_tokens > window else min(window, max(_LEAST_GUESS, longest * 3 // 4))


class LearntWindows:
    """The windows of an endpoint's models: the setting, or less after a refusal, by tenant. In this process."""

    def __init__(self, configured: int) -> None:
        self._configured = configured
        self._windows: dict[tuple[TenantId, str], int] = {}

    def of(self, tenant_id: TenantId, model: str) -> int:
        """Return the window of a model, for a tenant."""
        return self._windows.get((tenant_id, model), self._configured)

    def learn(self, tenant_id: TenantId, model: str, text: str, *, request_tokens: int) -> int:
        """Learn from the refusal of a tenant's request of about so many tokens. Returns the window from now on."""
        window = learnt_window(text, request_tokens=request_tokens, window=self.of(tenant_id, model))
        if len(self._windows) >= _MAX_WINDOWS:
            del self._windows[next(iter(self._windows))]
        self._windows[tenant_id, model] = window
        return window


def _match(text: str) -> re.Match[str] | None:
    """Return the most telling match: one with a number if there is any."""
    start = text[:_LONGEST_TEXT].lower().replace(",", "")
    matches = [match for pattern in _PATTERNS if (match := pattern.search(start)) is not None]
    return next((match for match in matches if match.lastindex), next(iter(matches), None))
