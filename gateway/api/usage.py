"""What a whole request used."""

from dataclasses import dataclass, field
from typing import Any

from engine.request import Usage


@dataclass(slots=True)
class UsageTotal:
    """The usage of every choice added up: a prompt counts once, whatever the number of its choices."""

    choices_each: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    counted: set[int] = field(default_factory=set)

    def add(self, choice: int, usage: Usage) -> None:
        self.counted.add(choice)
        self.completion_tokens += usage.completion_tokens
        if choice % self.choices_each == 0:
            # The other choices share this one's prompt.
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens

    def wire(self) -> dict[str, Any]:
        """OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }
