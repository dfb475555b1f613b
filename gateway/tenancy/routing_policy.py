"""What a tenant wants of routing. It travels with the tenant's keys, so routing asks no store."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from gateway.errors import OperatorError

MAX_ALIASES = 64
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"


class InvalidPolicy(OperatorError):
    """A policy that cannot be. `param` is the field at fault."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class Preference(StrEnum):
    """What counts more where a question is neither plainly easy nor plainly hard. Each is a threshold of the score."""

    QUALITY = "quality"
    BALANCED = "balanced"
    ECONOMY = "economy"


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """How a tenant's requests find their model. The default takes nothing into its own hands: a model that was named
    answers, or nobody.

    `degrade`: the small model may stand in where the large one's queue is long. `degrade_near_budget`: it may where a
    budget is too small for the large one's answer. `cascade_percent`: routed questions go to the small model first,
    and to the large one where the geometric mean of the probabilities of the answer's tokens is below so many percent;
    None: no question is answered twice. `aliases`: names of the tenant's own for models and for routed pairs; a served
    model of the same name goes first.

    Raises:
        InvalidPolicy
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
