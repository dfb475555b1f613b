"""Chooses a replica for a request from views of all of them: pure functions of the views, and of seeded randomness."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

TOLERANCE = 0.1
"""Replicas whose costs differ by less than this fraction of the wait are equal: their step times are measured, and
those of equal machines differ by about a tenth."""

RoutingName = Literal["predicted", "round_robin", "least_connections"]


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica that takes the request. Times are predictions, in nanoseconds.

    `wait_ns`: until the prompt's first token, without the prefix cache. `saved_ns`: the part of it that the cache
    saves, for its `cached_tokens` of the prompt. `requests`: in progress there, of this client as of now, of all
    clients as of the last report, whichever are more.
    """

    wait_ns: float
    saved_ns: float
    cached_tokens: int
    requests: int

    @property
    def cost_ns(self) -> float:
        """The predicted time to the first token."""
        return self.wait_ns - self.saved_ns


class RoutingPolicy(Protocol):
    """Chooses among the replicas that take a request."""

    def choose(self, views: Sequence[ReplicaView], prompt_tokens: int) -> int:
        """The index of the chosen one of `views`, of which there is at least one."""
        ...


class Predicted:
    """The earliest predicted first token. Among replicas that are equal within `TOLERANCE`, the one with fewer requests
    of two that are drawn at random."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, views: Sequence[ReplicaView], prompt_tokens: int) -> int:
        best = min(views, key=lambda view: view.cost_ns)
        bound_ns = best.cost_ns + TOLERANCE * best.wait_ns
        equal = [index for index, view in enumerate(views) if view.cost_ns <= bound_ns]
        drawn = self._random.sample(equal, min(2, len(equal)))
        return min(drawn, key=lambda index: views[index].requests)


class LeastConnections:
    """The fewest requests in progress; ties at random."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, views: Sequence[ReplicaView], prompt_tokens: int) -> int:
        fewest = min(view.requests for view in views)
        return self._random.choice([index for index, view in enumerate(views) if view.requests == fewest])


class RoundRobin:
    """Each in turn."""

    def __init__(self, random: Random) -> None:
        self._turn = random.randrange(1 << 16)
        """Gateways do not begin with the same one."""

    def choose(self, views: Sequence[ReplicaView], prompt_tokens: int) -> int:
        self._turn += 1
        return self._turn % len(views)


POLICIES: dict[RoutingName, type[Predicted] | type[LeastConnections] | type[RoundRobin]] = {
    "predicted": Predicted,
    "round_robin": RoundRobin,
    "least_connections": LeastConnections,
}


def routing_policy(name: RoutingName, random: Random | None = None) -> RoutingPolicy:
    """The policy of this name. `random`: None for an unseeded one."""
    return POLICIES[name](random or Random())
