"""Traffic from a seed: who asks for what and when, and what goes wrong. Values only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from random import Random

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.request import SamplingParams, ServiceClass

VOCAB_SIZE = 24
"""Small, so that end tokens and equal prompts are common."""

EOS_TOKEN = 0
CLASS_NAMES = ("premium", "standard", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request. With `fork_of`, it has the prompt, the tenant and the class of that earlier one.

    `poisoned_at` is the position whose row comes out not finite, should it come to be computed.
    """

    id: str
    at_step: int
    tokens: tuple[int, ...]
    params: SamplingParams
    seed: int
    tenant: str
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

    def window_tokens_of(self, service_class: ServiceClass) -> int:
        """What is not reserved for the classes above, or the model's window."""
        above = [each for each in self.config.classes if each.priority < service_class.priority]
        reserved = sum(int(each.reserved_fraction * self.num_blocks) for each in above)
        return min(self.max_model_len, (self.num_blocks - reserved) * BLOCK_TOKENS)


def traffic_from_seed(seed: int) -> Traffic:
    """Two seeds in three mix everything; the others are one of the patterns that a rule exists for."""
    rng = Random(seed)
    if seed % 3 == 2:
        return rng.choice((_flood, _return_from_idle, _fill_and_squeeze, _cache_rivals, _shared_prefix))(seed, rng)
    return _mixture(seed, rng)


def _mixture(seed: int, rng: Random) -> Traffic:
    """Pools of 1 to 40 blocks, shared prefixes, forks, all stop conditions, prompts at the limit, and faults."""
    num_blocks = rng.choice((1, 2, 3, 5, 8, 12, 20, 40))
    max_model_len = rng.choice((num_blocks * BLOCK_TOKENS, 40, 100, 1000))
    window_tokens = min(max_model_len, num_blocks * BLOCK_TOKENS)
    max_running = rng.randint(1, 8)
    config = SchedulerConfig(
        max_running=max_running,
        step_tokens=max_running + rng.choice((0, 1, 7, 30, 100)),
        chunk_tokens=rng.choice((1, 3, 16, 17, 200)),
        classes=_classes(rng),
        tenant_cache_fraction=rng.choice((0.2, 0.5, 1.0)),
        tenant_preemptions=rng.choice((0, 1, 4, 32)),
        preemption_window_steps=rng.choice((10, 100)),
    )
    # Prompts begin with blocks of these two in any order, so that equal blocks stand behind different parents.
    blocks = [[rng.randrange(VOCAB_SIZE) for _ in range(BLOCK_TOKENS)] for _ in range(2)]
    longest_prompt = rng.choice((4, 20, 60, 10_000))
    pause = _arrival_process(rng)
    arrivals: list[Arrival] = []
    step = 0
    while len(arrivals) < rng.randint(8, 24):
        step += pause(rng)
        arrivals += _arrivals_of_one_call(
            rng, f"{len(arrivals)}", step, blocks, longest_prompt, window_tokens, config.classes
        )
    last_step = step + 30
    fault_rate = rng.choice((0.0, 0.02, 0.2))
    kinds = rng.choice(
        (
            (FaultKind.ABORT, FaultKind.PREEMPT, FaultKind.PREEMPT, FaultKind.STEP_FAILURE),
            (FaultKind.ABORT,),  # a storm
        )
    )
    return Traffic(
        seed=seed,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        prefix_cache=rng.random() < 0.8,
        config=config,
        arrivals=tuple(arrivals),
        faults=_faults(rng, last_step, fault_rate, kinds),
    )


def _classes(rng: Random) -> tuple[ServiceClass, ...]:
    """One to three classes, with and without reserves."""
    count = rng.choice((1, 2, 2, 2, 3))
    fractions = rng.choice(((0.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.5, 0.3, 0.0), (0.3, 0.3, 0.3)))
    return tuple(
        ServiceClass(
            name,
            priority=10 * number,
            reserved_fraction=fraction,
            weight=rng.choice((1.0, 2.0)),
            step_share=rng.choice((1.0, 0.5, 0.1)),
        )
        for number, (name, fraction) in enumerate(zip(CLASS_NAMES[:count], fractions, strict=False))
    )


def _arrival_process(rng: Random):  # type: ignore[no-untyped-def]
    """Draws the steps to the next call: a burst, a Poisson process, or pauses with a heavy tail."""
    return rng.choice(
        (
            lambda rng: 0,
            lambda rng: int(rng.expovariate(0.3)),
            lambda rng: min(60, int(rng.paretovariate(0.8)) - 1),
        )
    )


def _faults(rng: Random, last_step: int, rate: float, kinds: Sequence[FaultKind]) -> tuple[Fault, ...]:
    return tuple(
        Fault(at_step, rng.choice(kinds), rng.randrange(100), rng.random() < 0.5)
        for at_step in range(last_step)
        if rng.random() < rate
    )


def _arrivals_of_one_call(
    rng: Random,
    name: str,
    step: int,
    blocks: list[list[int]],
    longest_prompt: int,
    window_tokens: int,
    classes: Sequence[ServiceClass],
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
    tenant = rng.choice(("", "tenant-a", "tenant-b"))
    service_class = rng.choice(classes)
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
            tenant=tenant,
            service_class=service_class,
            fork_of=f"{name}.0" if choice else None,
            poisoned_at=rng.randrange(window_tokens) if rng.random() < 0.1 else None,
        )
        for choice in range(choices)
    ]


