"""Pass bus messages about conversations to the handlers of this process."""

from typing import Protocol

from app.conversations.events import BusEvent, parse_event
from app.core.bus.messages import Listener, Message
from app.core.telemetry import get_logger


class EventHandler(Protocol):
    """A handler of conversation events."""

    def on_message(self, event: BusEvent) -> None:
        """Handle an event; return at once."""
        ...

    def on_loss(self) -> None:
        """Handle a possible loss of messages."""
        ...


def event_listener(*handlers: EventHandler) -> Listener:
    """Return the bus callbacks that pass each conversation event to all handlers."""

    def on_message(message: Message) -> None:
        try:
            event = parse_event(message)
        except ValueError:
            get_logger().warning("message.unreadable")
            return
        if event is not None:
            for handler in handlers:
                handler.on_message(event)

    def on_loss() -> None:
        for handler in handlers:
            handler.on_loss()

    return Listener(on_message, on_loss)
