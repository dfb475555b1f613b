"""Drafts for a simulation: right as often as the seed says, of any length, and for those who can have none, too."""

from collections.abc import Iterable
from random import Random

from engine.request import Phase, Request
from engine.simulation.fake_executor import FakeExecutor, prefix_digest
from engine.simulation.traffic import VOCAB_SIZE

MOST_DRAFTS = 20
"""More than a block of them."""
MOST_DRAFTING_NS = 1_000_000


class Guesser:
    """Knows what the fake model will draw, and says so with a probability that the seed has drawn."""

    def __init__(self, seed: int, executor: FakeExecutor) -> None:
        self._rng = Random(f"guesses of {seed}")
        self._executor = executor
        self._right = self._rng.choice((0.0, 0.5, 0.9, 1.0))
        self._silent = self._rng.choice((0.0, 0.3, 0.7))
        self._most = self._rng.choice((1, 4, MOST_DRAFTS))
        self._digests: dict[str, tuple[int, int]] = {}
        """Of each request by its id, how many of its tokens are in, and the digest of those."""

    def waits(self) -> bool:
        """Is what is in flight to land first, so that more requests can have drafts?"""
        return self._rng.random() < 0.5

    def guess(self, requests: Iterable[Request]) -> dict[Request, tuple[int, ...]]:
        """For some of them; none at all in some steps."""
        if self._rng.random() < self._silent:
            return {}
        return {request: self._drafts(request) for request in requests if self._rng.random() < 0.8}

    def drafting_ns(self) -> int:
        """How long it took."""
        return self._rng.randrange(MOST_DRAFTING_NS)

    def _drafts(self, request: Request) -> tuple[int, ...]:
        digest, drafts = self._digest(request), list[int]()
        for _ in range(self._rng.randint(0, self._most)):
            right = self._rng.random() < self._right
            drafts.append(self._executor.next_token(request, digest) if right else self._rng.randrange(VOCAB_SIZE))
            digest = prefix_digest(digest, drafts[-1])
        return tuple(drafts)

    def _digest(self, request: Request) -> int:
        known, digest = self._digests.get(request.id, (0, int.from_bytes(request.salt[:8], "little")))
        for token in request.tokens[known:]:
            digest = prefix_digest(digest, token)
        self._digests[request.id] = len(request.tokens), digest
        return digest


def drafted_for(drafts: Iterable[Request]) -> list[Request]:
    """Those of them who are there to bear the time."""
    return [request for request in drafts if request.phase is Phase.RUNNING]
