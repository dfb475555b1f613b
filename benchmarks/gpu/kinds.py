"""The stages of a run, in their order. Most wanted first, as a lent machine may be gone before the end."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from benchmarks.gpu import names

if TYPE_CHECKING:
    from benchmarks.gpu.stage import Stage


@dataclass(frozen=True, slots=True)
class Kind:
    """A stage.

    seconds: planned time; seconds that earlier stages left are added. module, function: its work, imported in its own
    process, so that one that cannot be imported costs its own figures only. model: argument of the function. checks:
    may share the device with others. ours: whether its failure is a fault of this project.
    """

    name: str
    seconds: float
    module: str
    function: str = "run"
    model: str | None = None
    checks: bool = False
    ours: bool = True

    def work(self) -> "Callable[[Stage], None]":
        """Import the work. Needs what kernels need: Triton, and a GPU or its interpreter."""
        function: Callable[..., None] = getattr(import_module(f"benchmarks.gpu.{self.module}"), self.function)
        return function if self.model is None else partial(function, model_name=self.model)


def _serve(model: str, seconds: float) -> Kind:
    return Kind(names.served(model), seconds, "end_to_end", model=model)


def _peer(model: str, seconds: float) -> Kind:
    return Kind(names.peer(model), seconds, "peers", model=model, ours=False)


_CHECK_S = 80

KINDS = (
    Kind(names.LIMITS, 15, "limits"),
    Kind(names.SMOKE, 40, "smoke"),
    _serve("llama-3.1-8b", 130),
    Kind("check attention", _CHECK_S, "checks.attention", checks=True),
    Kind("check head dimensions", _CHECK_S, "checks.attention", "run_dimensions", checks=True),
    Kind("check int8 KV", _CHECK_S, "checks.int8_kv", checks=True),
    Kind("check latents", _CHECK_S, "checks.latents", checks=True),
    Kind("check elementwise", _CHECK_S, "checks.elementwise", checks=True),
    Kind("check sampling", _CHECK_S, "checks.sampling", checks=True),
    Kind("check steps", _CHECK_S, "checks.step", checks=True),
    Kind("check delta nets", _CHECK_S, "checks.delta", checks=True),
    Kind("check warm-up", _CHECK_S, "checks.warm_up", checks=True),
    Kind("check graphs", _CHECK_S, "checks.graphs", checks=True),
    Kind("check products", _CHECK_S, "checks.products", checks=True),
    Kind("check adapters", _CHECK_S, "checks.adapters", checks=True),
    Kind("check candidates", _CHECK_S, "sweep", "check", checks=True),
    Kind("golden", _CHECK_S, "golden", checks=True),
    Kind(names.ATTENTION, 35, "attention"),
    Kind(names.PRODUCTS, 20, "products"),
    Kind(names.DEPENDENT_LAUNCH, 30, "dependent_launch"),
    _serve("llama-3.2-1b", 35),
    _peer("llama-3.1-8b", 45),
    _peer("llama-3.2-1b", 20),
    Kind(names.SWEEP, 20, "sweep"),
)


def together(kinds: tuple[Kind, ...]) -> list[tuple[Kind, ...]]:
    """The stages that run at the same time: checks that follow one another, and every other one by itself."""
    groups: list[tuple[Kind, ...]] = []
    for kind in kinds:
        if groups and kind.checks and groups[-1][-1].checks:
            groups[-1] = (*groups[-1], kind)
        else:
            groups.append((kind,))
    return groups
