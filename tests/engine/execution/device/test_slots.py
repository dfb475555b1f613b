"""Slots hold what their requests are, and an upload is what is new of them."""

import pytest
import torch
from torch import Tensor

from engine.execution.device.graphs import NO_GRAPHS
from engine.execution.device.inputs import arrange
from engine.execution.device.slots import DeviceSlots
from engine.request import Request, SamplingParams
from engine.scheduling.plan import ScheduledRow
from kernels.reference_step import ReferenceStepOps, store_drawn
from kernels.step import ROW_WORDS, DrawnPlaces
from tests.engine.execution.device.harness import running_request

CPU = torch.device("cpu")
SLOTS, WINDOW, VOCAB = 4, 100, 50


class RecordingOps(ReferenceStepOps):
    """Keeps how long the runs of each upload are."""

    def __init__(self) -> None:
        self.uploads: list[list[int]] = []

    def scatter_runs(self, words: Tensor, upload: Tensor, runs: int) -> None:
        super().scatter_runs(words, upload, runs)
        ends = [*upload[1:runs].tolist(), len(upload) - 2 * runs]
        self.uploads.append([end - start for start, end in zip(upload[:runs].tolist(), ends, strict=True)])


@pytest.fixture
def ops() -> RecordingOps:
    return RecordingOps()


@pytest.fixture
def slots(ops: RecordingOps) -> DeviceSlots:
    return DeviceSlots(ops, CPU, num_slots=SLOTS, num_rows=SLOTS, max_model_len=WINDOW, vocab_size=VOCAB)


def step(slots: DeviceSlots, *rows: tuple[Request, int, int, bool], draw: int | None = 40) -> None:
    """Load rows (request, start, tokens, samples); those that sample draw the token `draw`, None for a failed step."""
    inputs = arrange([ScheduledRow(*row) for row in rows], NO_GRAPHS)
    slots.load(inputs.rows, inputs.words)
    if draw is not None:
        lines = slots.rows[: len(rows)]
        store_drawn(DrawnPlaces(lines, slots.sequences.tokens), torch.full((len(rows),), draw))
        slots.record_drawn(inputs.rows, inputs.words)


def test_a_step_of_decoding_uploads_its_lines_alone(slots: DeviceSlots, ops: RecordingOps) -> None:
    requests = [running_request(list(range(3, 13)), slot, [slot]) for slot in range(3)]
    step(slots, *((request, 0, 10, True) for request in requests))
    for request in requests:
        request.tokens.append(40)
    step(slots, *((request, 10, 1, True) for request in requests))
    assert ops.uploads[1] == [3 * ROW_WORDS]


def test_a_row_whose_token_was_just_drawn_finds_it_on_the_device(slots: DeviceSlots, ops: RecordingOps) -> None:
    request = running_request([3, 4, 5], 1, [7])
    step(slots, (request, 0, 3, True), draw=41)
    step(slots, (request, 3, 1, True), draw=42)
    assert request.tokens == [3, 4, 5]
    assert slots.sequences.tokens[1, :5].tolist() == [3, 4, 5, 41, 42]
    assert ops.uploads[1] == [ROW_WORDS]


def test_a_token_that_is_nowhere_is_a_mistake(slots: DeviceSlots) -> None:
    request = running_request([3, 4, 5], 1, [7])
    step(slots, (request, 0, 3, False))
    with pytest.raises(AssertionError, match="neither the host nor the device"):
        step(slots, (request, 3, 1, True))


def test_chunks_upload_the_prompt_once(slots: DeviceSlots, ops: RecordingOps) -> None:
    prompt = list(range(3, 43))
    request = running_request(prompt, 2, [5, 1, 3])
    step(slots, (request, 0, 16, False))
    step(slots, (request, 16, 16, False))
    step(slots, (request, 32, 8, True))
    assert slots.sequences.tokens[2, :41].tolist() == [*prompt, 40]
    assert slots.sequences.block_tables[2, :3].tolist() == [5, 1, 3]
    assert ops.uploads[1:] == [[ROW_WORDS, 16], [ROW_WORDS, 8]]


def test_a_hit_uploads_what_precedes_the_row_too(slots: DeviceSlots) -> None:
    """A request's whole sequence is there, whatever of it was computed by others."""
    request = running_request(list(range(3, 43)), 0, [5, 1, 3])
    step(slots, (request, 32, 8, True))
    assert slots.sequences.tokens[0, :40].tolist() == request.tokens


def test_a_new_block_is_one_word(slots: DeviceSlots, ops: RecordingOps) -> None:
    request = running_request(list(range(3, 19)), 1, [7])
    step(slots, (request, 0, 16, True))
    request.block_table.append(9)
    step(slots, (request, 16, 1, True))
    assert slots.sequences.block_tables[1, :2].tolist() == [7, 9]
    assert ops.uploads[1] == [ROW_WORDS, 1]


def test_a_last_block_that_was_replaced_is_uploaded(slots: DeviceSlots, ops: RecordingOps) -> None:
    request = running_request(list(range(3, 20)), 1, [7, 8])
    step(slots, (request, 0, 17, True))
    request.block_table[1] = 4
    step(slots, (request, 17, 1, True))
    assert slots.sequences.block_tables[1, :2].tolist() == [7, 4]
    assert ops.uploads[1] == [ROW_WORDS, 1]


