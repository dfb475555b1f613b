"""A step of the rows of the last one, each one token further, is loaded in a shorter way, to the same words."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.execution.device.graphs import NO_GRAPHS, GraphSizes, row_sizes
from engine.execution.device.inputs import StepInputs, arrange, continued
from engine.execution.device.slots import DeviceSlots
from engine.scheduling.plan import ScheduledRow
from kernels.layout import BLOCK_TOKENS
from kernels.reference_step import ReferenceStepOps, store_drawn
from kernels.step import DrawnPlaces
from tests.engine.execution.device.harness import running_request

CPU = torch.device("cpu")
SLOTS, WINDOW, VOCAB = 5, 200, 50
SIZES = GraphSizes(row_sizes(SLOTS), context_tokens=SLOTS * WINDOW)


def decoding_rows(*starts: int) -> list[ScheduledRow]:
    return [
        ScheduledRow(running_request([5] * (start + 1), slot, [slot]), start, 1, True)
        for slot, start in enumerate(starts)
    ]


def further(rows: list[ScheduledRow]) -> list[ScheduledRow]:
    return [row._replace(start=row.start + 1) for row in rows]


def same(one: StepInputs | None, other: StepInputs) -> bool:
    return (
        one is not None
        and np.array_equal(one.words, other.words)
        and replace(one, words=other.words) == replace(other, words=other.words)
    )


@given(starts=st.lists(st.integers(0, 99), min_size=1, max_size=SLOTS))
def test_a_step_one_token_further_has_the_inputs_of_any_other(starts: list[int]) -> None:
    rows = decoding_rows(*starts)
    last = arrange(rows, SIZES)
    for _ in range(3):
        rows = further(rows)
        following = continued(last, rows, SIZES)
        assert same(following, arrange(rows, SIZES))
        assert following is not None
        last = following


def test_other_steps_are_none() -> None:
    rows = decoding_rows(3, 8, 5)
    last, after = arrange(rows, SIZES), further(rows)
    assert continued(last, after, SIZES) is not None
    assert continued(last, after[:2], SIZES) is None
    assert continued(last, after[::-1], SIZES) is None
    assert continued(last, [after[0]._replace(start=3), *after[1:]], SIZES) is None
    assert continued(last, [after[0]._replace(tokens=2), *after[1:]], SIZES) is None
    assert continued(last, [after[0]._replace(samples=False), *after[1:]], SIZES) is None
    assert continued(last, [after[0]._replace(tokens=2, drafts=(7,)), *after[1:]], SIZES) is None
    assert continued(last, after, replace(SIZES, context_tokens=21)) is None
    eager = arrange(rows, NO_GRAPHS)
    assert continued(eager, after, SIZES) is None


class CountingOps(ReferenceStepOps):
    """Counts uploads."""

    def __init__(self) -> None:
        self.uploads = 0

    def scatter_runs(self, words: Tensor, upload: Tensor, runs: int) -> None:
        super().scatter_runs(words, upload, runs)
        self.uploads += 1


class Pair:
    """The same steps loaded twice: one way always, and the short way wherever it applies."""

    def __init__(self) -> None:
        self.ops = CountingOps()
        self.plain, self.short = (
            DeviceSlots(ops, CPU, num_slots=SLOTS, num_rows=8, max_model_len=WINDOW, vocab_size=VOCAB)
            for ops in (ReferenceStepOps(), self.ops)
        )
        self.advanced = 0
        self._last: StepInputs | None = None

    def step(self, rows: list[ScheduledRow], token: int) -> None:
        inputs = arrange(rows, SIZES)
        self.plain.load(inputs.rows, inputs.words)
        following = None if self._last is None else continued(self._last, rows, SIZES)
        uploads = self.ops.uploads
        if following is not None and self.short.advance(following.rows, following.words):
            self.advanced += 1
        else:
            assert self.ops.uploads == uploads, "a step that is refused changes nothing"
            self.short.load(inputs.rows, inputs.words)
        self._last = inputs
        for slots in (self.plain, self.short):
            lines = slots.rows[: len(inputs.words)]
            drawn = torch.full((len(lines),), token)
            store_drawn(DrawnPlaces(lines, slots.sequences.tokens), drawn)
            slots.record_drawn(inputs.rows, inputs.words)
        assert torch.equal(self.plain._arena.words, self.short._arena.words)


@settings(max_examples=60)
@given(data=st.data())
def test_any_steps_leave_the_same_words_on_the_device(data: st.DataObject) -> None:
    """Requests decode; some are preempted and come back, and blocks past what is computed come
    and go."""
    pair, blocks = Pair(), iter(range(1, 10_000))
    requests = [running_request([5] * (10 + 7 * slot), slot, []) for slot in range(SLOTS)]
    starts = [len(request.tokens) - 1 for request in requests]
    for number in range(data.draw(st.integers(2, 24))):
        for slot, request in enumerate(requests):
            needed = starts[slot] // BLOCK_TOKENS + 1
            while len(request.block_table) < needed:
                request.block_table.append(next(blocks))
        change = data.draw(st.sampled_from(["none"] * 6 + ["preempt", "spare block", "other block", "one waits"]))
        slot = data.draw(st.integers(0, SLOTS - 1))
        request, waiting = requests[slot], None
        if change == "preempt":
            request.admissions += 1
            request.block_table = [next(blocks) for _ in request.block_table]
        elif change == "spare block":
            request.block_table.append(next(blocks))
        elif change == "other block" and len(request.block_table) > starts[slot] // BLOCK_TOKENS:
            request.block_table[-1] = next(blocks)
        elif change == "one waits":
            waiting = slot
        rows = [ScheduledRow(each, starts[place], 1, True) for place, each in enumerate(requests) if place != waiting]
        token = number % VOCAB
        pair.step(rows, token)
        for row in rows:
            row.request.tokens.append(token)
            assert row.request.slot is not None
            starts[row.request.slot] += 1


def test_a_row_whose_token_the_device_has_not_drawn_is_refused() -> None:
    slots = DeviceSlots(ReferenceStepOps(), CPU, num_slots=SLOTS, num_rows=8, max_model_len=WINDOW, vocab_size=VOCAB)
    rows = decoding_rows(3)
    last = arrange(rows, SIZES)
    slots.load(last.rows, last.words)
    following = continued(last, further(rows), SIZES)
    assert following is not None
    assert not slots.advance(following.rows, following.words)
    slots.record_drawn(last.rows, last.words)
    assert slots.advance(following.rows, following.words)


def test_most_steps_go_the_short_way() -> None:
    pair = Pair()
    rows = decoding_rows(10, 10, 10)
    for token in range(4):
        pair.step(rows, token)
        rows = further(rows)
    assert pair.advanced == 3


def test_a_row_that_begins_to_sample_is_another_step() -> None:
    """The parameters that a row samples by were ignored while it did not sample."""
    request = running_request([5] * 10, 0, [1])
    last = arrange([ScheduledRow(request, 8, 1, False)], SIZES)
    assert continued(last, [ScheduledRow(request, 9, 1, True)], SIZES) is None
