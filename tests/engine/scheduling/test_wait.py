"""How long a new request would wait: the sums, the prediction, and what comes of it in a small simulation."""

from collections import deque
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runtime.reservation import ArrivalBook, ExpectedPrompt
from engine.scheduling.cost import CostCoefficients, StepCostModel, row_work, total
from engine.scheduling.wait import (
    MAX_RETRY_MS,
    MIN_RETRY_MS,
    Arrivals,
    ClassCapacity,
    ClassLoad,
    LoadSums,
    QueueSnapshot,
    predict_drain_ns,
    predict_first_token_ns,
    retry_after_ms,
)

COST = StepCostModel.from_coefficients(CostCoefficients(10e6, 50e3, 30, 1))
ROOM = ClassCapacity(free_slots=16, free_blocks=1000, prefill_step_tokens=256)
IDLE = QueueSnapshot((ClassLoad(), ClassLoad()), (ROOM, ROOM), held_blocks=0)

counts = st.integers(0, 10_000)
loads = st.builds(ClassLoad, counts, counts, counts, counts, counts, counts, st.floats(1, 1000))


@st.composite
def capacities(draw: st.DrawFn) -> tuple[ClassCapacity, ...]:
    """A lower class has no more of anything within reach, and no fewer above it."""
    columns = [sorted(draw(st.tuples(*[st.integers(low, 900)] * 3)), reverse=True) for low in (0, 0, 1)]
    higher = sorted(draw(st.tuples(*[st.floats(0, 300)] * 3)))
    return tuple(ClassCapacity(*room) for room in zip(*columns, higher, strict=True))


snapshots = st.builds(QueueSnapshot, st.tuples(loads, loads, loads), capacities(), st.integers(0, 1000))


def test_an_idle_engine_takes_the_time_of_the_prompt() -> None:
    alone_ns = predict_first_token_ns(IDLE, 1, 200, COST)
    assert alone_ns == pytest.approx(COST.predict_ns(row_work(0, 200)), rel=0.01)
    assert predict_first_token_ns(IDLE, 1, 512, COST) > 2 * 10e6  # two chunks read the weights twice
    assert predict_drain_ns(IDLE, 1, COST) == 0


@given(snapshots, st.integers(0, 2), st.integers(1, 8192), st.data())
def test_work_adds_wait(snapshot: QueueSnapshot, service_class: int, prompt_tokens: int, data: st.DataObject) -> None:
    wait_ns = predict_first_token_ns(snapshot, service_class, prompt_tokens, COST)
    assert wait_ns > 0
    assert predict_first_token_ns(snapshot, service_class, prompt_tokens + 100, COST) >= wait_ns
    ahead = data.draw(st.integers(0, service_class))
    load = snapshot.classes[ahead]
    for longer in (
        replace(load, waiting_requests=load.waiting_requests + 3, waiting_tokens=load.waiting_tokens + 100),
        replace(load, waiting_pairs=load.waiting_pairs + 100),
        replace(load, prefill_tokens=load.prefill_tokens + 100),
        replace(load, context_tokens=load.context_tokens + 1000),
        replace(load, answer_tokens=load.answer_tokens + 10),
    ):
        classes = [*snapshot.classes]
        classes[ahead] = longer
        worse = replace(snapshot, classes=tuple(classes))
        assert predict_first_token_ns(worse, service_class, prompt_tokens, COST) >= wait_ns
        assert predict_drain_ns(worse, service_class, COST) >= predict_drain_ns(snapshot, service_class, COST)
    room = snapshot.capacities[service_class]
    for less in (
        replace(room, free_slots=max(room.free_slots - 1, 0)),
        replace(room, free_blocks=max(room.free_blocks - 1, 0)),
        replace(room, prefill_step_tokens=max(room.prefill_step_tokens - 1, 1)),
        replace(room, higher_running=room.higher_running + 1),
    ):
        narrower = replace(snapshot, capacities=tuple(less if each is room else each for each in snapshot.capacities))
        assert predict_first_token_ns(narrower, service_class, prompt_tokens, COST) >= wait_ns


