"""Every variant that is shipped compiles for the GPU that it is meant for and keeps what is promised of it."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from kernels.triton.capability import HOPPER, LIMITS
from kernels.triton.compiled import CompilationError, compile_variant
from kernels.triton.report import shipped_variants
from tests.kernels.triton.compiling import compile_in_child, digests_in_child, recorded
from tests.kernels.triton.flawed import SOUND
from tests.kernels.triton.sampled import SAMPLE


@pytest.fixture(scope="module")
def flaws() -> dict[str, list[str]]:
    return compile_in_child("tests.kernels.triton.flawed:flawed_variants")


def test_a_sound_variant_has_no_faults(flaws: dict[str, list[str]]) -> None:
    assert flaws["sound"] == []


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("spilled", "registers are spilled"),
        ("spilled", "products of warp groups wait for one another"),
        ("single-buffered", "loads are not a tile ahead"),
        ("not-pipelined", "no loop copies what it computes on"),
        ("narrow", "0% of tiles' bytes come 16 at a time"),
        ("too-much-shared", "bytes of shared memory, and a program may have 232448"),
        ("single-warps", "0 products of warp groups"),
        ("crowded", "programs fit a multiprocessor, and the launch counts on 9"),
        ("early", "before the kernel before has ended"),
        ("branching", "before the kernel before has ended"),
        ("aligned-in-vain", "the launcher is told not to look: ['output']"),
        ("refused", "a side that no kernel has"),
    ],
)
def test_a_flaw_is_found(flaws: dict[str, list[str]], name: str, fault: str) -> None:
    assert any(fault in found for found in flaws[name])


def test_a_flaw_is_the_only_fault(flaws: dict[str, list[str]]) -> None:
    """The check finds the flaw, and no fault in the kernel that all of these variants share."""
    assert [name for name, found in flaws.items() if len(found) == 1] == [
        "single-buffered",
        "not-pipelined",
        "too-much-shared",
        "single-warps",
        "crowded",
        "early",
        "branching",
        "aligned-in-vain",
        "refused",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted only where there is no GPU")
def test_what_is_interpreted_cannot_be_compiled() -> None:
    with pytest.raises(CompilationError, match="kernels are interpreted in this process"):
        compile_variant(SOUND)


def test_what_does_not_fit_another_gpu_is_found() -> None:
    flaws = compile_in_child("tests.kernels.triton.flawed:flawed_variants", 120)
    assert flaws["sound"] == flaws["narrow"] == flaws["single-warps"] == [], "promised of Hopper"
    assert any("bytes of shared memory, and a program may have 101376" in flaw for flaw in flaws["too-much-shared"])
    assert any("the launch counts on 9" in flaw for flaw in flaws["crowded"])


@pytest.mark.parametrize("capability", [each for each in LIMITS if each != HOPPER])
def test_a_sample_fits_other_gpus(capability: int) -> None:
    """All variants take minutes for each: `python -m kernels.triton.report --capability 80`."""
    faults = compile_in_child("tests.kernels.triton.sampled:sampled_variants", capability)
    assert faults == {name: [] for name in SAMPLE}


def test_a_report_leaves_out_what_a_gpu_cannot_compute() -> None:
    """Nothing in e4m3 before 8.9."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    report = subprocess.run(
        [sys.executable, "-m", "kernels.triton.report", "--capability", "80", "mask-rows-bf16", "decode-bf16-kv8"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert report.stdout.splitlines()[-1] == "1 variants, 0 with faults"


@pytest.fixture(scope="module")
def shipped() -> dict[str, list[str]]:
    return compile_in_child("kernels.triton.report:shipped_variants")


def test_what_is_recorded_is_compiled_without_faults_here_too() -> None:
    """A sample, which the record does not spare."""
    assert compile_in_child("tests.kernels.triton.sampled:sampled_variants", fresh=True) == {
        name: [] for name in SAMPLE
    }


KERNEL = """
import triton
import triton.language as tl
from kernels.triton.variants import KernelVariant

SCALE = tl.constexpr(2)

@triton.jit
def scaled(value):
    return value * SCALE

@triton.jit
def scale_kernel(values):
    tl.store(values, scaled(tl.load(values)))

def variants(capability):
    return [KernelVariant("scale", scale_kernel, {"values": "*i32"}, {})]
"""


CHANGES = {
    "kernel": ("scaled(tl.load(values))", "scaled(tl.load(values)) + 1"),
    "function": ("value * SCALE", "SCALE + value"),
    "constant": ("constexpr(2)", "constexpr(3)"),
    "type": ('"*i32"', '"*i64"'),
    "lines above": ("\n\nSCALE", "\n\n\n\nSCALE"),
}


def test_what_has_changed_has_another_digest(tmp_path: Path) -> None:
    """So that it is compiled, whatever the record says: a kernel, what it calls, each thing of a variant."""
    for name, (old, new) in {"before": ("", ""), **CHANGES}.items():
        assert old in KERNEL
        (tmp_path / f"{name.replace(' ', '_')}.py").write_text(KERNEL.replace(old, new), encoding="utf-8")
    changed = [f"{name.replace(' ', '_')}:variants" for name in ("before", *CHANGES)]
    *digests, flawed = digests_in_child([*changed, "tests.kernels.triton.flawed:flawed_variants"], tmp_path)
    before, *others, below = [each["scale"] for each in digests]
    assert below == before, "lines above a kernel are no part of it"
    assert len({before, *others}) == len(CHANGES)
    assert len(set(flawed.values())) == len(flawed)
    assert not set(flawed.values()) & recorded()


def test_shipped_variants_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(each.name for each in shipped_variants()).items() if count > 1] == []


@pytest.mark.parametrize("name", [each.name for each in shipped_variants()])
def test_a_shipped_variant_keeps_what_is_promised(shipped: dict[str, list[str]], name: str) -> None:
    assert shipped[name] == []
