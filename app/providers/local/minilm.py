"""The default model: all-MiniLM-L6-v2, int8 ONNX, on the CPU, offline.

Hides the model, its tokenizer and its assets. A text's vector depends on that text alone: rows are run one at a time
(`fair_queue` gives the reason). Measured with the published graph on two cores, texts of 26 tokens: 1 457 per second
with one row per thread, 1 299 with batches of eight on two threads. Pieces of 256 tokens: 141 against 101 per second.
Memory: 120 MB against 280.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from turnkeep_minilm import FOLDER, GRAPH_FILE, INPUT, MAX_TOKENS, MODEL_FILE, TOKENIZER_FILE

from app.core.errors import Unavailable
from app.providers.local.models import LocalModelKind
from app.providers.pieces import split_text
from app.providers.schemas import IN_PROCESS, EmbeddingSpaceName, Vectors

SPACE = EmbeddingSpaceName(provider=IN_PROCESS, model="all-MiniLM-L6-v2-int8", dimensions=384)

_REMEDY = "run `make assets` in a checkout, or install turnkeep-minilm again"
_CONTENT_TOKENS = MAX_TOKENS - 2  # without [CLS] and [SEP]
_CLS, _SEP = 101, 102
# Enough for 254 of the tokenizer's longest words (100 characters). Longer text is not tokenized.
_MAX_CHARACTERS = 32 * 1024


class _RunOptions(Protocol):
    def add_run_config_entry(self, key: str, value: str, /) -> None: ...


class _Session(Protocol):
    """The used part of `onnxruntime.InferenceSession`, which has no types."""

    def run(
        self, outputs: None, inputs: Mapping[str, NDArray[np.int64]], options: _RunOptions | None, /
    ) -> Sequence[Vectors]: ...


class _SessionOptions(Protocol):
    intra_op_num_threads: int
    inter_op_num_threads: int
    log_severity_level: int


class _OnnxRuntime(Protocol):
    def SessionOptions(self) -> _SessionOptions: ...  # noqa: N802 - name of the library
    def RunOptions(self) -> _RunOptions: ...  # noqa: N802 - name of the library

    def InferenceSession(  # noqa: N802 - name of the library
        self, model: str, options: _SessionOptions, *, providers: Sequence[str]
    ) -> _Session: ...


class MiniLM:
    """The model: one text in, one unit vector out. Blocking, safe to share between threads."""

    def __init__(self, assets: Path) -> None:
        graph, tokenizer = assets / GRAPH_FILE, assets / TOKENIZER_FILE
        if not all(file.is_file() for file in (graph, assets / MODEL_FILE, tokenizer)):
            raise Unavailable("embedder_assets_missing", f"The files of the embedding model are missing: {_REMEDY}.")
        runtime = cast("_OnnxRuntime", cast("object", import_module("onnxruntime")))
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1  # a row runs in the calling thread: no hand-over, no spinning
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only; the warnings are about graph optimisation
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
            # The session maps the weights of the model file, so only the vectors of embedded words take memory. It
            # reads weights only from the folder of the graph, which is resolved for this.
            self._session = runtime.InferenceSession(str(graph.resolve()), options, providers=["CPUExecutionProvider"])
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
        options = self._returning_memory if return_memory else None
        return self._session.run(None, {INPUT: ids}, options)[0][0]

    def split(self, text: str, *, max_pieces: int | None) -> list[str]:
        """Split text into pieces: see `split_text`."""
        return split_text(self._tokenizer, text, max_tokens=_CONTENT_TOKENS, max_pieces=max_pieces)


def minilm(assets: Path = FOLDER) -> LocalModelKind:
    """Return the bundled model (70 MB, 0.1 s to load) of a folder."""
    # a token has at least one byte
    return LocalModelKind(SPACE, lambda: MiniLM(assets), _CONTENT_TOKENS, frozenset({"LATIN"}))
