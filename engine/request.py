"""Requests, their results, and the state of a request in between.

A tenant is an opaque string and a tier is a `ServiceClass`; the engine knows nothing of HTTP, keys or money.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import InvalidParameter
from engine.grammar.matcher import GrammarMatcher
from engine.grammar.spec import GrammarSpec

if TYPE_CHECKING:  # they know requests
    from engine.adapters.source import AdapterSource
    from engine.memory.prefix_hits import PrefixHits
    from engine.memory.shared_prompt import SharedPrompt

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_SEED = 2**63 - 1
MAX_RESERVED_FRACTION = 0.9
"""Maximum sum of the classes' reserves, so that the lowest class has capacity."""


class FinishReason(StrEnum):
    """Why a choice ended. `stop` and `length` are OpenAI's; `abort` and `error` end it from outside."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Pooling(StrEnum):
    """How a prompt's hidden states become its embedding: the mean over all positions, or the last one."""

    MEAN = "mean"
    LAST = "last"


class Fault(StrEnum):
    """Why a request failed for a reason of its own, as in the `error` of its last delta."""

    NOT_FINITE = "the model's output is not finite"
    GRAMMAR = "the grammar cannot be followed any further"
    ADAPTER = "the adapter could not be loaded"


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """A class of service. A smaller `priority` is served first.

    `reserved_fraction`: share of KV blocks and sequence slots that lower classes cannot take, as far as this class does
    not use it. `weight`: divisor of a tenant's accounted service within the class. `step_share`: maximum share of a
    step's tokens for this class's prefill while a higher class has requests. `ttft_target_ms`: target for the time to
    first token, which the step's token budget follows. `itl_target_ms`: target for the inter-token latency; while the
    class has running answers, prefill is limited so that steps meet it, at a loss of at most a tenth of prefill
    throughput. `yields`: the class fills unused capacity. Its rows, decodes included, are left out of steps in which a
    higher class has prompts. Its prompts take short steps while a higher class is active. Its requests are preempted
    for higher classes before all others, and do not count against preemption budgets.

    Raises:
        ValueError: a number is out of its range.
    """

    name: str
    priority: int
    reserved_fraction: float = 0.0
    weight: float = 1.0
    ttft_target_ms: int | None = None
    step_share: float = 1.0
    itl_target_ms: int | None = None
    yields: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.reserved_fraction <= MAX_RESERVED_FRACTION:
            raise ValueError(f"reserved_fraction must be in [0, {MAX_RESERVED_FRACTION}], got {self.reserved_fraction}")
        if not (self.weight > 0.0 and math.isfinite(self.weight)):
            raise ValueError(f"weight must be positive, got {self.weight}")
        if not 0.0 < self.step_share <= 1.0:
            raise ValueError(f"step_share must be in (0, 1], got {self.step_share}")
        for name, target_ms in (("ttft_target_ms", self.ttft_target_ms), ("itl_target_ms", self.itl_target_ms)):
            if target_ms is not None and target_ms < 1:
                raise ValueError(f"{name} must be at least 1, got {target_ms}")


def ranked(classes: Iterable[ServiceClass]) -> tuple[ServiceClass, ...]:
    """The classes in the order in which they are served."""
    return tuple(sorted(classes, key=lambda service_class: service_class.priority))


