"""The one value that every generating endpoint's body comes down to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from engine.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for a model's chat template. `variables` are extra ones that the template may look at."""

    messages: tuple[Mapping[str, Any], ...]
    add_generation_prompt: bool = True
    variables: Mapping[str, str | int | float | bool] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def chars(self) -> int:
        """Length of the text in it, near enough to choose where to tokenise."""
        return sum(_chars(message.get("content") or "") for message in self.messages)


def _chars(content: str | list[dict[str, str]]) -> int:
    return len(content) if isinstance(content, str) else sum(len(part["text"]) for part in content)


Prompt = str | tuple[int, ...] | Conversation
"""Plain text, token ids, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A validated request that knows nothing of the model it names.

    `params.max_tokens` is what the client asked for and `limit_param` the name it used, both None when it set no
    limit; then `default_max_tokens` applies as far as the window allows (None: the rest of the window).
    `prompt_param` names the field that the prompts came from. Choice `i * params.n + j` answers prompt i. `session_id`
    is the conversation that the messages go on with, where the body names one.
    """

    model: str
    prompts: tuple[Prompt, ...]
    prompt_param: str
    params: SamplingParams
    limit_param: str | None
    default_max_tokens: int | None
    stream: bool
    include_usage: bool
    service_tier: str | None = None
    echo: bool = False
    session_id: str | None = None
