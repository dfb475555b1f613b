"""Devices by name, and the share of their nominal rates that kernels reach."""

from dataclasses import dataclass

from engine.planning.origin import Origin

_GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Nominal rates of a device: `bytes_s` of memory, `flop_s` of dense products in 16 bits, `fp8_flop_s` in 8 bits
    (None: it has none), `link_bytes_s` to a neighbour. `on_gpu`: false for a CPU, whose memory the host shares."""

    name: str
    memory_bytes: int
    bytes_s: float
    flop_s: float
    fp8_flop_s: float | None = None
    link_bytes_s: float = 25e9
    on_gpu: bool = True
    origin: Origin = Origin.ASSUMED

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "bytes_s", "flop_s", "link_bytes_s"):
            if not 0 < getattr(self, field) < float("inf"):
                raise ValueError(f"{field} must be positive, got {getattr(self, field)}")


_SHEETS = (
    ("H100", 80, 3.35e12, 989e12, 1979e12, 450e9),
    ("H200", 141, 4.8e12, 989e12, 1979e12, 450e9),
    ("A100", 80, 2.04e12, 312e12, None, 300e9),
    ("L40S", 48, 0.864e12, 362e12, 733e12, 25e9),
)
DEVICES = {
    name.lower(): Hardware(
        name=name, memory_bytes=size * _GB, bytes_s=memory, flop_s=flop, fp8_flop_s=fp8, link_bytes_s=link
    )
    for name, size, memory, flop, fp8, link in _SHEETS
}
"""From the makers' data sheets: SXM forms with 80 GB of the H100 and the A100. No sparsity."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the nominal rates, and microseconds, as in the cost model of a GPU (`python -m benchmarks.gpu.cost`).

    `layer_us`: of the kernels of a layer that read neither weights nor KV, and of the gaps between all of them.
    `reduce_us`: latency of an all-reduce.
    """

    product_bytes: float = 0.76
    product_flop: float = 0.75
    attention_bytes: float = 0.73
    attention_flop: float = 0.5
    layer_us: float = 19.0
    reduce_us: float = 10.0
    step_us: float = 50.0


EFFICIENCY = Efficiency()
