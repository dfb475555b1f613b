"""Values of admission: limits, demands, holds and settlements.

Amounts are integers: requests, tokens, nanodollars (1e-9 dollar). None is above `MAX_AMOUNT`, so the arithmetic of
Redis' Lua (IEEE doubles) is exact too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.admission.windows import LimitWindow
from gateway.tenancy.limits import MAX_LIMIT, ScopeKind

MAX_AMOUNT = MAX_LIMIT


class Measure(StrEnum):
    """The counted quantity, with its window."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"
    CONCURRENT = "concurrent"
    NANODOLLARS_PER_MONTH = "nanodollars_per_month"
    CREDIT_NANODOLLARS = "credit_nanodollars"
    """Use of all that was ever paid in advance."""

    @property
    def window(self) -> LimitWindow:
        """The window in which the measure is counted."""
        return _WINDOWS[self]

    @property
    def counts_tokens(self) -> bool:
        """Whether the unit is tokens."""
        return self in (Measure.TOKENS_PER_MINUTE, Measure.TOKENS_PER_DAY)

    @property
    def counts_money(self) -> bool:
        """Whether the unit is nanodollars."""
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
    """One counter. `id`: the key's public id, the model's served name, or "" for the tenant itself."""

    tenant_id: str
    kind: ScopeKind
    id: str
    measure: Measure


@dataclass(frozen=True, slots=True)
class Quota:
    """A scope with its limit: the upper bound of held and committed amounts in its window together."""

    scope: Scope
    limit: int


@dataclass(frozen=True, slots=True)
class Demand:
    """A request's demand on a quota: `fixed` in any case, and `per_token` for each granted token.

    Tokens of a prompt of p and n choices: fixed=p, per_token=n. A request: fixed=1, per_token=0. Money: the prompt's
    price, and the highest price of a token, rounded up.
    """

    quota: Quota
    fixed: int
    per_token: int

    def amount(self, tokens: int) -> int:
        """The demand for this many granted tokens."""
        return self.fixed + self.per_token * tokens


@dataclass(frozen=True, slots=True)
class Use:
    """Actual use of a request, to be committed. All zero: the request did not take place."""

    requests: int = 0
    tokens: int = 0
    nanodollars: int = 0

    def of(self, measure: Measure) -> int:
        """The part that counts towards a measure. Concurrency is only held, never committed."""
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
    """Use known from another source, in the window that `at_ms` (Unix milliseconds) lies in."""

    scope: Scope
    at_ms: int
    amount: int


@dataclass(frozen=True, slots=True)
class LimitState:
    """State of a quota. `used`: held and committed together. `held`: the part held by open requests. `reset_ms`:
    milliseconds until everything that counts now has left the window; 0: nothing counts, or the measure is concurrency,
    which has no clock."""

    quota: Quota
    used: int
    held: int
    reset_ms: int

    @property
    def remaining(self) -> int:
        """The unused part of the limit, at least 0."""
        return max(0, self.quota.limit - self.used)


def tightest(states: Iterable[LimitState], measures: Sequence[Measure]) -> LimitState | None:
    """The state with the least remaining, among those of `measures`: the one in a client's headers. None: there is
    none."""
    return min(
        (state for state in states if state.quota.scope.measure in measures),
        key=lambda state: state.remaining,
        default=None,
    )


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """A request to a store: all demands together, or nothing.

    Request ids are made by the server and never reused. The second use of one is a retry with the same demands, and is
    free. All demands are of one tenant, in distinct scopes. 0 <= minimum_tokens <= desired_tokens.
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
        """The tenant of all demands."""
        return self.demands[0].quota.scope.tenant_id


@dataclass(frozen=True, slots=True)
class Hold:
    """The reservation of a request, from `at_ms` (Unix milliseconds by the store's clock) until it is settled.

    minimum_tokens <= granted_tokens <= desired_tokens. `bound_by`: the scope that cut the grant; None: the desired
    tokens are granted. `degraded`: taken from this replica's local share, as the shared store is away. `states`: states
    of the quotas just after the hold.
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
    """Nothing is held, as `quota` has no room; of several, it is the one with the longest wait.

    `retry_after_ms`: milliseconds until there is room, unless other requests take it; for concurrency, a guess. None:
    never, as the request alone exceeds the limit.
    """

    quota: Quota
    retry_after_ms: int | None
    states: tuple[LimitState, ...] = field(repr=False)
    degraded: bool = False


class SettleOutcome(StrEnum):
    """Result of a settlement. Use is committed exactly once in every case."""

    SETTLED = "settled"
    REPEATED = "repeated"
    """The hold was settled before: nothing changed."""
    LATE = "late"
    """The hold had expired and was freed then; the use has been committed."""
    UNKNOWN = "unknown"
    """The store did not know the hold (it was restarted, or was away); the use has been committed."""

    DEFERRED = "deferred"
    """The store is away: the use is committed when it is back."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """Result of settling a hold. `exceeded`: more was used than held, so a limit may be passed."""

    outcome: SettleOutcome
    exceeded: bool = False
