"""The only place that chooses between backends."""

from importlib.util import find_spec
from typing import Literal

import torch

from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import probe
from kernels.ops import KVScales, Ops
from kernels.step import StepOps

Device = Literal["auto", "cpu", "cuda"]
KVDtype = Literal["auto", "fp8"]

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
    `kv_dtype` auto keeps KV as it is computed; fp8 (e4m3) takes half of the memory, on a GPU only.

    Raises:
        DeviceUnavailable: `device` is "cuda", and there is no GPU, or nothing that compiles kernels for it; or
            `kv_dtype` asks for one, and the device is the CPU.
    """
    if device == "cpu" or (device == "auto" and _missing_for_cuda()):
        if kv_dtype != "auto":
            raise DeviceUnavailable(f"kv_dtype {kv_dtype} needs a GPU: the CPU keeps KV as it is computed")
        return CpuOps(probe(dtype, threads))
    if missing := _missing_for_cuda():
        raise DeviceUnavailable(f"device cuda needs {missing}")
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
