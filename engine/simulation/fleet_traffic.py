"""Traffic for several replicas as values: sessions whose prompts grow, and single prompts. Times are virtual."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from engine.request import PREMIUM, STANDARD, ServiceClass

VOCAB_SIZE = 50_000
ANSWER_TOKEN = 1
"""Every token of every answer."""
_SIGMA = 0.6


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message and the length of the answer to it. `think_ns`: from the end of the last answer to the turn."""

    tokens: tuple[int, ...]
    answer_tokens: int
    think_ns: int


@dataclass(frozen=True, slots=True)
class Session:
    """Turns of one conversation, each with all before it in its prompt. A single prompt is a session of one turn.
    `system`: tokens that all prompts begin with."""

    at_ns: int
    tenant: str
    service_class: ServiceClass
    system: tuple[int, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficShape:
    """`sessions_per_s`, `prompts_per_s`: mean arrivals of sessions and of single prompts. `tenants` have a system
    prompt each. `burst`: the factor on both rates in the middle tenth of the time."""

    sessions_per_s: float = 0.0
    prompts_per_s: float = 0.0
    tenants: int = 24
    system_tokens: int = 600
    turns: float = 6.0
    message_tokens: int = 150
    prompt_tokens: int = 900
    answer_tokens: int = 120
    think_s: float = 4.0
    premium_share: float = 0.2
    burst: float = 1.0

    def scaled(self, factor: float) -> "TrafficShape":
        """The same with more or fewer arrivals."""
        return replace(self, sessions_per_s=factor * self.sessions_per_s, prompts_per_s=factor * self.prompts_per_s)

    def draw(self, seed: int, seconds: float) -> list[Session]:
        """Arrivals of `seconds`, in order of time."""
        random = Random(seed)
        systems = [_tokens(random, self.system_tokens) for _ in range(self.tenants)]
        made = [
            *(self._session(random, at_ns, systems) for at_ns in self._times(random, self.sessions_per_s, seconds)),
            *(self._prompt(random, at_ns) for at_ns in self._times(random, self.prompts_per_s, seconds)),
        ]
        return sorted(made, key=lambda session: session.at_ns)

    def _times(self, random: Random, per_s: float, seconds: float) -> list[int]:
        """A Poisson process, by thinning where there is a burst."""
        times: list[int] = []
        now_s, most_per_s = 0.0, per_s * max(self.burst, 1.0)
        while most_per_s:
            now_s += random.expovariate(most_per_s)
            if now_s >= seconds:
                break
            bursts = 0.45 <= now_s / seconds < 0.55
            if random.random() * max(self.burst, 1.0) < (self.burst if bursts else 1.0):
                times.append(round(now_s * 1e9))
        return times

    def _session(self, random: Random, at_ns: int, systems: Sequence[tuple[int, ...]]) -> Session:
        tenant = min(int(random.expovariate(3.0) * len(systems)), len(systems) - 1)  # a few have most of the sessions
        number = 1 + min(int(random.expovariate(1.0 / self.turns)), 24)
        turns = tuple(
            Turn(
                _tokens(random, _length(random, self.message_tokens)),
                _length(random, self.answer_tokens),
                round(random.expovariate(1.0 / self.think_s) * 1e9) if turn else 0,
            )
            for turn in range(number)
        )
        return Session(at_ns, f"tenant-{tenant}", self._class(random), systems[tenant], turns)

    def _prompt(self, random: Random, at_ns: int) -> Session:
        tokens = _tokens(random, _length(random, self.prompt_tokens))
        turn = Turn(tokens, _length(random, self.answer_tokens), 0)
        return Session(at_ns, f"single-{random.randrange(self.tenants)}", self._class(random), (), (turn,))

    def _class(self, random: Random) -> ServiceClass:
        return PREMIUM if random.random() < self.premium_share else STANDARD


def _length(random: Random, mean: int) -> int:
    return max(4, min(4 * mean, round(random.lognormvariate(math.log(mean) - _SIGMA**2 / 2, _SIGMA))))


def _tokens(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.choices(range(2, VOCAB_SIZE), k=count))
