"""What a subscriber knows, built from frames alone as the guide says, and held against what writers mean to say.

Each piece of text has to be exactly what stands at its offset in the known text, and begins where the text held so far
ends, or before: so no character can be missing or doubled in what is held.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.soak.live_texts import GARBAGE, Plan, plan_of

Frame = dict[str, Any]


@dataclass
class Growing:
    """An open turn as it is seen."""

    since: float
    parts: dict[str, str]


@dataclass
class View:
    """One subscriber's view of a conversation. `disturbed` says whether text may have been lost since a moment."""

    name: str
    seed: int
    disturbed: Callable[[float], bool]
    turns: dict[str, Frame] = field(default_factory=dict)
    growing: dict[str, Growing] = field(default_factory=dict)
    aborted: dict[str, int] = field(default_factory=dict)
    writing: set[str] | None = None
    rev: int = 0
    lowest_seq: int | None = None
    counts: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    _plans: dict[str, Plan] = field(default_factory=dict)
    _said: dict[str, Growing] = field(default_factory=dict)

    def apply(self, frame: Frame) -> None:
        """Take a frame."""
        self.counts[f"frames {frame['type']}"] += 1
        match frame["type"]:
            case "snapshot":
                self._snapshot(frame)
            case "turn.opened":
                turn_id = frame["turn"]["id"]
                if turn_id in self.growing:
                    self._wrong(turn_id, "it is opened twice")
                self.growing[turn_id] = Growing(time.time(), {})
            case "turn.delta":
                self._delta(frame)
            case "turn.committed":
                self._committed(frame)
            case "turn.aborted":
                self._aborted(frame)
            case "turn.superseded":
                self.turns.get(frame["turn_id"], {})["superseded_by"] = frame["superseded_by"]
                self.rev = max(self.rev, frame["rev"] - 1)  # who supersedes is of the same rev, and comes next
            case "presence":
                self.writing = {one["turn_id"] for one in frame["writers"]}
                if self.writing != set(self.growing):
                    self._wrong("-", f"presence says {sorted(self.writing)}, open are {sorted(self.growing)}")
            case _:
                pass

    def _wrong(self, turn_id: str, sentence: str) -> None:
        self.wrongs.append(f"{self.name}, turn {turn_id}: {sentence}")

    def _plan(self, turn_id: str) -> Plan:
        if turn_id not in self._plans:
            self._plans[turn_id] = plan_of(self.seed, turn_id)
        return self._plans[turn_id]

    def _snapshot(self, frame: Frame) -> None:
        for turn in frame["turns"]:
            self.turns[turn["id"]] = turn
            self.growing.pop(turn["id"], None)
        if frame["more"]:
            return
        if self.lowest_seq is None:
            self.lowest_seq = min((turn["seq"] for turn in self.turns.values()), default=frame["seq"] + 1)
        self.rev = frame["rev"]
        self.growing = {}
        for one in frame["pending"]:
            turn_id, parts = one["turn"]["id"], {part["part"]: part["text"] for part in one["parts"]}
            self.growing[turn_id] = Growing(time.time(), {})
            for part, text in parts.items():
                self._require_known(turn_id, part, 0, text)
                self.growing[turn_id].parts[part] = text
            if turn_id in self.turns:
                self._wrong(turn_id, "it is open and committed in one snapshot")

    def _delta(self, frame: Frame) -> None:
        turn_id, part, offset, delta = frame["turn_id"], frame["part"], frame["offset"], frame["delta"]
        growing = self.growing.get(turn_id)
        if growing is None:
            self._wrong(turn_id, "text of a turn that is not open")
            return
        held = growing.parts.get(part, "")
        if offset > len(held):
            self.counts["holes"] += 1
            self._wrong(turn_id, f"{part}: text at {offset} behind a hole, {len(held)} are held")
            return
        if offset < len(held):
            self.counts["truncations"] += 1
        self.counts["characters received"] += len(delta)
        self._require_known(turn_id, part, offset, delta)
        growing.parts[part] = held[:offset] + delta

    def _require_known(self, turn_id: str, part: str, offset: int, text: str) -> None:
        """Text has to be what the writer means to say there; what it should not have sent may only come last."""
        if GARBAGE in text:
            self.counts["pieces of fenced writers seen"] += 1
            text = text[: text.index(GARBAGE)]
        known = self._plan(turn_id).parts.get(part)
        if known is None or known[offset : offset + len(text)] != text:
            self._wrong(turn_id, f"{part}: other text at {offset} than was written, {len(text)} long")

    def _committed(self, frame: Frame) -> None:
        turn = frame["turn"]
        turn_id, plan = turn["id"], self._plan(turn["id"])
        if turn_id in self.turns and self.turns[turn_id]["superseded_by"] is None:
            self.counts["turns told again"] += 1
        self.turns[turn_id] = turn
        self.rev = max(self.rev, frame["rev"])
        calls = turn["tool_calls"]
        arguments = calls[0]["arguments"] if calls else None
        if (turn["content"], arguments) != (plan.content, plan.arguments):
            self._wrong(turn_id, "it is committed with other content than was written")
        growing = self.growing.pop(turn_id, None)
        if growing is None:
            self.counts["commits seen without their text"] += 1
            return
        for part, whole in plan.parts.items():
            self._compare(turn_id, growing, part, whole)

    def _compare(self, turn_id: str, growing: Growing, part: str, whole: str) -> None:
        """What was built from pieces has to be the whole, but for an end that a kill may have taken away."""
        built = growing.parts.get(part, "")
        if built == whole:
            self.counts["texts built whole"] += 1
        elif self.disturbed(growing.since):
            self.counts["texts whose end came with the commit"] += 1
        else:
            self._wrong(turn_id, f"{part}: {len(built)} of {len(whole)} were told before its commit, and nothing died")

    def _aborted(self, frame: Frame) -> None:
        turn_id = frame["turn_id"]
        if self.growing.pop(turn_id, None) is None:
            self._wrong(turn_id, "it is aborted and was not open")
        self.aborted[turn_id] = frame["length"]

    def differences(self, rows: list[dict[str, Any]]) -> list[str]:
        """How the view differs from the conversation's turns in the database, which is at rest."""
        found = [f"{turn_id} is open still" for turn_id in self.growing]
        lowest = self.lowest_seq or 0
        stored = {row["id"]: row for row in rows}
        for row in rows:
            turn = self.turns.get(row["id"])
            if row["status"] == "aborted":
                if row["id"] in self.aborted and self.aborted[row["id"]] != len(row["content"] or ""):
                    found.append(f"{row['id']} was aborted at {self.aborted[row['id']]}, not {len(row['content'])}")
                if turn is not None:
                    found.append(f"{row['id']} is aborted, and seen as committed")
            elif turn is None:
                if row["seq"] >= lowest:
                    found.append(f"{row['id']}, seq {row['seq']}, is not there")
            elif any(turn[name] != row[name] for name in ("seq", "content", "superseded_by", "tool_calls")):
                found.append(f"{row['id']}, seq {row['seq']}, is another")
        found += [f"{turn_id} is in no row" for turn_id in self.turns if turn_id not in stored]
        return [f"{self.name}: {sentence}" for sentence in found]
