"""A Dockerfile as a list of stages, as far as the tests ask."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Stage:
    """`base` is an image or an earlier stage's name; `instructions` are (word in capitals, the rest)."""

    name: str
    base: str
    instructions: tuple[tuple[str, str], ...]

    def all(self, word: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == word]

    @property
    def environment(self) -> dict[str, str]:
        pairs = [pair for rest in self.all("ENV") for pair in shlex.split(rest)]
        return dict(pair.split("=", 1) for pair in pairs)


def stages() -> dict[str, Stage]:
    """By name, in the order of the file."""
    found: dict[str, Stage] = {}
    current: list[tuple[str, str]] = []
    for word, rest in _instructions(DOCKERFILE.read_text(encoding="utf-8")):
        if word == "FROM":
            base, _, name = re.split(r"\s+(AS)\s+", rest)
            current = []
            found[name] = Stage(name, base, ())
        else:
            current.append((word, rest))
            stage = next(reversed(found.values()))
            found[stage.name] = Stage(stage.name, stage.base, tuple(current))
    return found


def inherited(target: str) -> list[Stage]:
    """The stages whose settings an image has, from the first to `target` itself."""
    every = stages()
    line = [every[target]]
    while line[0].base in every:
        line.insert(0, every[line[0].base])
    return line


def image_environment(target: str) -> dict[str, str]:
    return {name: value for stage in inherited(target) for name, value in stage.environment.items()}


def last(target: str, word: str) -> str:
    """The value in an image of an instruction that overrides itself."""
    return next(rest for stage in reversed(inherited(target)) for rest in reversed(stage.all(word)))


def command_of(rest: str) -> list[str]:
    """The words of an instruction in its exec form, behind options and CMD."""
    words: list[str] = json.loads(rest[rest.index("[") :])
    return words


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]
