"""Public API of exports, imports and forks."""

from app.transfer.conversation_writer import ConversationWriter
from app.transfer.exports.service import Exports
from app.transfer.fork import Forker
from app.transfer.importers.service import ForeignSystem
from app.transfer.imports.chunk_store import delete_uploads
from app.transfer.imports.runner import ImportRunner
from app.transfer.imports.service import IMPORT, Imports

__all__ = [
    "IMPORT",
    "ConversationWriter",
    "Exports",
    "ForeignSystem",
    "Forker",
    "ImportRunner",
    "Imports",
    "delete_uploads",
]
