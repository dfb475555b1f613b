"""`turnpike` with an engine that answers as soon as it is asked: `python -m benchmarks.at_once serve ...`.

As `benchmarks.weightless`, without even the engine's thread and its scheduler: what is left is the gateway alone. An
answer has the most tokens that it may have, a delta each, and all of them are there at once.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from benchmarks import weightless
from engine.engine import Engine
from engine.request import FinishReason, SamplingParams, TextDelta, Usage

TEXT = " time"


class EngineAtOnce(Engine):
    def stream(self, model: str, prompt: Sequence[int], params: SamplingParams, **_: Any) -> AsyncGenerator[TextDelta]:
        [token] = self.models[model].text.encode(TEXT, add_special_tokens=False)
        return _answer(len(prompt), params.max_tokens or 1, token)


async def _answer(prompt_tokens: int, count: int, token: int) -> AsyncGenerator[TextDelta]:
    for _ in range(count - 1):
        yield TextDelta(0, TEXT, (token,))
    usage = Usage(prompt_tokens, count)
    yield TextDelta(0, TEXT, (token,), finish_reason=FinishReason.LENGTH, usage=usage)


if __name__ == "__main__":
    weightless.serve(EngineAtOnce)
