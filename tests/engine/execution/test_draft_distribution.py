"""Tokens drawn with drafts follow the model's distribution: the distance falls as 1 / sqrt(number of draws)."""

from functools import cache

import pytest
import torch
from torch import Tensor

from engine.execution.sampler import Draw, Sampler
from engine.execution.slots import SlotTable
from engine.request import Request
from engine.scheduling.plan import ScheduledRow
from engine.simulation import make_request
from kernels.cpu.torch_host import TorchHost
from kernels.reference_ops import ReferenceOps

VOCAB = 8
MOST = 100_000
BATCH = 20_000

_LOGITS = torch.randn((VOCAB + 1, VOCAB), generator=torch.Generator().manual_seed(3))
FIRST, SECOND = _LOGITS[0], _LOGITS[1:]
"""The model: logits of a first token, and of a second one by the first."""


def request_of(seed: int) -> Request:
    request = make_request("r", [0], seed=seed)
    request.slot = 0
    request.block_table.append(0)
    return request


@cache
def sampler() -> Sampler:
    slots = SlotTable(1, 16, VOCAB)
    slots.update(ScheduledRow(request_of(0), 0, 1, True))
    return Sampler(TorchHost(ReferenceOps(torch.device("cpu"), torch.float32)), slots, VOCAB)


def draw(logits: Tensor, draws: list[Draw]) -> Tensor:
    return torch.tensor(sampler().sample(logits.clone().numpy(), draws).tokens)


def drawn_with_drafts(seeds: range, drafter: Tensor) -> tuple[Tensor, int]:
    """Two tokens for each seed, [R, 2], and how many drafts were accepted. The first is guessed by a model with these
    logits, which has the same noise; the second is drawn behind the guess if that was right, else in a step of its own.
    """
    requests = [request_of(seed) for seed in seeds]
    here = [Draw(request) for request in requests]
    guesses = draw(drafter.expand(len(requests), -1), here)
    behind = [Draw(request, (guess,)) for request, guess in zip(requests, guesses.tolist(), strict=True)]
    firsts = draw(FIRST.expand(len(requests), -1), here)
    seconds = draw(SECOND[guesses], behind)
    right = firsts == guesses
    for request, token in zip(requests, firsts.tolist(), strict=True):
        request.tokens.append(token)
    in_next_step = draw(SECOND[firsts], here)
    return torch.stack([firsts, torch.where(right, seconds, in_next_step)], dim=1), int(right.sum())


@cache
def histogram(doubt: float, count: int) -> tuple[Tensor, float]:
    """Shares of each pair among `count` seeds, [V, V], and the acceptance rate. `doubt`: the drafter's deviation from
    the target, 0 to 1."""
    drafter = (1 - doubt) * FIRST + doubt * FIRST.flip(0)
    counts, accepted = torch.zeros(VOCAB * VOCAB), 0
    for start in range(0, count, BATCH):
        pairs, right = drawn_with_drafts(range(start, min(start + BATCH, count)), drafter)
        counts += torch.bincount(pairs[:, 0] * VOCAB + pairs[:, 1], minlength=VOCAB * VOCAB)
        accepted += right
    return (counts / count).view(VOCAB, VOCAB), accepted / count


def expected_distance(shares: Tensor, count: int) -> float:
    """Mean total variation between shares and those of `count` draws: half the sum of the mean deviations of each."""
    return float((shares * (1 - shares) * 2 / (torch.pi * count)).sqrt().sum() / 2)


@pytest.mark.parametrize("doubt", [0.0, 0.3, 1.0])
def test_pairs_are_distributed_as_without_drafts(doubt: float) -> None:
    joint = FIRST.softmax(-1)[:, None] * SECOND.softmax(-1)
    distances = {}
    for count in (1_000, 10_000, MOST):
        shares, _ = histogram(doubt, count)
        distances[count] = float((shares - joint).abs().sum() / 2)
        assert distances[count] == pytest.approx(expected_distance(joint, count), rel=0.35)
    assert distances[1_000] / distances[MOST] > 6  # ten, but for chance


@pytest.mark.parametrize("doubt", [0.0, 0.3, 1.0])
def test_a_drafter_with_the_same_noise_is_right_as_often_as_it_can_be(doubt: float) -> None:
    """At least (1 - d) / (1 + d) of the time, d the distance of its distribution from the model's."""
    drafter = (1 - doubt) * FIRST + doubt * FIRST.flip(0)
    distance = float((drafter.softmax(-1) - FIRST.softmax(-1)).abs().sum() / 2)
    _, rate = histogram(doubt, MOST)
    assert (1 - distance) / (1 + distance) - 0.01 <= rate <= 1 - distance + 0.01
