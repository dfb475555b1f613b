"""What happens in a simulation, as values: who asks for what and when, and what goes wrong. Times are virtual."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from engine.config import BLOCK_TOKENS, LONGEST_STEP_NS, SchedulerConfig
from engine.memory.kv_cache import BLOCKS_A_STEP
from engine.request import SamplingParams, ServiceClass

VOCAB_SIZE = 24
"""Small, so that end tokens and equal prompts are common."""

EOS_TOKEN = 0
CLASS_NAMES = ("premium", "standard", "batch")

TICK_NS = 4_000_000
"""About what a step of decode takes: the unit in which patterns think."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request. With `fork_of`, it has the prompt, the tenant and the class of that earlier one.

    `poisoned_at` is the position whose row comes out not finite, should it come to be computed.
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


class FaultKind(Enum):
    """To a request: `ABORT`, `PREEMPT`; `PAUSE`, nobody reads it for `Fault.ns`.

    To a step: `FAILURE`, it writes rubbish and raises; `HANG`, it takes `Fault.ns` longer; `SHORTAGE`, in the next
    `Fault.steps` steps the device has no room for more than `Fault.tokens`, which it says at the launch or, with
    `in_flight`, by the result. To time: `SLOW`, the next `Fault.steps` steps take five times as long; `STILL`, the
    clock does not move while they run; `JUMP`, it leaps forward by `Fault.ns` between two steps."""

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
    """Something that goes wrong at the first step from `at_ns` on.

    An abort, a preemption or a pause is of the `rank`-th (modulo their number) of the requests alive then; with
    `in_flight` it comes while the step is computed, without it before the step is scheduled.
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
    """A pool, a scheduler, and all that happens to them. `arrivals` and `faults` are in order of their time.

    `device_speed` is how many times as long as the reference device this one takes for a step, and `token_factor` how
    many times as much of it a token is; `longest_step_ns` is the scheduler's. `ahead` is how many steps the device
    takes beyond the one that is waited for. With `speculate` there are drafts, right and wrong ones. So few as
    `blocks_a_step` make long requests of short ones: they board, and what they give back returns in parts. `only` made
    what is `reduced_to` some arrivals and some faults, by their index.
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
    speculate: bool = False
    blocks_a_step: int = BLOCKS_A_STEP
    token_factor: float = 1.0
    longest_step_ns: int = LONGEST_STEP_NS
    reduced_to: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def command(self) -> str:
        """What runs it again."""
        command = f"python -m engine.simulation --seed {self.seed}"
        command += " --ahead" * bool(self.ahead) + " --speculate" * self.speculate
        if self.blocks_a_step != BLOCKS_A_STEP:
            command += f" --blocks-a-step {self.blocks_a_step}"
        if self.reduced_to is None:
            return command
        arrivals, faults = (",".join(map(str, indices)) for indices in self.reduced_to)
        return f"{command} --only '{arrivals}' --faults '{faults}'"

    def window_tokens_of(self, service_class: ServiceClass) -> int:
        """What is not reserved for the classes above, or the model's window."""
        above = [each for each in self.config.classes if each.priority < service_class.priority]
        reserved = sum(int(each.reserved_fraction * self.num_blocks) for each in above)
        return min(self.max_model_len, (self.num_blocks - reserved) * BLOCK_TOKENS)

    def with_faults(self, more: Sequence[Fault]) -> "Traffic":
        """The same, and more goes wrong."""
        return replace(self, faults=tuple(sorted((*self.faults, *more), key=lambda fault: fault.at_ns)))

    def only(self, arrivals: Sequence[int], faults: Sequence[int]) -> "Traffic":
        """The same with these arrivals and these faults alone. All else happens as before."""
        assert self.reduced_to is None, "an index would mean something else"
        kept = tuple(sorted(arrivals)), tuple(sorted(faults))
        return replace(
            self,
            arrivals=tuple(self.arrivals[index] for index in kept[0]),
            faults=tuple(self.faults[index] for index in kept[1]),
            reduced_to=kept,
        )
