"""The only place that chooses between backends."""

from importlib.util import find_spec
from typing import Literal

import torch

from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import probe
from kernels.ops import KVScales, Ops
from kernels.step import StepOps

Device = Literal["auto", "cpu", "cuda"]
KVDtype = Literal["auto", "fp8", "int8"]

_KV_SCALES = KVScales(key=1.0, value=1.0)
"""Of fp8 KV, for models that come with none of their own: e4m3 reaches to 448, keys and values hardly to a tenth."""


class DeviceUnavailable(RuntimeError):
    """The device that was asked for cannot be used here; says what is missing."""


def select_ops(
    dtype: torch.dtype | None = None,
    threads: int | None = None,
    device: Device = "auto",
    kv_dtype: KVDtype = "auto",
) -> Ops:
    """The op table for this machine: of its GPU where it can be used, unless `device` says which.

    `dtype` None is bfloat16 on a GPU; on a CPU it leaves the choice to the start-up probe. `threads` are the CPU's.
    `kv_dtype` auto keeps KV as it is computed. Half of the memory takes fp8 (e4m3) on a GPU, and int8 on a CPU where
    the native library computes.

    Raises:
        DeviceUnavailable: `device` is "cuda", and there is no GPU, or nothing that compiles kernels for it; or
            `kv_dtype` is for another device, or for the native library, which does not compute here.
    """
    if device == "cpu" or (device == "auto" and _missing_for_cuda()):
        if kv_dtype == "fp8":
            raise DeviceUnavailable("kv_dtype fp8 needs a GPU: a CPU keeps KV as it is computed, or in int8")
        profile = probe(dtype, threads)
        if kv_dtype == "int8" and (profile.products, profile.dtype) != ("native", torch.bfloat16):
            raise DeviceUnavailable("kv_dtype int8 needs dtype bfloat16, the native library, and AVX2 or more")
        return CpuOps(profile, int8_kv=kv_dtype == "int8")
    if missing := _missing_for_cuda():
        raise DeviceUnavailable(f"device cuda needs {missing}")
    if kv_dtype == "int8":
        raise DeviceUnavailable("kv_dtype int8 is for a CPU: a GPU keeps KV as it is computed, or in fp8")
    # Only here: nothing else needs triton to be there.
    from kernels.triton.ops import TritonOps

    if threads is not None:
        torch.set_num_threads(threads)
    scales = _KV_SCALES if kv_dtype == "fp8" else None
    return TritonOps(torch.device("cuda", torch.cuda.current_device()), dtype or torch.bfloat16, scales)


def select_step_ops(ops: Ops) -> StepOps:
    """What goes around a forward pass on the GPU that this op table is for."""
    assert ops.device.type == "cuda", f"steps are not prepared on {ops.device}"
    from kernels.triton.step_ops import TritonStepOps

    return TritonStepOps()


def _missing_for_cuda() -> str | None:
    """What there would have to be for kernels to run on a GPU; None where nothing is missing."""
    if not torch.cuda.is_available():
        return "a GPU, its driver and a torch that is built for CUDA: torch finds none here"
    if find_spec("triton") is None:
        return "triton: pip install 'turnpike[gpu]'"
    return None
