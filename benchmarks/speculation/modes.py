"""Runs the same requests in one engine with drafts switched off, always on, and as the controller decides."""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine import Engine, EngineConfig, SamplingParams
from engine.speculation import Candidate, DepthPolicy, FixedDepth, SpeculationLoad, StepOutcome

MODEL, DRAFT = "model", "draft"
MOST = 8
ON_DEPTH = 4
"""Depth of "always on": a reasonable one, not chosen for the pair."""
LEARNING_STEPS = 100
"""A server has been running for longer."""


class Mode(StrEnum):
    OFF = "off"
    ON = "on"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Job:
    """A request: the ids of its prompt, and how its answer is drawn."""

    prompt: Sequence[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Run:
    """Output tokens a second of some jobs, and what they answered."""

    tokens_s: float
    answers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tokens a second by mode, one figure a round; what share of the controller's drafts came true; and what share of
    the answers is the same, token by token, as without drafts: all of them, with the native kernels. Without those, a
    product of several rows rounds otherwise than one of a single row, and a near tie goes the other way."""

    tokens_s: Mapping[Mode, list[float]]
    acceptance: float
    same: float

    def median(self, mode: Mode) -> float:
        return statistics.median(self.tokens_s[mode])

    def ratio(self, mode: Mode, *others: Mode) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(self.ratios(mode, *others))

    def ratios(self, mode: Mode, *others: Mode) -> list[float]:
        """To the better of the others in each round: neighbours in time are compared."""
        rounds = zip(self.tokens_s[mode], *(self.tokens_s[other] for other in others), strict=True)
        return [mine / max(theirs) for mine, *theirs in rounds]


class SwitchedPolicy:
    """The policy of the mode that is on. The others see nothing of it, and know what they learnt in their own."""

    def __init__(self, controller: DepthPolicy) -> None:
        self.mode = Mode.CONTROLLER
        self._policies: dict[Mode, DepthPolicy] = {
            Mode.OFF: FixedDepth(0),
            Mode.ON: FixedDepth(ON_DEPTH),
            Mode.CONTROLLER: controller,
        }

    @property
    def saved_ns(self) -> int:
        return self._policies[Mode.CONTROLLER].saved_ns

    def depth(self, proposer: str, rank: int, load: SpeculationLoad) -> int:
        return self._policies[self.mode].depth(proposer, rank, load)

    def choose(self, proposer: str, load: SpeculationLoad, candidates: Sequence[Candidate]) -> list[int]:
        return self._policies[self.mode].choose(proposer, load, candidates)

    def observe(self, outcome: StepOutcome) -> None:
        self._policies[self.mode].observe(outcome)


class Bench:
    """An engine with drafts, from a draft model where one is given, else looked up. A context manager."""

    def __init__(self, path: Path, draft: Path | None) -> None:
        models = {MODEL: path} if draft is None else {MODEL: path, DRAFT: draft}
        config = EngineConfig(
            dtype="bfloat16",
            prefix_cache=False,  # the same prompts come again in each mode
            drafts={} if draft is None else {MODEL: DRAFT},
            ngram=draft is None,
            draft_depth=MOST,
            speculate_below=10**6,  # where it pays is for the controller to find
        )
        self.engine = Engine.load(models, config)
        speculator = self.engine._core._runtimes[MODEL].step_loop._speculator
        assert speculator is not None
        self._policy = SwitchedPolicy(speculator._policy)
        speculator._policy = self._policy

    def __enter__(self) -> "Bench":
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def compare(self, jobs_of: Callable[[int], Sequence[Job]], concurrency: int, rounds: int) -> Comparison:
        """All modes on the same jobs, in turns; the controller has some rounds before, to learn."""
        learnt_at = self._steps() + LEARNING_STEPS
        while self._steps() < learnt_at:
            self._run(Mode.CONTROLLER, jobs_of(rounds), concurrency)
        figures: dict[Mode, list[float]] = {mode: [] for mode in Mode}
        answers = same = proposed = accepted = 0
        modes = list(Mode)
        for number in range(rounds):
            jobs, runs = jobs_of(number), {}
            for mode in modes[number % len(modes) :] + modes[: number % len(modes)]:
                before = self._drafts()
                runs[mode] = self._run(mode, jobs, concurrency)
                figures[mode].append(runs[mode].tokens_s)
                if mode is Mode.CONTROLLER:
                    after = self._drafts()
                    proposed += after[0] - before[0]
                    accepted += after[1] - before[1]
            for drafted in (Mode.ON, Mode.CONTROLLER):
                pairs = zip(runs[drafted].answers, runs[Mode.OFF].answers, strict=True)
                answers += len(jobs)
                same += sum(one == other for one, other in pairs)
        return Comparison(figures, accepted / max(proposed, 1), same / answers)

    def _run(self, mode: Mode, jobs: Sequence[Job], concurrency: int) -> Run:
        """A closed loop: `concurrency` are under way until all are done."""
        self._policy.mode = mode
        answers: list[tuple[int, ...]] = [()] * len(jobs)

        async def one(index: int, job: Job, gate: asyncio.Semaphore) -> None:
            async with gate:
                async for delta in self.engine.stream(MODEL, job.prompt, job.params):
                    answers[index] += tuple(delta.token_ids)

        async def everything() -> None:
            gate = asyncio.Semaphore(concurrency)
            await asyncio.gather(*(one(index, job, gate) for index, job in enumerate(jobs)))

        started = time.perf_counter()
        asyncio.run(everything())
        return Run(sum(map(len, answers)) / (time.perf_counter() - started), tuple(answers))

    def _steps(self) -> int:
        return self.engine.stats()[MODEL].steps_total

    def _drafts(self) -> tuple[int, int]:
        """Proposed and accepted so far."""
        stats = self.engine.stats()[MODEL].speculation
        drafts = stats.drafts if stats is not None else ()
        return sum(each.proposed_total for each in drafts), sum(each.accepted_total for each in drafts)
