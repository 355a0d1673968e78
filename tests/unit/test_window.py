"""Sizes of requests, and what a refusal says about the window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.window import MIN_WINDOW, input_tokens, is_too_long, learnt_window, output_tokens

TEXTS = [
    "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
    "'max_tokens' is too large: 4000. This model's maximum context length is 4096 tokens and your request has 800.",
    "This model's maximum context length is 4,096 tokens.",
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "the request exceeds the available context size (4096 tokens), try increasing the context size",
    "Prompt contains 5000 tokens and 0 draft tokens, too large for model with 4096 maximum context length",
    "Trying to keep the first 5000 tokens. However, the model is loaded with context length of only 4096 tokens",
    "prompt is too long: 5000 tokens > 4096 maximum",
    "The input token count (5000) exceeds the maximum number of tokens allowed (4096).",
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_window_is_read_from_the_refusals_of_common_servers(text: str) -> None:
    assert is_too_long(None, text)
    assert learnt_window(text, request_tokens=6000, window=128_000) == 4096


@pytest.mark.parametrize("text", ["response_format is not supported", "no such model", "max_tokens is not supported"])
def test_other_refusals_say_nothing_about_the_window(text: str) -> None:
    assert not is_too_long("invalid_request_error", text)


@pytest.mark.parametrize("code", ["context_length_exceeded", "exceed_context_size_error"])
def test_the_code_alone_says_that_a_request_is_too_long(code: str) -> None:
    assert is_too_long(code, "")
    assert learnt_window("", request_tokens=8000, window=128_000) == 6000


def test_a_small_window_is_not_guessed() -> None:
    assert learnt_window("maximum context length exceeded", request_tokens=20, window=128_000) == 2048
    assert learnt_window("maximum context length exceeded", request_tokens=20, window=512) == 512


def test_a_request_beyond_the_window_shows_nothing_without_a_number() -> None:
    assert learnt_window("maximum context length exceeded", request_tokens=100_000, window=16_000) == 16_000


def test_a_number_that_cannot_be_the_window_is_not_believed() -> None:
    longer_than_the_request = "maximum context length is 100000 tokens"
    assert learnt_window(longer_than_the_request, request_tokens=8000, window=128_000) == 6000
    assert learnt_window("maximum context length is 3 tokens", request_tokens=8000, window=128_000) == 6000
    assert learnt_window("x" * 2000 + TEXTS[0], request_tokens=8000, window=128_000) == 6000


@given(st.integers(256, 10**7), st.integers(1, 10**6), st.text(max_size=50) | st.sampled_from(TEXTS))
def test_a_learnt_window_only_shrinks_and_has_a_least_size(window: int, request_tokens: int, text: str) -> None:
    learnt = learnt_window(text, request_tokens=request_tokens, window=window)
    assert MIN_WINDOW <= learnt <= window


@given(st.integers(256, 10**7), st.integers(16, 10**6), st.integers(128, 10**6))
def test_a_request_and_its_answer_fit_into_the_window(window: int, most_output: int, most: int) -> None:
    output = output_tokens(window, max_tokens=most_output)
    shown = input_tokens(window, output=output, max_tokens=most)
    assert 1 <= output <= most_output
    assert 128 <= shown <= most
    assert shown == 128 or shown + output + window // 10 + 400 <= window
