"""Control groups as folders of files: what a process may use of its processors."""

import os
from pathlib import Path

import pytest

from kernels.cpu.cores import usable_cores


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def cores_of(folder: Path, groups: str, files: dict[str, str]) -> int:
    own = folder / "own"
    own.write_text(groups, encoding="ascii")
    for name, text in files.items():
        path = folder / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return usable_cores(own, folder / "mounted")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("", 8),
    ],
)
def test_time_of_so_many_cores(tmp_path: Path, limit: str, expected: int) -> None:
    assert cores_of(tmp_path, "0::/\n", {"cpu.max": f"{limit}\n"}) == expected


def test_the_groups_above_limit_too(tmp_path: Path) -> None:
    files = {"pods/cpu.max": "300000 100000", "pods/ours/cpu.max": "max 100000", "others/cpu.max": "100000 100000"}
    assert cores_of(tmp_path, "0::/pods/ours\n", files) == 3


def test_a_container_that_is_told_its_hosts_path_finds_its_group_at_the_root(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}
    assert cores_of(tmp_path, "4:cpu,cpuacct:/docker/0a1b\n3:cpuset:/docker/0a1b\n", files) == 2


def test_a_limit_of_less_than_nothing_is_none(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert cores_of(tmp_path, "4:cpu:/\n", files) == 8


def test_without_groups_all_cores_are_there(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none", tmp_path) == 8
