"""Split text into pieces with a limited number of tokens: pure, with a given tokenizer or by an estimate."""

import re

from tokenizers import Encoding, Tokenizer

_OVERLAP_TOKENS = 32  # shared by neighbouring pieces, so that a sentence at the cut is complete in one of them
_LOOK_BACK_TOKENS = 32  # how far before the limit a gap between words is searched
_WINDOW_CHARACTERS = 2048  # tokenized at a time: enough for 254 tokens of prose

# Estimate for an unknown tokenizer: a token has three ASCII characters or one other character. Prose has fewer tokens.
_ASCII_A_TOKEN = 3
_WORD = re.compile(r"\S{1,32}\s?|\s{1,32}")


def split_by_estimate(text: str, *, max_tokens: int, max_pieces: int | None = None) -> list[str]:
    """Return pieces of `text` of about `max_tokens` tokens, in order, covering all of it (or the first `max_pieces`).

    Cuts fall between words, or inside words longer than 32 characters. Neighbouring pieces share an eighth.
    """
    if len(text) <= max_tokens:
        return [text]
    room = max_tokens * _ASCII_A_TOKEN
    shared_room = room // 8
    pieces: list[str] = []
    start, used, shared = 0, 0, 0
    for word in _WORD.finditer(text):
        cost = _estimate(word[0])
        if used and used + cost > room:
            pieces.append(text[start : word.start()])
            if len(pieces) == max_pieces:
                return pieces
            start, shared = shared, word.start()
            used = _estimate(text[start:shared])
        elif used + cost <= room - shared_room:
            shared = word.end()
        used += cost
    return [*pieces, text[start:]]


def estimated_tokens(text: str) -> int:
    """Return the estimated number of tokens of a text for an unknown tokenizer. It is rather too high for prose."""
    return -(-_estimate(text) // _ASCII_A_TOKEN)


def _estimate(text: str) -> int:
    """Return the estimated length of a text in thirds of a token."""
    return len(text) + (_ASCII_A_TOKEN - 1) * sum(not character.isascii() for character in text)


def split_text(tokenizer: Tokenizer, text: str, *, max_tokens: int, max_pieces: int | None = None) -> list[str]:
    """Return pieces of `text` of at most `max_tokens` tokens, in order, covering all of it (or the first `max_pieces`).

    Cuts fall between words if there is a gap within reach. Never empty: a text without tokens is one piece.
    """
    pieces: list[str] = []
    start = 0
    while start < len(text) and (max_pieces is None or len(pieces) < max_pieces):
        window = text[start : start + _WINDOW_CHARACTERS]
        encoding = tokenizer.encode(window, add_special_tokens=False)
        is_last = start + len(window) == len(text)
        if not encoding.ids:
            start += len(window)
            continue
        if is_last and len(encoding.ids) <= max_tokens:
            pieces.append(window)
            break
        end, following = _cut(encoding, max_tokens, len(window))
        pieces.append(window[:end])
        start += following
    return pieces or [text]


def _cut(encoding: Encoding, max_tokens: int, window_characters: int) -> tuple[int, int]:
    """Return the end of the piece and the start of the next one, as offsets into the window. The start is never 0."""
    offsets = encoding.offsets
    if len(offsets) > max_tokens:
        token = _word_start(encoding, max_tokens)
    else:  # the window ends first, perhaps inside its last word
        token = _word_start(encoding, len(offsets) - 1) or len(offsets)
    end = (offsets[token][0] if token < len(offsets) else 0) or window_characters
    if token > 1:
        shared = offsets[_word_start(encoding, max(token - _OVERLAP_TOKENS, token // 2))][0]
        if 0 < shared < end:
            return end, shared
    return end, end


def _word_start(encoding: Encoding, token: int) -> int:
    """Return the nearest token at or before `token` that begins a word; `token` itself if none is within reach."""
    words = encoding.word_ids
    for candidate in range(token, max(token - _LOOK_BACK_TOKENS, 0), -1):
        if words[candidate] != words[candidate - 1]:
            return candidate
    return token
