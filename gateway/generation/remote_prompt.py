"""Prompts of models that another server runs: it renders and tokenises them itself.

`RemotePrompt` stands where a local model has token ids. Its length counts against limits and the context window; its
content travels to the server. So sessions, limits and the pipeline treat both kinds alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import orjson

from engine.text.chat_template import ChatTemplateError
from engine.text.dialect import Dialect
from engine.text.least_tokens import TooManyTokens
from engine.text.processor import TextProcessor
from gateway.generation.request import Conversation, GenerationRequest
from gateway.http.errors import APIError, invalid

UNKNOWN_TOKEN = -1
"""Stands for a token whose id and text are not known."""

BYTES_PER_TOKEN = 4
"""Divisor of the estimate of tokens without a tokenizer: English text has somewhat more bytes a token, code and other
languages fewer."""

MESSAGE_TOKENS = 4
"""Estimated tokens that a chat template adds to each message."""


def estimated_tokens(text: bytes) -> int:
    """An estimate of the tokens of a text."""
    return -(-len(text) // BYTES_PER_TOKEN)


def token_for(label: bytes) -> int:
    """A token id, below 0, that contains the bytes of its text: the server's ids are not known."""
    return -int.from_bytes(b"\x01" + label)


def bytes_of(token_id: int) -> bytes:
    """The bytes in a token id of `token_for`; none for `UNKNOWN_TOKEN`."""
    return (-token_id).to_bytes((token_id.bit_length() + 7) // 8)[1:]


@dataclass(frozen=True, slots=True)
class RemoteChat:
    """A conversation as its server renders it. `variables`: of the chat template, `reasoning_effort` among them."""

    messages: Sequence[Mapping[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RemotePrompt(Sequence[int]):
    """A prompt of a model that another server runs.

    As a sequence it has the `tokens` that were counted or, if `known_ids` is None, estimated. `request`: the request
    that it is of, with the parameters as the client stated them; None: those of its `SamplingParams` alone.
    `answer_tokens`: the longest answer before limits cut it.
    """

    content: str | Sequence[int] | RemoteChat
    tokens: int
    known_ids: Sequence[int] | None = None
    request: GenerationRequest | None = None
    answer_tokens: int | None = None

    def __len__(self) -> int:
        return self.tokens

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if self.known_ids is not None:
            return self.known_ids[index]
        places = range(self.tokens)[index]
        return UNKNOWN_TOKEN if isinstance(places, int) else [UNKNOWN_TOKEN] * len(places)

    def require_ids(self) -> Sequence[int]:
        """The token ids.

        Raises:
            APIError: 400, they are not known.
        """
        if self.known_ids is None:
            raise invalid("model", "This server has no tokenizer of the model.", "unsupported_model")
        return self.known_ids


@dataclass(frozen=True, slots=True)
class RemoteText(TextProcessor):
    """The text processor of a model that another server runs: encodes to `RemotePrompt`.

    `tokenizer`: knows the bytes of `token_for`. `counting`: the model's own text processor, which counts tokens
    exactly; None: they are estimated.
    """

    counting: TextProcessor | None = None

    def __post_init__(self) -> None:
        TextProcessor.__post_init__(self)
        # The server renders tools and earlier calls.
        object.__setattr__(self, "dialect", Dialect(knows_tools=True))
        object.__setattr__(self, "infilling", None)

    def encode(self, text: str, *, add_special_tokens: bool = True, most_tokens: int | None = None) -> list[int]:
        """The prompt of plain text, a `RemotePrompt`. Raises: TooManyTokens."""
        if self.counting is not None:
            ids = self.counting.encode(text, add_special_tokens=add_special_tokens, most_tokens=most_tokens)
            return _as_ids(RemotePrompt(text, len(ids), ids))
        tokens = estimated_tokens(text.encode(errors="replace")) + add_special_tokens
        return _as_ids(RemotePrompt(text, _at_most(tokens, most_tokens)))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        most_tokens: int | None = None,
        **variables: Any,
    ) -> list[int]:
        """The prompt of a conversation, a `RemotePrompt`. A template that refuses it here leaves that to the server.

        Raises: TooManyTokens.
        """
        tools = variables.pop("tools", ())
        chat = RemoteChat(messages, add_generation_prompt, continue_final_message, variables)
        ids = None
        if self.counting is not None:
            ids = self._counted(self.counting, chat, tools, most_tokens)
        if ids is None:
            tokens = sum(MESSAGE_TOKENS + estimated_tokens(orjson.dumps(_written(each))) for each in messages)
            tokens += estimated_tokens(orjson.dumps(tools, default=dict)) if tools else 0
            return _as_ids(RemotePrompt(chat, _at_most(max(1, tokens), most_tokens)))
        return _as_ids(RemotePrompt(chat, len(ids), ids))

    def template_reads(self, variable: str) -> bool:
        """The server decides which variables its template takes."""
        return True

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids.

        Raises:
            APIError: 400, the model's tokenizer is not known.
        """
        if self.counting is None:
            raise invalid("model", "This server has no tokenizer of the model.", "unsupported_model")
        return self.counting.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def count(self, text: str) -> int | None:
        """The tokens of a piece of an answer; None: there is no tokenizer."""
        return None if self.counting is None else len(self.counting.encode(text, add_special_tokens=False))

    def require_passable(self, request: GenerationRequest) -> None:
        """
        Raises:
            APIError: 400, the request has a parameter that cannot be passed to another server.
        """
        details, params = request.details, request.params
        named = {
            "truncate_prompt_tokens": request.truncation is not None,
            "return_token_ids": details.token_ids,
            "prompt_logprobs": details.prompt_logprobs is not None,
            "echo": request.echo and (details.logprobs is not None or self._cannot_repeat(request)),
            "bad_words": params.grammar is not None and params.grammar.param == "bad_words",
            request.limit_param or "": params.max_tokens == 0 and params.pooling is None,
            "add_special_tokens": not request.add_special_tokens and isinstance(request.prompts[0], Conversation),
        }
        if (param := next((name for name, given in named.items() if given), None)) is not None:
            raise _not_passed(param)

    def asked(self, prompt: Sequence[int], request: GenerationRequest, answer_tokens: int | None) -> RemotePrompt:
        """A prompt with the request that it is of. `prompt`: a `RemotePrompt`, or the client's token ids."""
        if not isinstance(prompt, RemotePrompt):
            prompt = RemotePrompt(prompt, len(prompt), prompt)
        return replace(prompt, request=request, answer_tokens=answer_tokens)

    def _cannot_repeat(self, request: GenerationRequest) -> bool:
        return self.counting is None and any(isinstance(prompt, tuple) for prompt in request.prompts)

    @staticmethod
    def _counted(
        counting: TextProcessor, chat: RemoteChat, tools: Sequence[Any], most_tokens: int | None
    ) -> list[int] | None:
        variables = dict(chat.variables) | ({"tools": tools} if tools else {})
        try:
            return counting.encode_chat(
                chat.messages,
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message,
                most_tokens=most_tokens,
                **variables,
            )
        except ChatTemplateError:
            return None


def _written(message: Mapping[str, Any]) -> list[Any]:
    """The parts of a message that a template writes."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    rest = [message[key] for key in ("tool_calls", "reasoning_content") if message.get(key)]
    return [text.encode(errors="replace").decode(), *rest] if rest else [text.encode(errors="replace").decode()]


def _at_most(tokens: int, most_tokens: int | None) -> int:
    if most_tokens is not None and tokens > most_tokens:
        raise TooManyTokens(tokens)
    return tokens


def _as_ids(prompt: RemotePrompt) -> list[int]:
    """`TextProcessor` promises a list; everything that takes its result reads a sequence."""
    return prompt  # type: ignore[return-value]


def _not_passed(param: str) -> APIError:
    message = f"'{param}' is not supported with this model, which another server runs."
    return invalid(param, message, "unsupported_parameter")
