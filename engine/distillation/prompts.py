"""The prompts of training and evaluation."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.text.processor import TextProcessor

_HELD_OUT_ONE_IN = 32
_TEMPERATURES = (0.0, 0.25, 0.5, 0.75, 1.0)


class PromptError(ValueError):
    """A line of a prompt file is malformed; the message names it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to be answered. Its use depends on its content alone, not on its place in the file."""

    messages: tuple[Mapping[str, Any], ...]
    digest: str
    """sha256 of the messages, hexadecimal."""

    @property
    def held_out(self) -> bool:
        """Whether the prompt is kept for evaluation: one in 32, never trained on."""
        return int(self.digest[:8], 16) % _HELD_OUT_ONE_IN == 0

    @property
    def temperature(self) -> float:
        """Sampling temperature of the answer, from greedy to 1, so that the student sees likely and less likely
        text."""
        return _TEMPERATURES[int(self.digest[8:16], 16) % len(_TEMPERATURES)]

    def seed(self, run_seed: int) -> int:
        """Sampling seed of the answer, below 2**63."""
        digest = hashlib.sha256(f"{run_seed}:{self.digest}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def encode(self, text: TextProcessor) -> list[int]:
        """Token ids of the prompt. A model without a chat template gets the bare text."""
        if text.chat_template is None:
            return text.encode("\n".join(str(message["content"]) for message in self.messages))
        return text.encode_chat(self.messages)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file with lines {"prompt": text} or {"messages": [...]}, without duplicates.

    Raises:
        PromptError: a line is malformed, or there is no prompt.
        OSError: the file cannot be read.
    """
    prompts: dict[str, Prompt] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                prompt = _prompt(line, f"{path.name}:{number}")
                prompts.setdefault(prompt.digest, prompt)
    if not prompts:
        raise PromptError(f"{path.name}: no prompt in it")
    return list(prompts.values())


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """Write prompts in the format of `read_prompts`."""
    lines = (json.dumps({"messages": prompt.messages}, ensure_ascii=False) + "\n" for prompt in prompts)
    path.write_text("".join(lines), encoding="utf-8")


def _prompt(line: str, place: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{place}: not JSON ({error})") from error
    messages = _messages(value)
    if not messages:
        raise PromptError(f'{place}: neither {{"prompt": text}} nor {{"messages": [{{"role": ..., "content": ...}}]}}')
    canonical = json.dumps(messages, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return Prompt(messages, hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest())


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    """The messages of a line; empty if it is not a prompt."""
    if not isinstance(value, dict):
        return ()
    if isinstance(value.get("prompt"), str):
        return ({"role": "user", "content": value["prompt"]},)
    messages = value.get("messages")
    if not isinstance(messages, list):
        return ()
    well_formed = all(
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
        for message in messages
    )
    return tuple(messages) if well_formed else ()
