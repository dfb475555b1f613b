"""Records the forms of Triton kernels that are launched under the interpreter: what a GPU would compile, each once."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any
from unittest import mock

from triton.runtime.interpreter import InterpretedFunction

Form = tuple[str, ...]
"""A kernel's name, then what its launcher specialises of each argument."""


@contextmanager
def recorded_forms() -> Iterator[Counter[Form]]:
    """The forms launched in a `with` block, with the number of their launches."""
    forms: Counter[Form] = Counter()
    run = InterpretedFunction.run

    def recorded_run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        forms[_form(self, args, kwargs)] += 1
        run(self, *args, grid=grid, warmup=warmup, **kwargs)

    with mock.patch.object(InterpretedFunction, "run", recorded_run):
        yield forms


def _form(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Form:
    """Arguments differ as for `triton.runtime.jit`: constants by value, tensors by dtype and alignment, integers
    by width, by whether they are 1, and by whether 16 divides them."""
    parameters = signature(kernel.fn).parameters
    known = {name: value for name, value in kwargs.items() if name in parameters}
    options = sorted((name, value) for name, value in kwargs.items() if name not in parameters)
    bound = signature(kernel.fn).bind(*args, **known)
    bound.apply_defaults()
    values = (_kind(kernel.kwargs, parameters[name], value) for name, value in bound.arguments.items())
    return (kernel.fn.__name__, *values, *(f"{name}={value}" for name, value in options))


def _kind(options: Mapping[str, Any], parameter: Parameter, value: Any) -> str:
    name = parameter.name
    if value is None or "constexpr" in str(parameter.annotation):
        return f"{name}={value}"
    unspecialised: Collection[str] = options["do_not_specialize"] or ()
    unaligned: Collection[str] = options["do_not_specialize_on_alignment"] or ()
    if hasattr(value, "data_ptr"):
        aligned = value.data_ptr() % 16 == 0 and name not in {*unspecialised, *unaligned}
        return f"{name}: {value.dtype}" + " aligned" * aligned
    if isinstance(value, int) and not isinstance(value, bool):
        width = "i32" if -(2**31) <= value < 2**31 else "i64"
        if name in unspecialised:
            return f"{name}: {width}"
        if value == 1:
            return f"{name}=1"
        return f"{name}: {width}" + " aligned" * (value % 16 == 0 and name not in unaligned)
    return f"{name}: {type(value).__name__}"
