"""Formats chat completions: `chat.completion` and `chat.completion.chunk`."""

from collections.abc import Sequence
from typing import Any

import orjson

from engine.request import TextDelta
from engine.text.tokenizer import Tokenizer
from gateway.formats.openai.details import DetailsFormatter
from gateway.formats.openai.logprobs import chat_logprobs
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.response_format import DONE, ResponseMeta, chunk_end, chunk_end_with, event
from gateway.generation.usage import UsageTotal
from gateway.http.errors import APIError
from gateway.speech.output_parser import ParsedDelta
from gateway.speech.pieces import Call, CallArguments, CallBegun, ParsedMessage, Piece, Reasoning, Text

_ROLE = b'{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}'
_CHUNK = "chat.completion.chunk"


class ChatFormatter:
    """Formats a stream as one role chunk per choice, one chunk per piece of the answer, and one finish chunk.

    The first chunk of a delta has the delta's log-probabilities and token ids; without a piece, the finish chunk has
    the token ids.
    """

    def __init__(
        self,
        header: ResponseMeta,
        tokenizer: Tokenizer,
        request: GenerationRequest,
        prompt: PreparedPrompt,
    ) -> None:
        self._header = header
        self._tokenizer = tokenizer
        self._logprobs = request.details.logprobs is not None
        self._include_token_ids = request.details.token_ids
        self._running_usage = request.details.running_usage
        self._include_usage = request.include_usage
        self._details = DetailsFormatter(request.details, [prompt.token_ids], request.params.n, tokenizer)
        self._older_form = request.tools is not None and request.tools.is_older_form
        self._echo = prompt.echo or ""
        self._start = header.chunk_start(_CHUNK)
        self._end = chunk_end(request.include_usage)
        self._begun: set[int] = set()

    def start(self) -> bytes:
        return b""

    def events(self, output: ParsedDelta) -> bytes:
        choice, delta = output.choice, output.delta
        head = self._start + b'{"index":%d,"delta":' % choice
        end = self._end
        if self._running_usage:
            end = chunk_end_with({"usage": self._details.usage_so_far(choice, delta)})
        chunks = []
        if choice not in self._begun:
            chunks.append(head + _ROLE + self._role_end(end))
            if self._echo:
                chunks.append(head + _delta_of(Text(self._echo)) + b',"logprobs":null,"finish_reason":null}' + end)
            self._begun.add(choice)
        deltas = [_delta_of(piece, older_form=self._older_form) for piece in output.pieces]
        logprobs, token_ids = self._logprobs_of(delta), self._token_ids_of(delta)
        if not deltas and ((self._logprobs and delta.logprobs) or (token_ids and delta.finish_reason is None)):
            deltas = [b'{"content":""}']
        for content in deltas:
            chunks.append(
                head + content + b',"logprobs":' + logprobs + b',"finish_reason":null' + token_ids + b"}" + end
            )
            logprobs, token_ids = b"null", b""
        if (ended := self._reason(output.finish_reason)) is not None:
            reason = ended.encode()
            chunks.append(head + b'{},"logprobs":null,"finish_reason":"%b"' % reason + token_ids + b"}" + end)
        return b"".join(map(event, chunks))

    def end(self, usage: UsageTotal) -> bytes:
        if not self._include_usage:
            return DONE
        return event(orjson.dumps(self._header.wire(_CHUNK) | {"choices": [], "usage": usage.openai_usage()})) + DONE

    def failure(self, error: APIError) -> bytes:
        return event(error.envelope())

    def body(self, choices: Sequence[ParsedDelta], usage: UsageTotal) -> bytes:
        formatted = []
        for index, choice in enumerate(choices):
            message = _message(ParsedMessage.of(choice.pieces), older_form=self._older_form)
            if self._echo:
                message["content"] = self._echo + (message["content"] or "")
            formatted.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": chat_logprobs(choice.delta.logprobs, self._tokenizer) if self._logprobs else None,
                    "finish_reason": self._reason(choice.finish_reason),
                    **self._details.of_answer(choice.delta),
                }
            )
        whole = self._header.wire("chat.completion") | {"choices": formatted, "usage": usage.openai_usage()}
        return orjson.dumps(whole | self._details.of_prompt(0, choices[0].delta.prompt_logprobs))

    def _reason(self, reason: str | None) -> str | None:
        return "function_call" if self._older_form and reason == "tool_calls" else reason

    def _role_end(self, end: bytes) -> bytes:
        """End of a role chunk. The first chunk of the stream has the prompt's details."""
        members = {} if self._begun else self._details.of_prompt(0)
        return end[:-1] + b"," + orjson.dumps(members)[1:] if members else end

    def _token_ids_of(self, delta: TextDelta) -> bytes:
        """The `token_ids` member of a choice, with a leading comma."""
        if not self._include_token_ids:
            return b""
        members = self._details.of_answer(delta)
        return b"," + orjson.dumps(members)[1:-1] if members.get("token_ids") else b""

    def _logprobs_of(self, delta: TextDelta) -> bytes:
        return orjson.dumps(chat_logprobs(delta.logprobs, self._tokenizer)) if self._logprobs else b"null"


def _delta_of(piece: Piece, *, older_form: bool = False) -> bytes:
    match piece:
        case CallBegun(_, _, name) if older_form:
            return orjson.dumps({"function_call": {"name": name, "arguments": ""}})
        case CallArguments(_, text) if older_form:
            return orjson.dumps({"function_call": {"arguments": text}})
        case Text(text):
            return b'{"content":' + orjson.dumps(text) + b"}"
        case Reasoning(text):
            return b'{"reasoning_content":' + orjson.dumps(text) + b"}"
        case CallBegun(index, id, name):
            return orjson.dumps({"tool_calls": [{"index": index} | _call(Call(id, name))]})
        case CallArguments(index, text):
            return orjson.dumps({"tool_calls": [{"index": index, "function": {"arguments": text}}]})


def _message(spoken: ParsedMessage, *, older_form: bool) -> dict[str, Any]:
    """The message object. `content` is null where the answer has tool calls and no text."""
    content = spoken.text if spoken.text is not None or spoken.calls else ""
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if spoken.reasoning is not None:
        message["reasoning_content"] = spoken.reasoning
    if spoken.calls and older_form:
        message["function_call"] = _call(spoken.calls[0])["function"]
    elif spoken.calls:
        message["tool_calls"] = [_call(call) for call in spoken.calls]
    return message


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
