"""Changes to the inputs of a plan: `premium=2x`, `quantize=fp8`, `replicas=6`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.errors import OperatorError
from gateway.planning.devices import find_device
from gateway.planning.questions import KV_DTYPES, QUANTIZE, Inputs

_FACTOR = re.compile(r"(\d+(?:\.\d+)?)x")


def changed(inputs: Inputs, stated: str) -> Inputs:
    """The inputs with changes `NAME=VALUE[,NAME=VALUE...]`. A value like `2x` multiplies the requests of a class, of a
    tenant, or of `all`.

    Raises:
        OperatorError: a name or a value is unknown; the message names it.
    """
    for change in stated.split(","):
        name, equals, value = change.partition("=")
        if not (name and equals and value):
            raise OperatorError(f"--what-if {change!r} is not NAME=VALUE, as in premium=2x or replicas=6")
        if factor := _FACTOR.fullmatch(value):
            if not float(factor[1]):
                raise OperatorError(f"--what-if {change}: the factor must be positive")
            inputs = replace(inputs, factors={**inputs.factors, name: float(factor[1])})
        elif name in _OPTIONS:
            inputs = replace(inputs, **_OPTIONS[name](name, value))
        else:
            known = ", ".join(_OPTIONS)
            raise OperatorError(f"--what-if {change!r}: state one of {known}, or a class or tenant with a factor as 2x")
    return inputs


def _count(name: str, value: str) -> Mapping[str, Any]:
    if not value.isdecimal() or not 1 <= int(value) <= 1024:
        raise OperatorError(f"--what-if {name}={value}: must be a whole number from 1 to 1024")
    return {name: int(value)}


def _choice(choices: tuple[str, ...]) -> Callable[[str, str], Mapping[str, Any]]:
    def read(name: str, value: str) -> Mapping[str, Any]:
        if value not in choices:
            raise OperatorError(f"--what-if {name}={value}: must be one of {', '.join(choices)}")
        return {name: value}

    return read


def _device(name: str, value: str) -> Mapping[str, Any]:
    return {"hardware": find_device(value), "fit": None, "tensor_parallel": None}


_OPTIONS: Mapping[str, Callable[[str, str], Mapping[str, Any]]] = {
    "quantize": _choice(QUANTIZE),
    "kv_dtype": _choice(KV_DTYPES),
    "replicas": _count,
    "tensor_parallel": _count,
    "max_running": _count,
    "device": _device,
}
