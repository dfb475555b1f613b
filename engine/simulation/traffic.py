"""Traffic from a seed: who asks for what and when, and what goes wrong. Values only."""

from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.request import SamplingParams, ServiceClass

VOCAB_SIZE = 24
"""Small, so that end tokens and equal prompts are common."""

EOS_TOKEN = 0
CLASSES = (ServiceClass("premium", priority=0), ServiceClass("standard", priority=10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request. With `fork_of`, it has the prompt and the salt of that earlier one.

    `poisoned_at` is the position whose row comes out not finite, should it come to be computed.
    """

    id: str
    at_step: int
    tokens: tuple[int, ...]
    params: SamplingParams
    seed: int
    salt: bytes
    service_class: ServiceClass
    fork_of: str | None = None
    poisoned_at: int | None = None


class FaultKind(Enum):
    ABORT = auto()
    PREEMPT = auto()
    STEP_FAILURE = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a step, or to the `rank`-th (modulo their number) of the requests alive then.

    With `in_flight` it comes while the step is computed, without it before the step is scheduled.
    """

    at_step: int
    kind: FaultKind
    rank: int
    in_flight: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A pool, a scheduler, and all that happens to them. `arrivals` and `faults` are in order of their step."""

    seed: int
    num_blocks: int
    max_model_len: int
    prefix_cache: bool
    config: SchedulerConfig
    arrivals: tuple[Arrival, ...]
    faults: tuple[Fault, ...]

    @property
    def window_tokens(self) -> int:
        return min(self.max_model_len, self.num_blocks * BLOCK_TOKENS)


def traffic_from_seed(seed: int) -> Traffic:
    """Pools of 1 to 40 blocks, shared prefixes, forks, all stop conditions, prompts at the limit, and faults."""
    rng = Random(seed)
    num_blocks = rng.choice((1, 2, 3, 5, 8, 12, 20, 40))
    max_model_len = rng.choice((num_blocks * BLOCK_TOKENS, 40, 100, 1000))
    window_tokens = min(max_model_len, num_blocks * BLOCK_TOKENS)
    max_running = rng.randint(1, 8)
    config = SchedulerConfig(
        max_running=max_running,
        step_tokens=max_running + rng.choice((0, 1, 7, 30, 100)),
        chunk_tokens=rng.choice((1, 3, 16, 17, 200)),
    )
    # Prompts begin with blocks of these two in any order, so that equal blocks stand behind different parents.
    blocks = [[rng.randrange(VOCAB_SIZE) for _ in range(BLOCK_TOKENS)] for _ in range(2)]
    longest_prompt = rng.choice((4, 20, 60, 10_000))
    pauses = rng.choice(((0,), (0, 0, 1, 3, 20), (2, 30)))
    arrivals: list[Arrival] = []
    step = 0
    while len(arrivals) < rng.randint(8, 24):
        step += rng.choice(pauses)
        arrivals += _arrivals_of_one_call(rng, f"{len(arrivals)}", step, blocks, longest_prompt, window_tokens)
    last_step = step + 30
    fault_rate = rng.choice((0.0, 0.02, 0.2))
    kinds = (FaultKind.ABORT, FaultKind.PREEMPT, FaultKind.PREEMPT, FaultKind.STEP_FAILURE)
    faults = [
        Fault(at_step, rng.choice(kinds), rng.randrange(100), rng.random() < 0.5)
        for at_step in range(last_step)
        if rng.random() < fault_rate
    ]
    return Traffic(
        seed=seed,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        prefix_cache=rng.random() < 0.8,
        config=config,
        arrivals=tuple(arrivals),
        faults=tuple(faults),
    )


def _arrivals_of_one_call(
    rng: Random, name: str, step: int, blocks: list[list[int]], longest_prompt: int, window_tokens: int
) -> list[Arrival]:
    """One prompt, and its one to four choices."""
    if rng.random() < 0.2:
        length = rng.choice((1, BLOCK_TOKENS, BLOCK_TOKENS + 1, window_tokens - 1, window_tokens, window_tokens + 1))
    else:
        length = rng.randint(1, min(longest_prompt, window_tokens))
    prefix: list[int] = []
    for _ in range(rng.randint(0, length // BLOCK_TOKENS)):
        prefix += rng.choice(blocks)
    tokens = (*prefix, *(rng.randrange(VOCAB_SIZE) for _ in range(length - len(prefix))))
    salt = rng.choice((b"", b"tenant-a", b"tenant-b"))
    service_class = rng.choice(CLASSES)
    max_tokens = rng.choice((0, 1, 2, 10, 40, 10_000))
    prompt_logprobs = 0 if rng.random() < 0.15 else None
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, min(max_tokens, 20)),
        ignore_eos=rng.random() < 0.3,
        stop_token_ids=(1,) if rng.random() < 0.3 else (),
        logprobs=0 if rng.random() < 0.2 else None,
        prompt_logprobs=prompt_logprobs,
    )
    choices = rng.choice((1, 1, 1, 2, 4))
    return [
        Arrival(
            id=f"{name}.{choice}",
            at_step=step,
            tokens=tokens,
            params=params,
            seed=rng.getrandbits(63),
            salt=salt,
            service_class=service_class,
            fork_of=f"{name}.0" if choice else None,
            poisoned_at=rng.randrange(window_tokens) if rng.random() < 0.1 else None,
        )
        for choice in range(choices)
    ]
