"""Reads from a kernel's PTX how it moves bytes: the width of its loads, how far ahead its loops copy, and whether it
waits for the kernel before it first.

The text is Triton's: one kernel, blocks labelled `$L__BB...`, a loop ended by one branch back to its first label.
Copies are cp.async; the bulk tensor copies of Hopper are not recognised, as a paged cache does not use them.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

_LABEL = re.compile(r"^(\$L__BB\d+_\d+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$L__BB\d+_\d+)\s*;")
_LOAD = re.compile(r"\bld(?:\.\w+)*\.global(?:\.[\w:]+)*?(?:\.v(\d))?\.[bsuf](\d+)\b")
_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global(?:\.[\w:]+)*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(0x[0-9a-f]+|\d+)")
_COMMIT = re.compile(r"\bcp\.async\.commit_group\b")
_WAIT = re.compile(r"\bcp\.async\.wait_group\s+(\d+)|\bcp\.async\.(wait_all)\b")
_WARP_PRODUCT = re.compile(r"\bmma\.sync\b")
_WARPGROUP_PRODUCT = re.compile(r"\bwgmma\.mma_async\b")
_DEPENDENCY = re.compile(r"\bgriddepcontrol\.(wait|launch_dependents)\b")
_ACCESS = re.compile(r"\b(?:ld|st|atom|red|cp)\.(?:[\w:]+\.)*global\b")
_END_OF_ENTRY = re.compile(r"^\$L__BB\d+_\d+:|\bbra\b|\bret\b")
_SCALAR_PRODUCT = re.compile(r"\bfma\.rn\b")


class _Step(Enum):
    """The role of one instruction in a loop's copies."""

    COPY = auto()
    COMMIT = auto()
    WAIT = auto()
    PRODUCT = auto()


@dataclass(frozen=True, slots=True)
class CopyLoop:
    """A loop that computes on tiles while it copies others to shared memory.

    trips_ahead: minimum distance between the issue of a copy and the wait for it, in trips' products. From 1 on, the
        next tile's copies are in flight while this one is computed on (double buffering); at 0 the loop stalls on each
        of its copies.
    copied_bytes, direct_bytes: bytes a thread requests in one trip by copies, and by loads to registers, on which the
        loop stalls where they are used.
    """

    trips_ahead: float
    copied_bytes: int
    direct_bytes: int


@dataclass(frozen=True, slots=True)
class PtxFacts:
    """The result of `read_ptx`.

    loads: number of instructions that read device memory, loads and copies, by bytes a thread.
    loops: the innermost loops that compute products on what they copy.
    warp_products, warpgroup_products: matrix instructions of one warp (mma.sync) and of four (wgmma).
    dependent: it has instructions of programmatic dependent launch. waits_first: every thread waits for the kernel
        before, before its first access to device memory, and lets the next one be placed only after that.
    """

    loads: Counter[int]
    loops: tuple[CopyLoop, ...]
    warp_products: int
    warpgroup_products: int
    dependent: bool
    waits_first: bool


def read_ptx(text: str) -> PtxFacts:
    """The facts of one kernel's PTX."""
    lines = text.splitlines()
    spans = list(_loop_spans(lines))
    loops = {span: loop for span in spans if (loop := _copy_loop(lines[span[0] : span[1] + 1])) is not None}
    innermost = [loop for span, loop in loops.items() if not any(_inside(other, span) for other in loops)]
    return PtxFacts(
        loads=_loads(lines),
        loops=tuple(innermost),
        warp_products=sum(1 for line in lines if _WARP_PRODUCT.search(line)),
        warpgroup_products=sum(1 for line in lines if _WARPGROUP_PRODUCT.search(line)),
        dependent=any(_DEPENDENCY.search(line) for line in lines),
        waits_first=_waits_first(lines),
    )


