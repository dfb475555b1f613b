"""The one value that every generating endpoint's body comes down to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from engine.request import SamplingParams
from gateway.speech.tools import Tool, ToolUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for a model's chat template. `variables` are extra ones that the template may look at.

    `continue_final_message`: the answer goes on with the last message, an assistant's, and does not repeat it; then
    there is no generation prompt. `tools` are those that the model is told of. `effort_param` is the body's field with
    the effort, for errors.
    """

    messages: tuple[Mapping[str, Any], ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, str | int | float | bool] = field(default_factory=lambda: MappingProxyType({}))
    reasoning_effort: str | None = None
    effort_param: str = "reasoning_effort"
    tools: tuple[Tool, ...] = ()

    @property
    def begun_answer(self) -> str:
        """The text of the last message, if the assistant said it."""
        last = self.messages[-1]
        content = last.get("content") or ""
        text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        return text if last["role"] == "assistant" else ""

    @property
    def chars(self) -> int:
        """Length of all that the template may write out, near enough to choose where to do it."""
        return len(orjson.dumps([self.messages, dict(self.variables), self.tools], default=dict))


@dataclass(frozen=True, slots=True)
class Gap:
    """What stands before and behind the text that is asked for."""

    before: str
    behind: str


Prompt = str | tuple[int, ...] | Gap | Conversation
"""Plain text, token ids, a gap in a text, or a conversation."""


@dataclass(frozen=True, slots=True)
class Details:
    """What is told of an answer besides its text: the ids of its tokens and its prompt's; the log-probabilities of the
    prompt's tokens and of its own, each with so many alternatives (None: not told); with each chunk of a stream, the
    usage so far."""

    token_ids: bool = False
    prompt_logprobs: int | None = None
    logprobs: int | None = None
    running_usage: bool = False


@dataclass(frozen=True, slots=True)
class Truncation:
    """A longer prompt is cut to so many tokens, its last ones or its first; None: to what the answer leaves of the
    window."""

    tokens: int | None
    keeps_end: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A validated request that knows nothing of the model it names.

    `params.max_tokens` is what the client asked for and `limit_param` the name it used, both None when it set no
    limit; then `default_max_tokens` applies as far as the window allows (None: the rest of the window).
    `prompt_param` names the field that the prompts came from. Choice `i * params.n + j` answers prompt i. `session_id`
    is the conversation that the messages go on with, where the body names one. `tools`: those that the answer may call.
    `best` of the choices for each prompt are told, the likeliest; None: all. `add_special_tokens` is about prompts of
    plain text.
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
    tools: ToolUse | None = None
    details: Details = Details()
    best: int | None = None
    add_special_tokens: bool = True
    truncation: Truncation | None = None
