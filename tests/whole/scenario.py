"""Events of one run, as data: drawn from a seed, and made smaller where it fails."""

from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Literal

from tests.whole.adapters import LIMITED, NAMES, OWNERS

Endpoint = Literal["chat", "completions", "responses", "messages", "embeddings", "tokenize", "read", "hostile"]
FaultKind = Literal[
    "redis-down", "redis-slow", "redis-empty", "redis-full",
    "disk-fails", "sync-fails", "disk-full", "disk-slow",
    "topic-down", "topic-repeats", "store-down",
    "loop-stalls", "device-slow", "step-fails", "step-short", "poison",
    "grant", "revoke", "restart", "crash",
    "worker-dies", "worker-hangs", "worker-start-dies", "worker-start-fails",
    "adapters-late", "adapters-fail", "adapter-deleted", "adapter-weights", "adapter-rollback",
    "upstream-away", "upstream-refuses", "upstream-breaks", "upstream-silent", "upstream-slow",
]  # fmt: skip

TENANTS = ("premium", "plain", "minute", "daily", "spender", "prepaid", "economy", "cascade")


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a client, and how the client behaves.

    `gone_after_steps`: it hangs up when its request has been resumed so often; `gone_after_ms`: after so long. It takes
    `pace` bytes a second (None: at once) and nothing for `stalls_ms` after its first byte. `cancelled_after_steps`: the
    task is cancelled there, as at a shutdown's deadline. `retries`: how often it comes again when told to.
    """

    at_ms: int
    tenant: str
    endpoint: Endpoint = "chat"
    model: str = "large"
    words: int = 3
    max_tokens: int = 8
    n: int = 1
    stream: bool = True
    stop: str | None = None
    session: str | None = None
    gateway: int = 0
    variant: int = 0
    gone_after_steps: int | None = None
    gone_after_ms: int | None = None
    cancelled_after_steps: int | None = None
    pace: int | None = None
    stalls_ms: int = 0
    retries: int = 0
    adapter: str | None = None
    """The name that it asks for in place of `model`."""
    grammar: bool = False
    """It asks for JSON."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something goes wrong, or an operator does something, for a time."""

    at_ms: int
    kind: FaultKind
    lasts_ms: int = 0
    amount: int = 0
    gateway: int = 0
    upon: str = ""
    """The message that a worker has sent or handled when it dies: see `workers.WorkerHost`. Empty: it dies at once."""


Action = Call | Fault


@dataclass(frozen=True, slots=True)
class Config:
    """The program of one run."""

    start: datetime
    gateways: int = 1
    redis: bool = False
    topic: bool = False
    blocks: int = 64
    max_running: int = 8
    step_tokens: int = 64
    window: int = 256
    ahead: int = 0
    small: bool = True
    step_us: int = 3000
    token_us: int = 60
    max_wait_s: int = 5
    saturated_queue: int = 4
    unread: int = 128
    """Deltas and tokens that lie unread before a choice pauses: few make short answers long."""
    states: int = 0
    """Saved states of a model with recurrent layers, in addition to those of running sequences; 0: it has none."""
    windows: tuple[int | None, ...] = ()
    """Of a model with windowed layers: the windows of its KV groups after the first. `blocks` is for each group."""
    adapter_slots: int = 0
    """Of the model `large`; 0: it takes no adapters."""
    adapter_ms: int = 0
    """Mean time of reading an adapter's files."""
    adapter_copy_ms: int = 0
    """Time of an adapter's copy into its slot."""
    adapter_cache: int = 0
    """Adapters that are kept packed when they lose their slot."""
    adapter_failing: float = 0.0
    """Share of the reads of adapters that fail."""
    adapter_wait_s: int = 10
    workers: bool = False
    """The engines are in processes of their own."""
    worker_ms: int = 100
    """Mean time until a worker is ready."""
    worker_delay_us: int = 50
    """Time of a message on its way."""
    worker_room: int = 1 << 17
    """Bytes that are on their way at most."""
    upstream: Literal["", "last", "running", "none"] = ""
    """When the server of the model `far` reports its usage; empty: there is no such model."""
    upstream_exact: bool = False
    """Its tokenizer is known."""
    upstream_us: int = 5_000
    """Mean time until its next chunk."""
    upstream_tokens: int = 1
    """In each chunk."""
    upstream_room: int = 100
    """Requests that it gets at a time."""


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    config: Config
    actions: tuple[Action, ...]

    def only(self, actions: tuple[Action, ...]) -> "Scenario":
        return replace(self, actions=actions)


def as_source(value: "Action | Config") -> str:
    """Python that makes it, without what is by default so."""
    stated = [
        f"{each.name}={getattr(value, each.name)!r}"
        for each in fields(value)
        if each.default is MISSING or getattr(value, each.name) != each.default
    ]
    return f"{type(value).__name__}({', '.join(stated)})"


