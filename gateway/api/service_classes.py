"""From a tenant's tier to the engine's class of service, and OpenAI's words for it."""

from engine.request import PREMIUM, STANDARD, ServiceClass
from gateway.tenancy.records import Tier

SERVICE_TIERS = ("auto", "default", "flex", "priority")
"""What a client may ask for."""

SERVICE_CLASSES: dict[Tier, ServiceClass] = {Tier.PREMIUM: PREMIUM, Tier.STANDARD: STANDARD}

PREMIUM_WAIT_TARGETS = 10
"""A premium request is turned away where it would wait for more than so many of its class's targets."""

_LOWERED = ("default", "flex")
_WORDS = {Tier.PREMIUM: "priority", Tier.STANDARD: "default"}


def served_tier(tier: Tier, asked: str | None) -> Tier:
    """The tier that a request runs in: the key's, or a lower one that the client asks for. Never a higher one."""
    return Tier.STANDARD if asked in _LOWERED else tier


def wait_bound_ms(tier: Tier, standard_ms: int) -> int:
    """The longest predicted wait for a first token with which a request is still taken in."""
    target_ms = SERVICE_CLASSES[tier].ttft_target_ms
    return standard_ms if target_ms is None else min(standard_ms, round(PREMIUM_WAIT_TARGETS * target_ms))


def tier_word(tier: Tier) -> str:
    """What `service_tier` in an answer says."""
    return _WORDS[tier]
