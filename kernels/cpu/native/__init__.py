"""Native kernels of the CPU: a small library in C++ behind a C interface, where one was built.

It is built with the package where there is a C++ compiler, and found by `library.load`. Nothing depends on it: without
it every op is computed by torch.
"""

from kernels.cpu.native.abi import Level
from kernels.cpu.native.forward import NativeForward
from kernels.cpu.native.library import level, start
from kernels.cpu.native.linear import NativeEmbedding, NativeLinear, pack_gate_up, takes
from kernels.cpu.native.sampling import NativeSampling

__all__ = [
    "Level",
    "NativeEmbedding",
    "NativeForward",
    "NativeLinear",
    "NativeSampling",
    "level",
    "pack_gate_up",
    "start",
    "takes",
]
