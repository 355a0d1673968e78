"""The default model: all-MiniLM-L6-v2, int8 ONNX, on the CPU, offline.

Hides the model, its tokenizer and its assets. A text's vector depends on that text alone: rows are run one at a time
(`fair_queue` gives the reason). Measured on two cores, texts of 26 tokens: 1 457 per second with one row per
thread, 1 299 with batches of eight on two threads. Pieces of 256 tokens: 141 against 101 per second. Memory: 120 MB
against 280.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from turnkeep_minilm import FOLDER, MODEL_FILE, TOKENIZER_FILE

from app.core.errors import Unavailable
from app.providers.local.models import LocalModelKind
from app.providers.pieces import split_text
from app.providers.schemas import IN_PROCESS, EmbeddingSpaceName, Vectors

SPACE = EmbeddingSpaceName(provider=IN_PROCESS, model="all-MiniLM-L6-v2-int8", dimensions=384)

_REMEDY = "run `make assets` in a checkout, or install turnkeep-minilm again"
_CONTENT_TOKENS = 254  # the model reads 256 tokens, two of which are [CLS] and [SEP]
_CLS, _SEP = 101, 102
# Enough for 254 of the tokenizer's longest words (100 characters). Longer text is not tokenized.
_MAX_CHARACTERS = 32 * 1024
# Where the model's file has the vectors of words, half of it. The session reads them there, so that only those of words
# that were embedded take memory: 11 MB less.
_MODEL_BYTES = 22_972_370
_WORDS, _WORDS_OFFSET, _WORDS_SHAPE = "embeddings.word_embeddings.weight_quantized", 288_599, (30_522, 384)


class _RunOptions(Protocol):
    def add_run_config_entry(self, key: str, value: str, /) -> None: ...


class _Session(Protocol):
    """The used part of `onnxruntime.InferenceSession`, which has no types."""

    def run(
        self, outputs: None, inputs: Mapping[str, NDArray[np.int64]], options: _RunOptions | None, /
    ) -> Sequence[NDArray[np.float32]]: ...


class _SessionOptions(Protocol):
    intra_op_num_threads: int
    inter_op_num_threads: int
    log_severity_level: int

    def add_initializer(self, name: str, value: object, /) -> None: ...


class _OrtValue(Protocol):
    def ortvalue_from_numpy(self, array: NDArray[np.uint8], /) -> object: ...


class _OnnxRuntime(Protocol):
    OrtValue: _OrtValue

    def SessionOptions(self) -> _SessionOptions: ...  # noqa: N802 - name of the library
    def RunOptions(self) -> _RunOptions: ...  # noqa: N802 - name of the library

    def InferenceSession(  # noqa: N802 - name of the library
        self, path: str, options: _SessionOptions, *, providers: Sequence[str]
    ) -> _Session: ...


class MiniLM:
    """The model: one text in, one unit vector out. Blocking, safe to share between threads."""

    def __init__(self, assets: Path) -> None:
        model, tokenizer = assets / MODEL_FILE, assets / TOKENIZER_FILE
        if not (model.is_file() and tokenizer.is_file()):
            raise Unavailable("embedder_assets_missing", f"The files of the embedding model are missing: {_REMEDY}.")
        runtime = cast("_OnnxRuntime", cast("object", import_module("onnxruntime")))
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1  # a row runs in the calling thread: no hand-over, no spinning
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only; the warnings are about graph optimisation
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
            self._words: object = None
            if model.stat().st_size == _MODEL_BYTES:
                words = np.memmap(model, np.uint8, "r", _WORDS_OFFSET, _WORDS_SHAPE)
                value = runtime.OrtValue.ortvalue_from_numpy(words)
                options.add_initializer(_WORDS, value)
                self._words = words, value  # the session reads both as long as it exists, and does not keep them
            self._session = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise Unavailable("embedder_assets_damaged", f"The embedding model cannot be read: {_REMEDY}.") from error
        self._returning_memory = runtime.RunOptions()
        self._returning_memory.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        # The file sets 128 tokens with padding; this class decides both itself.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def embed_one(self, text: str, *, return_memory: bool = False) -> Vectors:
        """Return the mean of the token vectors, L2-normalised, of shape (384,). Reads the first 254 tokens.

        `return_memory`: return the session's working memory to the system afterwards. For a long row that is 10 MB per
        thread, and takes 4 of its 36 ms.
        """
        content = self._tokenizer.encode(text[:_MAX_CHARACTERS], add_special_tokens=False).ids
        ids = np.array([[_CLS, *content[:_CONTENT_TOKENS], _SEP]], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        options = self._returning_memory if return_memory else None
        hidden = self._session.run(None, inputs, options)[0][0]
        mean: Vectors = hidden.mean(axis=0, dtype=np.float32)
        return mean / np.float32(max(float(np.linalg.norm(mean)), 1e-12))

    def split(self, text: str, *, most: int | None) -> list[str]:
        """Split text into pieces: see `split_text`."""
        return split_text(self._tokenizer, text, max_tokens=_CONTENT_TOKENS, most=most)


def minilm(assets: Path = FOLDER) -> LocalModelKind:
    """Return the bundled model (70 MB, 0.1 s to load) of a folder."""
    # a token has at least one byte
    return LocalModelKind(SPACE, lambda: MiniLM(assets), _CONTENT_TOKENS, frozenset({"LATIN"}))
