"""Readings of PTX: widths of loads, and how far ahead of its products a loop copies."""

import pytest

from kernels.triton.ptx import CopyLoop, read_ptx

COPY = "@%p1 cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;\n"
SMALL_COPY = "cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x4, %r2;\n"
COMMIT = "cp.async.commit_group;\n"
PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %r1 }, { %r2 }, { %r3 }, { %r1 };\n"
MULTIPLY = "fma.rn.f32 %f1, %f2, %f3, %f4;\n"
LOAD = "@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];\n"
NARROW_LOAD = "ld.global.L1::evict_last.b16 { %rs1 }, [ %rd1 + 0 ];\n"


def wait(groups: int) -> str:
    return f"cp.async.wait_group {groups};\n"


def loop(body: str, label: str = "$L__BB0_1") -> str:
    return f"{label}:\n{body}@%p2 bra {label};\n"


@pytest.mark.parametrize(
    ("body", "trips"),
    [
        pytest.param(wait(0) + PRODUCT + COPY + COMMIT, 0, id="issued behind the products, wanted before them"),
        pytest.param(wait(0) + COPY + COMMIT + PRODUCT, 1, id="issued before the products into another buffer"),
        pytest.param(wait(1) + PRODUCT + COPY + COMMIT, 1, id="one group stays in flight"),
        pytest.param(wait(2) + PRODUCT + COPY + COMMIT, 2, id="two groups stay in flight"),
        pytest.param(wait(2) + PRODUCT + 2 * (COPY + COMMIT), 1, id="two groups a trip"),
        pytest.param(wait(1) + PRODUCT + 2 * (COPY + COMMIT), 0, id="of two groups a trip, one is wanted at once"),
        pytest.param(wait(1) + PRODUCT + COPY + COMMIT + wait(1) + PRODUCT + COPY + COMMIT, 0.5, id="half a trip"),
        pytest.param(PRODUCT + COPY + COMMIT, 0, id="never waited for"),
        pytest.param(wait(1) + MULTIPLY + COPY + COMMIT, 1, id="products without matrix instructions"),
        pytest.param(wait(0) + PRODUCT + COPY + COMMIT + MULTIPLY, 0, id="arithmetic beside matrix products"),
    ],
)
def test_how_far_ahead_a_loop_copies(body: str, trips: float) -> None:
    assert [each.trips_ahead for each in read_ptx(loop(body)).loops] == [trips]


def test_a_loop_counts_what_it_copies_and_what_it_loads() -> None:
    (found,) = read_ptx(loop(wait(1) + LOAD + NARROW_LOAD + PRODUCT + COPY + SMALL_COPY + COMMIT)).loops
    assert found == CopyLoop(trips_ahead=1, copied_bytes=20, direct_bytes=18)


def test_only_innermost_loops_count() -> None:
    inner = loop(wait(1) + PRODUCT + COPY + COMMIT, "$L__BB0_2")
    assert len(read_ptx(loop(COPY + COMMIT + wait(0) + inner + PRODUCT, "$L__BB0_1")).loops) == 1


def test_each_of_two_loops_counts() -> None:
    ahead = loop(wait(1) + PRODUCT + COPY + COMMIT, "$L__BB0_1")
    behind = loop(wait(0) + PRODUCT + COPY + COMMIT, "$L__BB0_2")
    assert [each.trips_ahead for each in read_ptx(ahead + behind).loops] == [1, 0]


def test_a_loop_that_only_computes_is_none_of_interest() -> None:
    assert read_ptx(loop(PRODUCT + LOAD)).loops == ()


def test_a_branch_forward_is_no_loop() -> None:
    text = "bra.uni $L__BB0_1;\n" + wait(0) + PRODUCT + COPY + COMMIT + "$L__BB0_1:\n"
    assert read_ptx(text).loops == ()


def test_loads_by_width() -> None:
    facts = read_ptx(
        LOAD + LOAD + NARROW_LOAD + COPY + SMALL_COPY + "ld.shared.b32 %r1, [%r2];\nst.global.b32 [%rd1], %r1;"
    )
    assert facts.loads == {16: 3, 2: 1, 4: 1}


def test_products_by_kind() -> None:
    facts = read_ptx(PRODUCT + PRODUCT + "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, 0;\n")
    assert (facts.warp_products, facts.warpgroup_products) == (2, 1)


WAIT = "griddepcontrol.wait; // dummy %r1\n"
PLACE_NEXT = "griddepcontrol.launch_dependents; // dummy %r1\n"
LABEL = "$L__tmp1:\n"


@pytest.mark.parametrize(
    ("text", "dependent", "first"),
    [
        pytest.param(LABEL + WAIT + PLACE_NEXT + LOAD, True, True, id="before its first load"),
        pytest.param("prefetch.global.L2 [%rd1]; // %r1\n" + WAIT + COPY, True, True, id="behind a prefetch"),
        pytest.param(LOAD + WAIT, True, False, id="behind a load"),
        pytest.param(COPY + WAIT, True, False, id="behind a copy"),
        pytest.param("@%p1 st.global.b32 [ %rd1 + 0 ], { %r1 };\n" + WAIT, True, False, id="behind a store"),
        pytest.param("atom.global.gpu.acq_rel.add.u32 %r1, [ %rd1 ], %r2;\n" + WAIT, True, False, id="behind a count"),
        pytest.param(PLACE_NEXT + WAIT, True, False, id="behind the next kernel"),
        pytest.param("@%p1 bra $L__BB0_2;\n" + WAIT, True, False, id="in a branch"),
        pytest.param("$L__BB0_1:\n" + WAIT, True, False, id="in a block of its own"),
        pytest.param("@%p1 " + WAIT, True, False, id="by some threads"),
        pytest.param(PLACE_NEXT + LOAD, True, False, id="never"),
        pytest.param(LOAD + PRODUCT, False, False, id="a kernel that is launched as usual"),
    ],
)
def test_where_a_kernel_waits_for_the_one_before(text: str, dependent: bool, first: bool) -> None:
    facts = read_ptx(text)
    assert (facts.dependent, facts.waits_first) == (dependent, first)
