"""The simulated device: steps that take virtual time, and that check whose KV they read and whose adapter they have."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.config import BLOCK_TOKENS
from engine.request import Pooling
from engine.scheduling.plan import LaunchStats, PendingStep, ScheduledRow, StepPlan, StepResult
from engine.simulation.fake_executor import FakeExecutor
from tests.whole import threads
from tests.whole.adapters import PackedAdapter
from tests.whole.clock import VirtualClock


@dataclass(slots=True)
class Speed:
    """Of a device: nanoseconds a step, a token, a thousand tokens of context. `factor` stretches all of it."""

    step_ns: int = 3_000_000
    token_ns: int = 60_000
    context_ns: int = 50_000
    factor: float = 1.0

    def of(self, plan: StepPlan) -> int:
        context = sum(row.start for row in plan.rows)
        return int(self.factor * (self.step_ns + plan.total_tokens * self.token_ns + context * self.context_ns // 1000))


@dataclass(slots=True)
class Faults:
    """Faults to inject: into the next step, or into every row of a request whose prompt has `poison` in it."""

    hang_ns: int = 0
    poison: tuple[int, ...] = ()
    fails: bool = False
    short: bool = False


class SimulatedDevice:
    """An `Executor`. With `async_depth=1` a step begins when the one before it ends, as on a GPU."""

    def __init__(
        self,
        clock: VirtualClock,
        num_blocks: int,
        vocab_size: int,
        *,
        async_depth: int = 0,
        num_states: int = 0,
        windows: Sequence[int | None] = (),
        copy_s: float = 0.0,
        computed: dict[str, set[str]] | None = None,
    ) -> None:
        """`copy_s`: time of an adapter's copy into its slot. `computed` gets the digests of the adapters with which
        each request was computed, by the request's id at the gateway; empty: none."""
        self.speed = Speed()
        self.faults = Faults()
        self.busy_ns = 0
        self.steps = 0
        self.longest_ns = 0
        self.num_blocks = num_blocks
        self._salts: dict[str, bytes] = {}
        self._copy_ns = int(copy_s * 1e9)
        self._copies: dict[int, tuple[PackedAdapter, int]] = {}
        """By slot: an adapter that is copied there, and when it is there."""
        self._computed = {} if computed is None else computed
        self._clock = clock
        self._inner = FakeExecutor(
            num_blocks,
            vocab_size,
            async_depth=async_depth,
            num_states=num_states,
            windows=windows,
            is_poisoned=self._is_poisoned,
        )
        self._ends_ns: deque[int] = deque([0], maxlen=1)

    def succeed(self, former: "SimulatedDevice") -> None:
        """This is the same device, used by the next process: as fast and as faulty as it was, with an empty memory."""
        self.speed, self.faults = former.speed, former.faults
        self.busy_ns, self.steps, self.longest_ns = former.busy_ns, former.steps, former.longest_ns

    @property
    def async_depth(self) -> int:
        return self._inner.async_depth

    @property
    def micro_batches(self) -> int:
        return self._inner.micro_batches

    @property
    def launches(self) -> LaunchStats | None:
        return self._inner.launches

    @property
    def expert_tokens(self) -> tuple[int, ...]:
        return self._inner.expert_tokens

    @property
    def takes_drafts(self) -> bool:
        return self._inner.takes_drafts

    @property
    def adapter_layout(self) -> None:
        """Only this device packs its adapters."""

    def pack_adapter(self, weights: str) -> PackedAdapter:
        """`weights`: the adapter's digest."""
        return PackedAdapter(weights)

    def put_adapter(self, slot: int, packed: PackedAdapter | None) -> None:
        """Begin to fill a slot: until the copy has ended, it holds garbage."""
        self._inner.put_adapter(slot, None)
        self._copies.pop(slot, None)
        if packed is not None:
            self._copies[slot] = packed, self._clock.now_ns + self._copy_ns
            self._end_copies()

    def is_resident(self, slot: int) -> bool:
        return slot not in self._copies or self._copies[slot][1] <= self._clock.now_ns

    def _end_copies(self) -> None:
        for slot in [slot for slot in self._copies if self.is_resident(slot)]:
            packed, _ = self._copies.pop(slot)
            self._inner.put_adapter(slot, packed.digest)

    def execute(self, plan: StepPlan) -> PendingStep:
        faults = self.faults
        self._end_copies()
        if faults.fails:
            faults.fails = False
            self._inner.fail_next()
        if faults.short:
            faults.short = False
            self._inner.run_short(max(1, plan.total_tokens // 2), 1, at_result=False)
        for row in plan.rows:
            self._check_salt(row.request.tenant, row.request.salt)
            adapter = row.request.adapter
            request_id = row.request.id.partition("#")[0].rpartition("-")[0]
            self._computed.setdefault(request_id, set()).add("" if adapter is None else adapter.digest)
        step = self._inner.execute(plan)
        taken_ns = self.speed.of(plan) + faults.hang_ns
        faults.hang_ns = 0
        self.steps += 1
        self.busy_ns += taken_ns
        self.longest_ns = max(self.longest_ns, taken_ns)
        self._ends_ns.append(max(self._clock.now_ns, self._ends_ns[-1]) + taken_ns)
        return _Step(step, plan, self._ends_ns[-1], self._clock)

    def _check_salt(self, tenant: str, salt: bytes) -> None:
        """Two tenants never have one prefix cache."""
        if self._salts.setdefault(tenant, salt) != salt:
            raise AssertionError(f"{tenant} has two salts")
        shared = [other for other, its in self._salts.items() if its == salt and other != tenant]
        assert not shared, f"{tenant} shares its prefix cache with {shared}"

    def _is_poisoned(self, row: ScheduledRow) -> bool:
        poison = self.faults.poison
        return bool(poison) and tuple(row.request.tokens[: len(poison)]) == poison


@dataclass(slots=True)
class _Step:
    step: PendingStep
    plan: StepPlan
    ends_ns: int
    clock: VirtualClock
    _waited: bool = field(default=False)

    def result(self) -> StepResult:
        if self.ends_ns > self.clock.now_ns:
            threads.scheduler().sleep((self.ends_ns - self.clock.now_ns) / 1e9)
        result = self.step.result()
        rows = [
            outcome._replace(embedding=b"\x00\x00\x80\x3f") if _pooled(row) else outcome
            for row, outcome in zip(self.plan.rows, result.rows, strict=True)
        ]
        return StepResult(tuple(rows))


def _pooled(row: ScheduledRow) -> bool:
    request = row.request
    return isinstance(request.params.pooling, Pooling) and row.start + row.tokens == request.prompt_tokens


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
