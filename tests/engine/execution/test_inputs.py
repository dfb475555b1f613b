"""A step's inputs are those of its plan, whatever is kept of the step before."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.execution.inputs import RowPlacer, StepInputs, wanted_tokens
from engine.execution.slots import SlotTable
from engine.memory import BlockPool, KVCacheManager
from engine.request import Pooling, Request, SamplingParams
from engine.scheduling import RowResult, ScheduledRow, Scheduler, StepPlan, StepResult
from engine.scheduling.drafting import DraftCapacity, Drafts
from engine.simulation import make_request

SLOTS, WINDOW, VOCAB = 6, 200, 50


class Machine:
    """A scheduler whose steps draw random tokens, and a placer that each of its plans goes through."""

    def __init__(self, seed: int, *, drafts: bool = False) -> None:
        self.rng = random.Random(seed)
        config = SchedulerConfig(max_running=SLOTS, step_tokens=64, chunk_tokens=24)
        self.scheduler = Scheduler(config, KVCacheManager(BlockPool(40)), WINDOW)
        self.placer = RowPlacer(SlotTable(SLOTS, WINDOW, VOCAB))
        self.drafts = drafts
        self.arrivals = 0

    def add(self, prompt_tokens: int, max_tokens: int) -> Request:
        prompt = [self.rng.randrange(VOCAB) for _ in range(prompt_tokens)]
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = make_request(str(self.arrivals), prompt, arrival=self.arrivals, params=params)
        self.arrivals += 1
        self.scheduler.add(request)
        return request

    def step(self) -> tuple[StepPlan, StepInputs] | None:
        plan = self.scheduler.schedule(draft=self._draft if self.drafts else None)
        if plan is None:
            return None
        inputs = self.placer.place(plan)
        assert_inputs_of(plan, inputs)
        self.scheduler.commit(plan, StepResult(tuple(map(self._result, plan.rows))))
        return plan, inputs

    def _result(self, row: ScheduledRow) -> RowResult:
        token = self.rng.randrange(VOCAB) if row.samples else None
        return RowResult(token=token, accepted=self.rng.randint(0, len(row.drafts)))

    def _draft(self, room: DraftCapacity) -> Drafts:
        return {
            request: tuple(self.rng.randrange(VOCAB) for _ in range(self.rng.randint(0, most)))
            for request, most in room.useful.items()
            if self.rng.random() < 0.3
        }


def assert_inputs_of(plan: StepPlan, inputs: StepInputs) -> None:
    rows = plan.rows if inputs.order is None else [plan.rows[place] for place in inputs.order]
    assert sorted(map(id, rows)) == sorted(map(id, plan.rows))
    keys = [(row.tokens > 1 or not row.samples, row.tokens, row.start + row.tokens) for row in rows]
    assert keys == sorted(keys)
    tokens = [[*row.request.tokens[row.start : row.start + row.tokens], *row.drafts] for row in rows]
    assert inputs.token_ids.tolist() == [token for each in tokens for token in each]
    assert inputs.rows.query_lens.tolist() == [row.tokens for row in rows]
    assert inputs.rows.context_lens.tolist() == [row.start + row.tokens for row in rows]
    assert_wanted(rows, inputs)
    for row, table in zip(rows, inputs.rows.block_tables.tolist(), strict=True):
        blocks = -(-(row.start + row.tokens) // BLOCK_TOKENS)
        assert table[:blocks] == row.request.block_table[:blocks], "a row has another's blocks"
    assert inputs.entered_blocks().tolist() == entered_blocks(rows)
    decoding = [row.request for row in rows if row.tokens == 1 and row.samples]
    assert [draw.request for draw in inputs.decoding] == decoding


def assert_wanted(rows: Sequence[ScheduledRow], inputs: StepInputs) -> None:
    """Of each row its drafts and the token before them; `ends` says where the last of those is."""
    ends = np.cumsum([row.tokens for row in rows])
    counts = [len(row.drafts) + 1 for row in rows]
    wanted = [index for end, count in zip(ends, counts, strict=True) for index in range(end - count, end)]
    assert (list(range(ends[-1])) if inputs.wanted is None else inputs.wanted.tolist()) == wanted
    assert inputs.ends.tolist() == (np.cumsum(counts) - 1).tolist()


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (SamplingParams(), [1, 1, 1]),
        (SamplingParams(prompt_logprobs=0), [16, 16, 1]),
        (SamplingParams(max_tokens=0, pooling=Pooling.MEAN), [16, 16, 1]),
        (SamplingParams(max_tokens=0, pooling=Pooling.LAST), [1, 1, 1]),
    ],
    ids=str,
)
def test_hidden_states_that_are_read(params: SamplingParams, wanted: list[int]) -> None:
    request = make_request("r", [1] * 33, params=params)
    rows = [ScheduledRow(request, start, min(16, 33 - start), start == 32) for start in (0, 16, 32)]
    assert [wanted_tokens(row, None) for row in rows] == wanted


@pytest.mark.parametrize(("window", "wanted"), [(16, 1), (15, 16), (1, 16)])
def test_hidden_states_that_no_later_one_stands_for(window: int, wanted: int) -> None:
    """All hidden states are read where the last token's window does not reach back over the row."""
    row = ScheduledRow(make_request("r", [1] * 33), 0, 16, samples=False)
    assert wanted_tokens(row, window) == wanted


