"""The configured service classes, one per tier.

This module does not import the engine, since every command reads the settings. `gateway.config.engine_classes`
converts the classes to the engine's.
"""

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gateway.errors import OperatorError

MAX_RESERVED_FRACTION = 0.9
"""The engine's bound on the sum over all classes."""

STANDARD_TIER = "standard"
"""The class of OpenAI's tier `default` and of the demo, if it exists."""

BATCH_CLASS = "batch"
"""The class of batches, if it exists."""

OPENAI_TIERS = ("auto", "default", "flex", "priority")
"""OpenAI's values of `service_tier`, which are reserved names."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,15}")  # the database column of tiers has 16 characters


class UnknownClass(OperatorError):
    """A tier that is no configured class."""


class StatedClass(BaseModel):
    """One class. `engine.request.ServiceClass` documents the fields up to `yields`.

    `max_wait_ms`: predicted wait for the first token above which a request is rejected; None: the smaller of the
    setting `max_wait_s` and ten times the target. `context_tokens`: default bound on prompt plus answer for the class's
    tenants; None: the model's context window.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    priority: int
    reserved_fraction: float = Field(default=0.0, ge=0, le=MAX_RESERVED_FRACTION)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    ttft_target_ms: int | None = Field(default=None, ge=1)
    step_share: float = Field(default=1.0, gt=0, le=1)
    itl_target_ms: int | None = Field(default=None, ge=1)
    yields: bool = False
    max_wait_ms: int | None = Field(default=None, ge=1)
    context_tokens: int | None = Field(default=None, ge=1)


DEFAULT_CLASSES: Mapping[str, StatedClass] = MappingProxyType(
    {
        "premium": StatedClass(
            priority=0, reserved_fraction=0.30, ttft_target_ms=500, itl_target_ms=50, context_tokens=131_072
        ),
        STANDARD_TIER: StatedClass(priority=10, step_share=0.1, itl_target_ms=100, context_tokens=32_768),
        BATCH_CLASS: StatedClass(priority=20, yields=True, max_wait_ms=3_600_000, context_tokens=131_072),
    }
)


def check_classes(classes: Mapping[str, StatedClass]) -> None:
    """
    Raises:
        ValueError: no class, an invalid or duplicate name or priority, or a sum of reserved fractions over the bound.
    """
    if not classes:
        raise ValueError("there must be at least one class")
    by_priority: dict[int, str] = {}
    for name, stated in classes.items():
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"the name {name!r} must be lower-case letters, digits, _ and -, starting with a letter or digit, "
                "at most 16 characters"
            )
        if name in OPENAI_TIERS:
            raise ValueError(f"the name {name} means something else to clients that ask for a service_tier")
        other = by_priority.setdefault(stated.priority, name)
        if other != name:
            raise ValueError(f"{other} and {name} have the same priority {stated.priority}")
    reserved = sum(stated.reserved_fraction for stated in classes.values())
    if reserved > MAX_RESERVED_FRACTION + 1e-9:
        raise ValueError(f"reserved_fraction adds up to {reserved:.4g}; the maximum is {MAX_RESERVED_FRACTION}")


def require_class(classes: Mapping[str, StatedClass], tier: str) -> None:
    """
    Raises:
        UnknownClass: the tier is not a class.
    """
    if tier not in classes:
        raise UnknownClass(f"{tier!r} is not one of the service classes {', '.join(classes)}")


def unserved_tiers(classes: Mapping[str, StatedClass], tenants_by_tier: Mapping[str, int]) -> dict[str, int]:
    """Tenants by tier, for the tiers that are not a class, sorted by name."""
    return {tier: count for tier, count in sorted(tenants_by_tier.items()) if tier not in classes}


def decode_classes(value: object) -> object:
    """Parse the classes of an environment variable; return other values unchanged.

    Raises:
        ValueError: invalid JSON, or a duplicate name, which JSON parsers accept.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("is not the JSON of classes") from None


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} is stated twice")
    return members