@given(snapshots, st.integers(1, 8192))
def test_a_higher_class_waits_no_longer(snapshot: QueueSnapshot, prompt_tokens: int) -> None:
    waits = [predict_first_token_ns(snapshot, index, prompt_tokens, COST) for index in range(3)]
    assert waits == sorted(waits)


def test_what_waits_below_does_not_count() -> None:
    below = replace(
        IDLE, classes=(ClassLoad(), ClassLoad(waiting_requests=50, waiting_tokens=9999, waiting_pairs=10**6))
    )
    assert predict_first_token_ns(below, 0, 100, COST) == predict_first_token_ns(IDLE, 0, 100, COST)


def test_a_lower_class_yields_its_places() -> None:
    full = ClassLoad(running_requests=16, context_tokens=1600, answer_tokens=400)
    room = ClassCapacity(free_slots=0, free_blocks=500, prefill_step_tokens=256)
    standard = QueueSnapshot((ClassLoad(), full), (room, room), held_blocks=500)
    assert predict_first_token_ns(standard, 0, 100, COST) < 30e6
    assert predict_first_token_ns(standard, 1, 100, COST) > 25 * 10e6


def test_blocks_are_waited_for_as_slots_are() -> None:
    running = ClassLoad(running_requests=4, context_tokens=4 * 3900, answer_tokens=100)
    room = ClassCapacity(free_slots=12, free_blocks=100, prefill_step_tokens=8192)
    roomy = QueueSnapshot((running,), (room,), held_blocks=1000)
    assert predict_first_token_ns(roomy, 0, 1500, COST) < 200e6
    assert predict_first_token_ns(roomy, 0, 5000, COST) > 200e6


def test_a_burst_within_one_step_queues_up() -> None:
    snapshot, waits_ns = IDLE, []
    for _ in range(40):
        waits_ns.append(predict_first_token_ns(snapshot, 1, 200, COST))
        snapshot = snapshot.with_arrivals((Arrivals(), ExpectedPrompt(200, max_tokens=2).arrivals))
    assert waits_ns == sorted(set(waits_ns))
    assert waits_ns[-1] > 25 * waits_ns[0]


def test_what_is_on_its_way_counts_as_it_will_in_the_scheduler() -> None:
    """Down to the answers' bounds, as long as no answer has ended."""
    sums, book = LoadSums(), ArrivalBook(2)
    idle = replace(IDLE, classes=(ClassLoad(), sums.load()))
    for number in range(40):
        book.submit(str(number), 1, ExpectedPrompt(200, max_tokens=number))
        sums.add_waiting(200, number)
    assert idle.with_arrivals(book.by_class) == replace(IDLE, classes=(ClassLoad(), sums.load()))


def test_a_burst_that_an_idle_engine_has_no_slots_for_waits_for_answers_to_end() -> None:
    """As it does a moment later, when the first have started."""
    burst = (Arrivals(), ExpectedPrompt(20, choices=31, max_tokens=200).arrivals)
    at_once = replace(IDLE, classes=(ClassLoad(), ClassLoad(bound_tokens=0))).with_arrivals(burst)
    started = ClassLoad(15, 15 * 20, 0, 16, 0, 16 * 20, answer_tokens=100.0)
    full = ClassCapacity(free_slots=0, free_blocks=900, prefill_step_tokens=240)
    later = QueueSnapshot((ClassLoad(), started), (full, full), held_blocks=100)
    said = [predict_first_token_ns(each, 1, 20, COST) for each in (at_once, later)]
    assert said[0] > 50 * 10e6
    assert said[0] == pytest.approx(said[1], rel=0.2)


