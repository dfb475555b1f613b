"""Chat completions on the wire: `chat.completion` and `chat.completion.chunk`."""

from collections.abc import Sequence

import orjson

from engine.request import TextDelta
from engine.text.tokenizer import Tokenizer
from gateway.api.logprobs import chat_logprobs
from gateway.api.usage import UsageTotal
from gateway.api.wire import Header, chunk_end

_ROLE = b'{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}'
_CHUNK = "chat.completion.chunk"


class ChatWire:
    """For each choice: a role chunk, content chunks, a finish chunk."""

    def __init__(self, header: Header, tokenizer: Tokenizer, *, logprobs: bool, include_usage: bool) -> None:
        self._header = header
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._start = header.chunk_start(_CHUNK)
        self._end = chunk_end(include_usage)
        self._begun: set[int] = set()

    def chunks(self, choice: int, delta: TextDelta) -> Sequence[bytes]:
        head = self._start + b'{"index":%d,"delta":' % choice
        chunks = []
        if choice not in self._begun:
            self._begun.add(choice)
            chunks.append(head + _ROLE + self._end)
        if delta.text or (self._logprobs and delta.logprobs):
            content = b'{"content":' + orjson.dumps(delta.text) + b'},"logprobs":' + self._logprobs_of(delta)
            chunks.append(head + content + b',"finish_reason":null}' + self._end)
        if delta.finish_reason is not None:
            chunks.append(head + b'{},"logprobs":null,"finish_reason":"%b"}' % delta.finish_reason.encode() + self._end)
        return chunks

    def usage_chunk(self, usage: UsageTotal) -> bytes:
        return orjson.dumps(self._header.wire(_CHUNK) | {"choices": [], "usage": usage.wire()})

    def body(self, choices: Sequence[TextDelta], usage: UsageTotal) -> bytes:
        wire_choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": chat_logprobs(choice.logprobs, self._tokenizer) if self._logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        whole = self._header.wire("chat.completion") | {"choices": wire_choices, "usage": usage.wire()}
        return orjson.dumps(whole)

    def _logprobs_of(self, delta: TextDelta) -> bytes:
        return orjson.dumps(chat_logprobs(delta.logprobs, self._tokenizer)) if self._logprobs else b"null"
