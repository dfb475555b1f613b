"""What a whole request used."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.request import FinishReason, TextDelta
from gateway.admission.model import Scope


@dataclass(slots=True)
class UsageTotal:
    """The usage of every choice added up, at any moment: a prompt counts once, whatever the number of its choices.

    `prompt_lengths` are tokens. `bound_by` is the limit that cut the answers' length, if one did. A choice that has
    not ended counts with the tokens that were handed out, and its prompt from then on.
    """

    prompt_lengths: Sequence[int]
    choices_each: int
    bound_by: Scope | None = None
    cached_tokens: int = 0
    ended: set[int] = field(default_factory=set)
    _completion_tokens: dict[int, int] = field(default_factory=dict)
    _cut: bool = False

    def saw(self, choice: int, delta: TextDelta) -> None:
        """Count a delta on its way to the client."""
        counted = self._completion_tokens.get(choice, 0) + len(delta.token_ids)
        if delta.usage is not None:
            # The engine's own count has the end-of-text token too.
            counted = delta.usage.completion_tokens
            self.ended.add(choice)
            if choice % self.choices_each == 0:
                # The other choices share this one's prompt.
                self.cached_tokens += delta.usage.cached_tokens
        self._completion_tokens[choice] = counted
        self._cut |= delta.finish_reason is FinishReason.LENGTH

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompt_lengths[prompt] for prompt in {c // self.choices_each for c in self._completion_tokens})

    @property
    def completion_tokens(self) -> int:
        return sum(self._completion_tokens.values())

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def wire(self) -> dict[str, Any]:
        """OpenAI's `usage` object; `limited_by` is ours, and there where a limit ended an answer."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }
        if self.bound_by is not None and self._cut:
            usage["limited_by"] = {"scope": self.bound_by.kind.value, "limit": self.bound_by.measure.value}
        return usage