def _waits_first(lines: list[str]) -> bool:
    """Whether the first of the instructions that touch device memory or its dependencies is an unconditional wait, in
    the block that every thread enters."""
    for line in lines:
        if instruction := _DEPENDENCY.search(line):
            return instruction[1] == "wait" and "@" not in line
        if _ACCESS.search(line) or _END_OF_ENTRY.search(line):
            return False
    return False


def _inside(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _loop_spans(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each loop: from a label to the last branch back to it."""
    labels: dict[str, int] = {}
    ends: dict[int, int] = {}
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = number
        elif (branch := _BRANCH.search(line)) and branch[1] in labels:
            ends[labels[branch[1]]] = number
    yield from ends.items()


def _loads(lines: list[str]) -> Counter[int]:
    loads: Counter[int] = Counter()
    for line in lines:
        if width := _direct_width(line) or _copy_width(line):
            loads[width] += 1
    return loads


def _direct_width(line: str) -> int:
    """Bytes that a load from device memory brings to a thread's registers; 0 for any other line."""
    load = _LOAD.search(line)
    return int(load[1] or 1) * int(load[2]) // 8 if load else 0


def _copy_width(line: str) -> int:
    """Bytes that a thread's copy brings to shared memory; 0 for any other line."""
    copy = _COPY.search(line)
    return int(copy[1], 0) if copy else 0


def _copy_loop(body: list[str]) -> CopyLoop | None:
    """The loop of these lines, if it copies tiles and computes products."""
    matrix = any(_is_matrix_product(line) for line in body)
    steps = [step for line in body if (step := _step(line, matrix)) is not None]
    kinds = {kind for kind, _ in steps}
    if not {_Step.COPY, _Step.PRODUCT} <= kinds:
        return None
    return CopyLoop(
        trips_ahead=_trips_ahead(steps),
        copied_bytes=sum(map(_copy_width, body)),
        direct_bytes=sum(map(_direct_width, body)),
    )


def _is_matrix_product(line: str) -> bool:
    return bool(_WARP_PRODUCT.search(line) or _WARPGROUP_PRODUCT.search(line))


def _step(line: str, matrix: bool) -> tuple[_Step, int] | None:
    """A line's role in the loop, and the groups that a wait leaves in flight. If there are matrix instructions, only
    they are the loop's products; otherwise multiplications are."""
    if _copy_width(line):
        return _Step.COPY, 0
    if _COMMIT.search(line):
        return _Step.COMMIT, 0
    if wait := _WAIT.search(line):
        return _Step.WAIT, int(wait[1] or 0)
    if _is_matrix_product(line) if matrix else _SCALAR_PRODUCT.search(line):
        return _Step.PRODUCT, 0
    return None


def _trips_ahead(steps: list[tuple[_Step, int]]) -> float:
    """The minimum distance from a group of copies to its wait, in trips' products; 0 if no wait ever reaches one.

    A wait leaves the most recently committed groups in flight, as many as it says. Trips are followed until the copies
    of the first one have arrived.
    """
    products = sum(1 for kind, _ in steps if kind is _Step.PRODUCT)
    groups = sum(1 for kind, _ in steps if kind is _Step.COMMIT)
    most_in_flight = max((left for kind, left in steps if kind is _Step.WAIT), default=None)
    if most_in_flight is None or groups == 0:
        return 0.0
    done = 0
    copied_at: int | None = None
    in_flight: list[int | None] = []
    distances: list[int] = []
    for _ in range(most_in_flight // groups + 2):
        for kind, left in steps:
            if kind is _Step.PRODUCT:
                done += 1
            elif kind is _Step.COPY:
                copied_at = done if copied_at is None else copied_at
            elif kind is _Step.COMMIT:
                in_flight.append(copied_at)
                copied_at = None
            else:
                arrived = in_flight[: len(in_flight) - left] if len(in_flight) > left else []
                in_flight = in_flight[len(arrived) :]
                distances += [done - issued for issued in arrived if issued is not None]
    return min(distances, default=0) / products
