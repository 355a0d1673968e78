"""The client of Turnkeep: appends that are never doubled, and streams that continue after a lost connection.

Public API: `Turnkeep` and `AsyncTurnkeep`, their conversations, `ConversationView`, and the errors in `errors`.
`generated` has the types and operations of the OpenAPI document and is never edited by hand.
"""

from turnkeep_client.async_client import AsyncConversation, AsyncTurnkeep
from turnkeep_client.chat import ChatResult
from turnkeep_client.client import Conversation, Turnkeep, TurnWriter
from turnkeep_client.errors import ConnectionFailedError, TurnkeepError
from turnkeep_client.generated import types
from turnkeep_client.paging import async_items, items
from turnkeep_client.retries import RetryPolicy
from turnkeep_client.streaming import AsyncTurnWriter
from turnkeep_client.view import ConversationView

__all__ = [
    "AsyncConversation",
    "AsyncTurnWriter",
    "AsyncTurnkeep",
    "ChatResult",
    "ConnectionFailedError",
    "Conversation",
    "ConversationView",
    "RetryPolicy",
    "TurnWriter",
    "Turnkeep",
    "TurnkeepError",
    "async_items",
    "items",
    "types",
]
