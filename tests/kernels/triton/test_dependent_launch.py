"""Kernels that are launched dependently wait for the kernel before them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from triton.runtime.interpreter import GridExecutor

import kernels.triton
from benchmarks.gpu.cost import launches_of
from kernels.triton import dependent_launch
from kernels.triton.dependent_launch import dependent_launches, launch_options


@pytest.fixture
def supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent_launch, "_is_supported", lambda: True)


def waiting_kernels() -> Iterator[str]:
    """Functions that wait outside of any branch. That they do it before they access memory is seen in their PTX."""
    for file in Path(kernels.triton.__path__[0]).glob("*.py"):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and any(map(_waits, function.body)):
                yield function.name


def _waits(statement: ast.stmt) -> bool:
    return ast.unparse(statement) == "wait_for_predecessor()"


@pytest.mark.usefixtures("supported")
def test_every_kernel_of_a_step_that_is_launched_dependently_waits() -> None:
    launched = set()
    launch = GridExecutor.__call__

    def note(self: GridExecutor, *args: object, **options: object) -> object:
        if options.get("launch_pdl"):
            launched.add(self.fn.__name__)
        return launch(self, *args, **options)

    with dependent_launches(True), mock.patch.object(GridExecutor, "__call__", note):
        launches_of(1)
    assert launched >= {
        "rms_norm_kernel",
        "add_rms_norm_kernel",
        "rotate_and_store_kernel",
        "silu_mul_kernel",
        "decode",
    }
    assert launched <= set(waiting_kernels())
    assert "few_rows_kernel" in set(waiting_kernels())


@pytest.mark.usefixtures("supported")
def test_it_is_chosen_for_a_while() -> None:
    assert launch_options() == {}, "off until a GPU has run it"
    with dependent_launches(True):
        assert launch_options() == {"launch_pdl": True}
        with dependent_launches(False):
            assert launch_options() == {}
    assert launch_options() == {}


def test_a_gpu_without_it_launches_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependent_launch, "_is_supported", lambda: False)
    with dependent_launches(True):
        assert launch_options() == {}
