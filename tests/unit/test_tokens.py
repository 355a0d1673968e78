"""The token counter: exact against tiktoken's own definition, offline, and calm on hostile text."""

import base64
import socket
import time
from collections.abc import Callable

import pytest
import tiktoken
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
def test_the_way_around_endless_white_space_counts_exactly_the_same(
    counters: dict[EncodingName, TiktokenCounter], name: EncodingName, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        " " * 300,
        "x" + " " * 300 + "x",
        "!\n\n" + " \t" * 80 + "\n\r\n  y",
        "Ünïcode\u2003" * 40 + " " * 99 + "\u0301 1234567",
        "don't  stop" + "\n" * 200,
    ]
    direct = [counters[name].count(text) for text in texts]
    monkeypatch.setattr(tokens, "_LONGEST_WHITESPACE", 1)
    monkeypatch.setattr(tiktoken.Encoding, "encode_ordinary", None)
    texts_with_runs = [text + " " * 64 for text in texts]
    around = [counters[name].count(text) for text in texts_with_runs]
    monkeypatch.undo()
    assert around == [counters[name].count(text) for text in texts_with_runs]
    assert direct == [counters[name].count(text) for text in texts]


def test_ranks_that_are_not_the_official_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tokens._Definition(ranks_sha256="0" * 64, alternatives=(".",))  # noqa: SLF001
    monkeypatch.setitem(DEFINITIONS, "o200k_base", wrong)
    with pytest.raises(Unavailable) as refusal:
        TiktokenCounter("o200k_base").load()
    assert refusal.value.code == "token_ranks_unusable"
