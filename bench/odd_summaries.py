"""Summaries of a range of turns, for measurements and tests: good ones by extraction, and odd ones of a weak model.

Good ones are sentences of the turns: the first, the densest, or some at random, up to a share of the text. Odd ones are
made from a good one (changed numbers, invented names), from another range, or from nothing in the range.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.context.assembly.highlights import density, sentences

SHARES: Final = (0.05, 0.1, 0.25)
MAX_CHARACTERS: Final = 12_000
"""About the 400 words that a model is asked for, five times over."""

_NUMBER: Final = re.compile(r"(?<![\w.,:/-])\d{2,}(?![\w.,:/-]*\w)")
_LARGE: Final = re.compile(r"(?<![\w.,:/-])\d{3,}(?![\w.,:/-]*\w)")
_NAME: Final = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}\b")
_INVENTED: Final = ("Xaverius", "Quintana", "Brunhilde", "Zoltan", "Wilhelmina", "Ottokar")
_FOREIGN: Final = (
    "Twee vissers twistten lang over het weer in de baai, terwijl de netten droogden in de wind.",
    "Zwei Fischer stritten lange über das Wetter in der Bucht, während die Netze im Wind trockneten.",
    "Deux pêcheurs discutaient longuement du temps sur la baie pendant que les filets séchaient au vent.",
    "两位渔夫为海湾的天气争论了很久,渔网在风中晾晒,海鸥在码头上空盘旋。",
    "漁師たちは入り江の天気について長く言い争い、網は風に揺れて乾いていた。",
    "تجادل صيادان طويلا حول حالة الطقس في الخليج بينما كانت الشباك تجف في الريح.",
)
_UNRELATED: Final = (
    "The committee reviewed quarterly maritime tariffs and postponed the vote on dredging permits until the harbour"
    " authority submits sediment surveys. Shipowners objected to pilotage surcharges."
)


@dataclass(frozen=True, slots=True)
class Said:
    """A turn of a range: its author, text and time."""

    actor: str
    text: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class Case:
    """A range of turns, and what an odd summary of it may be made of.

    `good`: a summary by extraction. `other`: one of another range. `actors`: the authors of the turns.
    """

    turns: Sequence[Said]
    good: str
    other: str

    @property
    def text(self) -> str:
        """Return all text of the range."""
        return "\n".join(turn.text for turn in self.turns)


def extract(turns: Sequence[Said], *, way: str, share: float, chance: random.Random) -> str:
    """Return sentences of the turns in their order, up to a share of their text.

    `way`: `first` sentences of the turns, the `dense` ones, or `random` ones.
    """
    lines = [
        (at, place, sentence, turn.actor)
        for at, turn in enumerate(turns)
        for place, sentence in enumerate(sentences(turn.text))
    ]
    match way:
        case "first":
            ranked = sorted(lines, key=lambda line: (line[1], chance.random()))
        case "dense":
            ranked = sorted(lines, key=lambda line: -density(line[2]))
        case _:
            ranked = chance.sample(lines, len(lines))
    left = min(MAX_CHARACTERS, int(share * sum(len(turn.text) for turn in turns)))
    kept: list[tuple[int, int, str, str]] = []
    for line in ranked:
        if kept and len(line[2]) > left:
            break
        kept.append(line)
        left -= len(line[2])
    return " ".join(f"{actor}: {sentence}" if way == "dense" else sentence for _, _, sentence, actor in sorted(kept))


def odd(kind: str, case: Case, chance: random.Random) -> str | None:
    """Return an odd summary of a kind; None if this range has nothing to make it from."""
    return KINDS[kind](case, chance)


def _blank(_: Case, chance: random.Random) -> str:
    return chance.choice(["", " ", "…", " \n ", "...", "—", "**", "\u200b", "- \n- "])


def _word(_: Case, chance: random.Random) -> str:
    return chance.choice(["sadly", "sounds of joy", "Summary", "ok", "n/a", "None", "👍", "要約", "The."])


def _words(text: str) -> list[str]:
    """Return the words of a text; of a text without spaces, pieces of four characters."""
    words = text.split()
    if len(words) * 20 > len(text):
        return words
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def _repeated(case: Case, chance: random.Random) -> str:
    phrase = " ".join(_words(case.good)[: chance.randint(2, 12)])
    return " ".join([phrase] * chance.randint(20, 60))


def _looped(case: Case, chance: random.Random) -> str:
    words = _words(case.good)
    return " ".join([*words[:25], *words[:6] * chance.randint(40, 80)])


def _other_range(case: Case, _: random.Random) -> str:
    return case.other


def _other_language(case: Case, chance: random.Random) -> str | None:
    possible = [text for text in _FOREIGN if text[:3] not in case.text]
    return " ".join(chance.sample(possible, 3))


def _unrelated(_: Case, chance: random.Random) -> str:
    return " ".join(chance.sample(_UNRELATED.split(". "), 2))


def _changed_numbers(case: Case, chance: random.Random) -> str | None:
    """Return the good summary with every number of two digits or more changed to one that the range does not have."""
    changed = 0

    def change(match: "re.Match[str]") -> str:
        nonlocal changed
        for _ in range(50):
            digits = "".join(chance.choice("123456789") for _ in match[0])
            if digits not in case.text:
                changed += 1
                return digits
        return match[0]

    text = _NUMBER.sub(change, case.good)
    return text if changed and _LARGE.search(case.good) else None


def _added_number(case: Case, chance: random.Random) -> str:
    return f"{case.good} They paid {chance.randint(10_000, 99_999)}.5 for it."


def _changed_date(case: Case, chance: random.Random) -> str:
    return f"{case.good} This was on {chance.randint(1, 28)} March {chance.randint(1950, 1989)}."


def _invented_names(case: Case, chance: random.Random) -> str | None:
    """Return the good summary with its names replaced by invented ones."""
    invented = dict(
        zip(dict.fromkeys(_NAME.findall(case.good)), chance.sample(_INVENTED, len(_INVENTED)), strict=False)
    )
    if len(invented) <= 1:
        return None
    return _NAME.sub(lambda match: invented.get(match[0], match[0]), case.good)


def _added_name(case: Case, chance: random.Random) -> str:
    name = chance.choice(_INVENTED)
    return f"{case.good} Later they met {name} there, and {name} agreed."


def _tool_call(case: Case, chance: random.Random) -> str:
    call = {"name": "recall_memory", "arguments": {"query": " ".join(_words(case.good)[:8]), "k": 5}}
    text = json.dumps(call, ensure_ascii=False)
    return chance.choice([text, f"<tool_call>\n{text}\n</tool_call>", f"```json\n{text}\n```", text[:-1]])


def _json(case: Case, chance: random.Random) -> str:
    words = _words(case.good)
    value: dict[str, object] = {"topic": " ".join(words[:6]), "points": [" ".join(words[6:12]), " ".join(words[12:18])]}
    return json.dumps(chance.choice([value, [value, value]]), ensure_ascii=False)


def _json_in_prose(case: Case, _: random.Random) -> str:
    form = {"summary": case.good, "abstract": " ".join(_words(case.good)[:5])}
    return f"Here is the summary that you asked for:\n{json.dumps(form, ensure_ascii=False)}\nI hope that it helps."


def _long(case: Case, chance: random.Random) -> str:
    words = case.text.split()
    return " ".join(chance.choice(words) for _ in range(100_000))


def _instructions(_: Case, __: random.Random) -> str:
    return (
        "You write the memory of a conversation: a summary that stands for its older turns when a model goes on with"
        " it. Keep what later turns may depend on, and leave out greetings and repetitions."
    )


KINDS: Final[Mapping[str, Callable[[Case, random.Random], str | None]]] = {
    "blank": _blank,
    "one word": _word,
    "repeated": _repeated,
    "looped": _looped,
    "other range": _other_range,
    "other language": _other_language,
    "unrelated": _unrelated,
    "changed numbers": _changed_numbers,
    "added number": _added_number,
    "changed date": _changed_date,
    "invented names": _invented_names,
    "added name": _added_name,
    "tool call": _tool_call,
    "json": _json,
    "json in prose": _json_in_prose,
    "100 000 words": _long,
    "instructions": _instructions,
}


def swapped_names(case: Case, _: random.Random) -> str:
    """Return the good summary with the names of two authors exchanged. It has only words of the range."""
    first, second = (*dict.fromkeys(turn.actor for turn in case.turns), "", "")[:2]
    swapped = case.good.replace(first, "\0").replace(second, first).replace("\0", second)
    return swapped if swapped != case.good else f"{second}: {case.good}"
