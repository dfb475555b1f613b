"""Native CPU kernels: a C++ library with a C interface.

Built with the package if there is a C++ compiler, and found by `library.load`. Optional: without it torch computes
every op.
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