PREMIUM = ServiceClass("premium", priority=0, reserved_fraction=0.30, ttft_target_ms=500, itl_target_ms=50)
STANDARD = ServiceClass("standard", priority=10, step_share=0.1, itl_target_ms=100)
BATCH = ServiceClass("batch", priority=20, yields=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request. Each default is neutral.

    Names and ranges follow the OpenAI API, extensions follow vLLM, and the order is that of vLLM V1: grammar mask and
    `logit_bias`, penalties, temperature, `min_p`, `top_k`, and `top_p` of what those leave. `top_k=0` is off.
    `logprobs=k`: log-probability of the sampled token and of the k most likely ones (k may be 0); None: no
    log-probabilities. `prompt_logprobs`: the same for the prompt's tokens. `max_tokens=None`: up to the context window.
    `seed=None`: random. With `n` > 1, choice i has a seed derived from `seed` and i. `grammar`: constraint on each
    choice; the grammar determines the end, so it excludes `min_tokens` and `ignore_eos`. `pooling`: compute the
    prompt's embedding instead of an answer, with `max_tokens` 0 and `n` 1. `conversational`: the answer is a turn of a
    conversation; special tokens that mark tool calls and reasoning stay in its text.

    `allowed_token_ids`: the only tokens that may be sampled; None: all. `include_stop`: the stop string or the text of
    the stop token is part of the text. `skip_special_tokens`: special tokens are not.

    Raises:
        InvalidParameter: a value is out of its range; `param` names it.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    grammar: GrammarSpec | None = None
    allowed_token_ids: frozenset[int] | None = None
    skip_special_tokens: bool = True
    conversational: bool = False
    include_stop: bool = False
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        _require_range("temperature", self.temperature, 0.0, 2.0)
        _require_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _require_range("min_p", self.min_p, 0.0, 1.0)
        _require_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _require_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _require_range("repetition_penalty", self.repetition_penalty, 0.0, 10.0, low_open=True)
        _require_range("n", self.n, 1, MAX_CHOICES)
        _require_range("min_tokens", self.min_tokens, 0, 2**31)
        _require_range("top_k", self.top_k, 0, 2**31)
        if self.max_tokens is not None:
            _require_range("max_tokens", self.max_tokens, 0, 2**31)
            if self.min_tokens > self.max_tokens:
                raise InvalidParameter("min_tokens", "min_tokens must not exceed max_tokens")
        if self.seed is not None:
            _require_range("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _require_range(name, count, 0, MAX_TOP_LOGPROBS)
        if len(self.stop) > MAX_STOP_STRINGS or not all(self.stop):
            raise InvalidParameter("stop", f"stop takes at most {MAX_STOP_STRINGS} non-empty strings")
        for bias in self.logit_bias.values():
            _require_range("logit_bias", bias, -100.0, 100.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidParameter("allowed_token_ids", "allowed_token_ids must not be empty")
        if self.grammar is not None:
            if self.allowed_token_ids is not None:
                raise InvalidParameter(
                    "allowed_token_ids", f"allowed_token_ids cannot be asked for together with {self.grammar.param}"
                )
            for name, given in (("min_tokens", self.min_tokens), ("ignore_eos", self.ignore_eos)):
                if given:
                    raise InvalidParameter(name, f"{name} cannot be asked for together with {self.grammar.param}")
        if self.pooling is not None and self.max_tokens != 0:
            raise InvalidParameter("max_tokens", "max_tokens must be 0 for an embedding")
        if self.pooling is not None and self.n != 1:
            raise InvalidParameter("n", "n must be 1 for an embedding")


def _require_range(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    """Raises InvalidParameter unless the value is in the range. NaN fails every comparison, so it is rejected, too."""
    in_range = (low < value if low_open else low <= value) and value <= high and math.isfinite(value)
    if not in_range:
        bracket = "(" if low_open else "["
        raise InvalidParameter(name, f"{name} must be in {bracket}{low}, {high}], got {value}")


class Alternative(NamedTuple):
    """A token and its log-probability (natural logarithm, before temperature and thresholds)."""

    token_id: int
    logprob: float


class TokenLogprob(NamedTuple):
    """The log-probability of a token of the text, and of the most likely tokens in its place."""

    token_id: int
    logprob: float
    top: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Consumption of one choice. `cached_tokens`: prompt tokens from the prefix cache.

    `engine_ns`: its share of the time of its steps, without work repeated after a preemption, which is in
    `recompute_ns` by name of the class that it was preempted for. `queue_ns`: wait until the first admission.
    `draft_tokens`: tokens proposed and verified, of which `accepted_draft_tokens` were accepted. `paused_ns`: time
    paused because the output was not read; not included in the others.

    `prefilled_tokens`: prompt tokens found in the cache or in a launched step: 0 while the request waits for its first
    step, all of them from the first answer token on.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    preemptions: int = 0
    engine_ns: int = 0
    queue_ns: int = 0
    recompute_ns: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    paused_ns: int = 0
    prefilled_tokens: int = 0


class TokenDelta(NamedTuple):
    """Output of one step for one request: token ids, no text.

    One for each request and step, with several tokens where drafts were accepted. A tuple, as its construction takes a
    third of a frozen dataclass's.

    `finish_reason` is set on the last delta of a request only. `usage`: its consumption so far, on the last delta and,
    where the reader looks for stop strings and may end it, on each. `stop_token`: the end-of-text or stop token that
    ended it, counted in usage and not in `token_ids`. `error`: why a request failed: a `Fault`, or the engine's
    message. `embedding`: on the last delta, if requested: float32 [H], little-endian, of L2 norm 1. `cached_tokens`:
    prompt tokens from the prefix cache; 0 on the deltas of requests that did not start.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    usage: Usage | None = None
    error: str | None = None
    embedding: bytes = b""
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next text of one choice. The last delta of a choice has `finish_reason` and `usage`.

    `stop`: the stop string or stop token id that ended the choice, or None. `prompt_logprobs`: on the first delta only,
    if requested; its first entry is None. `cached_tokens`: prompt tokens from the prefix cache, on every delta.
    `embedding`: as in `TokenDelta`.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    finish_reason: FinishReason | None = None
    stop: str | int | None = None
    usage: Usage | None = None
    cached_tokens: int = 0
    embedding: bytes = b""


class PromptInput(NamedTuple):
    """One prompt of a call. `token_ids`: its tokens. `continues_text`: the answer is appended to the prompt's text, so
    that a leading space is kept. `request_id` need not be unique; None: a random one."""

    token_ids: Sequence[int]
    params: SamplingParams
    request_id: str | None = None
    continues_text: bool = False


def joined_delta(parts: Sequence[TextDelta]) -> TextDelta:
    """Consecutive deltas of one choice as one. What only the last of them has, the joined one has."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[-1],
        text="".join([part.text for part in parts]),
        token_ids=tuple(chain.from_iterable([part.token_ids for part in parts])),
        logprobs=tuple(chain.from_iterable([part.logprobs for part in parts])),
        prompt_logprobs=tuple(chain.from_iterable([part.prompt_logprobs for part in parts])),
    )


NULL_BLOCK = -1
"""An entry of a block table whose block was released, because no later token attends to it."""


class Phase(Enum):
    """The state of a request. Prefill and decode are not phases: compare `computed` with `tokens`."""

    WAITING = auto()
    RUNNING = auto()
    PAUSED = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """The state of one choice in the engine: its tokens, how far its KV is computed, and the blocks that hold it.
    The scheduler and its `KVCacheManager` are its only writers.

    `computed` counts leading tokens whose KV is in `block_table`, `scheduled` those that are computed or in flight, in
    steps that were launched and have not landed. A step may be launched before the result of the last is known, so
    `scheduled` can reach the end of `tokens`: the next one is being drawn then, and only the device will know it. An
    answer that runs to its length ends when `computed` is `computed_at_end`.

    `arrival` is a number that the engine gives out in order of submission; it is kept through preemption. `slot` is the
    row of per-sequence state in the executor while running. `salt` separates prefix caches (one for each tenant). A
    request with `fork_of` set waits until that sequence's prompt is computed and then shares its blocks. `matcher`
    follows its answer through its grammar, if it has one; the executor moves it. `adapter` changes the model for it.
    While it waits for capacity or runs, that is in `adapter_slot` of the executor: see
    `engine.scheduling.adapter_queue`.

    `holder` is the number by which the pool knows the blocks that it holds for itself; those of a prompt that it has in
    common with other choices are `shared`. While it `is_allocating`, it has part of its blocks, and `pledged_blocks`
    are kept for it. `hits` is what is known of its prefix in the cache while it waits.

    For models whose KV is in groups (see `engine.memory.window_groups`): `window_tables` are the block tables of the
    groups after the first, in each of which the first `window_starts` entries are `NULL_BLOCK`.

    For models with recurrent layers: `state` is the slot of its state while it runs, which stood for its first
    `state_tokens` tokens when it was admitted. `state_saves`: the positions, in rows in flight, at which its state is
    saved, and the slots.

    `fetch_floor`: it waits for blocks of the second pool only with at least as many hits: see `engine.memory.tiers`.

    `waiting_since_ns` is when it arrived or, if that is later, was preempted or resumed last. `admissions` is how often
    it has begun to run: together with the request that names a stay in a slot, with the blocks of that time. It was
    paused `pauses` times, for `paused_ns` in all; `paused_since_ns` is when the pause that lasts began.

    `rank` is the place of its class among the configured ones, 0 the highest. Up to `high_water_tokens` its tokens
    have been computed before it was last preempted, for the sake of class number `preempted_by`: what it computes
    of them again is charged to that class: `recompute_ns` of time so far, by class name. `reached_tokens` is the most
    that `scheduled` was before its blocks were last given back.
    """

    id: str
    tokens: list[int]
    prompt_tokens: int
    params: SamplingParams
    seed: int
    max_tokens: int
    eos_token_ids: tuple[int, ...]
    arrival: int
    service_class: ServiceClass
    tenant: str = ""
    salt: bytes = b""
    fork_of: "Request | None" = None
    matcher: GrammarMatcher | None = None
    adapter: "AdapterSource | None" = None

    phase: Phase = Phase.WAITING
    computed: int = 0
    scheduled: int = 0
    computed_at_end: int = 0
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    window_tables: list[list[int]] = field(default_factory=list)
    window_starts: list[int] = field(default_factory=list)
    holder: int = 0
    pledged_blocks: int = 0
    is_allocating: bool = False
    shared: "SharedPrompt | None" = None
    hits: "PrefixHits | None" = None
    slot: int | None = None
    adapter_slot: int | None = None
    state: int | None = None
    state_tokens: int = 0
    state_saves: list[tuple[int, int]] = field(default_factory=list)
    cached_tokens: int = 0
    preemptions: int = 0
    admissions: int = 0
    pauses: int = 0
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    rank: int = 0
    arrived_ns: int = 0
    waiting_since_ns: int = 0
    fetch_floor: int = 0
    high_water_tokens: int = 0
    reached_tokens: int = 0
    preempted_by: int = 0
    engine_ns: int = 0
    queue_ns: int = 0
    paused_since_ns: int = 0
    paused_ns: int = 0
    recompute_ns: dict[str, int] = field(default_factory=dict)
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether its prompt's log-probabilities are still to be computed: they are delivered with the first token."""
        return self.params.prompt_logprobs is not None and self.output_tokens == 0

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether something of every position is asked for, so that no cached KV can stand in for computing it."""
        return self.wants_prompt_logprobs or self.params.pooling is Pooling.MEAN

    @property
    def usage(self) -> Usage:
        """Its consumption so far. May be read while another thread steps."""
        accepted = self.accepted_draft_tokens  # first, as it is the last to be counted: never more than the drafts
        return Usage(
            self.prompt_tokens,
            self.output_tokens,
            self.cached_tokens,
            self.preemptions,
            self.engine_ns,
            self.queue_ns,
            MappingProxyType(dict(self.recompute_ns)),
            self.draft_tokens,
            accepted,
            self.paused_ns,
            min(max(self.reached_tokens, self.scheduled), self.prompt_tokens),
        )
