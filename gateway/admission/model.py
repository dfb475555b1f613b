"""The values of admission: what is limited, what a request wants of it, what it got.

Amounts are integers: requests, tokens, nanodollars (1e-9 dollar). None is above `MAX_AMOUNT`, so that the
arithmetic of Redis' Lua (IEEE doubles) is exact too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.admission.windows import LimitWindow
from gateway.tenancy.limits import MAX_LIMIT, ScopeKind

MAX_AMOUNT = MAX_LIMIT


class Measure(StrEnum):
    """What is counted, and over which window."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"
    CONCURRENT = "concurrent"
    NANODOLLARS_PER_MONTH = "nanodollars_per_month"
    CREDIT_NANODOLLARS = "credit_nanodollars"
    """Of what was ever paid in advance."""

    @property
    def window(self) -> LimitWindow:
        return _WINDOWS[self]

    @property
    def counts_tokens(self) -> bool:
        return self in (Measure.TOKENS_PER_MINUTE, Measure.TOKENS_PER_DAY)

    @property
    def counts_money(self) -> bool:
        return self in (Measure.NANODOLLARS_PER_MONTH, Measure.CREDIT_NANODOLLARS)


_WINDOWS = {
    Measure.REQUESTS_PER_MINUTE: LimitWindow.MINUTE,
    Measure.TOKENS_PER_MINUTE: LimitWindow.MINUTE,
    Measure.TOKENS_PER_DAY: LimitWindow.DAY,
    Measure.CONCURRENT: LimitWindow.OPEN,
    Measure.NANODOLLARS_PER_MONTH: LimitWindow.MONTH,
    Measure.CREDIT_NANODOLLARS: LimitWindow.EVER,
}


@dataclass(frozen=True, slots=True)
class Scope:
    """One counter. `id` is the key's public id, the model's served name, or "" for the tenant itself."""

    tenant_id: str
    kind: ScopeKind
    id: str
    measure: Measure


@dataclass(frozen=True, slots=True)
class Quota:
    """A scope and the most that may be held and committed in its window together."""

    scope: Scope
    limit: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request takes from a quota: `fixed` whatever happens, and `per_token` for each token granted.

    Tokens of a prompt of p and n choices: fixed=p, per_token=n. A request: fixed=1, per_token=0. Money: the
    prompt's price, and the highest price of a token, rounded up.
    """

    quota: Quota
    fixed: int
    per_token: int

    def amount(self, tokens: int) -> int:
        return self.fixed + self.per_token * tokens


@dataclass(frozen=True, slots=True)
class Use:
    """What a request has really used, to be committed. Nothing at all: the request did not take place."""

    requests: int = 0
    tokens: int = 0
    nanodollars: int = 0

    def of(self, measure: Measure) -> int:
        """How much of a counter this is. Concurrency is only ever held."""
        match measure:
            case Measure.REQUESTS_PER_MINUTE:
                return self.requests
            case Measure.TOKENS_PER_MINUTE | Measure.TOKENS_PER_DAY:
                return self.tokens
            case Measure.NANODOLLARS_PER_MONTH | Measure.CREDIT_NANODOLLARS:
                return self.nanodollars
            case Measure.CONCURRENT:
                return 0


@dataclass(frozen=True, slots=True)
class Committed:
    """What is known from elsewhere to have been used of a scope in the window that `at_ms` lies in."""

    scope: Scope
    at_ms: int
    amount: int


@dataclass(frozen=True, slots=True)
class LimitState:
    """Where a quota stands: `used` is committed and held together, `held` the part of it that requests under way hold;
    in `reset_ms` milliseconds all that counts now will have left the window (0: nothing counts, or it is concurrency,
    which has no clock)."""

    quota: Quota
    used: int
    held: int
    reset_ms: int

    @property
    def remaining(self) -> int:
        return max(0, self.quota.limit - self.used)


def tightest(states: Iterable[LimitState], measures: Sequence[Measure]) -> LimitState | None:
    """Of the states of these measures, the one with the least left: what a client's headers speak of."""
    return min(
        (state for state in states if state.quota.scope.measure in measures),
        key=lambda state: state.remaining,
        default=None,
    )


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """What a request asks of a store: all demands together, or nothing.

    Request ids are made by the server and never reused: the second use of one is taken for a retry with the same
    demands, and is free.
    All demands are of one tenant, in distinct scopes. 0 <= minimum_tokens <= desired_tokens.
    """

    request_id: str
    demands: tuple[Demand, ...]
    minimum_tokens: int
    desired_tokens: int

    def __post_init__(self) -> None:
        scopes = [demand.quota.scope for demand in self.demands]
        if not scopes or len(set(scopes)) < len(scopes) or len({scope.tenant_id for scope in scopes}) > 1:
            raise ValueError("demands must be of one tenant, in distinct scopes")
        if not 0 <= self.minimum_tokens <= self.desired_tokens:
            raise ValueError("0 <= minimum_tokens <= desired_tokens does not hold")
        for demand in self.demands:
            if min(demand.quota.limit, demand.fixed, demand.per_token) < 0:
                raise ValueError("an amount is negative")
            if max(demand.quota.limit, demand.amount(self.desired_tokens)) > MAX_AMOUNT:
                raise ValueError(f"an amount is above {MAX_AMOUNT}")

    @property
    def tenant_id(self) -> str:
        return self.demands[0].quota.scope.tenant_id


@dataclass(frozen=True, slots=True)
class Hold:
    """What is held for a request from `at_ms` (Unix milliseconds by the store's clock) until it is settled.

    minimum_tokens <= granted_tokens <= desired_tokens. `bound_by` is the scope that cut the grant, None where all
    that was desired is granted. `degraded`: taken from this replica's local share, as the shared store is away.
    `states` are from just after the hold.
    """

    request_id: str
    at_ms: int
    granted_tokens: int
    bound_by: Scope | None
    demands: tuple[Demand, ...]
    states: tuple[LimitState, ...] = field(repr=False)
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class HoldRefusal:
    """Nothing is held, as `quota` (the one to wait longest for, where there are several) has no room.

    `retry_after_ms` is when there is room at the latest, if nobody else takes it; for concurrency, a guess. None:
    never, as the request alone is more than the limit.
    """

    quota: Quota
    retry_after_ms: int | None
    states: tuple[LimitState, ...] = field(repr=False)
    degraded: bool = False


class SettleOutcome(StrEnum):
    """What became of a settlement. Use is committed exactly once, whichever it is."""

    SETTLED = "settled"
    REPEATED = "repeated"
    """Settled before: nothing was done."""
    LATE = "late"
    """The hold had expired and was freed then; what was used has been committed nevertheless."""
    UNKNOWN = "unknown"
    """The store knew of no such hold (it was restarted, or was away); what was used has been committed."""

    DEFERRED = "deferred"
    """The store is away: it will be committed when that is back."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """`exceeded`: more was used than was held, so that a limit may have been passed."""

    outcome: SettleOutcome
    exceeded: bool = False
