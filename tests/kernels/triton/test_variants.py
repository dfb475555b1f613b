"""A variant names every argument of its kernel once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from kernels.triton.variants import KernelVariant


@dataclass
class FakeKernel:
    arg_names: list[str] = field(default_factory=lambda: ["source", "length", "TILE"])


def variant(
    signature: Mapping[str, str], constexprs: Mapping[str, object], aligned: frozenset[str] = frozenset()
) -> KernelVariant:
    return KernelVariant("copy", FakeKernel(), signature, constexprs, aligned)


def test_a_variant_holds_every_argument() -> None:
    made = variant({"source": "*bf16", "length": "i32"}, {"TILE": 64}, frozenset({"source"}))
    assert {*made.signature, *made.constexprs} == {"source", "length", "TILE"}


@pytest.mark.parametrize(
    ("signature", "constexprs"),
    [
        pytest.param({"source": "*bf16"}, {"TILE": 64}, id="missing"),
        pytest.param({"source": "*bf16", "length": "i32", "width": "i32"}, {"TILE": 64}, id="unknown"),
        pytest.param({"source": "*bf16", "length": "i32", "TILE": "i32"}, {"TILE": 64}, id="twice"),
    ],
)
def test_mismatched_arguments_are_refused(signature: Mapping[str, str], constexprs: Mapping[str, object]) -> None:
    with pytest.raises(ValueError, match="arguments given twice, missing or unknown"):
        variant(signature, constexprs)


def test_only_launch_arguments_can_be_aligned() -> None:
    with pytest.raises(ValueError, match=r"aligned, but not in the signature: \['TILE'\]"):
        variant({"source": "*bf16", "length": "i32"}, {"TILE": 64}, frozenset({"TILE"}))
