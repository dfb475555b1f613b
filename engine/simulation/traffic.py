"""The input of a simulation as values: requests, their arrival times, and faults. Times are virtual."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from engine.config import ADAPTER_WAIT_NS, BLOCK_TOKENS, LONGEST_STEP_NS, SchedulerConfig
from engine.memory.step_blocks import BLOCKS_A_STEP
from engine.request import SamplingParams, ServiceClass

VOCAB_SIZE = 24
"""Small, so that end tokens and equal prompts are common."""

EOS_TOKEN = 0
CLASS_NAMES = ("premium", "standard", "batch")

TICK_NS = 4_000_000
"""About the time of a decode step: the unit of time in patterns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request. `fork_of`: the id of an earlier request with the same prompt, tenant and class.

    `poisoned_at`: the position whose row has an output that is not finite, if it is computed. `adapter`: the digest of
    its adapter; empty: none.
    """

    id: str
    at_ns: int
    tokens: tuple[int, ...]
    params: SamplingParams
    seed: int
    tenant: str
    service_class: ServiceClass
    fork_of: str | None = None
    poisoned_at: int | None = None
    adapter: str = ""


class FaultKind(Enum):
    """The kinds of faults.

    Of a request: `ABORT`; `PREEMPT`; `PAUSE`, its client does not read for `Fault.ns`.
    Of a step: `FAILURE`, it writes garbage and raises; `HANG`, it takes `Fault.ns` longer; `SHORTAGE`, for the next
    `Fault.steps` steps the device has memory for `Fault.tokens` tokens only, and fails at the launch or, with
    `in_flight`, at the result.
    Of time: `SLOW`, the next `Fault.steps` steps take five times as long; `STILL`, the clock stands still during them;
    `JUMP`, the clock jumps forward by `Fault.ns` between two steps.
    """

    ABORT = auto()
    PREEMPT = auto()
    FAILURE = auto()
    HANG = auto()
    SHORTAGE = auto()
    SLOW = auto()
    STILL = auto()
    JUMP = auto()
    PAUSE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that is applied at the first step from `at_ns` on.

    An abort, a preemption or a pause hits the `rank`-th (modulo their number) of the unfinished requests: with
    `in_flight` while the step is computed, otherwise before it is scheduled.
    """

    at_ns: int
    kind: FaultKind
    rank: int = 0
    in_flight: bool = False
    ns: int = 0
    steps: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The configuration of a simulation and all its events. `arrivals` and `faults` are in order of time.

    `device_speed`: step times relative to the reference device. `token_factor`: the same for the cost of a token.
    `longest_step_ns`: the scheduler's. `ahead`: the executor's `async_depth`. `stages`: of a pipeline. `speculate`:
    with drafts, right and wrong ones. `blocks_a_step`: blocks allocated and returned per step; few make short requests
    behave like long ones, which are allocated and returned in parts. `states`: state slots of a model with recurrent
    layers, 0 for one without; `state_interval_blocks`: blocks between the states that are saved. `windows`: of a model
    whose KV is in groups, the windows of those after the first. `adapter_slots`: of a model that takes adapters;
    `adapter_wait_ns`: maximum wait for one. `yields`: the lowest class yields. `tier_slots`: blocks of a second pool, 0
    for none; `tier_idle_ns`: time after which blocks are written to it. `reduced_to`: the indices of the arrivals and
    faults that `only` kept.
    """

    seed: int
    pattern: str
    num_blocks: int
    max_model_len: int
    prefix_cache: bool
    config: SchedulerConfig
    device_speed: float
    arrivals: tuple[Arrival, ...]
    faults: tuple[Fault, ...]
    ahead: int = 0
    stages: int = 1
    speculate: bool = False
    blocks_a_step: int = BLOCKS_A_STEP
    states: int = 0
    state_interval_blocks: int = 1
    windows: tuple[int | None, ...] = ()
    adapter_slots: int = 0
    adapter_wait_ns: int = ADAPTER_WAIT_NS
    tier_slots: int = 0
    tier_idle_ns: int = 0
    token_factor: float = 1.0
    longest_step_ns: int = LONGEST_STEP_NS
    yields: bool = False
    reduced_to: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def command(self) -> str:
        """The command that replays it."""
        command = f"python -m engine.simulation --seed {self.seed}"
        command += f" --stages {self.stages}" if self.stages > 1 else " --ahead" * bool(self.ahead)
        command += " --speculate" * self.speculate + " --states" * bool(self.states) + " --yields" * self.yields
        command += " --windows" * bool(self.windows) + " --adapters" * bool(self.adapter_slots)
        command += " --tier" * bool(self.tier_slots)
        if self.blocks_a_step != BLOCKS_A_STEP:
            command += f" --blocks-a-step {self.blocks_a_step}"
        if self.reduced_to is None:
            return command
        arrivals, faults = (",".join(map(str, indices)) for indices in self.reduced_to)
        return f"{command} --only '{arrivals}' --faults '{faults}'"

    def window_tokens_of(self, service_class: ServiceClass) -> int:
        """The class's window: the model's, or the part of the pool that is not reserved for the classes above."""
        above = [higher for higher in self.config.classes if higher.priority < service_class.priority]
        reserved = sum(int(higher.reserved_fraction * self.num_blocks) for higher in above)
        return min(self.max_model_len, (self.num_blocks - reserved) // (1 + len(self.windows)) * BLOCK_TOKENS)

    def with_faults(self, more: Sequence[Fault]) -> "Traffic":
        """The same traffic with more faults."""
        return replace(self, faults=tuple(sorted((*self.faults, *more), key=lambda fault: fault.at_ns)))

    def only(self, arrivals: Sequence[int], faults: Sequence[int]) -> "Traffic":
        """The same traffic with these arrivals and these faults only."""
        assert self.reduced_to is None, "an index would mean something else"
        kept = tuple(sorted(arrivals)), tuple(sorted(faults))
        return replace(
            self,
            arrivals=tuple(self.arrivals[index] for index in kept[0]),
            faults=tuple(self.faults[index] for index in kept[1]),
            reduced_to=kept,
        )
