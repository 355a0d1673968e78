"""The embedding model all-MiniLM-L6-v2, int8 ONNX: where its three files are, and which ones they must be.

Only the standard library is needed: the build of this package and `scripts/fetch_assets.py` import it uninstalled.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
MODEL_FILE: Final = "model_quantized.onnx"
"""The published model, whose large weights the graph reads."""
GRAPH_FILE: Final = "graph.onnx"
"""The graph that is run, made by `build_graph.py`: from the ids of the tokens of one text to its vector."""
INPUT: Final = "input_ids"
"""Name of the graph's input: ids of tokens, int64 of shape (1, tokens)."""
MAX_TOKENS: Final = 256
TOKENIZER_FILE: Final = "tokenizer.json"
# The two packages' tokenizer files differ in white space only; one of them is enough.
PINNED: Final[Mapping[str, frozenset[str]]] = {
    MODEL_FILE: frozenset({"afdb6f1a0e45b715d0bb9b11772f032c399babd23bfc31fed1c170afc848bdb1"}),
    GRAPH_FILE: frozenset({"107da04dd265e09e2ed156ae9d794aa6f08fd23f36eb40cf86426934a9ead0b1"}),
    TOKENIZER_FILE: frozenset(
        {
            "754fbace50a65eb13073189fde35f561d96d630920b6a65bbf8dbadf9a4896c3",
            "aa5777dd801854afc1818a8e20820806261c9497db9593a220b646bedfbc0fef",
        }
    ),
}
"""The sha256 values, in hexadecimal, that each file may have."""


def wrong_files(folder: Path = FOLDER) -> list[str]:
    """Names of the files that are missing in a folder or are not the pinned ones; empty when all are right."""
    return [name for name, pins in PINNED.items() if not ((file := folder / name).is_file() and _sha256(file) in pins)]


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
