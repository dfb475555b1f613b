"""How many cores a process has: those that it may run on, as far as its control groups give it time on them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SELF = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def usable_cores(own_groups: Path = _SELF, mounted: Path = _MOUNTED) -> int:
    """1 and more. A container with time of two cores sees all of its host's: with a thread on each it has used up its
    time early in each period, and stands still for the rest.

    Where the time is no whole number of cores, what is over is left to other threads of the process.
    """
    cores = float(len(os.sched_getaffinity(0)))
    for group in _groups(own_groups, mounted):
        cores = min(cores, _cores_of(group))
    return max(1, int(cores))


def _groups(own_groups: Path, mounted: Path) -> Iterator[Path]:
    """Folders of the groups that limit this process's time: its own and those above it, in both versions (cgroups(7)).

    A container sees its own group at the root, though it may have the path that the host knows it by.
    """
    with suppress(OSError):
        for line in own_groups.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "cpu" in controllers.split(","):
                root = mounted / ("cpu" if controllers else "")
                own = root / path.strip("/")
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _cores_of(group: Path) -> float:
    """What a group gives, in cores; infinite where it sets no limit."""
    with suppress(OSError, ValueError):  # no such file; "max"
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
        if int(quota) > 0:
            return int(quota) / int(period)
    return float("inf")
