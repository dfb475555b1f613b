"""Answers that grammars constrain, of a harness's model."""

from collections.abc import Sequence

from engine.grammar import GrammarFailed, GrammarSpec
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.matcher import Bitmask
from engine.request import SamplingParams
from tests.engine.execution.harness import Generated, Harness
from tests.engine.grammar.corpus import PERSON

SAMPLED = SamplingParams(temperature=1.0, logprobs=2)
GREEDY = SamplingParams(temperature=0)
GRAMMARS = (
    GrammarSpec.json_schema(PERSON),
    GrammarSpec.json_schema({"type": "array", "items": {"enum": ["left", "right"]}, "minItems": 3, "maxItems": 6}),
    GrammarSpec.regex("[a-c]{2,9}"),
    GrammarSpec.choice(["maybe", "may", "not"]),
    None,
)


def run(harness: Harness, compiler: GrammarCompiler, preempt_every: int | None = None) -> dict[str, Generated]:
    """Ten answers, eight of them with a grammar."""
    for index, grammar in enumerate(GRAMMARS * 2):
        request = harness.add(range(20, 40 + index), SAMPLED if index % 3 else GREEDY, max_tokens=60, seed=index)
        if grammar is not None:
            request.matcher = compiler.compile(grammar).result().matcher()
    return dict(harness.run(preempt_every))


class Failing:
    """Allows anything, until it has seen some tokens."""

    def __init__(self, after: int) -> None:
        self.taken, self._after = 0, after

    def accept(self, tokens: Sequence[int]) -> int:
        self.taken += len(tokens)
        return len(tokens)

    def rollback(self, tokens: int) -> None:
        self.taken -= tokens

    def fill_bitmask(self, words: Bitmask) -> None:
        if self.taken >= self._after:
            raise GrammarFailed("too complex")
        words.fill(-1)
