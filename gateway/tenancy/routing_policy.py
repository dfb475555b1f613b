"""A tenant's routing policy. It is part of the `Principal`, so routing reads no store."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from gateway.errors import OperatorError

MAX_ALIASES = 64
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"


class InvalidPolicy(OperatorError):
    """A policy is not valid. `param`: the field at fault."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class Preference(StrEnum):
    """Trade-off between quality and cost for questions of medium difficulty. Each value is a threshold of the
    complexity score."""

    QUALITY = "quality"
    BALANCED = "balanced"
    ECONOMY = "economy"


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """How a tenant's requests are routed. The default changes nothing: a named model answers, or the request fails.

    `degrade`: the small model may answer if the large one is saturated. `degrade_near_budget`: the small model may
    answer if a budget is too small for the large one's answer. `cascade_percent`: routed questions go to the small
    model first, and to the large one if the geometric mean of the answer's token probabilities is below this
    percentage; None: no cascade. `aliases`: the tenant's own names for models and pairs; a served model of the same
    name has priority.

    Raises:
        InvalidPolicy: a field is out of range.
    """

    preference: Preference = Preference.BALANCED
    degrade: bool = False
    degrade_near_budget: bool = False
    cascade_percent: int | None = None
    aliases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.cascade_percent is not None and not 1 <= self.cascade_percent <= 99:
            raise InvalidPolicy("cascade_percent", "cascade_percent must be from 1 to 99")
        if len(self.aliases) > MAX_ALIASES:
            raise InvalidPolicy("aliases", f"a tenant has at most {MAX_ALIASES} aliases")
        for name in (*self.aliases, *self.aliases.values()):
            if not re.fullmatch(MODEL_NAME, name):
                raise InvalidPolicy("aliases", "an alias and what it stands for are names as models have them")


NO_POLICY = RoutingPolicy()
