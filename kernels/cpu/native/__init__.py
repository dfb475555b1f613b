"""Native kernels of the CPU: a small library in C++ behind a C interface, where one was built.

It is built with the package where there is a C++ compiler, and found by `library.load`. Nothing depends on it: without
it every op is computed by torch.
"""

from kernels.cpu.native.library import Level, level, start
from kernels.cpu.native.linear import NativeLinear, can_pack

__all__ = ["Level", "NativeLinear", "can_pack", "level", "start"]
