"""Grammars, and refusals, that are remembered: those used last, as far as their memory goes."""

from collections import OrderedDict
from concurrent.futures import Future
from typing import Any

from engine.grammar.spec import GrammarRefused, GrammarSpec

Outcome = Future[Any]

MAX_ENTRIES = 4096
_ENTRY_BYTES = 2048
"""Of a refusal, and of what is kept beside a grammar."""


class GrammarCache:
    """For one thread at a time. What is being compiled is there, too, and weighs what its text does."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._outcomes: OrderedDict[GrammarSpec, Outcome] = OrderedDict()
        self._bytes: dict[GrammarSpec, int] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._outcomes)

    def find(self, spec: GrammarSpec) -> Outcome | None:
        """What is known of the grammar. None, too, where it ended in a way that says nothing about the grammar."""
        outcome = self._outcomes.get(spec)
        if outcome is None or _says_nothing(outcome):
            return None
        self._outcomes.move_to_end(spec)
        return outcome

    def put(self, spec: GrammarSpec, outcome: Outcome) -> None:
        self.discard(spec)
        self._outcomes[spec] = outcome
        self._weigh(spec, 0)

    def record_size(self, spec: GrammarSpec, outcome: Outcome, size_bytes: int) -> None:
        """That is what the grammar takes. Nothing where the outcome was forgotten since."""
        if self._outcomes.get(spec) is outcome:
            self._weigh(spec, size_bytes)

    def discard(self, spec: GrammarSpec) -> None:
        if self._outcomes.pop(spec, None) is not None:
            self.total_bytes -= self._bytes.pop(spec)

    def _weigh(self, spec: GrammarSpec, size_bytes: int) -> None:
        texts = len(spec.source) + sum(len(part.source) for part in spec.parts)
        weight = size_bytes + 4 * texts + _ENTRY_BYTES
        self.total_bytes += weight - self._bytes.get(spec, 0)
        self._bytes[spec] = weight
        while self.total_bytes > self._max_bytes or len(self._outcomes) > MAX_ENTRIES:
            self.discard(next(iter(self._outcomes)))


def _says_nothing(outcome: Outcome) -> bool:
    if not outcome.done():
        return False
    return outcome.cancelled() or not isinstance(outcome.exception(), GrammarRefused | None)
