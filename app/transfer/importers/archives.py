"""The files of an export as some systems pack them: a ZIP archive, gzip, or the document itself. Bounded memory."""

import io
import zipfile
import zlib
from typing import Final

from app.core.errors import Invalid, TooLarge
from app.transfer.importers.documents import ForeignDocument, joined, read_document

_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK\x03\x04"
_GZIP_WINDOW: Final = 31
_GZIP_PIECE: Final = 64 * 2**10
_MAX_FILES: Final = 10_000
_CONVERSATIONS: Final = "conversations"
_BESIDE: Final = frozenset({
    "users.json", "user.json", "projects.json", "memories.json", "message_feedback.json", "model_comparisons.json",
    "shared_conversations.json", "user_settings.json", "export_manifest.json",
})  # fmt: skip
"""Files of archives that have no conversations."""


def read_archive(data: bytes, *, max_bytes: int) -> ForeignDocument:
    """Return the document in a file: JSON, JSON in gzip, or the conversations of a ZIP archive.

    Of an archive, these are the files `conversations*.json`; without one, all files with JSON in them. Raises Invalid
    for an archive that cannot be read or has no such file, TooLarge for more than `max_bytes` after decompression.
    """
    if data.startswith(_ZIP):
        return joined([read_document(text) for text in _unzipped(data, max_bytes)])
    return read_document(_gunzipped(data, max_bytes) if data.startswith(_GZIP) else data)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(
        "import_too_large", f"The file may have up to {max_bytes} bytes when uncompressed: import it with the command."
    )


def _gunzipped(data: bytes, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    reader, size, ended = zlib.decompressobj(_GZIP_WINDOW), 0, 0
    for start in range(0, len(data), _GZIP_PIECE):
        left = data[start : start + _GZIP_PIECE]
        while left:
            if reader.eof:  # another member, as `cat` of two files makes
                reader, ended = zlib.decompressobj(_GZIP_WINDOW), size
            try:
                piece = reader.decompress(left, max_bytes + 1 - size)
            except zlib.error:
                if 0 < size == ended:
                    return b"".join(pieces)  # the rest is not gzip
                raise Invalid("import_unreadable", "The file is not valid gzip.") from None
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            left = reader.unused_data
    return b"".join(pieces)


def _unzipped(data: bytes, max_bytes: int) -> list[bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()[:_MAX_FILES]
            named = [entry for entry in entries if _is_conversations(entry.filename)]
            chosen = named or [entry for entry in entries if _may_have_conversations(entry.filename)]
            if not chosen:
                raise Invalid("import_unreadable", f"The archive has no {_CONVERSATIONS}.json.")
            if sum(entry.file_size for entry in chosen) > max_bytes:
                raise _too_large(max_bytes)
            texts = [archive.read(entry) for entry in sorted(chosen, key=lambda entry: entry.filename)]
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError):
        # RuntimeError: the archive has a password
        raise Invalid("import_unreadable", "The ZIP archive cannot be read.") from None
    return [_gunzipped(text, max_bytes) if text.startswith(_GZIP) else text for text in texts]


def _is_conversations(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith(_CONVERSATIONS) and base.endswith((".json", ".jsonl"))


def _may_have_conversations(name: str) -> bool:
    base = name.rpartition("/")[2]
    is_json = base.endswith((".json", ".jsonl", ".af"))
    return is_json and base not in _BESIDE and not name.startswith("__MACOSX/")
