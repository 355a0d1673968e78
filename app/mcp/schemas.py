"""What resources say that no REST call says in one answer."""

from pydantic import BaseModel

from app.conversations.schemas.conversations import Conversation, Turn


class ConversationContents(BaseModel):
    """What the resource of a conversation says: the conversation, and its newest turns, the oldest of them first."""

    conversation: Conversation
    turns: list[Turn]
    has_earlier: bool
