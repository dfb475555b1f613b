"""Selects the backend; nothing else does. Imports torch only where it computes."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from kernels.arrays import DtypeName
from kernels.cpu.cores import usable_cores
from kernels.cpu.native_ops import NativeOps, computes_natively
from kernels.gpu import cuda_flaw, missing_for_floats8, part_flaw
from kernels.weights import ModelPart

if TYPE_CHECKING:
    from kernels.ops import Ops
    from kernels.step import StepOps

Device = Literal["auto", "cpu", "cuda"]
KVDtype = Literal["auto", "fp8", "int8"]


class DeviceUnavailable(RuntimeError):
    """The requested device cannot be used; the message says what is missing."""


def select_ops(
    dtype: DtypeName | None = None,
    threads: int | None = None,
    device: Device = "auto",
    kv_dtype: KVDtype = "auto",
    *,
    native: bool = True,
) -> "NativeOps | Ops":
    """The op table for this machine: of its GPU if there is one on which the kernels pass their self-test, unless
    `device` says otherwise.

    On a CPU the native library computes if it has kernels for the processor, in bfloat16. The choice is not timed:
    timings vary from start to start on a busy machine, and with them the generated texts. Otherwise torch computes, as
    configured by its start-up probe.

    `dtype` None: bfloat16 on a GPU and with the native library, else the probe's choice. `threads`: of the CPU.
    `native` False: on a CPU torch computes.
    `kv_dtype` auto: KV in the compute dtype. int8, on a GPU or on a CPU with the native library, and fp8 (e4m3), on a
    GPU, take half of the memory.

    Raises:
        DeviceUnavailable: `device` is "cuda" and there is no GPU, no compiler for kernels, or a kernel that fails its
            self-test; or `kv_dtype` is not supported on the device, or needs the native library, which does not
            compute here; or torch would compute, and is not installed.
    """
    if not takes_gpu(device):
        if kv_dtype == "fp8":
            raise DeviceUnavailable("kv_dtype fp8 needs a GPU: a CPU keeps KV as it is computed, or in int8")
        if native and dtype in (None, "bfloat16") and computes_natively():
            return NativeOps(threads or usable_cores(), int8_kv=kv_dtype == "int8")
        if kv_dtype == "int8":
            raise DeviceUnavailable("kv_dtype int8 needs dtype bfloat16, the native library, and AVX2 or more")
        if find_spec("torch") is None:
            raise DeviceUnavailable(
                "this needs torch, which is not installed (the native library computes in bfloat16 alone, where it was "
                "built): pip install torch"
            )
        return _torch_on_cpu(dtype, threads)
    if flaw := cuda_flaw():
        raise DeviceUnavailable(f"device cuda needs {flaw}")
    missing = missing_for_floats8()
    if kv_dtype == "fp8" and missing is not None:
        raise DeviceUnavailable(f"kv_dtype fp8 needs {missing}; use kv_dtype int8")
    return _triton(dtype, threads, kv_dtype, floats8=missing is None)


def takes_gpu(device: Device = "auto") -> bool:
    """Whether `select_ops` takes the GPU for `device`, or raises as there is no usable one."""
    return device == "cuda" or (device == "auto" and cuda_flaw() is None)


def check_parts(parts: Iterable[ModelPart]) -> None:
    """Test the kernels of the GPU that `select_ops` chose which only models with one of these parts use.

    Raises:
        DeviceUnavailable: one fails.
    """
    for part in parts:
        if flaw := part_flaw(part):
            raise DeviceUnavailable(f"device cuda needs {flaw}; use device cpu")


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


def _triton(dtype: DtypeName | None, threads: int | None, kv_dtype: KVDtype, *, floats8: bool) -> "Ops":
    import torch

    from kernels.triton.ops import TritonOps
    from kernels.weights import KVScales

    if threads is not None:
        torch.set_num_threads(threads)
    # Otherwise cuBLAS may add the parts of a product in bfloat16.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    # For layers that come with no scales of their own: e4m3 reaches to 448, keys and values hardly to a tenth.
    scales = KVScales(key=1.0, value=1.0) if kv_dtype == "fp8" else None
    device = torch.device("cuda", torch.cuda.current_device())
    compute = getattr(torch, dtype or "bfloat16")
    return TritonOps(device, compute, scales, int8_kv=kv_dtype == "int8", floats8=floats8)


def gpu_memory_bytes(device: Device = "auto") -> int | None:
    """Memory of the GPU that `select_ops` takes for `device`; None if it takes the CPU, or raises."""
    if device == "cpu" or cuda_flaw() is not None:
        return None
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
