"""The origin of a number in a plan."""

from enum import StrEnum
from typing import NamedTuple


class Origin(StrEnum):
    """stated: by the user. computed: arithmetic on the checkpoint's config. measured: on the machine. fitted: to
    measured steps. assumed: from data sheets and efficiencies of other measurements."""

    STATED = "stated"
    COMPUTED = "computed"
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


_STRENGTH = tuple(Origin)


class Figure(NamedTuple):
    """A number with its unit and origin. `how`: the sum that gives it, in words and numbers."""

    name: str
    value: float
    unit: str
    origin: Origin
    how: str = ""


def weakest(*origins: Origin) -> Origin:
    """The origin of a number that is made of others: the least certain of theirs."""
    return max(origins, key=_STRENGTH.index)
