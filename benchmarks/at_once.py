"""`turnpike` with an engine that answers as soon as it is asked: `python -m benchmarks.at_once serve ...`.

As `benchmarks.weightless`, without even the engine's thread and its scheduler: what is left is the gateway alone. An
answer has the most tokens that it may have, a delta each, and all of them are there at once.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Self

from benchmarks import weightless
from engine.engine import Engine
from engine.request import FinishReason, TextDelta, Usage
from engine.runtime.engine_call import EngineCall
from engine.runtime.output_stream import MAX_BATCH_TOKENS

TEXT = " time"


class EngineAtOnce(Engine):
    @cached_property
    def _token(self) -> int:
        """Encoded once: requests pay for the gateway alone."""
        [token] = self.models[weightless.MODEL].text.encode(TEXT, add_special_tokens=False)
        return token

    def submit(self, model: str, call: EngineCall) -> "StreamAtOnce":  # type: ignore[override]
        [prompt] = call.prompts
        return StreamAtOnce(_answer(len(prompt.token_ids), prompt.params.max_tokens or 1, self._token))


class StreamAtOnce:
    """The `OutputStream` of an answer that is there."""

    def __init__(self, deltas: Iterator[TextDelta]) -> None:
        self._deltas = deltas
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def next_batch(self) -> list[TextDelta]:
        self.check()
        return list(islice(self._deltas, MAX_BATCH_TOKENS))

    def fail(self, error: Exception) -> None:
        self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise self._error


def _answer(prompt_tokens: int, count: int, token: int) -> Iterator[TextDelta]:
    for _ in range(count - 1):
        yield TextDelta(0, TEXT, (token,))
    usage = Usage(prompt_tokens, count)
    yield TextDelta(0, TEXT, (token,), finish_reason=FinishReason.LENGTH, usage=usage)


if __name__ == "__main__":
    weightless.serve(EngineAtOnce)
