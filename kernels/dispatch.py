"""Selects the backend; nothing else does. Imports torch only where it computes."""

import ctypes
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from kernels.arrays import DtypeName
from kernels.cpu.cores import usable_cores
from kernels.cpu.native_ops import NativeOps, computes_natively

if TYPE_CHECKING:
    from kernels.ops import Ops
    from kernels.step import StepOps

Device = Literal["auto", "cpu", "cuda"]
KVDtype = Literal["auto", "fp8", "int8"]

_CUDA_DRIVER = "libcuda.so.1"


class DeviceUnavailable(RuntimeError):
    """The requested device cannot be used; the message says what is missing."""


def select_ops(
    dtype: DtypeName | None = None,
    threads: int | None = None,
    device: Device = "auto",
    kv_dtype: KVDtype = "auto",
) -> "NativeOps | Ops":
    """The op table for this machine: of its GPU if there is a usable one, unless `device` says otherwise.

    On a CPU the native library computes if it has kernels for the processor, in bfloat16. The choice is not timed:
    timings vary from start to start on a busy machine, and with them the generated texts. Otherwise torch computes, as
    configured by its start-up probe.

    `dtype` None: bfloat16 on a GPU and with the native library, else the probe's choice. `threads`: of the CPU.
    `kv_dtype` auto: KV in the compute dtype. fp8 (e4m3) on a GPU and int8 on a CPU with the native library take half of
    the memory.

    Raises:
        DeviceUnavailable: `device` is "cuda" and there is no GPU, or no compiler for kernels; or `kv_dtype` is not
            supported on the device, or needs the native library, which does not compute here; or
            torch would compute, and is not installed.
    """
    if device == "cpu" or (device == "auto" and missing_for_cuda()):
        if kv_dtype == "fp8":
            raise DeviceUnavailable("kv_dtype fp8 needs a GPU: a CPU keeps KV as it is computed, or in int8")
        if dtype in (None, "bfloat16") and computes_natively():
            return NativeOps(threads or usable_cores(), int8_kv=kv_dtype == "int8")
        if kv_dtype == "int8":
            raise DeviceUnavailable("kv_dtype int8 needs dtype bfloat16, the native library, and AVX2 or more")
        if find_spec("torch") is None:
            raise DeviceUnavailable(
                "this needs torch, which is not installed (the native library computes in bfloat16 alone, where it was "
                "built): pip install torch"
            )
        return _torch_on_cpu(dtype, threads)
    if missing := missing_for_cuda():
        raise DeviceUnavailable(f"device cuda needs {missing}")
    if kv_dtype == "int8":
        raise DeviceUnavailable("kv_dtype int8 is for a CPU: a GPU keeps KV as it is computed, or in fp8")
    return _triton(dtype, threads, fp8_kv=kv_dtype == "fp8")


def select_step_ops(ops: "Ops") -> "StepOps":
    """The ops around a forward pass on the GPU of this op table."""
    assert ops.on_gpu, f"steps are not prepared on {ops.device}"
    from kernels.triton.step_ops import TritonStepOps

    return TritonStepOps()


def _torch_on_cpu(dtype: DtypeName | None, threads: int | None) -> "Ops":
    import torch

    from kernels.cpu.ops import CpuOps
    from kernels.cpu.probe import probe

    return CpuOps(probe(None if dtype is None else getattr(torch, dtype), threads))


def _triton(dtype: DtypeName | None, threads: int | None, *, fp8_kv: bool) -> "Ops":
    import torch

    from kernels.triton.ops import TritonOps
    from kernels.weights import KVScales

    if threads is not None:
        torch.set_num_threads(threads)
    # For layers that come with no scales of their own: e4m3 reaches to 448, keys and values hardly to a tenth.
    scales = KVScales(key=1.0, value=1.0) if fp8_kv else None
    device = torch.device("cuda", torch.cuda.current_device())
    return TritonOps(device, getattr(torch, dtype or "bfloat16"), scales)


def gpu_memory_bytes(device: Device = "auto") -> int | None:
    """Memory of the GPU that `select_ops` takes for `device`; None if it takes the CPU, or raises."""
    if device == "cpu" or missing_for_cuda():
        return None
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def missing_for_cuda() -> str | None:
    """The requirement that is missing to run kernels on a GPU; None if all are met."""
    if not has_cuda_driver():
        return f"a GPU and its driver: there is no {_CUDA_DRIVER} here"
    if find_spec("torch") is None:
        return "torch: pip install 'turnpike[gpu]'"
    import torch

    if not torch.cuda.is_available():
        return "a GPU, its driver and a torch that is built for CUDA: torch finds none here"
    if find_spec("triton") is None:
        return "triton: pip install 'turnpike[gpu]'"
    return None


def has_cuda_driver() -> bool:
    """Whether there is a driver. Checked before torch is imported, which takes a second and 130 MiB."""
    with suppress(OSError):
        ctypes.CDLL(_CUDA_DRIVER)
        return True
    return False
