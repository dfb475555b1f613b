"""A device of known costs and drafts of known acceptance, for the controller to find its way on.

What it does is judged by what its choices bring in expectation, so that luck with accepted drafts decides no test.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.scheduling.cost import StepCostModel, StepWork
from engine.speculation.controller import DepthController
from engine.speculation.policy import Candidate, Drafting, SpeculationLoad, StepOutcome, Verified

MOST = 8
CONTEXT_TOKENS = 200
"""Of each request, at all times."""
NOISE = 0.05
"""Of times, relative."""
HICCUPS = 0.002
"""Share of the steps that take three times as long."""


@dataclass(slots=True)
class Drafter:
    """Has drafts for a request with probability `hits`; each is accepted with `acceptance`, given those before it.
    A forward pass of its own takes `forward_ms` by the requests."""

    acceptance: float
    forward_ms: Callable[[int], float]
    hits: float = 1.0

    def accepted(self, depth: int, rng: random.Random) -> int:
        count = 0
        while count < depth and rng.random() < self.acceptance:
            count += 1
        return count

    def gain(self, depth: int) -> float:
        return sum(self.acceptance**position for position in range(1, depth + 1))


@dataclass(slots=True)
class Rates:
    """Expected tokens a millisecond of some steps: as they were, and with each fixed depth instead."""

    chosen: float
    fixed: Sequence[float]

    @property
    def of_best(self) -> float:
        """Result of the chosen depths, as a share of the best fixed depth's."""
        return self.chosen / max(self.fixed)


@dataclass(slots=True)
class _Sum:
    tokens: float = 0.0
    ms: float = 0.0

    def add(self, tokens: float, ms: float) -> None:
        self.tokens += tokens
        self.ms += ms


@dataclass(slots=True)
class Bench:
    """Decode steps of a constant number of requests, under a controller. `step_ms` of a step by its tokens."""

    step_ms: Callable[[int], float]
    drafter: Drafter
    running: int
    seed: int = 0
    below: int = 10**6
    depths: list[int] = field(default_factory=list)
    """The depth of each step in which there were drafts to be had."""
    cost_model: StepCostModel = field(default_factory=StepCostModel)
    controller: DepthController = field(init=False)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.controller = DepthController(self.cost_model, max_depth=MOST, below=self.below)
        self.rng = random.Random(self.seed)
        self._prefill(128)

    def _prefill(self, tokens: int) -> None:
        """A step with a chunk of prefill in it, as there is one whenever a request comes."""
        work = StepWork(self.running + tokens, self.running * CONTEXT_TOKENS + tokens, tokens**2 // 2, self.running + 1)
        self._learn(work, round(1e6 * (self.step_ms(self.running) + 0.3 * tokens)))

    def run(self, steps: int) -> Rates:
        chosen, fixed = _Sum(), [_Sum() for _ in range(MOST + 1)]
        for _ in range(steps):
            hits = sum(self.rng.random() < self.drafter.hits for _ in range(self.running))
            depths = self._step(hits)
            chosen.add(*self._expected(len(depths), depths))
            for depth, each in enumerate(fixed):
                each.add(*self._expected(hits, [depth] * hits if depth else []))
        return Rates(chosen.tokens / chosen.ms, [each.tokens / each.ms for each in fixed])

    def _expected(self, requests: int, depths: Sequence[int]) -> tuple[float, float]:
        drafting_ms = max(depths) * self.drafter.forward_ms(requests) if depths else 0.0
        tokens = self.running + sum(self.drafter.gain(depth) for depth in depths)
        return tokens, self.step_ms(self.running + sum(depths)) + drafting_ms

    def _step(self, hits: int) -> list[int]:
        """One step; the depths of those that had drafts."""
        drafting: tuple[Drafting, ...] = ()
        depths = [depth for depth in self.choose(hits) if depth]
        if hits:
            self.depths.append(max(depths, default=0))
        if depths:
            elapsed_ns = self._draw_ns(max(depths) * self.drafter.forward_ms(len(depths)))
            drafting = (Drafting("drafter", len(depths), max(depths), len(depths), sum(depths), elapsed_ns),)
        verified = tuple(Verified("drafter", 0, depth, self.drafter.accepted(depth, self.rng)) for depth in depths)
        tokens = self.running + sum(depths)
        work = StepWork(tokens, self.running * CONTEXT_TOKENS, 0, self.running)
        self._learn(work, self._draw_ns(self.step_ms(tokens)), drafting, verified)
        return depths

    def choose(self, hits: int, lag_tokens: int = 1) -> list[int]:
        """Depths that the controller grants where `hits` of the requests could have drafts."""
        if not self.controller.depth("drafter", 0, self.load):
            return []
        candidates = [Candidate(0, MOST if index < hits else 0, lag_tokens, 32, 100) for index in range(self.running)]
        return self.controller.choose("drafter", self.load, candidates)

    @property
    def load(self) -> SpeculationLoad:
        return SpeculationLoad(self.running, 0, self.running * CONTEXT_TOKENS)

    def _draw_ns(self, ms: float) -> int:
        hiccup = 3.0 if self.rng.random() < HICCUPS else 1.0
        return round(1e6 * ms * hiccup * max(self.rng.gauss(1.0, NOISE), 0.5))

    def _learn(
        self, work: StepWork, elapsed_ns: int, drafting: tuple[Drafting, ...] = (), verified: tuple[Verified, ...] = ()
    ) -> None:
        self.cost_model.observe(work, elapsed_ns)
        self.controller.observe(StepOutcome(self.load, work, drafting, verified, elapsed_ns))
