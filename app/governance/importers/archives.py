"""The files of an export as some systems pack them: a ZIP archive, gzip, or the document itself. Bounded memory."""

import io
import zipfile
import zlib
from typing import Final

from app.core.errors import Invalid, TooLarge
from app.governance.importers.documents import ForeignDocument, joined, read_document

_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK\x03\x04"
_GZIP_WINDOW: Final = 31
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
    reader = zlib.decompressobj(_GZIP_WINDOW)
    try:
        text = reader.decompress(data, max_bytes + 1)
    except zlib.error:
        raise Invalid("import_unreadable", "The file is not valid gzip.") from None
    if len(text) > max_bytes:
        raise _too_large(max_bytes)
    return text


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
            return [archive.read(entry) for entry in sorted(chosen, key=lambda entry: entry.filename)]
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError):
        # RuntimeError: the archive has a password
        raise Invalid("import_unreadable", "The ZIP archive cannot be read.") from None


def _is_conversations(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith(_CONVERSATIONS) and base.endswith((".json", ".jsonl"))


def _may_have_conversations(name: str) -> bool:
    base = name.rpartition("/")[2]
    is_json = base.endswith((".json", ".jsonl", ".af"))
    return is_json and base not in _BESIDE and not name.startswith("__MACOSX/")
