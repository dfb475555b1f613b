"""The choice of a backend depends only on what the machine has and what works there, never on timing.

A GPU is used where it works, on a CPU the native library, else torch, which is imported only where it is needed. A
setting that asks for an unusable backend gets an error that names what is missing.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels import gpu as gpu_module
from kernels.arrays import DtypeName
from kernels.cpu import native
from kernels.cpu.native import Level
from kernels.cpu.native_ops import NativeOps, computes_natively
from kernels.cpu.ops import CpuOps
from kernels.dispatch import (
    Device,
    DeviceUnavailable,
    KVDtype,
    check_parts,
    gpu_memory_bytes,
    select_ops,
    takes_gpu,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that may have one, but which torch cannot use."""
    monkeypatch.setattr(gpu_module, "has_cuda_driver", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "has_cuda_driver", lambda: False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one on which the kernels pass their self-test, as far as torch says."""
    monkeypatch.setattr(gpu_module, "has_cuda_driver", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "H200")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(gpu_module, "_self_test_failure", lambda: None)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """Each test looks for the GPU itself."""
    caches = gpu_module.cuda_flaw, gpu_module.part_flaw
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("kernels.triton")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "triton", None)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Records the threads of torch and the library instead of setting them, so that other tests keep theirs."""
    told: dict[str, int] = {}
    monkeypatch.setattr("torch.set_num_threads", lambda threads: told.update(torch=threads))
    monkeypatch.setattr(native, "start", lambda threads: told.update(native=threads))
    return told


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("asked", "used"), [(None, torch.bfloat16), ("bfloat16", torch.bfloat16), ("float32", torch.float32)]
)
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_is_used(device: Device, asked: DtypeName | None, used: torch.dtype) -> None:
    pytest.importorskip("triton")
    ops = select_ops(asked, None, device)
    assert not isinstance(ops, NativeOps)
    assert ops.on_gpu
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
def test_a_gpu_without_floats_of_8_bits_expands_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "Some GPU")
    assert select_ops(None, None, "cuda").takes_blocks("fp8", 4096)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    ops = select_ops(None, None, "cuda")
    assert not ops.takes_blocks("fp8", 4096)
    assert not ops.takes_blocks("e4m3_128", 4096)
    assert ops.takes_blocks("int8", 4096)
    with pytest.raises(
        DeviceUnavailable, match=r"kv_dtype fp8 needs a GPU of .* 8\.9 or more: Some GPU has 8\.0; use kv_d.* int8"
    ):
        select_ops(None, None, "cuda", "fp8")