_PREMIUM = ServiceClass("premium", priority=0, reserved_fraction=0.3)
_STANDARD = ServiceClass("standard", priority=10, step_share=0.5)


def _pattern(
    seed: int, rng: Random, num_blocks: int, arrivals: Sequence[Arrival], fault_rate: float = 0.0, max_running: int = 6
) -> Traffic:
    last_step = max(arrival.at_step for arrival in arrivals)
    return Traffic(
        seed=seed,
        num_blocks=num_blocks,
        max_model_len=1000,
        prefix_cache=True,
        config=SchedulerConfig(
            max_running=max_running,
            step_tokens=24,
            chunk_tokens=16,
            classes=(_PREMIUM, _STANDARD),
            tenant_preemptions=rng.choice((2, 8)),
            preemption_window_steps=200,
        ),
        arrivals=tuple(sorted(arrivals, key=lambda arrival: arrival.at_step)),
        faults=_faults(rng, last_step, fault_rate, (FaultKind.ABORT, FaultKind.PREEMPT)),
    )


def _plain(
    rng: Random, name: str, step: int, tenant: str, service_class: ServiceClass, prompt: int, answer: int
) -> Arrival:
    """A request of a fixed length with a prompt of its own."""
    return Arrival(
        id=name,
        at_step=step,
        tokens=tuple(rng.randrange(VOCAB_SIZE) for _ in range(prompt)),
        params=SamplingParams(max_tokens=answer, ignore_eos=True),
        seed=rng.getrandbits(63),
        tenant=tenant,
        service_class=service_class,
    )


def _flood(seed: int, rng: Random) -> Traffic:
    """One tenant sends ten times what another does, at once; both wait from the first step on."""
    answer = rng.choice((2, 12))
    arrivals = [_plain(rng, f"f{n}", 0, "flooder", _STANDARD, rng.randint(8, 20), answer) for n in range(100)]
    arrivals += [_plain(rng, f"n{n}", 0, "neighbour", _STANDARD, rng.randint(8, 20), answer) for n in range(10)]
    arrivals += [_plain(rng, f"p{n}", 7 * n, "premium", _PREMIUM, rng.randint(1, 40), 3) for n in range(8)]
    return _pattern(seed, rng, rng.choice((6, 8, 12)), arrivals, fault_rate=rng.choice((0.0, 0.1)))


def _return_from_idle(seed: int, rng: Random) -> Traffic:
    """One tenant is served for a while; then a second one comes back, with as much to do."""
    arrivals = [_plain(rng, f"i{n}", 0, "back", _STANDARD, 16, 8) for n in range(2)]
    arrivals += [_plain(rng, f"a{n}", 0, "always", _STANDARD, 16, 8) for n in range(90)]
    arrivals += [_plain(rng, f"b{n}", rng.choice((100, 150)), "back", _STANDARD, 16, 8) for n in range(50)]
    return _pattern(seed, rng, 6, arrivals)


def _fill_and_squeeze(seed: int, rng: Random) -> Traffic:
    """Long answers fill the pool; then short requests of a higher class come one after another to squeeze them."""
    arrivals = [_plain(rng, f"l{n}", 0, f"victim-{n % 3}", _STANDARD, 20, rng.randint(40, 90)) for n in range(12)]
    arrivals += [
        _plain(rng, f"s{n}", 20 + 3 * n, "squeezer", _PREMIUM, rng.choice((10, 60)), rng.choice((1, 20)))
        for n in range(40)
    ]
    return _pattern(seed, rng, rng.choice((12, 20)), arrivals, max_running=rng.choice((4, 10)))


def _cache_rivals(seed: int, rng: Random) -> Traffic:
    """Tenants come back with conversations that grew, while a flooder of their class sends prompts never seen."""
    arrivals: list[Arrival] = []
    for tenant, service_class in (("p", _PREMIUM), ("s", _STANDARD), ("t", _STANDARD)):
        talk = [rng.randrange(VOCAB_SIZE) for _ in range(20)]
        for turn in range(6):
            first = _plain(rng, f"{tenant}{turn}", 15 * turn + rng.randint(0, 5), tenant, service_class, 1, 4)
            arrivals.append(replace(first, tokens=tuple(talk)))
            talk += [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(4, 14))]
    arrivals += [_plain(rng, f"x{n}", 2 * n, "flooder", rng.choice((_STANDARD, _PREMIUM)), 40, 2) for n in range(60)]
    return _pattern(seed, rng, rng.choice((20, 30)), arrivals, fault_rate=0.02)


def _shared_prefix(seed: int, rng: Random) -> Traffic:
    """One tenant asks in both classes about the same text, so that their block tables share blocks."""
    text = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((33, 50))))
    arrivals = []
    for number in range(40):
        request = _plain(
            rng, f"q{number}", 2 * number, "both", rng.choice((_PREMIUM, _STANDARD)), 1, rng.randint(1, 30)
        )
        asked = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 9)))
        arrivals.append(replace(request, tokens=text + asked))
    return _pattern(seed, rng, rng.choice((7, 10, 14)), arrivals, fault_rate=0.05)
