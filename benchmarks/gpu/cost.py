"""A model of a decode step's cost on GPUs: `python -m benchmarks.gpu.cost [MODEL] [--context TOKENS]`.

Launches are counted: a step of a tiny model in 16 bits, as CUDA graphs replay it, runs with one layer and with two
under Triton's interpreter. So are the bytes of logits that kernels read and write. Other bytes and FLOPs follow from
the shape. Times are neither: they are computed from nominal rates and from the assumed efficiencies below, to compare
designs before a device is there to measure them on.
"""

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from benchmarks.gpu import models
from benchmarks.gpu.stepping import GREEDY, Stepper, blocks_for
from engine.checkpoints.huggingface.config import config_from_json
from engine.execution.device.runner import DeviceRunner
from engine.models.config import ModelConfig
from engine.models.transformer import Transformer
from engine.speculation.device.draft_placement import largest_plan
from engine.speculation.device.drafter import DeviceDrafter
from kernels.adapter_sizes import ProductSize
from kernels.triton.ops import TritonOps
from kernels.triton.plan import SPLIT_TOKENS
from kernels.triton.step_ops import TritonStepOps
from kernels.triton.tuning_adapters import rank_bucket
from kernels.triton.tuning_products import FEW_ROWS

ROWS = (1, 8, 32, 64, 128, 256)
_RANK = 16
_ADAPTED = ((1, 1), (8, 8), (32, 1), (32, 20), (128, 20))
"""Rows and adapters of a step."""
PRODUCTS = frozenset({"linear", "mm", "few_rows_kernel", "by_head_kernel"})
ATTENTION = frozenset({"decode", "latent_decode"})
"""Kernels whose time is that of the KV that they read; every other launch is a small one."""
_NOT_LAUNCHED = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "detach", "detach_", "lift_fresh"})
KEY_TILE = 64
"""Keys of a tile of `decode`: see `kernels.triton.tuning`."""
_BYTES = 2
"""Of a weight and of a number of the KV, in bf16."""


@dataclass(frozen=True, slots=True)
class Device:
    """Nominal rates, from the maker's data sheets: bytes/s of memory, and dense bf16 FLOP/s."""

    name: str
    bytes_s: float
    flop_s: float


DEVICES = (
    Device("H200", 4.8e12, 989e12),
    Device("H100 SXM", 3.35e12, 989e12),
    Device("A100 80 GB", 2.04e12, 312e12),
    Device("L40S", 0.864e12, 362e12),
)


@dataclass(frozen=True, slots=True)
class Assumed:
    """Shares of the nominal rates, and microseconds, that nothing here has measured.

    product_bytes, few_rows_bytes: products by cuBLAS, and those of up to 16 rows by a kernel of ours.
    key_tile_us: of a tile of keys in attention, whose tiles of one split follow one another: a layer takes at least
    those of a split. small_us: of a kernel that reads little. gap_us: between two kernels of a graph.
    """

    product_bytes: float = 0.76
    few_rows_bytes: float = 0.83
    product_flop: float = 0.75
    attention_bytes: float = 0.73
    key_tile_us: float = 1.3
    small_us: float = 2.5
    gap_us: float = 0.4


