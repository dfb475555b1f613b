"""Parts of the comparison: servers, weights, loads, and the bounds on the ratios."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import formats, mixture, models
from benchmarks.peers.environment import root
from benchmarks.peers.load import Text, letters, words
from benchmarks.peers.systems import LLAMA_CPP, TURNPIKE, VLLM, Contestant
from benchmarks.random_adapters import SETS, make_adapter
from benchmarks.serving import weights_per_step
from engine.catalog.catalog import fetch
from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.layout import expected_tensors
from gateway.config.settings import Settings

LEVELS = (1, 4, 8, 16, 32)
QUICK_LEVELS = (1, 4)
PREFIX_LEVEL = 8
ADAPTERS = 20
INT8, INT4, Q4_0 = "turnpike int8", "turnpike int4", "llama.cpp Q4_0"
INT8_KV = "turnpike int8 KV"
W4A16, W8A8 = f"turnpike {formats.W4A16}", f"turnpike {formats.W8A8}"


@dataclass(frozen=True, slots=True)
class Asked:
    """`ours` at `level` is to have at least `ratio` times the output tokens a second of `theirs`."""

    ours: str
    theirs: str
    level: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Part:
    """`weights`: numbers that a decode step computes with; `weight_bytes`: what it reads of them as bf16, or of the
    file, by contestants that keep them so; `kept_bytes`: all weights, as those keep them whose memory has a bound."""

    name: str
    title: str
    contestants: tuple[Contestant, ...]
    text: Text
    weights: int
    weight_bytes: Mapping[str, int]
    levels: tuple[int, ...]
    kept_bytes: Mapping[str, int] = field(default_factory=dict)
    prefix: bool = False
    adapters: tuple[str, ...] = ()
    """Names of adapters, with which each load is repeated."""


def _asked(ours: str, theirs: str, ratios: Mapping[int, float]) -> tuple[Asked, ...]:
    return tuple(Asked(ours, theirs, level, ratio) for level, ratio in ratios.items())


_BF16 = (
    *_asked(TURNPIKE, VLLM, {1: 1.4, 4: 1.25, 8: 1.25, 16: 1.15, 32: 1.15}),
    *_asked(TURNPIKE, LLAMA_CPP, {1: 1.05, 8: 1.5, 16: 1.5, 32: 1.5}),
)
_FILE = {1: 1.1, 4: 1.5, 8: 2.0, 16: 2.0, 32: 2.0}
ASKED: Mapping[str, tuple[Asked, ...]] = {
    "smollm2": (*_asked(TURNPIKE, LLAMA_CPP, _FILE), *_asked(INT8_KV, LLAMA_CPP, _FILE)),
    "tenth": _BF16,
    "half": _BF16,
    "quantized": (*_asked(INT8, TURNPIKE, {1: 1.5, 16: 1.3}), Asked(INT4, Q4_0, 1, 1.0)),
    "formats": (
        *_asked(W4A16, TURNPIKE, {1: 2.5, 8: 1.0, 16: 1.0}),
        *_asked(W8A8, TURNPIKE, {8: 1.0, 16: 1.3}),
        Asked(W4A16, Q4_0, 1, 1.5),
    ),
    "mixture": _asked(TURNPIKE, LLAMA_CPP, {1: 1.5, 8: 1.5}),
}
"""By part."""


def _checkpoint(name: str) -> models.Checkpoint:
    print(f"weights of {name}", flush=True)
    return models.prepare(name, models.SHAPES[name], root() / f"models-{models.VERSION}")


def _all_weights(path: Path) -> int:
    return sum(math.prod(shape) for _, shape in expected_tensors(open_checkpoint(path).config))


def _three(made: models.Checkpoint) -> tuple[Contestant, ...]:
    return (
        Contestant(TURNPIKE, TURNPIKE, made.folder),
        Contestant(VLLM, VLLM, made.folder),
        Contestant(LLAMA_CPP, LLAMA_CPP, made.bf16),
    )


def _bf16(name: str, shape: str) -> Part:
    made = _checkpoint(shape)
    weights = weights_per_step(made.folder)
    sizes = dict.fromkeys((TURNPIKE, VLLM, LLAMA_CPP), 2 * weights)
    title = f"{shape}, random weights, bf16"
    return Part(name, title, _three(made), letters, weights, sizes, LEVELS, {TURNPIKE: 2 * _all_weights(made.folder)})


def _tenth() -> Part:
    return _bf16("tenth", "0.1B")


def _half() -> Part:
    return _bf16("half", "0.5B")


def _smollm2() -> Part:
    path = fetch("smollm2", Settings().models_dir)
    contestants = (
        Contestant(TURNPIKE, TURNPIKE, path),
        Contestant(INT8_KV, TURNPIKE, path, kv_dtype="int8"),
        Contestant(LLAMA_CPP, LLAMA_CPP, path),
    )
    sizes = dict.fromkeys((TURNPIKE, INT8_KV, LLAMA_CPP), path.stat().st_size)
    title = "SmolLM2-135M-Instruct, its Q4_1 file"
    kept = dict.fromkeys((TURNPIKE, INT8_KV), path.stat().st_size)
    return Part("smollm2", title, contestants, words, weights_per_step(path), sizes, LEVELS, kept)


def _quantized() -> Part:
    made = _checkpoint("0.5B")
    contestants = (
        Contestant(TURNPIKE, TURNPIKE, made.folder),
        Contestant(INT8, TURNPIKE, made.folder, "int8"),
        Contestant(INT4, TURNPIKE, made.folder, "int4"),
        Contestant(Q4_0, LLAMA_CPP, made.q4_0),
    )
    weights = weights_per_step(made.folder)
    sizes = {TURNPIKE: 2 * weights, Q4_0: weights * 18 // 32}
    every = _all_weights(made.folder)
    kept = {TURNPIKE: 2 * every, INT8: every}
    return Part("quantized", "0.5B, random weights, fewer bits", contestants, letters, weights, sizes, (1, 16), kept)


def _formats() -> Part:
    made = _checkpoint("0.5B")
    folders = {W4A16: formats.prepare(made.folder, formats.W4A16), W8A8: formats.prepare(made.folder, formats.W8A8)}
    contestants = (
        Contestant(TURNPIKE, TURNPIKE, made.folder),
        *(Contestant(name, TURNPIKE, folder) for name, folder in folders.items()),
        Contestant(Q4_0, LLAMA_CPP, made.q4_0),
    )
    weights = weights_per_step(made.folder)
    sizes = {TURNPIKE: 2 * weights, Q4_0: weights * 18 // 32}
    title = "0.5B, random weights, published formats (heads in bf16; Q4_0: all of it)"
    return Part("formats", title, contestants, letters, weights, sizes, (1, 8, 16))


def _mixture() -> Part:
    path = mixture.prepare(root() / f"models-{models.VERSION}")
    contestants = (Contestant(TURNPIKE, TURNPIKE, path), Contestant(LLAMA_CPP, LLAMA_CPP, path))
    title = f"{mixture.EXPERTS} experts, {mixture.CHOSEN} chosen, random weights, one Q4_0 file"
    return Part("mixture", title, contestants, letters, mixture.chosen_weights(), {}, (1, 8))


def _adapters(name: str, shape: str, modules: str) -> Part:
    """Twenty adapters of a checkpoint, all of them resident."""
    made = _checkpoint(shape)
    folder = root() / f"models-{models.VERSION}" / f"{shape}-{name}"
    config = open_checkpoint(made.folder).config
    adapters = {f"adapter-{seed}": folder / str(seed) for seed in range(ADAPTERS)}
    for seed, path in enumerate(adapters.values()):
        if not path.exists():
            make_adapter(path, config, SETS[modules], seed)
    contestants = tuple(Contestant(name, name, made.folder, adapters=adapters) for name in (TURNPIKE, VLLM))
    weights = weights_per_step(made.folder)
    title = f"{shape}, random weights, bf16: {ADAPTERS} adapters of {modules}"
    return Part(name, title, contestants, letters, weights, {}, (1, 8, 32), adapters=tuple(adapters))


def _prefix() -> Part:
    made = _checkpoint("0.1B")
    weights = weights_per_step(made.folder)
    title = "0.1B, random weights, bf16: 24 chats with a system prompt of 512 tokens"
    kept = {TURNPIKE: 2 * _all_weights(made.folder)}
    return Part("prefix", title, _three(made), letters, weights, {}, (PREFIX_LEVEL,), kept, prefix=True)


PARTS: Mapping[str, Callable[[], Part]] = {
    "smollm2": _smollm2,
    "tenth": _tenth,
    "half": _half,
    "quantized": _quantized,
    "formats": _formats,
    "mixture": _mixture,
    "prefix": _prefix,
    "adapters": lambda: _adapters("adapters", "0.5B", "rank 8 on q, v"),
    "adapters-linears": lambda: _adapters("adapters-linears", "0.5B", "rank 16 on all linears"),
}
"""By name; a call makes the weights that are missing."""