def draw(seed: int) -> Scenario:
    """A scenario of a kind that its seed draws."""
    from tests.whole.upstream_scenario import KNOWN_WITHOUT_UPSTREAM, with_upstream  # made of this module's actions
    from tests.whole.worker_scenario import KNOWN_WITHOUT_WORKERS, with_workers

    random = Random(f"scenario-{seed}")
    config = replace(_config(random), states=Random(f"states-{seed}").choice((0, 0, 1, 20)))
    if not config.states:
        windows = Random(f"windows-{seed}").choice(((), (), (), (1,), (48,), (100, None), (16, 16)))
        config = replace(config, windows=windows)
    actions: list[Action] = []
    for _ in range(random.choice((1, 2, 2, 3))):
        begin_ms = random.choice((0, 50, 500, 3_000, 20_000)) + random.randrange(500)
        actions += random.choice(_KINDS)(random, config, begin_ms)
    for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
        actions.append(_fault(random, config))
    config, actions = _with_adapters(Random(f"adapted-{seed}"), config, actions)
    if seed not in KNOWN_WITHOUT_WORKERS:
        config, actions = with_workers(Random(f"workers-{seed}"), config, actions)
    if seed not in KNOWN_WITHOUT_UPSTREAM:
        config, actions = with_upstream(Random(f"upstream-{seed}"), config, actions)
    actions.sort(key=lambda each: each.at_ms)
    return Scenario(seed, config, tuple(actions))


def _config(random: Random) -> Config:
    # Noon, or shortly before a minute, a day and at times a month end together.
    start = datetime(2026, 3, random.choice((14, 31)), 12, tzinfo=UTC)
    if random.random() < 0.5:
        start += timedelta(hours=11, minutes=59, seconds=random.randrange(20, 60))
    start += timedelta(milliseconds=random.randrange(1_000))
    redis = random.random() < 0.4
    return Config(
        start=start,
        gateways=2 if redis and random.random() < 0.5 else 1,
        redis=redis,
        topic=random.random() < 0.4,
        blocks=random.choice((24, 40, 64, 128, 256)),
        max_running=random.choice((2, 4, 8, 16)),
        step_tokens=random.choice((16, 32, 64, 256)),
        window=random.choice((128, 256, 256, 320, 1024)),
        ahead=random.choice((0, 0, 1)),
        small=random.random() < 0.7,
        step_us=random.choice((500, 3_000, 20_000)),
        token_us=random.choice((10, 60, 600, 3_000)),
        max_wait_s=random.choice((1, 2, 5, 30)),
        saturated_queue=random.choice((0, 2, 4, 10)),
        unread=random.choice((128, 16)),
    )


def _one(random: Random, config: Config, at_ms: int, tenant: str | None = None) -> Call:
    tenant = tenant or random.choice(TENANTS)
    endpoint: Endpoint = random.choices(
        ("chat", "completions", "responses", "messages", "embeddings", "tokenize", "read", "hostile"),
        (10, 3, 2, 2, 1, 1, 1, 1),
    )[0]
    call = Call(
        at_ms=at_ms,
        tenant=tenant,
        endpoint=endpoint,
        model=random.choice(("large", "large", "small", "auto") if config.small else ("large",)),
        words=random.choice((0, 1, 3, 3, 8, 20, 40)),
        max_tokens=random.choice((1, 2, 8, 8, 20, 60, 120)),
        n=random.choice((1, 1, 1, 1, 2, 3)),
        stream=random.random() < 0.65,
        stop=random.choice((None, None, None, "a", "\n")),
        session=random.choice((None, None, None, "s1", "s2")),
        gateway=random.randrange(config.gateways),
        variant=random.randrange(1_000),
        retries=random.choice((0, 0, 0, 1, 2)),
    )
    return _behaved(random, call)


def _behaved(random: Random, call: Call) -> Call:
    draw = random.random()
    if draw < 0.18:
        return replace(call, gone_after_steps=random.choice((random.randrange(1, 6), random.randrange(1, 60))))
    if draw < 0.3:
        return replace(
            call, gone_after_ms=random.choice((random.randrange(20), random.randrange(400), random.randrange(4000)))
        )
    if draw < 0.36:
        return replace(call, cancelled_after_steps=random.randrange(1, 40))
    if draw < 0.42:
        return replace(call, pace=random.choice((500, 2_000)), max_tokens=max(call.max_tokens, 60))
    if draw < 0.46:
        return replace(call, stalls_ms=random.choice((2_000, 40_000)), max_tokens=120, words=1)
    return call


def _burst(random: Random, config: Config, at_ms: int) -> list[Action]:
    """Many at once, most of one kind."""
    template = _one(random, config, at_ms)
    spread = random.choice((0, 1, 20, 300))
    return [
        replace(template, at_ms=at_ms + random.randrange(spread + 1), variant=random.randrange(1_000))
        if random.random() < 0.8
        else _one(random, config, at_ms + random.randrange(spread + 1))
        for _ in range(random.choice((4, 10, 24)))
    ]


