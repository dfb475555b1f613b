"""Native CPU kernels: a C++ library with a C interface.

Built with the package if there is a C++ compiler, and found by `library.load`. Optional: without it torch computes
every op. A token's numbers depend on its own sequence alone, to the bit: not on the batch, chunks, drafts or threads.

`forward.cpp` computes a step through all layers in one call:

    norm -> qkv -> rotate, store KV -> attention over the block table -> output, added to the residual
    norm -> gate and up, SiLU x mul in registers -> down, added to the residual
    before a product that adapters change: its inputs times their lower factors; what the upper ones make of that is
        added to the product's float32 sums before these are stored
    or, of a mixture: norm -> router -> gate and up of all chosen experts -> down of all -> weighted sum, added

The last layer writes the KV of all tokens, and computes the rest for the wanted tokens only. Folders of `src`:

    products   weights times rows: `work.cpp` divides the work, a format packs and multiplies, `store.h` writes
    adapters   low-rank changes of products by row (LoRA): packed, shrunk by adapter, expanded into a product's sums
    experts    mixtures of experts: the router's choice, and the products of chosen experts
    attention  paged attention and the storage formats of KV
    norms      RMS norms, rotary positions
    logits     sampling, masks, penalties, log-probabilities
    levels     the instruction sets, selected by the processor's flags, never by a timing; sources in vector types are
               compiled once per level. AMX was tested on emulated tiles only: before it is used, a product of it is
               compared with plain loops
    threads    the team of threads of a loop
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
