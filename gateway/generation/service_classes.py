"""From a tenant's tier, and what its client asks for, to the class that serves a request."""

from dataclasses import dataclass

from engine.request import ServiceClass
from gateway.config.engine_classes import engine_classes_of
from gateway.config.service_classes import OPENAI_TIERS, STANDARD_TIER, StatedClass
from gateway.config.settings import Settings
from gateway.http.errors import APIError, invalid
from gateway.tenancy import Limits, Tier

WAIT_TARGETS = 10
"""A request is turned away where it would wait for more than so many of its class's targets, unless stated."""


@dataclass(frozen=True, slots=True)
class TierClass:
    """How requests of one class are served. `word` is OpenAI's for it; `limits` are its tenants' own, where none are
    stated for them. A request whose predicted wait for a first token is over `max_wait_ms` is turned away."""

    engine_class: ServiceClass
    word: str
    limits: Limits
    max_wait_ms: int

    @property
    def name(self) -> str:
        return self.engine_class.name


class TierClasses:
    """All classes of the settings, by name; each is what a tenant's tier may be.

    OpenAI's words have these meanings: `auto` and `priority` ask for the tenant's own class, `default` for the one that
    is called standard (the lowest, where there is none of that name), `flex` for the lowest.
    """

    def __init__(self, settings: Settings) -> None:
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
        """The rank that a word asks for; what is higher, the request does not get."""
        self.default_tier: Tier = names[default]

    @property
    def names(self) -> tuple[str, ...]:
        """From the highest to the lowest."""
        return tuple(self._rank_of)

    def of_tier(self, tier: Tier) -> TierClass:
        """
        Raises:
            APIError: 403, the settings name no such class: no other may take its place unasked.
        """
        return self._classes[self._rank_of_tier(tier)]

    def serving(self, tier: Tier, asked: str | None) -> TierClass:
        """The class that a request runs in: its tenant's, or a lower one that the client asks for. Never a higher one.

        Raises:
            APIError: 400, the client asks for what there is not; 403, as `of_tier`.
        """
        own = self._rank_of_tier(tier)
        lowered = 0 if asked is None else self._highest.get(asked)
        if lowered is None:
            names = ", ".join((*OPENAI_TIERS, *self._rank_of))
            raise invalid("service_tier", f"service_tier must be one of {names}.")
        return self._classes[max(own, lowered)]

    def _rank_of_tier(self, tier: Tier) -> int:
        rank = self._rank_of.get(tier)
        if rank is None:
            raise APIError(
                403,
                f"This account's tier, {tier}, is not served here. Its administrator can change it.",
                code="tier_not_served",
            )
        return rank


def echoed(serving: TierClass, asked: str | None) -> str | None:
    """`service_tier` of an answer: in the words of the question. None: nothing was asked."""
    return None if asked is None else serving.word if asked in OPENAI_TIERS else serving.name


def _max_wait_ms(stated: StatedClass, max_wait_s: int) -> int:
    if stated.max_wait_ms is not None:
        return stated.max_wait_ms
    bound_ms = max_wait_s * 1000
    return bound_ms if stated.ttft_target_ms is None else min(bound_ms, WAIT_TARGETS * stated.ttft_target_ms)
