"""The state of a followed conversation: its turns, and the text of its open turns so far. Pure.

The text follows the offsets of the events. So text that a server lost before it was durable disappears here too, and a
repeated event changes nothing.
"""

from collections.abc import Mapping

from turnkeep_client.generated import types


class ConversationView:
    """Apply each event of `follow()`; `turns` and `open_texts` are current afterwards."""

    def __init__(self) -> None:
        self._turns: dict[int, types.Turn] = {}
        self._open: dict[str, dict[str, str]] = {}

    @property
    def turns(self) -> list[types.Turn]:
        """The live turns that the events contained, by position."""
        return [self._turns[position] for position in sorted(self._turns)]

    @property
    def open_texts(self) -> Mapping[str, str]:
        """The content of each open turn so far, by turn id."""
        return {turn_id: parts.get("content", "") for turn_id, parts in self._open.items()}

    def apply(self, event: types.LiveEvent) -> None:
        """Apply an event; those that do not concern turns change nothing."""
        match event["type"]:
            case "snapshot":
                for turn in event["turns"]:
                    self._put(turn)
                if not event["more"]:
                    self._open = {
                        one["turn"]["id"]: {part["part"]: part["text"] for part in one["parts"]}
                        for one in event["pending"]
                    }
            case "turn.opened":
                self._open.setdefault(event["turn"]["id"], {})
            case "turn.delta":
                parts = self._open.setdefault(event["turn_id"], {})
                parts[event["part"]] = parts.get(event["part"], "")[: event["offset"]] + event["delta"]
            case "turn.committed":
                self._open.pop(event["turn"]["id"], None)
                self._put(event["turn"])
            case "turn.superseded" | "turn.erased":
                self._remove(event["turn_id"])
            case "turn.aborted":
                self._open.pop(event["turn_id"], None)
            case _:
                pass

    def _put(self, turn: types.Turn) -> None:
        if turn["superseded_by"] is not None or turn["erased_at"] is not None:
            self._remove(turn["id"])
        elif turn["position"] is not None:
            self._turns[turn["position"]] = turn

    def _remove(self, turn_id: str) -> None:
        for position in [position for position, turn in self._turns.items() if turn["id"] == turn_id]:
            del self._turns[position]
