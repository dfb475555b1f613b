"""Other tiles, warps and stages for the attention kernels, compared with those of `kernels.triton.attention_tiles`.

`check` is for the correctness of each, and leaves it compiled where the measurement will look for it.
"""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from triton.runtime.errors import OutOfResources

from benchmarks.gpu import attention, names
from benchmarks.gpu.checks import TOLERANCE, worst_row_error
from benchmarks.gpu.checks.attention import attended, expected_of, rows_of
from benchmarks.gpu.paged import make_step
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.timing import median_ms, replayed_ms
from kernels.triton import tuning
from kernels.triton.attention_tiles import DECODE, EXTEND, DecodeTile, ExtendTile
from kernels.triton.capability import capability_of

_EXTEND_ROWS = 1
T = TypeVar("T")
Tile = TypeVar("Tile", DecodeTile, ExtendTile)


def check(stage: Stage) -> None:
    for tile in (*_decode_tiles(stage), *_extend_tiles(stage)):
        stage.attempt(f"{tile}", partial(_if_it_fits, stage, f"{tile}", partial(_check, stage, tile)))


def run(stage: Stage) -> None:
    _sweep_decode(stage)
    _sweep_extend(stage)


def _sweep_decode(stage: Stage) -> None:
    batch, context = stage.scale.swept_batch, stage.scale.decode_contexts[1]
    works = attention.decode_works(stage, batch, context)
    bytes_read = attention.kv_bytes(batch, context, stage.scale.attention_heads)
    _measure(
        stage,
        names.decode(batch, context),
        list(_decode_tiles(stage)),
        lambda: bytes_read / replayed_ms(works, stage.device, stage.scale.repeats) / 1e6,
        "GB/s",
    )


def _sweep_extend(stage: Stage) -> None:
    tokens = stage.scale.extend_tokens[-1]
    works = attention.extend_works(stage, _EXTEND_ROWS, tokens, 0)
    operations = attention.extend_flop(_EXTEND_ROWS, tokens, 0, stage.scale.attention_heads)
    _measure(
        stage,
        names.extend(tokens, 0),
        list(_extend_tiles(stage)),
        lambda: operations / median_ms(works, stage.device, stage.scale.repeats) / 1e9,
        "TFLOP/s",
    )


def _measure(stage: Stage, name: str, tiles: list[Tile], rate: Callable[[], float], unit: str) -> None:
    """The shipped tile is the first; what is best of those that there was time for."""
    rates: dict[Tile, float] = {}
    for tile in tiles:
        with _installed(stage, tile):
            measured = stage.attempt(f"{name}, {tile}", partial(_if_it_fits, stage, f"{name}, {tile}", rate))
        if measured is not None:
            rates[tile] = measured
            stage.measured(f"{name}, {tile}", measured, unit)
    if len(rates) > 1:
        best = max(rates, key=lambda tile: rates[tile])
        shipped = rates.get(tiles[0], float("nan"))
        stage.measured(f"{name}, best over shipped", rates[best] / shipped, "x", f"of {len(rates)}: {best}")


def _if_it_fits(stage: Stage, name: str, work: Callable[[], T]) -> T | None:
    """A candidate that takes more than the device has is no fault."""
    try:
        return work()
    except OutOfResources as error:
        stage.skipped(name, str(error))
        return None


def _decode_tiles(stage: Stage) -> Iterator[DecodeTile]:
    shipped = DECODE[_capability(stage)][_key(stage)]
    yield shipped
    for key_tile, warps, stages, programs in stage.scale.tuning.decode:
        tile = replace(shipped, key_tile=key_tile, num_warps=warps, num_stages=stages, few_programs=programs)
        if tile != shipped:
            yield tile


def _extend_tiles(stage: Stage) -> Iterator[ExtendTile]:
    shipped = EXTEND[_capability(stage)][_key(stage)]
    yield shipped
    for tile in (ExtendTile(*each) for each in stage.scale.tuning.extend):
        if tile != shipped:
            yield tile


def _capability(stage: Stage) -> int:
    return capability_of(stage.device)


def _key(stage: Stage) -> tuple[int, int]:
    return stage.scale.attention_heads.dim, stage.scale.dtypes[0].itemsize


def _check(stage: Stage, tile: DecodeTile | ExtendTile) -> None:
    lens, contexts = rows_of("decode", stage.scale.long_context, stage.scale.chunk)
    if isinstance(tile, ExtendTile):
        lens, contexts = [stage.scale.chunk], [stage.scale.long_context]
    step = make_step(lens, contexts, stage.scale.attention_heads, stage.scale.dtypes[0], stage.generator)
    with _installed(stage, tile):
        output = attended(step)
    stage.checked(f"{tile}", worst_row_error(output[1:], expected_of(step)[1:]), TOLERANCE[stage.scale.dtypes[0]])


@contextmanager
def _installed(stage: Stage, tile: DecodeTile | ExtendTile) -> Iterator[None]:
    """The tile in the place of the shipped one."""
    key = _key(stage)
    table: MutableMapping[tuple[int, int], DecodeTile | ExtendTile] = (
        DECODE if isinstance(tile, DecodeTile) else EXTEND
    )[_capability(stage)]  # type: ignore[index]
    shipped = table[key]
    table[key] = tile
    _forget_launches()
    try:
        yield
    finally:
        table[key] = shipped
        _forget_launches()


def _forget_launches() -> None:
    tuning.decode_launch.cache_clear()
    tuning.extend_launch.cache_clear()
