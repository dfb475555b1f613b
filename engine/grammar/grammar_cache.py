"""An LRU cache of compiled grammars and of refusals, bounded in bytes."""

from collections import OrderedDict
from concurrent.futures import Future
from typing import Any

from engine.grammar.spec import GrammarRefused, GrammarSpec

Outcome = Future[Any]

MAX_ENTRIES = 4096
"""Entries of one cache. Bounds the number of refusals, which take little memory each."""
_ENTRY_BYTES = 2048
"""Estimated memory of a refusal, and of the bookkeeping of a compiled grammar."""


class GrammarCache:
    """Maps grammar specs to the futures of their compilation. A pending entry counts with the size of its text. Callers
    synchronise."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._outcomes: OrderedDict[GrammarSpec, Outcome] = OrderedDict()
        self._bytes: dict[GrammarSpec, int] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._outcomes)

    def find(self, spec: GrammarSpec) -> Outcome | None:
        """The entry of a grammar, marked as used. None if there is none, or if it ended with an error that is not the
        grammar's (a failed sandbox, a cancellation)."""
        outcome = self._outcomes.get(spec)
        if outcome is None or _says_nothing(outcome):
            return None
        self._outcomes.move_to_end(spec)
        return outcome

    def put(self, spec: GrammarSpec, outcome: Outcome) -> None:
        """Insert or replace an entry, evicting the least recently used ones beyond the bound."""
        self.discard(spec)
        self._outcomes[spec] = outcome
        self._weigh(spec, 0)

    def record_size(self, spec: GrammarSpec, outcome: Outcome, size_bytes: int) -> None:
        """Record the memory of a compiled grammar. No effect if `outcome` was evicted or replaced since."""
        if self._outcomes.get(spec) is outcome:
            self._weigh(spec, size_bytes)

    def discard(self, spec: GrammarSpec) -> None:
        """Remove an entry, if there is one."""
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
