"""Traffic from a seed: mixtures of everything, and patterns that exercise one rule of the scheduler each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypedDict, Unpack

from engine.config import ADAPTER_WAIT_NS, BLOCK_TOKENS, LONGEST_STEP_NS, SchedulerConfig
from engine.memory.step_blocks import BLOCKS_A_STEP
from engine.request import SamplingParams, ServiceClass
from engine.simulation.faults import draw_faults, draw_pauses, draw_shortages
from engine.simulation.traffic import CLASS_NAMES, TICK_NS, VOCAB_SIZE, Arrival, Fault, Traffic

_WINDOWS: tuple[tuple[int | None, ...], ...] = ((1,), (4,), (16,), (17,), (40,), (8, 8), (20, 50), (None, 18))
"""Windows of the groups after the first: within a block, of whole blocks, over several, and none."""

_PREMIUM = ServiceClass("premium", priority=0, reserved_fraction=0.3, ttft_target_ms=200)
_STANDARD = ServiceClass("standard", priority=10, step_share=0.5)


class ModelOptions(TypedDict, total=False):
    """The model and the device of a simulation, as far as they differ from plain ones.

    `ahead`: with an asynchronous device, whose memory can run short. `stages`: the same with a pipeline. `speculate`:
    with drafts. `blocks_a_step`: the blocks that a step allocates and returns. `states`: of a model with recurrent
    layers, with few slots or many. `windows`: of a model with layers of limited attention, whose KV is in groups.
    `adapters`: of a model with few slots for adapters, which many requests want. `yields`: the lowest of several
    classes yields. `tier`: with a second pool of KV blocks.
    """

    ahead: int
    stages: int
    speculate: bool
    blocks_a_step: int
    states: bool
    windows: bool
    adapters: bool
    yields: bool
    tier: bool


def traffic_from_seed(seed: int, **options: Unpack[ModelOptions]) -> Traffic:
    """Two seeds in three mix everything; the others are one of the patterns. In one of four some clients stop
    reading."""
    rng = Random(seed)
    stages = options.get("stages", 1)
    ahead = max(options.get("ahead", 0), stages - 1)
    traffic = rng.choice(_PATTERNS)(seed, rng) if seed % 3 == 2 else _mixture(seed, rng)
    traffic = replace(
        traffic,
        speculate=options.get("speculate", False),
        ahead=ahead,
        stages=stages,
        blocks_a_step=options.get("blocks_a_step", BLOCKS_A_STEP),
    )
    if ahead and traffic.faults and rng.random() < 0.5:
        traffic = traffic.with_faults(draw_shortages(rng, traffic.faults[-1].at_ns))
    if seed % 4 == 1:
        traffic = traffic.with_faults(draw_pauses(rng, traffic.arrivals[-1].at_ns + 60 * TICK_NS))
    if options.get("states"):
        slots = traffic.config.max_running + rng.choice((0, 1, 2, 5, 20))
        traffic = replace(traffic, states=slots, state_interval_blocks=rng.choice((1, 2, 3)))
    if options.get("windows"):
        traffic = _with_windows(traffic, Random(f"windows of {seed}"))
    if options.get("yields"):
        traffic = _with_yielding(traffic)
    if options.get("adapters"):
        traffic = _with_adapters(traffic, Random(f"adapters of {seed}"))
    return _with_tier(traffic, Random(f"tier of {seed}")) if options.get("tier") else traffic


def _with_yielding(traffic: Traffic) -> Traffic:
    """The same traffic, in which the lowest class yields."""
    classes = traffic.config.classes
    if len(classes) == 1:
        return traffic
    lowest = max(classes, key=lambda each: each.priority)
    of_name = {each.name: replace(each, yields=each is lowest) for each in classes}
    config = replace(traffic.config, classes=tuple(of_name[each.name] for each in classes))
    arrivals = tuple(replace(each, service_class=of_name[each.service_class.name]) for each in traffic.arrivals)
    return replace(traffic, config=config, arrivals=arrivals, yields=True)


def _with_windows(traffic: Traffic, rng: Random) -> Traffic:
    """The same traffic in as much memory for each group, or a few blocks more. Its own generator: the arrivals are
    those of the seed without windows."""
    of_groups = rng.choice(_WINDOWS)
    num_blocks = traffic.num_blocks * (1 + len(of_groups)) + rng.choice((0, 0, 1, 7))
    return replace(traffic, windows=of_groups, num_blocks=num_blocks)


def _with_adapters(traffic: Traffic, rng: Random) -> Traffic:
    """The same traffic, in which most requests have one of a few adapters; the choices of a call have the same."""
    many, plain = rng.choice((2, 4, 10)), rng.choice((0.0, 0.3))
    chosen: dict[str, str] = {}
    for arrival in traffic.arrivals:
        drawn = "" if rng.random() < plain else f"adapter {rng.randrange(many)}"
        chosen[arrival.id] = drawn if arrival.fork_of is None else chosen[arrival.fork_of]
    arrivals = tuple(replace(arrival, adapter=chosen[arrival.id]) for arrival in traffic.arrivals)
    wait_ns = rng.choice((ADAPTER_WAIT_NS, ADAPTER_WAIT_NS, 20 * TICK_NS))
    return replace(traffic, arrivals=arrivals, adapter_slots=rng.choice((1, 1, 2, 3, 8)), adapter_wait_ns=wait_ns)


def _with_tier(traffic: Traffic, rng: Random) -> Traffic:
    """The same traffic with a second pool, smaller or larger than the first. Prompts often come again after a while: as
    the next turn of a conversation, with an earlier prompt before it. Mostly all tenants have a salt."""
    arrivals = list(traffic.arrivals)
    if rng.random() < 0.8:
        arrivals = [replace(arrival, tenant=arrival.tenant or "tenant-c") for arrival in arrivals]
    parents = {arrival.fork_of for arrival in arrivals}
    for index, arrival in enumerate(arrivals):
        if not index or arrival.fork_of is not None or arrival.id in parents or rng.random() < 0.3:
            continue
        earlier = arrivals[rng.randrange(index)]
        tokens = (*earlier.tokens, *(rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((0, 1, 8, 20)))))
        if len(tokens) < traffic.window_tokens_of(arrival.service_class):
            arrivals[index] = replace(arrival, tokens=tokens, tenant=earlier.tenant, adapter=earlier.adapter)
    slots, idle_ns = rng.choice((1, 3, 10, 40, 200)), rng.choice((0, 5, 100)) * TICK_NS
    return replace(traffic, arrivals=tuple(arrivals), prefix_cache=True, tier_slots=slots, tier_idle_ns=idle_ns)


def _mixture(seed: int, rng: Random) -> Traffic:
    """Pools of 1 to 40 blocks, shared prefixes, forks, all stop conditions, prompts at the limit, and faults.

    In one seed of five, classes have targets for the time between tokens, and tokens cost as much as on a CPU.
    """
    paced = Random(~seed) if seed % 5 == 4 else None
    num_blocks = rng.choice((1, 2, 3, 5, 8, 12, 20, 40))
    max_model_len = rng.choice((num_blocks * BLOCK_TOKENS, 40, 100, 1000))
    window_tokens = min(max_model_len, num_blocks * BLOCK_TOKENS)
    max_running = rng.randint(1, 8)
    config = SchedulerConfig(
        max_running=max_running,
        step_tokens=max_running + rng.choice((0, 1, 7, 30, 100)),
        chunk_tokens=rng.choice((1, 3, 16, 17, 200)),
        classes=_classes(rng, paced),
        tenant_cache_fraction=rng.choice((0.2, 0.5, 1.0)),
        tenant_preemptions=rng.choice((0, 1, 4, 32)),
        preemption_window_steps=rng.choice((10, 100)),
    )
    # Prompts begin with these two blocks in any order, so that equal blocks have different parents.
    blocks = [[rng.randrange(VOCAB_SIZE) for _ in range(BLOCK_TOKENS)] for _ in range(2)]
    longest_prompt = rng.choice((4, 20, 60, 10_000))
    pause_ns = _arrival_process(rng)
    arrivals: list[Arrival] = []
    at_ns = 0
    while len(arrivals) < rng.randint(8, 24):
        at_ns += pause_ns(rng)
        arrivals += _arrivals_of_one_call(
            rng, f"{len(arrivals)}", at_ns, blocks, longest_prompt, window_tokens, config.classes
        )
    return Traffic(
        seed=seed,
        pattern="mixture",
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        prefix_cache=rng.random() < 0.8,
        config=config,
        device_speed=rng.choice((0.1, 1.0, 1.0, 20.0)),
        arrivals=tuple(arrivals),
        faults=draw_faults(rng, at_ns + 30 * TICK_NS),
        token_factor=1.0 if paced is None else paced.choice((1.0, 20.0, 100.0)),
        longest_step_ns=LONGEST_STEP_NS if paced is None else paced.choice((LONGEST_STEP_NS, 10 * TICK_NS)),
    )


def _classes(rng: Random, paced: Random | None) -> tuple[ServiceClass, ...]:
    """One to three classes, with and without reserves and targets. `paced`: with targets between tokens, too."""
    count = rng.choice((1, 2, 2, 2, 3))
    fractions = rng.choice(((0.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.5, 0.3, 0.0), (0.3, 0.3, 0.3)))
    return tuple(
        ServiceClass(
            name,
            priority=10 * number,
            reserved_fraction=fraction,
            weight=rng.choice((1.0, 2.0)),
            step_share=rng.choice((1.0, 0.5, 0.1)),
            ttft_target_ms=rng.choice((None, None, 60, 500)),
            itl_target_ms=None if paced is None else paced.choice((None, 1, 10, 40)),
        )
        for number, (name, fraction) in enumerate(zip(CLASS_NAMES[:count], fractions, strict=False))
    )


def _arrival_process(rng: Random) -> Callable[[Random], int]:
    """A function that draws the nanoseconds to the next call: a burst, a Poisson process, or a heavy tail."""
    return rng.choice((_no_pause, _poisson_pause, _heavy_pause))


def _no_pause(rng: Random) -> int:
    return 0


def _poisson_pause(rng: Random) -> int:
    return int(rng.expovariate(0.3) * TICK_NS)


def _heavy_pause(rng: Random) -> int:
    """Mostly a few steps, sometimes minutes."""
    return int(min(50_000.0, rng.paretovariate(0.8) - 1) * TICK_NS)


def _arrivals_of_one_call(
    rng: Random,
    name: str,
    at_ns: int,
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
            at_ns=at_ns,
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


def _pattern(
    seed: int,
    rng: Random,
    name: str,
    num_blocks: int,
    arrivals: Sequence[Arrival],
    *,
    faulty: bool,
    max_running: int = 6,
) -> Traffic:
    last_ns = max(arrival.at_ns for arrival in arrivals)
    faults: tuple[Fault, ...] = draw_faults(rng, last_ns + 30 * TICK_NS) if faulty else ()
    return Traffic(
        seed=seed,
        pattern=name,
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
        device_speed=1.0,
        arrivals=tuple(sorted(arrivals, key=lambda arrival: arrival.at_ns)),
        faults=faults,
    )


def _plain(
    rng: Random, name: str, ticks: float, tenant: str, service_class: ServiceClass, prompt: int, answer: int
) -> Arrival:
    """A request of a fixed length with a random prompt, that arrives `ticks` after the start."""
    return Arrival(
        id=name,
        at_ns=int(ticks * TICK_NS),
        tokens=tuple(rng.randrange(VOCAB_SIZE) for _ in range(prompt)),
        params=SamplingParams(max_tokens=answer, ignore_eos=True),
        seed=rng.getrandbits(63),
        tenant=tenant,
        service_class=service_class,
    )


def _flood(seed: int, rng: Random) -> Traffic:
    """One tenant sends ten times as many requests as another, at once; both wait from the first step on."""
    answer = rng.choice((2, 12))
    arrivals = [_plain(rng, f"f{n}", 0, "flooder", _STANDARD, rng.randint(8, 20), answer) for n in range(100)]
    arrivals += [_plain(rng, f"n{n}", 0, "neighbour", _STANDARD, rng.randint(8, 20), answer) for n in range(10)]
    arrivals += [_plain(rng, f"p{n}", 7 * n, "premium", _PREMIUM, rng.randint(1, 40), 3) for n in range(8)]
    return _pattern(seed, rng, "flood", rng.choice((6, 8, 12)), arrivals, faulty=rng.random() < 0.5)


def _return_from_idle(seed: int, rng: Random) -> Traffic:
    """One tenant is served for a while; then a second one returns with the same load."""
    arrivals = [_plain(rng, f"i{n}", 0, "back", _STANDARD, 16, 8) for n in range(2)]
    arrivals += [_plain(rng, f"a{n}", 0, "always", _STANDARD, 16, 8) for n in range(90)]
    arrivals += [_plain(rng, f"b{n}", rng.choice((100, 150)), "back", _STANDARD, 16, 8) for n in range(50)]
    return _pattern(seed, rng, "return from idle", 6, arrivals, faulty=False)


def _fill_and_squeeze(seed: int, rng: Random) -> Traffic:
    """Long answers fill the pool; then short requests of a higher class arrive one after another and preempt them."""
    if seed % 2:
        return _out_of_budget(seed, rng)
    arrivals = [_plain(rng, f"l{n}", 0, f"victim-{n % 3}", _STANDARD, 20, rng.randint(40, 90)) for n in range(12)]
    arrivals += [
        _plain(rng, f"s{n}", 20 + 3 * n, "squeezer", _PREMIUM, rng.choice((10, 60)), rng.choice((1, 20)))
        for n in range(40)
    ]
    max_running = rng.choice((4, 10))
    return _pattern(
        seed, rng, "fill and squeeze", rng.choice((12, 20)), arrivals, faulty=False, max_running=max_running
    )


def _cache_rivals(seed: int, rng: Random) -> Traffic:
    """Tenants return with growing conversations, while another tenant of their class floods with new prompts."""
    arrivals: list[Arrival] = []
    for tenant, service_class in (("p", _PREMIUM), ("s", _STANDARD), ("t", _STANDARD)):
        talk = [rng.randrange(VOCAB_SIZE) for _ in range(20)]
        for turn in range(6):
            first = _plain(rng, f"{tenant}{turn}", 15 * turn + rng.randint(0, 5), tenant, service_class, 1, 4)
            arrivals.append(replace(first, tokens=tuple(talk)))
            talk += [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(4, 14))]
    arrivals += [_plain(rng, f"x{n}", 2 * n, "flooder", rng.choice((_STANDARD, _PREMIUM)), 40, 2) for n in range(60)]
    return _pattern(seed, rng, "cache rivals", rng.choice((20, 30)), arrivals, faulty=rng.random() < 0.5)


def _shared_prefix(seed: int, rng: Random) -> Traffic:
    """One tenant sends the same prompt in both classes, so that their block tables share blocks."""
    text = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((33, 50))))
    arrivals = []
    for number in range(40):
        request = _plain(
            rng, f"q{number}", 2 * number, "both", rng.choice((_PREMIUM, _STANDARD)), 1, rng.randint(1, 30)
        )
        asked = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 9)))
        arrivals.append(replace(request, tokens=text + asked))
    return _pattern(seed, rng, "shared prefix", rng.choice((7, 10, 14)), arrivals, faulty=rng.random() < 0.5)


def _almost_full(seed: int, rng: Random) -> Traffic:
    """Two long answers grow until they have all but a block or two; short requests run in the rest."""
    residents = 2
    num_blocks = rng.choice((9, 12))
    room = int((1 - _PREMIUM.reserved_fraction) * num_blocks) * BLOCK_TOKENS
    answer = room // residents - 10 - rng.choice((0, BLOCK_TOKENS))
    arrivals = [_plain(rng, f"l{n}", 0, "resident", _STANDARD, 10, answer) for n in range(residents)]
    ticks = 0.0
    for number in range(60):
        ticks += rng.expovariate(0.5)
        service_class = rng.choice((_PREMIUM, _STANDARD, _STANDARD))
        prompt = rng.choice((1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1))
        arrivals.append(_plain(rng, f"s{number}", ticks, f"guest-{number % 3}", service_class, prompt, 3))
    return _pattern(seed, rng, "almost full", num_blocks, arrivals, faulty=rng.random() < 0.5)


def _crowd_behind_a_hang(seed: int, rng: Random) -> Traffic:
    """Requests arrive at a rate that is served easily; then a step hangs, and many wait when it returns."""
    arrivals, ticks = [], 0.0
    for number in range(60):
        ticks += rng.expovariate(0.2)
        service_class = rng.choice((_PREMIUM, _STANDARD))
        arrivals.append(_plain(rng, f"c{number}", ticks, f"t{number % 4}", service_class, rng.randint(1, 40), 6))
    return _pattern(seed, rng, "crowd behind a hang", rng.choice((8, 20)), arrivals, faulty=True)


def _out_of_budget(seed: int, rng: Random) -> Traffic:
    """A tenant preempts with long prompts until its preemption budget is exhausted; other tenants of its class, which
    have caused no preemptions, send short prompts while it waits."""
    arrivals = [_plain(rng, f"l{n}", 0, f"victim-{n % 3}", _STANDARD, 20, rng.randint(40, 90)) for n in range(12)]
    for n in range(12):
        ticks = 20 + 12 * n
        arrivals.append(_plain(rng, f"s{n}", ticks, "squeezer", _PREMIUM, rng.choice((60, 120)), rng.choice((5, 20))))
        arrivals += [
            _plain(rng, f"o{n}.{k}", ticks + 1, f"other-{k}", _PREMIUM, 8, 10) for k in range(rng.randint(1, 4))
        ]
    traffic = _pattern(seed, rng, "out of budget", rng.choice((20, 24)), arrivals, faulty=False, max_running=10)
    return replace(traffic, config=replace(traffic.config, tenant_preemptions=rng.choice((1, 2))))


_PATTERNS = (
    _flood,
    _return_from_idle,
    _fill_and_squeeze,
    _cache_rivals,
    _shared_prefix,
    _almost_full,
    _crowd_behind_a_hang,
)