def test_blocks_that_were_given_back_and_others_taken(slots: DeviceSlots) -> None:
    """Blocks past what is computed were for drafts, and may be others at each step."""
    request = running_request(list(range(3, 13)), 1, [7, 8, 9])
    for blocks in ([7, 8, 9], [7], [7, 4, 9, 3], [7, 4, 2]):
        request.block_table = blocks
        step(slots, (request, 9, 1, True))
        assert slots.sequences.block_tables[1, : len(blocks)].tolist() == blocks


@pytest.mark.parametrize("who", ["another", "itself, preempted"])
def test_a_slot_that_changes_hands_is_loaded_anew(slots: DeviceSlots, who: str) -> None:
    request = running_request([3, 4, 5], 1, [7], SamplingParams(temperature=0))
    step(slots, (request, 0, 3, True))
    if who == "another":
        request = running_request([9, 8], 1, [6], SamplingParams(temperature=0.5, top_k=3))
    else:
        request.admissions, request.block_table = 1, [6]
    step(slots, (request, 0, len(request.tokens), True))
    assert slots.sequences.tokens[1, : len(request.tokens)].tolist() == request.tokens
    assert slots.sequences.block_tables[1, 0] == 6


def test_columns_are_those_of_the_request(slots: DeviceSlots) -> None:
    params = SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, frequency_penalty=0.25)
    request = running_request([3], 2, [7], params, seed=-(2**62) + 3)
    greedy = running_request([4], 0, [6])
    step(slots, (request, 0, 1, True), (greedy, 0, 1, True))
    columns = slots.columns
    assert columns.inverse_temperature[[2, 0]].tolist() == [2.0, 1.0]
    assert columns.noise_scale[[2, 0]].tolist() == [1.0, 0.0]
    assert columns.top_k[[2, 0]].tolist() == [7, VOCAB]
    assert columns.top_p[[2, 0]].tolist() == pytest.approx([0.9, 1.0])
    assert columns.min_p[[2, 0]].tolist() == pytest.approx([0.1, 0.0])
    assert columns.frequency_penalty[[2, 0]].tolist() == [0.25, 0.0]
    assert columns.repetition_penalty[[2, 0]].tolist() == [1.0, 1.0]
    assert columns.seeds[2] == -(2**62) + 3


@pytest.mark.parametrize("temperature", [5e-324, 1e-40])
def test_the_lowest_temperatures_have_an_inverse(slots: DeviceSlots, temperature: float) -> None:
    step(slots, (running_request([3], 2, [7], SamplingParams(temperature=temperature)), 0, 1, True))
    assert 1e5 < slots.columns.inverse_temperature[2].item() < 1e9


def test_tokens_are_counted_once_and_those_on_the_device_too(slots: DeviceSlots) -> None:
    request = running_request([3, 4, 4], 1, [7], SamplingParams(presence_penalty=1.0))
    step(slots, (request, 0, 2, False))
    assert slots.columns.counts.stride(0) == 0, "no request needs counts yet"
    step(slots, (request, 2, 1, True), draw=4)
    step(slots, (request, 3, 1, True), draw=9)  # its token is not known to the host
    request.tokens += [4, 9]
    step(slots, (request, 4, 1, True), draw=9)
    counts = slots.columns.counts[1]
    assert {token: int(counts[token]) for token in counts.nonzero().flatten().tolist()} == {3: 1, 4: 3, 9: 2}


def test_counts_of_a_request_do_not_stay_for_the_next(slots: DeviceSlots) -> None:
    penalised = SamplingParams(presence_penalty=1.0)
    step(slots, (running_request([3, 4, 4], 1, [7], penalised), 0, 3, True))
    step(slots, (running_request([5], 1, [7], penalised), 0, 1, True))
    assert slots.columns.counts[1].nonzero().flatten().tolist() == [5]


def test_a_step_that_failed_after_it_was_loaded_may_be_tried_again(slots: DeviceSlots) -> None:
    request = running_request([3, 4, 5, 6], 1, [7], SamplingParams(presence_penalty=1.0))
    step(slots, (request, 0, 4, True), draw=None)
    step(slots, (request, 0, 2, False))
    step(slots, (request, 2, 2, True), draw=8)
    step(slots, (request, 4, 1, True), draw=None)
    step(slots, (request, 4, 1, True), draw=9)
    assert slots.sequences.tokens[1, :6].tolist() == [3, 4, 5, 6, 8, 9]
    assert slots.columns.counts[1].nonzero().flatten().tolist() == [3, 4, 5, 6, 8]
    assert int(slots.columns.counts[1, 8]) == 2


def test_a_failed_upload_keeps_slots(slots: DeviceSlots, ops: RecordingOps, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(words: object) -> Tensor:
        raise torch.OutOfMemoryError

    request = running_request([3, 4, 5], 1, [7])
    with monkeypatch.context() as patched:
        patched.setattr(slots._staging, "upload", full)
        with pytest.raises(torch.OutOfMemoryError):
            step(slots, (request, 0, 3, True))
    step(slots, (request, 0, 3, True))
    assert slots.sequences.tokens[1, :3].tolist() == [3, 4, 5]
    assert slots.sequences.block_tables[1, 0] == 7
