"""Hands what the bus brings to those who follow conversations in this process."""

from typing import Protocol

from app.conversations.events import BusEvent, read_message
from app.core.bus.messages import Listener, Message
from app.core.telemetry import get_logger


class Hearing(Protocol):
    """Who wants to hear what is told about conversations."""

    def hear(self, told: BusEvent) -> None:
        """Take one message, at once."""
        ...

    def on_loss(self) -> None:
        """Messages may have been missed."""
        ...


def listener(*hearers: Hearing) -> Listener:
    """What the bus calls, for all who follow in this process."""

    def on_message(message: Message) -> None:
        try:
            told = read_message(message)
        except ValueError:
            get_logger().warning("message.unreadable")
            return
        if told is not None:
            for hearer in hearers:
                hearer.hear(told)

    def on_loss() -> None:
        for hearer in hearers:
            hearer.on_loss()

    return Listener(on_message, on_loss)
