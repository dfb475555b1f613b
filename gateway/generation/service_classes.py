"""Service classes: the class that serves a request, from its tenant's tier and its `service_tier`."""

from dataclasses import dataclass

from engine.request import ServiceClass
from gateway.config.engine_classes import engine_classes_of
from gateway.config.service_classes import BATCH_CLASS, OPENAI_TIERS, STANDARD_TIER, StatedClass, require_class
from gateway.config.settings import Settings
from gateway.http.errors import APIError, invalid
from gateway.tenancy import Limits, Tier

WAIT_TARGETS = 10
"""The default of `max_wait_ms`, in multiples of the class's `ttft_target_ms`."""


@dataclass(frozen=True, slots=True)
class TierClass:
    """How requests of one class are served. `word`: OpenAI's name of it. `limits`: those of tenants that have none of
    their own. A request whose predicted time to first token is over `max_wait_ms` is refused."""

    engine_class: ServiceClass
    word: str
    limits: Limits
    max_wait_ms: int

    @property
    def name(self) -> str:
        return self.engine_class.name


class TierClasses:
    """All classes of the settings, by name. A tenant's tier is one of them.

    OpenAI's values of `service_tier` select: `auto` and `priority` the tenant's own class, `default` the class named
    standard (the lowest if there is none), `flex` the lowest.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        engine_classes = engine_classes_of(settings)
        names = [each.name for each in engine_classes]
        default = names.index(STANDARD_TIER) if STANDARD_TIER in names else len(names) - 1
        self._rank_of = {name: rank for rank, name in enumerate(names)}
        self._classes = [
            TierClass(
                each,
                "priority" if rank < default else "default" if rank == default else "flex",
                Limits(context_tokens=settings.service_classes[each.name].context_tokens),
                _max_wait_ms(settings.service_classes[each.name], settings.max_wait_s),
            )
            for rank, each in enumerate(engine_classes)
        ]
        self._highest = {"auto": 0, "priority": 0, "default": default, "flex": len(names) - 1} | self._rank_of
        """The highest rank that a value of `service_tier` may get."""
        self.default_tier: Tier = names[default]

    @property
    def names(self) -> tuple[str, ...]:
        """From the highest to the lowest."""
        return tuple(self._rank_of)

    def of_tier(self, tier: Tier) -> TierClass:
        """
        Raises:
            APIError: 403, the settings have no such class. No other class replaces it.
        """
        return self._classes[self._rank_of_tier(tier)]

    def serving(self, tier: Tier, asked: str | None) -> TierClass:
        """The class that serves a request: its tenant's, or a lower one that `asked` names. Never a higher one.

        Raises:
            APIError: 400, there is no class `asked`; 403, as `of_tier`.
        """
        own = self._rank_of_tier(tier)
        lowered = 0 if asked is None else self._highest.get(asked)
        if lowered is None:
            names = ", ".join((*OPENAI_TIERS, *self._rank_of))
            raise invalid("service_tier", f"service_tier must be one of {names}.")
        return self._classes[max(own, lowered)]

    def only(self, name: str | None) -> "TierClasses":
        """These classes for requests that are all served by one of them, whatever they ask for: the lines of batches.
        `name`: None: the class named batch, or the lowest.

        Raises:
            UnknownClass: there is no class of that name.
        """
        return _OneClass(self._settings, name)

    def _rank_of_tier(self, tier: Tier) -> int:
        rank = self._rank_of.get(tier)
        if rank is None:
            raise APIError(
                403,
                f"This account's tier, {tier}, is not served here. Its administrator can change it.",
                code="tier_not_served",
            )
        return rank


class _OneClass(TierClasses):
    def __init__(self, settings: Settings, name: str | None) -> None:
        super().__init__(settings)
        if name is None:
            name = BATCH_CLASS if BATCH_CLASS in self.names else self.names[-1]
        require_class(settings.service_classes, name)
        self._only = self.of_tier(name)

    def serving(self, tier: Tier, asked: str | None) -> TierClass:
        """The one class, never above the tenant's. Raises: APIError: as in the base class."""
        own = super().serving(tier, asked)
        return max(own, self._only, key=lambda each: each.engine_class.priority)


def echoed(serving: TierClass, asked: str | None) -> str | None:
    """The `service_tier` of an answer, as the request spelled it. None: the request has none."""
    return None if asked is None else serving.word if asked in OPENAI_TIERS else serving.name


def _max_wait_ms(stated: StatedClass, max_wait_s: int) -> int:
    if stated.max_wait_ms is not None:
        return stated.max_wait_ms
    bound_ms = max_wait_s * 1000
    return bound_ms if stated.ttft_target_ms is None else min(bound_ms, WAIT_TARGETS * stated.ttft_target_ms)
