"""Contents of resources that no REST call returns in one response."""

from pydantic import BaseModel

from app.conversations.schemas.conversations import Conversation, Turn


class ConversationContents(BaseModel):
    """The resource of a conversation: the conversation, and its newest turns, the oldest of them first."""

    conversation: Conversation
    turns: list[Turn]
    has_earlier: bool
