"""Cutting a text into pieces of a bounded number of tokens: pure, given the tokenizer."""

from tokenizers import Encoding, Tokenizer

_OVERLAP_TOKENS = 32  # shared by neighbouring pieces, so that a sentence on the cut is whole in one of them
_LOOK_BACK_TOKENS = 32  # how far before the limit a gap between words is looked for
_WINDOW_CHARACTERS = 2048  # tokenized at a time: holds 254 tokens of prose with some to spare


def split_text(tokenizer: Tokenizer, text: str, *, most_tokens: int, most: int | None = None) -> list[str]:
    """Pieces of `text`, each at most `most_tokens` tokens long, in order, covering all of it (or the first `most`).

    Cuts fall between words where there is a gap within reach. Never empty: a text without a token is one piece.
    """
    pieces: list[str] = []
    start = 0
    while start < len(text) and (most is None or len(pieces) < most):
        window = text[start : start + _WINDOW_CHARACTERS]
        encoding = tokenizer.encode(window, add_special_tokens=False)
        last = start + len(window) == len(text)
        if not encoding.ids:
            start += len(window)
            continue
        if last and len(encoding.ids) <= most_tokens:
            pieces.append(window)
            break
        end, following = _cut(encoding, most_tokens, len(window))
        pieces.append(window[:end])
        start += following
    return pieces or [text]


def _cut(encoding: Encoding, most_tokens: int, window_characters: int) -> tuple[int, int]:
    """Where the piece ends and where the next begins, as offsets into the window; the second is never 0."""
    offsets = encoding.offsets
    if len(offsets) > most_tokens:
        token = _word_start(encoding, most_tokens)
    else:  # the window ends first, perhaps inside its last word
        token = _word_start(encoding, len(offsets) - 1) or len(offsets)
    end = (offsets[token][0] if token < len(offsets) else 0) or window_characters
    if token > 1:
        shared = offsets[_word_start(encoding, max(token - _OVERLAP_TOKENS, token // 2))][0]
        if 0 < shared < end:
            return end, shared
    return end, end


def _word_start(encoding: Encoding, token: int) -> int:
    """Find the nearest token at or before `token` that begins a word; `token` itself when none is within reach."""
    words = encoding.word_ids
    for candidate in range(token, max(token - _LOOK_BACK_TOKENS, 0), -1):
        if words[candidate] != words[candidate - 1]:
            return candidate
    return token
