"""Writes the questions that a small and a large model are compared by: `python -m benchmarks.routing.questions`.

Families of tasks with answers that a rule can check, each in grades from what nearly every model can do to what few
can. Chat questions, some with a system prompt, a length asked for or turns before them. The same seed always writes the
same lines; no two questions are equal, and a fact is asked for once.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.routing import families

SEED = 20
PER_FAMILY = 50
FILE = Path(__file__).with_name("questions.jsonl")
_TRIES = 400
_SYSTEMS = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a patient teacher. Answer in one sentence.",
    "You are a careful assistant of a small company. You answer what is asked, politely and without any decoration.",
)


def write(seed: int = SEED) -> Iterator[dict[str, Any]]:
    """As many questions of each family as it can fill without repeating itself, at most `PER_FAMILY`."""
    for family in families.ALL:
        rng = random.Random(f"{seed}:{family.name}")
        yield from _of_family(family, rng)


def _of_family(family: families.Family, rng: random.Random) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for attempt in range(_TRIES):
        if len(seen) == PER_FAMILY:
            return
        grade = 1 + attempt % family.grades
        item = family.make(rng, grade)
        if item.subject in seen:
            continue
        seen.add(item.subject)
        yield _line(family.name, grade, item, rng)


def _line(name: str, grade: int, item: families.Item, rng: random.Random) -> dict[str, Any]:
    messages = [{"role": role, "content": content} for role, content in item.messages]
    if rng.random() < 0.15:
        messages.insert(0, {"role": "system", "content": rng.choice(_SYSTEMS)})
    check: dict[str, Any] = {"rule": item.rule, "answer": item.answer}
    if item.among:
        check["among"] = list(item.among)
    line = {"family": name, "grade": grade, "messages": messages, "check": check}
    if rng.random() < 0.5:
        line["max_tokens"] = item.max_tokens
    return line


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args(arguments)
    lines = [json.dumps(line, ensure_ascii=False) for line in write(options.seed)]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} questions in {options.out}")


if __name__ == "__main__":
    main()