@pytest.mark.usefixtures("gpu")
def test_int8_kv_is_a_gpus_or_a_cpus_with_the_native_library(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a GPU")
    assert select_ops(None, None, "cuda", "int8").describe()["kv dtype"] == "int8"
    with pytest.raises(DeviceUnavailable, match="kv_dtype int8 needs dtype bfloat16"):
        select_ops("float32", 1, "cpu", "int8")


@pytest.mark.usefixtures("gpu")
def test_threads_are_the_cpus(told: dict[str, int]) -> None:
    pytest.importorskip("triton")
    select_ops(None, 3, "cuda")
    assert told == {"torch": 3}


@pytest.mark.usefixtures("gpu")
def test_the_cpu_is_used_where_it_is_asked_for() -> None:
    assert isinstance(select_ops("float32", 1, "cpu"), CpuOps)


@pytest.mark.parametrize("lacking", [("no_driver",), ("no_gpu",), ("gpu", "no_triton")])
def test_auto_is_the_cpu_where_something_is_missing(lacking: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    for fixture in lacking:
        request.getfixturevalue(fixture)
    assert isinstance(select_ops("float32", 1), CpuOps)


@pytest.mark.usefixtures("no_driver")
def test_no_driver() -> None:
    with pytest.raises(DeviceUnavailable, match=r"there is no libcuda\.so\.1"):
        select_ops(None, None, "cuda")


@pytest.mark.usefixtures("no_gpu")
def test_no_gpu() -> None:
    with pytest.raises(DeviceUnavailable, match="device cuda needs a torch that is built for CUDA"):
        select_ops(None, None, "cuda")


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_fails_its_self_test_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_module, "_self_test_failure", lambda: "kernels that pass: attention is wrong")
    assert isinstance(select_ops("float32", 1), CpuOps)
    assert not takes_gpu("auto")
    assert gpu_memory_bytes() is None
    assert [record.message for record in caplog.records] == [
        "no GPU is used: that needs kernels that pass: attention is wrong"
    ]
    with pytest.raises(DeviceUnavailable, match="attention is wrong"):
        select_ops(None, None, "cuda")


@pytest.mark.usefixtures("gpu")
def test_a_part_of_a_model_whose_kernels_fail_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is tested once."""
    self_test = pytest.importorskip("kernels.triton.self_test")
    tested: list[str] = []

    def failure_on(part: str, *_: object) -> str | None:
        tested.append(part)
        return "values of latents are wrong" if part == "latents" else None

    monkeypatch.setattr(self_test, "part_failure_on", failure_on)
    check_parts([])
    check_parts(["experts"])
    with pytest.raises(DeviceUnavailable, match=r"kernels for latents that .*: values .* wrong; use device cpu"):
        check_parts(["experts", "latents"])
    assert tested == ["experts", "latents"]


@pytest.mark.usefixtures("gpu", "no_triton")
def test_no_triton() -> None:
    with pytest.raises(DeviceUnavailable, match=r"pip install 'turnpike\[gpu\]'"):
        select_ops(None, None, "cuda")


at_levels_with_kernels = pytest.mark.parametrize(
    "level", [Level.AVX2, Level.AVX512_BF16, Level.AVX512_FLOAT, Level.AMX], ids=lambda level: level.name
)


@at_levels_with_kernels
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_library_computes_where_it_has_kernels(
    level: Level, dtype: DtypeName | None, told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.level() is None:
        pytest.skip("the native library is not built")
    monkeypatch.setattr(native, "level", lambda: level)
    ops = select_ops(dtype, 3, "cpu")
    assert isinstance(ops, NativeOps)
    described = ops.describe()
    assert (described["products"], described["level"], described["threads"]) == ("native", level.name.lower(), 3)
    assert (described["dtype"], described["kv dtype"], ops.on_gpu) == ("bfloat16", "bfloat16", False)
    assert told == {"native": 3}, "torch computes nothing"
    assert select_ops(dtype, 3, "cpu", "int8").describe()["kv dtype"] == "int8"


@pytest.mark.parametrize(("level", "dtype"), [(None, None), (Level.PORTABLE, None), (Level.AVX512_BF16, "float32")])
def test_torch_computes_elsewhere(
    level: Level | None, dtype: DtypeName | None, told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "level", lambda: level)
    ops = select_ops(dtype, 2, "cpu")
    assert isinstance(ops, CpuOps)
    assert (ops.on_gpu, ops.describe()["products"] in ("onednn", "plain")) == (False, True)
    assert dtype is None or ops.describe()["dtype"] == dtype
    assert told == {"torch": 2}
    with pytest.raises(DeviceUnavailable, match="kv_dtype int8 needs"):
        select_ops(dtype, 2, "cpu", "int8")


def imported_by(choice: str) -> set[str]:
    """Which of some packages are there after a choice, in a process of its own, where there is no driver of a GPU."""
    script = f"""
import sys
from kernels import dispatch, gpu
gpu.has_cuda_driver = lambda: False
{choice}
print(*({{"torch", "triton", "numpy", "scipy"}} & sys.modules.keys()))
"""
    said = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(said.stdout.split())


@pytest.mark.skipif(not computes_natively(), reason="the native library has no kernels for this processor")
@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_the_library_needs_no_torch(device: Device, kv_dtype: KVDtype) -> None:
    assert imported_by(f"dispatch.select_ops(None, 1, {device!r}, {kv_dtype!r})") == {"numpy"}


def test_torch_is_imported_where_it_computes() -> None:
    assert "torch" in imported_by("dispatch.select_ops('float32', 1, 'cpu')")


def test_what_is_not_there_is_said_without_torch() -> None:
    refused = """
try:
    dispatch.select_ops(None, 1, "cuda")
except dispatch.DeviceUnavailable:
    pass
"""
    assert imported_by(refused) == {"numpy"}