def test_arrivals_that_find_room_do_not_wait() -> None:
    premium, standard = ClassCapacity(6, 1000, 256), ClassCapacity(4, 1000, 256)
    idle = QueueSnapshot((ClassLoad(), ClassLoad()), (premium, standard), held_blocks=0)

    def depth(premium: int, standard: int, snapshot: QueueSnapshot = idle) -> int:
        return snapshot.queue_depth(tuple(Arrivals(count, 20 * count) for count in (premium, standard)))

    assert [depth(0, count) for count in (0, 4, 5, 9)] == [0, 0, 1, 5]
    assert [depth(count, 4) for count in (0, 3, 6, 7)] == [0, 3, 4, 5]
    waiting = replace(idle, classes=(ClassLoad(), ClassLoad(waiting_requests=1)))
    assert depth(2, 2, waiting) == 3, "no request overtakes a waiting one of its class"
    tight = replace(idle, capacities=(premium, ClassCapacity(4, 3, 256)))
    assert depth(0, 4, tight) == 3, "each needs two blocks of 16 tokens, or three"


def test_sums_come_and_go() -> None:
    sums = LoadSums()
    sums.add_waiting(100, 40)
    sums.add_waiting(10, 20)
    assert sums.load() == ClassLoad(2, 110, 5050 + 55, answer_tokens=15.0, bound_tokens=60)
    sums.remove_waiting(100, 40)
    sums.add_running(100, 16, 40)  # 16 tokens were cached
    assert sums.load() == ClassLoad(
        1, 10, 55, 1, prefill_tokens=83, context_tokens=17, answer_tokens=15.0, bound_tokens=60
    )
    sums.advance(computed=64, sampled=0)
    sums.advance(computed=20, sampled=1)
    assert sums.load() == ClassLoad(
        1, 10, 55, 1, prefill_tokens=0, context_tokens=101, answer_tokens=15.0, bound_tokens=60
    )
    sums.remove_running(101, 100, 40)
    sums.remove_waiting(10, 20)
    sums.check()
    assert sums.load() == ClassLoad(bound_tokens=0)


def test_the_answers_so_far_are_their_mean_and_later_the_latest_are() -> None:
    sums = LoadSums()
    for length in (10, 20, 30):
        sums.observe_answer(length)
    assert sums.answer_tokens == pytest.approx(20)
    for _ in range(1000):
        sums.observe_answer(400)
    assert sums.answer_tokens == pytest.approx(400, rel=0.01)


def test_retry_after() -> None:
    assert retry_after_ms(0, 0.5) == MIN_RETRY_MS
    assert retry_after_ms(2_000_000_000, 0.0) == 2000
    assert 2000 < retry_after_ms(2_000_000_000, 0.9) <= 2500
    assert retry_after_ms(10**15, 0.0) == MAX_RETRY_MS


# A server of 16 slots with more offered than it can do, which turns away what would wait too long.


@dataclass
class Job:
    service_class: int
    prompt_tokens: int
    answer_tokens: int
    arrived_ns: int
    predicted_ns: int
    computed: int = 0
    sampled: int = 0
    first_token_ns: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.sampled