DEPENDENT = Assumed(small_us=1.2, gap_us=0.0)
"""With programmatic dependent launch: a kernel's programs are placed while the one before it ends."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of a step, by kernel: in each layer, and outside the layers. `logit_bytes`: what they read and write of
    each logit."""

    layer: Mapping[str, int]
    outside: Mapping[str, int]
    logit_bytes: float = 0.0

    def total(self, layers: int) -> int:
        return sum(self.layer.values()) * layers + sum(self.outside.values())

    def small(self, layers: int) -> int:
        """Launches of kernels that read neither weights nor KV."""
        others = PRODUCTS | ATTENTION
        return sum(
            count * times
            for part, times in ((self.layer, layers), (self.outside, 1))
            for name, count in part.items()
            if name not in others
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A decode step on one device; times in milliseconds. `least_ms`: weights and KV at the nominal rate. `small_ms`:
    of kernels that read neither, and of the logits' bytes."""

    rows: int
    gigabytes: float
    least_ms: float
    products_ms: float
    attention_ms: float
    small_ms: float
    gaps_ms: float

    @property
    def total_ms(self) -> float:
        return self.products_ms + self.attention_ms + self.small_ms + self.gaps_ms


@dataclass(slots=True)
class LogitBytes:
    """Counts the bytes of logits [`rows`, `vocab_size`] that launches read and write; 0 rows: none."""

    rows: int = 0
    vocab_size: int = 0
    counted: int = 0

    def add(self, tensors: Iterable[object]) -> None:
        """Add the bytes of those tensors of a launch that are logits, each once."""
        logits = {
            each.data_ptr(): each.numel() * each.element_size()
            for each in tensors
            if isinstance(each, Tensor) and tuple(each.shape) == (self.rows, self.vocab_size)
        }
        self.counted += sum(logits.values())


class _Dispatched(TorchDispatchMode):
    """Counts torch operations that launch a kernel, while `paused` is false, and the bytes of logits."""

    def __init__(self, counted: Counter[str], logits: LogitBytes) -> None:
        super().__init__()
        self.counted, self.logits, self.paused = counted, logits, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        output = func(*args, **(kwargs or {}))
        is_view = not func._schema.is_mutable and _shares_memory(output, args)
        to_host = name == "to" and output.dtype == args[0].dtype  # no kernel: a copy of results
        if not (self.paused or is_view or to_host or name in _NOT_LAUNCHED):
            self.counted[name] += 1
            self.logits.add((*args, *(kwargs or {}).values(), output))
        return output


def _shares_memory(output: object, args: tuple[object, ...]) -> bool:
    """Whether the output of an operation is its first argument or a view of it."""
    if not (args and isinstance(output, Tensor) and isinstance(args[0], Tensor)):
        return False
    return output.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr()


@contextmanager
def counting(logits: LogitBytes | None = None) -> Iterator[Counter[str]]:
    """Counts launches: of Triton kernels by their function's name, of torch by the operation's. `logits`: counts their
    bytes."""
    counted: Counter[str] = Counter()
    logits = logits or LogitBytes()
    torch_ops = _Dispatched(counted, logits)
    launch = GridExecutor.__call__

    def counted_launch(self: GridExecutor, *args: object, **kwargs: object) -> object:
        counted[self.fn.__name__] += 1
        logits.add((*args, *kwargs.values()))
        torch_ops.paused = True  # the interpreter's own copies
        try:
            return launch(self, *args, **kwargs)
        finally:
            torch_ops.paused = False

    with mock.patch.object(GridExecutor, "__call__", counted_launch), torch_ops:
        yield counted


def decode_launches(shape: str = "tiny", *, adapted: bool = False) -> Launches:
    """Those of a greedy decode step of a model of `models.SHAPES`: what a graph replays, and the upload before it.
    `adapted`: with an adapter in a row."""
    logits = LogitBytes()
    one, two = (launches_of(layers, shape, logits, adapted=adapted) for layers in (1, 2))
    layer = two - one
    return Launches(layer, one - layer, logits.counted / (2 * logits.rows * logits.vocab_size))


def _model_of(layers: int, name: str) -> Transformer:
    shape = models.SHAPES[name] | {"num_hidden_layers": layers}
    ops = TritonOps(torch.device("cpu"), torch.float16)
    if "first_k_dense_replace" in shape:
        shape |= {"first_k_dense_replace": layers}
    with mock.patch.dict(models.SHAPES, {"counted": shape}):
        return models.random_model("counted", ops, 64)


def launches_of(
    layers: int, name: str = "tiny", logits: LogitBytes | None = None, *, adapted: bool = False
) -> Counter[str]:
    """Those of a decode step of a tiny model with `layers` layers. `logits`: counts their bytes."""
    model = _model_of(layers, name)
    if adapted:
        model.allocate_adapters(1, 8)
    stepper = Stepper(model, slots=2, num_blocks=blocks_for(2, 32), window=64, step_tokens=64)
    for place in range(2):
        request = stepper.add([5, 6, 7], 8)
        request.adapter_slot = 0 if adapted and not place else None
    _replay(stepper.runner)
    stepper.step()
    stepper.step()
    logits = logits or LogitBytes()
    logits.rows, logits.vocab_size = 2, model.config.vocab_size
    with counting(logits) as counted:
        times = stepper.step()
    assert times is not None, "the requests have ended"
    assert (times.rows, times.tokens) == (2, 2), "not a decode step"
    return counted


def _replay(runner: DeviceRunner) -> None:
    """Let decode steps launch what their graphs would."""
    runner.capture_graphs(lambda compute: compute)


def draft_launches(shape: str = "tiny") -> Launches:
    """Those of a greedy draft of a model of `models.SHAPES` after the first one: what its graph replays."""
    one, two = (launches_of_draft(layers, shape) for layers in (1, 2))
    layer = two - one
    return Launches(layer, one - layer)


def launches_of_draft(layers: int, name: str = "tiny") -> Counter[str]:
    """The difference between the launches of plans of three and of two drafts."""
    model = _model_of(layers, name)
    drafter = DeviceDrafter(model, TritonStepOps(), model, max_positions=64, num_blocks=2, num_slots=2)
    drafter.capture_graphs(lambda compute: compute)
    of_plan = []
    for depth in (2, 3):
        plan = largest_plan(2, 64, 0)
        rows = [
            row._replace(request=replace(row.request, params=GREEDY, slot=row.want), depth=depth) for row in plan.rows
        ]
        with counting() as counted:
            drafter.run(replace(plan, rows=rows))
        of_plan.append(counted)
    two, three = of_plan
    return three - two


def step(config: ModelConfig, device: Device, launches: Launches, rows: int, context: int, assumed: Assumed) -> Step:
    """A decode step of `rows` rows at `context` tokens of context each."""
    weights = models.weights_per_step(config)
    kv = rows * context * sum(heads.kv_numbers for heads in config.kv_heads) * _BYTES
    layers, weight_bytes = config.num_layers, weights * _BYTES
    share = assumed.few_rows_bytes if rows <= FEW_ROWS.row_tile else assumed.product_bytes
    by_bytes = weight_bytes / (device.bytes_s * share)
    by_flop = 2 * weights * rows / (device.flop_s * assumed.product_flop)
    split_us = assumed.small_us + SPLIT_TOKENS / KEY_TILE * assumed.key_tile_us
    attention = max(kv / (device.bytes_s * assumed.attention_bytes), layers * split_us * 1e-6)
    logits = rows * config.vocab_size * launches.logit_bytes / (device.bytes_s * assumed.product_bytes)
    return Step(
        rows=rows,
        gigabytes=(weight_bytes + kv) / 1e9,
        least_ms=1e3 * max((weight_bytes + kv) / device.bytes_s, 2 * weights * rows / device.flop_s),
        products_ms=1e3 * max(by_bytes, by_flop),
        attention_ms=1e3 * attention,
        small_ms=1e-3 * launches.small(layers) * assumed.small_us + 1e3 * logits,
        gaps_ms=1e-3 * launches.total(layers) * assumed.gap_us,
    )


@dataclass(frozen=True, slots=True)
class AdaptedStep:
    """Increments of a decode step with adapters: bytes of the adapters, launches, and milliseconds."""

    megabytes: float
    launches: int
    added_ms: float


def adapted_step(
    config: ModelConfig, device: Device, plain: Launches, adapted: Launches, adapters: int, rank: int, assumed: Assumed
) -> AdaptedStep:
    """A decode step whose rows have `adapters` adapters of `rank`, of all products, over the same step with none."""
    layers = config.num_layers
    launches = adapted.total(layers) - plain.total(layers)
    numbers = adapters * rank_bucket(rank) * sum(map(_rank_numbers, _adapted_products(config)))
    read_ms = 1e3 * numbers * _BYTES / (device.bytes_s * assumed.few_rows_bytes)
    return AdaptedStep(
        megabytes=numbers * _BYTES / 1e6,
        launches=launches,
        added_ms=read_ms + 1e-3 * launches * (assumed.small_us + assumed.gap_us),
    )


def _rank_numbers(size: ProductSize) -> int:
    return len(size.parts) * size.inputs + size.outputs


def _adapted_products(config: ModelConfig) -> Iterator[ProductSize]:
    """Those of a dense model with keys and values in each layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    for layer in range(config.num_layers):
        heads = config.heads_of(layer)
        query, of_keys = config.num_heads * heads.dim, heads.kv_heads * heads.dim
        yield ProductSize((query, of_keys, of_keys), hidden)
        yield ProductSize((hidden,), query)
        yield ProductSize((inner, inner), hidden)
        yield ProductSize((hidden,), inner)


def _print_adapted(config: ModelConfig, plain: Launches, adapted: Launches, context: int, assumed: Assumed) -> None:
    added = {name: Counter(adapted.layer)[name] for name in adapted.layer.keys() - plain.layer.keys()}
    outside = sorted(adapted.outside.keys() - plain.outside.keys())
    print(f"\nWith adapters of rank {_RANK} of all products: {added} in each layer, and {', '.join(outside)}")
    print("| device | rows | adapters | MB | launches | ms more | share |")
    print("|---|---|---|---|---|---|---|")
    for device in DEVICES:
        for rows, adapters in _ADAPTED:
            base = step(config, device, plain, rows, context, assumed)
            one = adapted_step(config, device, plain, adapted, adapters, _RANK, assumed)
            share = one.added_ms / base.total_ms
            times = f"{one.megabytes:.0f} | {one.launches} | {one.added_ms:.2f} | {share:.0%}"
            print(f"| {device.name} | {rows} | {adapters} | {times} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="llama-3.1-8b", choices=sorted(models.SHAPES))
    parser.add_argument("--context", type=int, default=1000, metavar="TOKENS")
    parser.add_argument("--dependent-launch", action="store_true", help="assume programmatic dependent launch")
    arguments = parser.parse_args()
    config = config_from_json(models.SHAPES[arguments.model])
    launches = decode_launches("tiny" if config.latent is None else "tiny-latents")
    assumed = DEPENDENT if arguments.dependent_launch else Assumed()
    print(f"Launches of a decode step of {arguments.model}, counted: {launches.total(config.num_layers)}")
    for name, part in ((f"in each of {config.num_layers} layers", launches.layer), ("outside", launches.outside)):
        listed = ", ".join(f"{kernel} {count}" for kernel, count in sorted(part.items(), key=lambda pair: -pair[1]))
        print(f"  {name} {sum(part.values())}: {listed}")
    print(f"Bytes of each logit that these read and write: {launches.logit_bytes:g}")
    drafting = draft_launches("tiny" if config.latent is None else "tiny-latents")
    print(f"Launches of a draft of the same model: {drafting.total(config.num_layers)}")
    print(f"Times at {arguments.context} tokens of context, computed and not measured: {assumed}")
    for device in DEVICES:
        print(f"\n{device.name}: {device.bytes_s / 1e12:.2f} TB/s, {device.flop_s / 1e12:.0f} TFLOP/s")
        print("| rows | GB | least ms | products | attention | small | gaps | ms | tok/s | of the least |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for rows in ROWS:
            one = step(config, device, launches, rows, arguments.context, assumed)
            parts = (one.least_ms, one.products_ms, one.attention_ms, one.small_ms, one.gaps_ms, one.total_ms)
            times = " | ".join(f"{each:.2f}" for each in parts)
            rate, share = 1e3 * rows / one.total_ms, one.least_ms / one.total_ms
            print(f"| {rows} | {one.gigabytes:.1f} | {times} | {rate:,.0f} | {share:.0%} |")
    if config.latent is None and config.experts is None:
        _print_adapted(config, launches, decode_launches(adapted=True), arguments.context, assumed)


if __name__ == "__main__":
    main()
