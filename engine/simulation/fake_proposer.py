"""Drafts for a simulation, of any length and acceptance rate, also for requests that cannot have any."""

from collections.abc import Iterable
from random import Random

from engine.request import Phase, Request
from engine.simulation.fake_executor import FakeExecutor, prefix_digest, root_of
from engine.simulation.traffic import VOCAB_SIZE

MAX_DRAFTS = 20
"""More tokens than a block has."""
MAX_DRAFTING_NS = 1_000_000


class FakeProposer:
    """Drafts the token that the fake model will sample, with a probability drawn from the seed; else a random one."""

    def __init__(self, seed: int, executor: FakeExecutor) -> None:
        self._rng = Random(f"guesses of {seed}")
        self._executor = executor
        self._right = self._rng.choice((0.0, 0.5, 0.9, 1.0))
        self._silent = self._rng.choice((0.0, 0.3, 0.7))
        self._most = self._rng.choice((1, 4, MAX_DRAFTS))
        self._digests: dict[str, tuple[int, int]] = {}
        """By request id: the number of digested tokens, and their digest."""

    def waits_for_result(self) -> bool:
        """Whether to complete the steps in flight first, so that more requests can have drafts."""
        return self._rng.random() < 0.5

    def propose(self, requests: Iterable[Request]) -> dict[Request, tuple[int, ...]]:
        """Drafts for some of the requests; in some steps none."""
        if self._rng.random() < self._silent:
            return {}
        return {request: self._drafts(request) for request in requests if self._rng.random() < 0.8}

    def drafting_ns(self) -> int:
        """The time of drafting."""
        return self._rng.randrange(MAX_DRAFTING_NS)

    def _drafts(self, request: Request) -> tuple[int, ...]:
        digest, drafts = self._digest(request), list[int]()
        for _ in range(self._rng.randint(0, self._most)):
            right = self._rng.random() < self._right
            drafts.append(self._executor.next_token(request, digest) if right else self._rng.randrange(VOCAB_SIZE))
            digest = prefix_digest(digest, drafts[-1])
        return tuple(drafts)

    def _digest(self, request: Request) -> int:
        known, digest = self._digests.get(request.id, (0, root_of(request)))
        for token in request.tokens[known:]:
            digest = prefix_digest(digest, token)
        self._digests[request.id] = len(request.tokens), digest
        return digest


def running_only(drafts: Iterable[Request]) -> list[Request]:
    """The running ones of these requests, which are charged the time of drafting."""
    return [request for request in drafts if request.phase is Phase.RUNNING]