class Server:
    """First come, first served within a class, no preemption; `LoadSums` kept as the scheduler is to keep them."""

    SLOTS, STEP_TOKENS, MAX_TOKENS = 16, 256, 256

    def __init__(self, rng: Random, classes: int) -> None:
        self.rng = rng
        self.cost = StepCostModel()
        self.sums = [LoadSums() for _ in range(classes)]
        self.waiting: list[deque[Job]] = [deque() for _ in range(classes)]
        self.running: list[Job] = []
        self.mean_higher = [0.0] * classes
        self.now_ns = 0

    def snapshot(self) -> QueueSnapshot:
        running = len(self.running)
        capacities = tuple(
            ClassCapacity(self.SLOTS - running, 10_000, self.STEP_TOKENS - running, self.mean_higher[index])
            for index in range(len(self.sums))
        )
        return QueueSnapshot(tuple(sums.load() for sums in self.sums), capacities, held_blocks=0)

    def arrive(self, service_class: int, arrived_ns: int, deadline_ns: int) -> Job | None:
        prompt_tokens = self.rng.randrange(16, 400)
        predicted_ns = predict_first_token_ns(self.snapshot(), service_class, prompt_tokens, self.cost)
        if predicted_ns > deadline_ns:
            return None
        answer_tokens = min(1 + int(self.rng.expovariate(1 / 60)), self.MAX_TOKENS)
        job = Job(service_class, prompt_tokens, answer_tokens, arrived_ns, predicted_ns)
        self.waiting[service_class].append(job)
        self.sums[service_class].add_waiting(prompt_tokens, self.MAX_TOKENS)
        return job

    def step(self) -> None:
        for queue in self.waiting:
            while queue and len(self.running) < self.SLOTS:
                job = queue.popleft()
                self.sums[job.service_class].remove_waiting(job.prompt_tokens, self.MAX_TOKENS)
                self.sums[job.service_class].add_running(job.prompt_tokens, 0, self.MAX_TOKENS)
                self.running.append(job)
        for index, mean in enumerate(self.mean_higher):
            higher = sum(job.service_class < index for job in self.running)
            self.mean_higher[index] += (higher - mean) / 256
        spare = self.STEP_TOKENS - len(self.running)
        rows = []
        for job in self.running:
            tokens = min(job.tokens - job.computed, 1 + spare)
            spare -= tokens - 1
            rows.append((job, tokens))
        work = total(row_work(job.computed, tokens) for job, tokens in rows)
        elapsed_ns = int(COST.predict_ns(work) * max(self.rng.gauss(1, 0.1), 0.5))
        self.cost.observe(work, elapsed_ns)
        self.now_ns += elapsed_ns
        for job, tokens in rows:
            self.advance(job, tokens)

    def advance(self, job: Job, tokens: int) -> None:
        sums = self.sums[job.service_class]
        job.computed += tokens
        sampled = int(job.computed == job.tokens)
        job.sampled += sampled
        sums.advance(tokens, sampled)
        job.first_token_ns = job.first_token_ns or self.now_ns * sampled
        if job.sampled == job.answer_tokens:
            sums.remove_running(job.tokens, job.computed, self.MAX_TOKENS)
            sums.observe_answer(job.sampled)
            self.running.remove(job)


def overload(seed: int, arrivals_per_s: list[float], deadline_ns: int, seconds: int) -> list[Job]:
    """The jobs that were let in, all done."""
    rng = Random(seed)
    server = Server(rng, len(arrivals_per_s))
    next_ns = [int(rng.expovariate(rate) * 1e9) for rate in arrivals_per_s]
    jobs = []
    while server.now_ns < seconds * 1e9 or server.running:
        for index, rate in enumerate(arrivals_per_s):
            while next_ns[index] <= server.now_ns and next_ns[index] < seconds * 1e9:
                job = server.arrive(index, next_ns[index], deadline_ns)
                next_ns[index] += int(rng.expovariate(rate) * 1e9)
                if job:
                    jobs.append(job)
        if server.running or any(server.waiting):
            server.step()
        else:
            server.now_ns = min(next_ns)
    for sums in server.sums:
        sums.check()
        assert sums.load() == ClassLoad(answer_tokens=sums.answer_tokens)
    return jobs


def share_within_half(jobs: list[Job]) -> float:
    close = [0.5 <= job.predicted_ns / (job.first_token_ns - job.arrived_ns) <= 1.5 for job in jobs]
    return sum(close) / len(close)


@pytest.mark.parametrize("seed", range(3))
def test_predicted_waits_are_the_real_ones_under_overload(seed: int) -> None:
    jobs = overload(seed, [25.0], deadline_ns=3_000_000_000, seconds=60)
    steady = [job for job in jobs if job.arrived_ns > 10e9]
    assert len(steady) > 300
    assert share_within_half(steady) >= 0.9


@pytest.mark.parametrize("premium_per_s", [3.0, 6.0])
def test_a_higher_class_that_keeps_coming_is_reckoned_with(premium_per_s: float) -> None:
    jobs = overload(1, [premium_per_s, 25.0], deadline_ns=3_000_000_000, seconds=60)
    standard = [job for job in jobs if job.service_class == 1 and job.arrived_ns > 10e9]
    assert len(standard) > 200
    assert share_within_half(standard) >= 0.9


def test_a_light_load_is_predicted_to_within_half_as_well() -> None:
    jobs = overload(1, [12.0], deadline_ns=3_000_000_000, seconds=60)
    assert share_within_half(jobs) >= 0.9
