"""The token counter: exact against tiktoken's own definition, offline, and calm on hostile text."""

import base64
import socket
import threading
import time
from collections.abc import Callable

import pytest
import tiktoken_ext.openai_public as official

from app.core.errors import Unavailable
from app.providers import tokens
from app.providers.tokens import DEFINITIONS, EncodingName, TiktokenCounter

MEGABYTE = 2**20
NAMES: list[EncodingName] = ["o200k_base", "cl100k_base"]


@pytest.fixture(scope="module")
def counters() -> dict[EncodingName, TiktokenCounter]:
    return {name: TiktokenCounter(name) for name in NAMES}


@pytest.mark.parametrize(
    ("text", "cl100k", "o200k"),
    [
        ("antidisestablishmentarianism", 6, 6),
        ("2 + 2 = 4", 7, 7),
        ("お誕生日おめでとう", 9, 8),
        ("tiktoken is great!", 6, 6),
        ("", 0, 0),
    ],
)
def test_known_texts_have_their_known_counts(
    counters: dict[EncodingName, TiktokenCounter], text: str, cl100k: int, o200k: int
) -> None:
    assert counters["cl100k_base"].count(text) == cl100k
    assert counters["o200k_base"].count(text) == o200k


@pytest.mark.parametrize("name", NAMES)
def test_the_definitions_are_those_of_tiktoken_itself(name: EncodingName, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no_fetch(_url: str, expected_hash: str) -> dict[bytes, int]:
        asked.append(expected_hash)
        return {}

    monkeypatch.setattr(official, "load_tiktoken_bpe", no_fetch)
    constructor: Callable[[], dict[str, object]] = official.ENCODING_CONSTRUCTORS[name]
    assert constructor()["pat_str"] == "|".join(DEFINITIONS[name].alternatives)
    assert asked == [DEFINITIONS[name].ranks_sha256]


def test_what_looks_like_a_special_token_is_counted_as_text(counters: dict[EncodingName, TiktokenCounter]) -> None:
    assert counters["cl100k_base"].count("<|endoftext|>") == 7
    assert counters["o200k_base"].count("<|endoftext|>") > 1


def test_counting_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    counter = TiktokenCounter("o200k_base")
    assert not counter.ready()
    counter.load()
    assert counter.ready()
    assert counter.count("hello world") == 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "a" * MEGABYTE,
        " " * MEGABYTE,
        " " * (MEGABYTE - 1) + "x",
        "\t" * (MEGABYTE - 1) + "x",
        ("\n " * (MEGABYTE // 2)) + "x",
        (" " * 499_999 + "x") * 2,
        "-" * MEGABYTE,
        "\N{GRINNING FACE}" * (MEGABYTE // 4),
        base64.b64encode(bytes(range(256)) * 3072).decode(),
    ],
    ids=["letter", "spaces", "spaces-x", "tabs-x", "newlines", "just-too-short", "dashes", "emoji", "base64"],
)
@pytest.mark.sampled
def test_a_hostile_megabyte_is_counted_within_a_few_seconds(
    counters: dict[EncodingName, TiktokenCounter], name: EncodingName, text: str
) -> None:
    counters[name].load()
    started = time.thread_time()
    assert counters[name].count(text) > 0
    # About 0.3 s of CPU; a quadratic encoder needs minutes. CPU time does not count the waits of a busy machine.
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("name", NAMES)
def test_white_space_is_counted_as_by_the_pattern_of_tiktoken_itself(
    counters: dict[EncodingName, TiktokenCounter], name: EncodingName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_WHITESPACE_IN_STEPS", tokens._WHITESPACE_RUN)  # noqa: SLF001
    original = TiktokenCounter(name)
    original.load()
    ends = ["", "x", "\n", "\r\n  y", "\u0301 1", ".", "'s"]
    for signs in (" ", "\t", "\n", " \t", "\u3000", "\u00a0 ", " \r\n"):
        for characters in (1, 2, 63, 64, 65, 66, 127, 128, 129, 130, 200):
            run = (signs * characters)[:characters]
            for text in (start + run + end for start in ("", "x", "don't") for end in ends):
                assert counters[name].count(text) == original.count(text), repr(text)


@pytest.mark.parametrize("name", NAMES)
def test_counting_white_space_without_an_end_leaves_python_to_other_threads(
    counters: dict[EncodingName, TiktokenCounter], name: EncodingName
) -> None:
    counters[name].load()
    is_counted = threading.Event()
    steps = 0

    def count() -> None:
        counters[name].count(" " * MEGABYTE + "x")
        is_counted.set()

    thread = threading.Thread(target=count)
    thread.start()
    while not is_counted.wait(0.001):
        steps += 1
    thread.join()
    assert steps > 5  # one that keeps the GIL leaves time for one or two


def test_ranks_that_are_not_the_official_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tokens._Definition(ranks_sha256="0" * 64, alternatives=(".",))  # noqa: SLF001
    monkeypatch.setitem(DEFINITIONS, "o200k_base", wrong)
    with pytest.raises(Unavailable) as refusal:
        TiktokenCounter("o200k_base").load()
    assert refusal.value.code == "token_ranks_unusable"
