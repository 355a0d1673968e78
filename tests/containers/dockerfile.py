"""Reads a Dockerfile: the instructions of its stages, with their flags, in order. As much as ours uses."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = {
    "FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "LABEL", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD",
}  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """One instruction: `rest` is what follows its flags."""

    name: str
    flags: dict[str, str]
    rest: str

    def words(self) -> list[str]:
        return shlex.split(self.rest)

    def exec_form(self) -> list[str]:
        """The command of the JSON form; any other form is an error."""
        words = json.loads(self.rest)
        assert all(isinstance(word, str) for word in words), self.rest
        return words

    def pairs(self) -> dict[str, str]:
        """What ENV and LABEL set."""
        return dict(word.split("=", 1) for word in self.words())


@dataclass(frozen=True)
class Stage:
    """What stands between one FROM and the next."""

    image: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.name == name]

    def last(self, name: str) -> Instruction:
        return self.all(name)[-1]

    def environment(self) -> dict[str, str]:
        return {key: value for env in self.all("ENV") for key, value in env.pairs().items()}


def parse(text: str) -> list[Stage]:
    """The stages of a Dockerfile; an instruction that is not known here is an error, not a surprise.

    An ARG before the first stage gives its default to the FROM of each.
    """
    defaults: dict[str, str] = {}
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for statement in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        name, _, rest = statement.strip().partition(" ")
        if name == "ARG" and not stages:
            argument, _, value = rest.strip().partition("=")
            defaults[argument] = value
            continue
        assert name in KNOWN, f"{name}: teach tests/containers this instruction"
        flags: dict[str, str] = {}
        while found := re.match(r"\s*--([a-z-]+)=(\S+)\s+", rest):
            flags[found[1]] = found[2]
            rest = rest[found.end() :]
        if name == "FROM":
            words = re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], rest).split()
            stages.append(Stage(words[0], words[2] if len(words) == 3 else str(len(stages))))
        else:
            stages[-1].instructions.append(Instruction(name, flags, rest.strip()))
    return stages


def _pattern(glob: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meaning.get(part, re.escape(part)) for part in parts) + r"(?:/.*)?")


def context_files(root: Path) -> list[str]:
    """The files that .dockerignore lets through, relative to the root; the last line that matches decides."""
    rules = [
        (not line.startswith("!"), _pattern(line.lstrip("!").strip("/")))
        for line in (root / ".dockerignore").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    # nothing that is ignored as a whole at the top is worth walking through
    tops = [path for path in root.iterdir() if path.is_file() or _passes(path.name, rules)]
    found = [file for top in tops for file in ([top] if top.is_file() else top.rglob("*")) if file.is_file()]
    return sorted(name for name in (str(file.relative_to(root)) for file in found) if _passes(name, rules))


def _passes(name: str, rules: list[tuple[bool, re.Pattern[str]]]) -> bool:
    ignored = False
    for ignores, pattern in rules:
        if pattern.fullmatch(name):
            ignored = ignores
    return not ignored
