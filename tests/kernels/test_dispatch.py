"""A GPU is used where it can be; who asks for one that cannot be used hears what is missing."""

import sys

import pytest
import torch

from kernels.cpu.ops import CpuOps
from kernels.dispatch import Device, DeviceUnavailable, select_ops


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one, as far as torch says."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("kernels.triton")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "triton", None)


@pytest.fixture(autouse=True)
def chosen_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What torch was told, in place of telling it: the tests beside this one keep their threads."""
    chosen: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", chosen.append)
    return chosen


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("asked", "used"), [(None, torch.bfloat16), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)]
)
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_is_used(device: Device, asked: torch.dtype | None, used: torch.dtype) -> None:
    pytest.importorskip("triton")
    ops = select_ops(asked, None, device)
    assert ops.device == torch.device("cuda", 0)
    assert ops.dtype == used


@pytest.mark.usefixtures("gpu")
def test_fp8_kv_is_a_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a GPU")
    assert select_ops(None, None, "cuda", "fp8").describe()["kv dtype"] == "float8_e4m3fn"
    with pytest.raises(DeviceUnavailable, match="kv_dtype fp8 needs a GPU"):
        select_ops(None, None, "cpu", "fp8")


@pytest.mark.usefixtures("gpu")
def test_int8_kv_is_a_cpus_with_the_native_library() -> None:
    pytest.importorskip("triton")
    with pytest.raises(DeviceUnavailable, match="kv_dtype int8 is for a CPU"):
        select_ops(None, None, "cuda", "int8")
    with pytest.raises(DeviceUnavailable, match="kv_dtype int8 needs dtype bfloat16"):
        select_ops(torch.float32, 1, "cpu", "int8")


@pytest.mark.usefixtures("gpu")
def test_threads_are_the_cpus(chosen_threads: list[int]) -> None:
    pytest.importorskip("triton")
    select_ops(None, 3, "cuda")
    assert chosen_threads == [3]


@pytest.mark.usefixtures("gpu")
def test_the_cpu_is_used_where_it_is_asked_for() -> None:
    assert isinstance(select_ops(torch.float32, 1, "cpu"), CpuOps)


@pytest.mark.parametrize("lacking", [("no_gpu",), ("gpu", "no_triton")])
def test_auto_is_the_cpu_where_something_is_missing(lacking: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    for fixture in lacking:
        request.getfixturevalue(fixture)
    assert isinstance(select_ops(torch.float32, 1), CpuOps)


@pytest.mark.usefixtures("no_gpu")
def test_no_gpu() -> None:
    with pytest.raises(DeviceUnavailable, match="a torch that is built for CUDA"):
        select_ops(None, None, "cuda")


@pytest.mark.usefixtures("gpu", "no_triton")
def test_no_triton() -> None:
    with pytest.raises(DeviceUnavailable, match=r"pip install 'turnpike\[gpu\]'"):
        select_ops(None, None, "cuda")
