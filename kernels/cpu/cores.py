"""The number of usable cores: the CPU affinity, limited by the CPU quota of the process's control groups."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SELF = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def usable_cores(own_groups: Path = _SELF, mounted: Path = _MOUNTED) -> int:
    """At least 1. A container with a quota of two cores sees all cores of its host: with a thread on each it exhausts
    the quota early in each period and is throttled for the rest.

    A fractional quota is rounded down; the remainder is for the process's other threads.
    """
    cores = float(len(os.sched_getaffinity(0)))
    for group in _groups(own_groups, mounted):
        cores = min(cores, _cores_of(group))
    return max(1, int(cores))


def _groups(own_groups: Path, mounted: Path) -> Iterator[Path]:
    """Folders of the control groups that limit this process: its own and their ancestors, in both versions
    (cgroups(7)).

    A container sees its own group at the root, even if its path is that of the host.
    """
    with suppress(OSError):
        for line in own_groups.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "cpu" in controllers.split(","):
                root = mounted / ("cpu" if controllers else "")
                own = root / path.strip("/")
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def _cores_of(group: Path) -> float:
    """The quota of a group in cores; infinite without a limit."""
    with suppress(OSError, ValueError):  # no such file; "max"
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
        if int(quota) > 0:
            return int(quota) / int(period)
    return float("inf")
