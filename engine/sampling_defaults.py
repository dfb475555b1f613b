"""Sampling parameters of a model where a request is silent."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import InvalidParameter
from engine.request import SamplingParams

_log = logging.getLogger(__name__)
_MAX = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values of `SamplingParams` that a model prefers. None: no preference, so the neutral value applies.

    Raises:
        InvalidParameter: a value is out of its range; `param` names it.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def __post_init__(self) -> None:
        SamplingParams(**self.stated)

    @property
    def stated(self) -> dict[str, Any]:
        """The values by parameter name, without those that are None."""
        return {name: value for name in self.__dataclass_fields__ if (value := getattr(self, name)) is not None}

    @property
    def effective(self) -> dict[str, Any]:
        """The value of every parameter: the model's, else the neutral one."""
        params = SamplingParams(**self.stated)
        return {name: getattr(params, name) for name in SAMPLING_DEFAULTS}

    def over(self, other: "SamplingDefaults") -> "SamplingDefaults":
        """These values, and `other`'s where these have none."""
        return SamplingDefaults(**(other.stated | self.stated))

    def applied(self, params: SamplingParams, unstated: Collection[str]) -> SamplingParams:
        """`params` with these values for the `unstated` parameters. Other parameters stay as they are."""
        values = {name: value for name, value in self.stated.items() if name in unstated}
        return replace(params, **values) if values else params

    @classmethod
    def of_checkpoint(cls, values: Mapping[str, Any], keys: Mapping[str, str], source: str) -> "SamplingDefaults":
        """Reads the defaults of a checkpoint. `keys`: the checkpoint's key of each parameter.

        A value that cannot be used is logged with its `source` and left out: it is no reason to refuse a model.
        """
        read: dict[str, Any] = {}
        for name, key in keys.items():
            if (value := values.get(key)) is None:
                continue
            try:
                usable: dict[str, Any] = {name: _number(name, value)}
                cls(**usable)
            except InvalidParameter as error:
                _log.warning("%s: %s is not used: %s", source, key, error)
            else:
                read |= usable
        return cls(**read)


NO_DEFAULTS = SamplingDefaults()

SAMPLING_DEFAULTS = tuple(SamplingDefaults.__dataclass_fields__)
"""Names of the parameters that a model may have defaults for."""


def _number(name: str, value: object) -> float:
    """The value as `SamplingParams` takes it. `top_k` of -1 is off, as 0 is. Floats of 32 bits lose their noise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MAX:
        raise InvalidParameter(name, f"{name} must be a number of usual size, got {value!r:.80}")
    if name != "top_k":
        return float(f"{value:.7g}") if isinstance(value, float) else float(value)
    if not float(value).is_integer():
        raise InvalidParameter(name, f"top_k must be an integer, got {value}")
    return max(int(value), 0)
