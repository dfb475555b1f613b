"""The controller finds the depth that brings most, keeps it, and costs next to nothing where no drafts pay."""

import random
from itertools import groupby

import pytest

from engine.scheduling.cost import StepCostModel, StepWork
from engine.speculation.controller import DepthController
from engine.speculation.policy import Candidate, Drafting, SpeculationLoad, StepOutcome, Verified
from tests.engine.speculation.synthetic import MOST, Bench, Drafter

SETTLING_STEPS = 500
DEVICES = {
    "each token as dear as the next": lambda tokens: 12 + 0.6 * tokens,
    "compute-bound": lambda tokens: 4 + 2.0 * tokens,
    "products in eights, small ones apart": lambda tokens: {1: 9, 2: 13, 3: 13, 4: 13}.get(
        tokens, 11 + 0.75 * (-(-tokens // 8) * 8)
    ),
    "as good as free up to 32": lambda tokens: 12 if tokens <= 32 else 12 + 0.4 * (tokens - 32),
}
PROPOSERS = {
    "n-gram": (lambda requests: 0.02, 0.4),
    "small model": (lambda requests: 0.8 + 0.03 * requests, 1.0),
    "dear model": (lambda requests: 3.0 + 0.2 * requests, 1.0),
}


def bench(device: str, proposer: str, acceptance: float, running: int, **options: int) -> Bench:
    forward_ms, hits = PROPOSERS[proposer]
    return Bench(DEVICES[device], Drafter(acceptance, forward_ms, hits), running, **options)


@pytest.mark.parametrize("running", [1, 24])
@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("device", DEVICES)
def test_speed_is_close_to_the_best_fixed_depth(device: str, proposer: str, acceptance: float, running: int) -> None:
    measured = bench(device, proposer, acceptance, running)
    measured.run(SETTLING_STEPS)
    assert measured.run(400).of_best >= 0.97


@pytest.mark.parametrize("running", [1, 6])
def test_it_follows_traffic_that_changes(running: int) -> None:
    measured = bench("each token as dear as the next", "small model", 0.9, running)
    measured.run(SETTLING_STEPS)
    for acceptance in (0.1, 0.8):
        measured.drafter.acceptance = acceptance
        measured.run(2000)
        assert measured.run(400).of_best >= 0.97


def test_it_follows_a_device_that_changes() -> None:
    measured = bench("as good as free up to 32", "small model", 0.7, 6)
    measured.run(SETTLING_STEPS)
    measured.step_ms = lambda tokens: 3 + 2.5 * tokens
    measured.run(SETTLING_STEPS)
    assert measured.run(400).of_best >= 0.97


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("acceptance", [0.3, 0.5, 0.7])
def test_it_keeps_a_depth(acceptance: float, seed: int) -> None:
    """Noise changes it a few times in a thousand steps; trials of two steps aside."""
    measured = bench("each token as dear as the next", "small model", acceptance, 4, seed=seed)
    measured.run(SETTLING_STEPS)
    del measured.depths[:]
    measured.run(1000)
    kept = [depth for depth, run in groupby(measured.depths) if len(list(run)) > 2]
    assert sum(depth != before for depth, before in zip(kept[1:], kept, strict=False)) <= 8


@pytest.mark.parametrize("running", [1, 16])
def test_trials_cost_little_where_no_drafts_pay(running: int) -> None:
    measured = bench("compute-bound", "dear model", 0.05, running)
    measured.run(SETTLING_STEPS)
    del measured.depths[:]
    rates = measured.run(3000)
    assert rates.chosen >= 0.985 * rates.fixed[0]
    assert any(measured.depths), "it never looks whether they have become better"


def test_none_are_granted_where_too_many_run() -> None:
    measured = bench("as good as free up to 32", "small model", 0.95, 8, below=8)
    measured.run(50)
    assert not any(measured.depths)
    fewer = bench("as good as free up to 32", "small model", 0.95, 7, below=8)
    fewer.run(50)
    assert fewer.depths[-1] > 0


def test_asking_changes_nothing() -> None:
    measured = bench("each token as dear as the next", "small model", 0.5, 4)
    for _ in range(200):
        asked = {measured.controller.depth("drafter", 0, measured.load) for _ in range(3)}
        assert len(asked) == 1
        measured.run(1)


def test_what_lags_too_far_for_what_is_left_of_its_answer_is_left_out() -> None:
    """Drafting pays here. To catch up takes half a millisecond a token."""
    measured = bench("as good as free up to 32", "small model", 0.8, 2)
    controller = measured.controller
    measured.run(SETTLING_STEPS)
    for _ in range(20):
        caught_up = Drafting("drafter", 0, 0, 64, 0, 32_000_000)
        work = StepWork(2, 400, 0, 2)
        controller.observe(StepOutcome(measured.load, work, (caught_up,), (), 12_000_000))
    near, far = Candidate(0, MOST, 20, 10, 100), Candidate(0, MOST, 4000, 10, 100)
    ends_soon = Candidate(0, MOST, 60, 10, 2)
    granted = {far: 0, ends_soon: 0, near: 0}
    for _ in range(50):
        for other in (far, ends_soon):
            chosen = controller.choose("drafter", measured.load, [near, other])
            granted[near] += chosen[0] > 0
            granted[other] += chosen[1] > 0
        measured.run(1)
    assert granted[near] >= 90
    assert granted[far] <= 10, "but for trials"
    assert granted[ends_soon] <= 10, "but for trials"


class TwoClasses:
    """Requests of two classes whose drafts are accepted at different rates, 4 of each."""

    def __init__(self, acceptance: tuple[float, float]) -> None:
        self.drafters = [Drafter(each, _cheap) for each in acceptance]
        self.rng = random.Random(0)
        self.controller = DepthController(StepCostModel(), max_depth=MOST, below=100)

    def step(self) -> list[int]:
        load = SpeculationLoad(8, 0, 1600)
        candidates = [Candidate(rank, MOST, 1, 32, 100) for rank in (0, 1) for _ in range(4)]
        chosen = self.controller.choose("drafter", load, candidates)
        depths = {index: depth for index, depth in enumerate(chosen) if depth}
        verified = tuple(
            Verified("drafter", index // 4, depth, self.drafters[index // 4].accepted(depth, self.rng))
            for index, depth in depths.items()
        )
        drafting: tuple[Drafting, ...] = ()
        if depths:
            elapsed_ns = round(1e6 * max(chosen) * _cheap(len(depths)))
            drafting = (Drafting("drafter", len(depths), max(chosen), len(depths), sum(chosen), elapsed_ns),)
        elapsed_ns = round(1e6 * DEVICES["each token as dear as the next"](8 + sum(chosen)))
        work = StepWork(8 + sum(chosen), 1600, 0, 8)
        self.controller.observe(StepOutcome(load, work, drafting, verified, elapsed_ns))
        return chosen


def _cheap(requests: int) -> float:
    return 0.3


def test_each_class_has_its_own_depth() -> None:
    both = TwoClasses((0.95, 0.05))
    for _ in range(SETTLING_STEPS):
        both.step()
    chosen = [both.step() for _ in range(100)]
    assert sum(each[0] for each in chosen) > 300
    assert sum(each[4] for each in chosen) < 100


def test_what_one_proposer_was_granted_counts_for_the_next() -> None:
    """Half of the requests have drafts of the first. Up to 32 tokens cost nothing, each beyond is dear: the two keep to
    that together, where each alone would go further."""
    rng = random.Random(0)
    controller = DepthController(StepCostModel(), max_depth=MOST, below=100)
    load, drafter = SpeculationLoad(6, 0, 1200), Drafter(0.9, _cheap)
    tokens = []
    for _ in range(SETTLING_STEPS + 200):
        candidates = [Candidate(0, MOST, 0, 32, 100)] * 3
        chosen = {name: controller.choose(name, load, candidates) for name in ("first", "second")}
        verified = tuple(
            Verified(name, 0, depth, drafter.accepted(depth, rng)) for name in chosen for depth in chosen[name] if depth
        )
        drafting = tuple(
            Drafting(name, 3, max(depths), 0, sum(depths), 1000) for name, depths in chosen.items() if any(depths)
        )
        tokens.append(6 + sum(map(sum, chosen.values())))
        elapsed_ns = 12_000_000 + 4_000_000 * max(tokens[-1] - 32, 0)
        work = StepWork(tokens[-1], 1200, 0, 6)
        controller.observe(StepOutcome(load, work, drafting, verified, elapsed_ns))
    settled = tokens[SETTLING_STEPS:]
    assert sum(24 <= each <= 32 for each in settled) > 0.9 * len(settled)


def test_it_says_what_time_drafts_have_saved() -> None:
    """The time of as many tokens without drafts, less what it took: by what is known of the device, and so about."""
    measured = bench("as good as free up to 32", "small model", 0.8, 2)
    measured.run(SETTLING_STEPS)
    before_ns, steps = measured.controller.saved_ns, len(measured.depths)
    rates = measured.run(1000)
    depths = measured.depths[steps:]
    tokens = sum(2 + 2 * measured.drafter.gain(depth) for depth in depths)
    saved_ms = tokens / rates.fixed[0] - tokens / rates.chosen
    assert (measured.controller.saved_ns - before_ns) / 1e6 == pytest.approx(saved_ms, rel=0.15)
