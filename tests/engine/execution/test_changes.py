"""Changes of a step's logits equal their definitions over all tokens so far, at the cost of only the new tokens."""

import math
from collections import Counter
from random import Random
from types import MappingProxyType
from typing import Any, SupportsIndex

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.changes import BatchChanges
from engine.execution.sampler import Draw, Sampler
from engine.execution.slots import SlotTable
from engine.request import STANDARD, Request, SamplingParams
from engine.scheduling.plan import ScheduledRow
from kernels.arrays import Floats
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile
from kernels.cpu.torch_host import TorchHost

VOCAB, SLOTS, WINDOW, EOS = 40, 4, 64, 2
OPS = TorchHost(CpuOps(CpuProfile(torch.float32, threads=1, products="plain", min_rows=1, probe_us={})))


def request_of(tokens: list[int], params: SamplingParams, slot: int, name: str = "r") -> Request:
    request = Request(
        id=name,
        tokens=tokens,
        prompt_tokens=len(tokens),
        params=params,
        seed=1,
        max_tokens=WINDOW,
        eos_token_ids=(EOS,),
        arrival=0,
        service_class=STANDARD,
    )
    request.slot, request.admissions, request.block_table = slot, 1, list(range(4))
    return request


def scheduled(request: Request, samples: bool = True) -> ScheduledRow:
    return ScheduledRow(request, len(request.tokens) - 1, 1, samples, ())


def by_definition(logits: Floats, draw: Draw) -> Floats:
    """Of one row, float32 [V]: biases and stops that come too early, repetition, then presence and frequency."""
    request, params, changed = draw.request, draw.request.params, logits.copy()
    for token, bias in params.logit_bias.items():
        changed[token] += np.float32(bias)
    output = [*request.tokens[request.prompt_tokens :], *draw.drafts]
    if len(output) < params.min_tokens:
        changed[[*params.stop_token_ids, *request.eos_token_ids]] = -math.inf
    times = Counter(output)
    for token in {*request.tokens[: request.prompt_tokens], *output}:
        repetition = np.float32(params.repetition_penalty)
        changed[token] = changed[token] / repetition if changed[token] > 0 else changed[token] * repetition
        if times[token]:
            presence, frequency = np.float32(params.presence_penalty), np.float32(params.frequency_penalty)
            changed[token] -= presence + frequency * np.float32(times[token])
    return changed


def assert_changes(slots: SlotTable, draws: list[Draw], seed: int = 0) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, (len(draws), VOCAB)).astype(np.float32)
    changed = logits.copy()
    BatchChanges(draws, slots).current().apply(OPS, changed)
    for row, draw in enumerate(draws):
        np.testing.assert_array_equal(changed[row], by_definition(logits[row], draw))


PARAMS = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.2]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), max_size=3).map(
        MappingProxyType
    ),
    min_tokens=st.sampled_from([0, 0, 3]),
    stop_token_ids=st.sampled_from([(), (5, EOS)]),
)


@settings(max_examples=150, deadline=None)
@given(params=st.lists(PARAMS, min_size=SLOTS, max_size=SLOTS), seed=st.integers(0, 2**32))
def test_of_requests_that_come_go_and_are_preempted(params: list[SamplingParams], seed: int) -> None:
    """Each step some requests get tokens, leave for another, change slots or come back to theirs; some have drafts."""
    rng = Random(seed)
    slots = SlotTable(SLOTS, WINDOW, VOCAB)

    def new(slot: int) -> Request:
        return request_of([rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))], rng.choice(params), slot)

    held = [new(slot) for slot in range(SLOTS)]
    for request in held:
        slots.update(scheduled(request, samples=rng.random() < 0.7))
    for step in range(8):
        for slot, request in enumerate(held):
            fate = rng.random()
            if fate < 0.15:
                held[slot] = new(slot)
            elif fate < 0.3:
                other = rng.randrange(SLOTS)
                held[slot], held[other] = held[other], held[slot]
                for place in {slot, other}:
                    held[place].slot = place
                    held[place].admissions += 1
            elif fate < 0.9:
                request.tokens += [rng.randrange(VOCAB) for _ in range(rng.choice((1, 1, 1, 4)))]
        for request in held:
            slots.update(scheduled(request))
        draws = []
        for request in held:
            drafts = tuple(rng.randrange(VOCAB) for _ in range(rng.choice((0, 0, 3))))
            draws += [Draw(request, drafts[:taken]) for taken in range(len(drafts) + 1)]
        assert_changes(slots, draws, seed=step)
        for request in held:
            request.tokens.append(rng.randrange(VOCAB))
        slots.count_tokens(held)
        assert_changes(slots, [Draw(request) for request in held], seed=step)


def test_a_penalty_scales_what_a_bias_has_changed() -> None:
    """As in vLLM V1: a logit of 2 with a bias of 4 is 6, and half of that is 3."""
    params = SamplingParams(repetition_penalty=2.0, logit_bias=MappingProxyType({7: 4.0}))
    request = request_of([7], params, 0)
    slots = SlotTable(1, WINDOW, VOCAB)
    slots.update(scheduled(request))
    logits = np.full((1, VOCAB), 2.0, dtype=np.float32)
    BatchChanges([Draw(request)], slots).current().apply(OPS, logits)
    assert (logits[0, 7], logits[0, 8]) == (3.0, 2.0)


class Watched(list[int]):
    """Tokens, and how many of them were read."""

    read = 0

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        found = super().__getitem__(key)
        self.read += len(found) if isinstance(found, list) else 1
        return found

    def __iter__(self) -> Any:
        raise AssertionError("all tokens are walked through")


@pytest.mark.parametrize("drafts", [(), (3, 3, 9)])
def test_a_step_reads_the_tokens_that_are_new(drafts: tuple[int, ...]) -> None:
    params = SamplingParams(repetition_penalty=1.1, frequency_penalty=0.1, temperature=0.5, ignore_eos=True)
    tokens = Watched([index % 35 for index in range(1000)])
    request = request_of(tokens, params, 0)
    request.block_table = list(range(70))
    slots = SlotTable(1, 2000, VOCAB)
    slots.update(scheduled(request))
    sampler, draws = Sampler(OPS, slots, VOCAB), [Draw(request, drafts)]
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    sampler.sample(logits.copy(), draws)
    for _ in range(5):
        tokens.append(7)
        tokens.read = 0
        slots.count_tokens([request])
        sampler.sample(logits.copy(), draws)
        assert tokens.read <= 1
