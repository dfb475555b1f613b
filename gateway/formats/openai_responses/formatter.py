"""Formats responses: the whole object, and the named, numbered events of a stream."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from engine.request import FinishReason, SamplingParams, TokenLogprob
from engine.text.tokenizer import Tokenizer
from gateway.formats.openai.logprobs import chat_logprobs
from gateway.formats.openai_responses.ids import OUTPUT, item_id
from gateway.formats.openai_responses.items import COMPLETED, INCOMPLETE
from gateway.formats.openai_responses.output import Event, Logprobs, Output
from gateway.formats.openai_responses.schema import Stated
from gateway.generation.response_format import ResponseMeta
from gateway.generation.usage import UsageTotal
from gateway.http.errors import APIError
from gateway.speech.output_parser import ParsedDelta
from gateway.speech.pieces import Text

_FAILED_CODES = ("server_error", "rate_limit_exceeded")
"""OpenAI's error codes that apply here; all other errors become `server_error`."""


class ResponsesFormatter:
    """Formats one response of one choice. `params`: those of the engine. `kept`: whether the response is stored."""

    def __init__(self, header: ResponseMeta, stated: Stated, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._header = header
        self._stated = stated
        self._tokenizer = tokenizer
        self._params = params
        self._output = Output(lambda prefix, index: item_id(header.id, prefix, OUTPUT, index), stated.names)
        self._pending: list[TokenLogprob] = []
        self._cut = False
        self._next_number = 0
        self._ended_at: int | None = None
        self.kept = stated.store

    @property
    def id(self) -> str:
        return self._header.id

    def start(self) -> bytes:
        response = self._response("in_progress", [], None)
        kinds = ("response.created", "response.in_progress")
        return self._encode({"type": kind, "response": response} for kind in kinds)

    def events(self, output: ParsedDelta) -> bytes:
        return self._encode(self._add(output))

    def end(self, usage: UsageTotal) -> bytes:
        response = self.response(usage)
        return self._encode([{"type": f"response.{response['status']}", "response": response}])

    def failure(self, error: APIError) -> bytes:
        code = error.code if error.code in _FAILED_CODES else _FAILED_CODES[0]
        response = self._response("failed", self._output.items, None)
        response["error"] = {"code": code, "message": error.message}
        event = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return self._encode([event, {"type": "response.failed", "response": response}])

    def body(self, choices: Sequence[ParsedDelta], usage: UsageTotal) -> bytes:
        self.add(choices)
        return orjson.dumps(self.response(usage))

    def add(self, choices: Sequence[ParsedDelta]) -> None:
        """Add an answer that is not streamed. Idempotent."""
        if not self._output.ended:
            [choice] = choices
            self._add(choice)

    def response(self, usage: UsageTotal) -> dict[str, Any]:
        """The whole object. Invariant: the answer has ended."""
        assert self._output.ended, "the answer has not ended"
        return self._response(INCOMPLETE if self._cut else COMPLETED, self._output.items, usage)

    def _add(self, output: ParsedDelta) -> list[Event]:
        """Add a delta. Log-probabilities go with the next text piece; the remaining ones with an empty last piece."""
        delta = output.delta
        if self._stated.logprobs:
            self._pending += delta.logprobs
        events: list[Event] = []
        for piece in output.pieces:
            events += self._output.say(piece, self._logprobs() if isinstance(piece, Text) else [])
        if delta.finish_reason is not None:
            self._cut = delta.finish_reason is FinishReason.LENGTH
            self._ended_at = int(time.time())
            if self._pending:
                events += self._output.say(Text(""), self._logprobs())
            events += self._output.end(cut=self._cut)
        return events

    def _logprobs(self) -> Logprobs:
        pending, self._pending = self._pending, []
        content: Logprobs = chat_logprobs(pending, self._tokenizer)["content"]
        return content

    def _response(self, status: str, output: Sequence[Any], usage: UsageTotal | None) -> dict[str, Any]:
        completed = status == COMPLETED
        return {
            "id": self._header.id,
            "object": "response",
            "created_at": self._header.created,
            "completed_at": self._ended_at if completed else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "model": self._header.model,
            "output": list(output),
            "service_tier": self._header.service_tier,
            "temperature": self._params.temperature,
            "top_p": self._params.top_p,
            "usage": None if usage is None else _usage(usage),
            **self._stated.echo,
            "store": self.kept,
        }

    def _encode(self, events: Iterable[Event]) -> bytes:
        encoded = []
        for event in events:
            numbered = {"type": event["type"], "sequence_number": self._next_number, **event}
            self._next_number += 1
            encoded.append(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(numbered)))
        return b"".join(encoded)


def _usage(usage: UsageTotal) -> dict[str, Any]:
    """Usage in the format of responses. Cache writes are free, so they are reported as 0."""
    chat = usage.openai_usage()
    named = {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": chat["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": chat["total_tokens"],
    }
    return named | {name: chat[name] for name in ("limited_by",) if name in chat}
