"""`GenerationRequest`: the form into which every generating endpoint parses its body."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

from engine.request import SamplingParams
from gateway.speech.tools import Tool, ToolUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages for a model's chat template. `variables`: additional variables of the template.

    `continue_final_message`: the answer continues the last message, an assistant's, without a generation prompt.
    `tools`: those that the template shows. `effort_param`: the body's field of `reasoning_effort`, for errors.
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
        """The text of the last message, if it is the assistant's."""
        last = self.messages[-1]
        content = last.get("content") or ""
        text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        return text if last["role"] == "assistant" else ""

    @property
    def chars(self) -> int:
        """Approximate length of the rendered template, to choose where to render it."""
        return len(orjson.dumps([self.messages, dict(self.variables), self.tools], default=dict))


@dataclass(frozen=True, slots=True)
class Gap:
    """A prompt for filling in the middle: the text before and after the gap."""

    before: str
    behind: str


Prompt = str | tuple[int, ...] | Gap | Conversation
"""Plain text, token ids, a gap to fill, or a conversation."""


@dataclass(frozen=True, slots=True)
class Details:
    """Parts of an answer apart from its text. `token_ids`: those of prompt and answer. `prompt_logprobs`,
    `logprobs`: log-probabilities with this many alternatives; None: without. `running_usage`: the usage so far in each
    chunk."""

    token_ids: bool = False
    prompt_logprobs: int | None = None
    logprobs: int | None = None
    running_usage: bool = False


@dataclass(frozen=True, slots=True)
class Truncation:
    """Truncation of prompts to `tokens` tokens, their last ones if `keeps_end`, else their first. None: to what the
    answer leaves of the context window."""

    tokens: int | None
    keeps_end: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A validated request, independent of the model that it names.

    `params.max_tokens`: as the client set it, in the field `limit_param`; both None if it did not. Then
    `default_max_tokens` applies as far as the context window allows (None: the rest of the window). `prompt_param`: the
    field of the prompts. Choice `i * params.n + j` answers prompt i. `session_id`: the session that the messages
    continue, if the body names one. `tools`: those that the answer may call. `best`: how many choices of each prompt
    are returned, the likeliest; None: all. `add_special_tokens` applies to prompts of plain text. `unstated`: sampling
    parameters that the body does not state, so that the model's defaults apply.
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
    unstated: frozenset[str] = frozenset()