def _hang_ups(random: Random, config: Config, at_ms: int) -> list[Action]:
    """A crowd that comes and leaves together, and then one who stays."""
    count, after = random.choice((3, 8, 20)), random.choice((5, 60, 330, 1500))
    tenants = [random.choice(("plain", "premium", "minute", "daily"))]
    crowd: list[Action] = [
        replace(
            _one(random, config, at_ms + random.randrange(20), random.choice(tenants)),
            endpoint="chat", words=random.choice((3, 20, 40)), max_tokens=60, gone_after_ms=after,
            gone_after_steps=None, cancelled_after_steps=None, pace=None, stalls_ms=0, session=None, model="large",
        )
        for _ in range(count)
    ]  # fmt: skip
    return [*crowd, Call(at_ms + after + random.choice((50, 3_000)), tenants[0])]


def _trickle(random: Random, config: Config, at_ms: int) -> list[Action]:
    """One after another, with pauses; some of one session."""
    actions: list[Action] = []
    for _ in range(random.choice((3, 8, 14))):
        at_ms += random.choice((5, 60, 400, 2_500))
        actions.append(_one(random, config, at_ms))
    return actions


def _at_the_limit(random: Random, config: Config, at_ms: int) -> list[Action]:
    """One limited tenant uses what it has, in a burst and after."""
    tenant = random.choice(("minute", "daily", "spender", "prepaid"))
    count = random.choice((6, 16, 30))
    spread = random.choice((1, 200, 3_000))
    return [_one(random, config, at_ms + random.randrange(spread), tenant) for _ in range(count)]


def _slow_readers(random: Random, config: Config, at_ms: int) -> list[Action]:
    """Long answers that are read more slowly than they are generated, or with pauses, together with short ones."""
    slow: list[Action] = []
    for _ in range(random.choice((1, 2, 4))):
        call = _one(random, config, at_ms + random.randrange(300), random.choice(("premium", "plain", "spender")))
        call = replace(call, endpoint=random.choice(("chat", "completions")), stream=True, words=1, max_tokens=900)
        call = replace(call, gone_after_steps=None, cancelled_after_steps=None, stop=None, retries=0)
        pace, stalls_ms = random.choice((6_000, 20_000)), random.choice((0, 3_000, 40_000))
        slow.append(replace(call, pace=pace, stalls_ms=stalls_ms, gone_after_ms=random.choice((None, None, 6_000))))
    return [*slow, *_trickle(random, config, at_ms)[:4]]


_KINDS = (_burst, _hang_ups, _trickle, _at_the_limit, _slow_readers)


def _with_adapters(random: Random, config: Config, actions: list[Action]) -> tuple[Config, list[Action]]:
    """In half of the runs the model takes adapters, and many calls name one: of their tenant, of another, or none."""
    slots = random.choice((0, 0, 0, 1, 2, 3))
    if not slots:
        return config, actions
    config = replace(
        config,
        adapter_slots=slots,
        adapter_ms=random.choice((0, 5, 100, 1_000)),
        adapter_copy_ms=random.choice((0, 0, 2, 60)),
        adapter_cache=random.choice((0, 2, 100)),
        adapter_failing=random.choice((0.0, 0.0, 0.2)),
        adapter_wait_s=random.choice((1, 10)),
    )
    share = random.choice((0.3, 0.7, 1.0))
    adapted = [
        replace(each, adapter=_adapter_name(random, each.tenant))
        if isinstance(each, Call) and each.endpoint not in ("read", "hostile") and random.random() < share
        else each
        for each in actions
    ]
    if random.random() < 0.3:
        tenant, name = LIMITED
        calls = [_one(random, config, random.randrange(3_000), tenant) for _ in range(8)]
        adapted += [replace(each, endpoint="chat", adapter=name, max_tokens=20) for each in calls]
    kinds: tuple[FaultKind, ...] = (
        "adapters-late", "adapters-fail", "adapter-deleted", "adapter-deleted", "adapter-weights", "adapter-rollback"
    )  # fmt: skip
    begins_ms = min((each.at_ms for each in actions), default=0)
    faults = [
        Fault(
            at_ms=begins_ms + random.choice((0, 100, 1_000, 5_000)) + random.randrange(500),
            kind=random.choice(kinds),
            lasts_ms=random.choice((20, 700, 4_000, 15_000)),
            amount=random.randrange(30),
            gateway=0,
        )
        for _ in range(random.choice((0, 1, 1, 3)))
    ]
    return config, [*adapted, *faults]


def _adapter_name(random: Random, tenant: str) -> str:
    name = random.choice(NAMES)
    return random.choice((name, name, name, f"{tenant}/{name}", f"{random.choice(OWNERS)}/{name}", "nothing"))


def _fault(random: Random, config: Config) -> Fault:
    kinds: list[FaultKind] = ["disk-fails", "sync-fails", "disk-full", "disk-slow", "loop-stalls", "device-slow"]
    kinds += ["step-fails", "step-short", "poison", "grant", "revoke", "restart", "crash", "store-down"]
    if config.redis:
        kinds += ["redis-down", "redis-slow", "redis-empty", "redis-full"] * 3
    if config.topic:
        kinds += ["topic-down", "topic-repeats"] * 2
    return Fault(
        at_ms=random.randrange(6_000),
        kind=random.choice(kinds),
        lasts_ms=random.choice((20, 120, 700, 4_000, 15_000)),
        amount=random.choice((1, 5, 30)),
        gateway=random.randrange(config.gateways),
    )