def entered_blocks(rows: Sequence[ScheduledRow]) -> list[int]:
    """Those of which a row is the first to write a part, and does not fill it."""
    entered = []
    for row in rows:
        last, filled = divmod(row.start + row.tokens, BLOCK_TOKENS)
        if filled and row.start <= last * BLOCK_TOKENS:
            entered.append(row.request.block_table[last])
    return entered


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "with drafts"])
@pytest.mark.parametrize("seed", range(20))
def test_inputs_are_those_of_the_plan(seed: int, drafts: bool) -> None:
    """While requests come, end, are preempted, paused and aborted between the steps, for want of blocks, too."""
    machine = Machine(seed, drafts=drafts)
    rng, scheduler = random.Random(~seed), machine.scheduler
    decoded = 0
    for _ in range(300):
        if rng.random() < 0.08:
            machine.add(rng.randint(1, 60), rng.randint(0, 60))
        here = [request.id for request in scheduler.running]
        if here and rng.random() < 0.04:
            change = rng.choice([scheduler.preempt, scheduler.pause, scheduler.abort])
            change(rng.choice(here))
        for number in range(machine.arrivals):
            if rng.random() < 0.02:
                scheduler.resume(str(number))
        if (step := machine.step()) is not None:
            decoded += bool(step[1].decoding)
    assert decoded > 20


def test_draws_are_the_same_list_while_the_same_requests_decode() -> None:
    machine = Machine(0)
    requests = [machine.add(prompt_tokens, 60) for prompt_tokens in (20, 10, 15)]
    machine.step()
    lists = []
    for _ in range(20):
        step = machine.step()
        assert step is not None
        lists.append(step[1].decoding)
    assert lists[0]
    assert all(each is lists[0] for each in lists), "blocks that are added in between change nothing"

    machine.scheduler.preempt(requests[1].id)
    for _ in range(3):
        step = machine.step()
    assert step is not None
    assert step[1].decoding is not lists[0], "it may have come back to another slot"


def test_draws_are_the_same_list_while_a_prompt_is_computed_beside_them() -> None:
    machine = Machine(0)
    machine.add(20, 60)
    machine.add(10, 60)
    machine.step()
    step = machine.step()
    assert step is not None
    draws = step[1].decoding
    assert len(draws) == 2
    machine.add(60, 10)
    for tokens in (24, 24):
        step = machine.step()
        assert step is not None
        assert step[0].total_tokens == tokens + 2
        assert step[1].decoding is draws


def test_a_request_that_comes_back_with_one_token_to_compute_has_its_new_blocks() -> None:
    """As many as before, and nothing else was computed in between: cached blocks held all but its last token."""
    request = make_request("r", [1] * 16)
    request.tokens += [2]
    request.slot, request.admissions = 0, 1
    placer = RowPlacer(SlotTable(SLOTS, WINDOW, VOCAB))
    plan = StepPlan(1, (ScheduledRow(request, 16, 1, True),))
    for blocks in ([3, 4], [7, 5]):
        request.block_table[:] = blocks
        assert_inputs_of(plan, placer.place(plan))
        request.admissions += 1


class CountedTables(np.ndarray):  # type: ignore[type-arg]
    """Counts the entries that are read of it."""

    read = 0

    def __getitem__(self, key: object) -> np.ndarray:  # type: ignore[override, type-arg]
        found = np.asarray(self)[key]  # type: ignore[index]
        CountedTables.read += found.size
        return found


def test_a_long_table_beside_short_ones_costs_its_own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of all rows: of 63 short ones and one of 8000 blocks, few more are copied than they have."""
    slots = SlotTable(64, 8000 * BLOCK_TOKENS, VOCAB)
    slots.tables = slots.tables.view(CountedTables)
    monkeypatch.setattr(CountedTables, "read", 0)
    contexts = np.array([100] * 63 + [8000 * BLOCK_TOKENS])
    tables = slots.tables_of(np.arange(64), contexts)
    assert tables.shape == (64, 8000)
    assert CountedTables.read <= 3 * (63 * 7 + 8000)


def test_a_block_that_comes_is_all_that_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(0)
    for prompt_tokens in (20, 10, 15):
        machine.add(prompt_tokens, 150)
    for _ in range(3):
        step = machine.step()
    assert step is not None
    slots = machine.placer._slots
    slots.tables = slots.tables.view(CountedTables)
    monkeypatch.setattr(CountedTables, "read", 0)
    tables = step[1].rows.block_tables
    for _ in range(100):
        step = machine.step()
        assert step is not None
        assert step[1].rows.block_tables is tables, "the tables are made again"
    assert CountedTables.read <= 3 * 7  # numpy reads what it writes to
