"""Launches fit the GPU that they are for, which is looked up once."""

import pytest
import torch

from kernels.triton.attention_tiles import DECODE, EXTEND
from kernels.triton.capability import HOPPER, LIMITS, capability_of, known_capability
from kernels.triton.plan import SPLIT_TOKENS
from kernels.triton.tuning import AttentionShape, decode_launch, extend_launch
from kernels.triton.tuning_latents import LATENTS
from kernels.triton.tuning_products import EXPERTS, GROUPED_FEW, GROUPED_MANY, ROUNDED_MANY, tile_on


@pytest.mark.parametrize(
    ("capability", "known"),
    [(80, 80), (86, 86), (87, 86), (89, 89), (90, 90), (100, 100), (103, 100), (120, 120), (121, 120)],
)
def test_a_gpu_gets_the_launches_of_the_next_one_below(capability: int, known: int) -> None:
    assert known_capability(capability) == known


def test_a_device_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def capability(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return 8, 9

    monkeypatch.setattr("torch.cuda.get_device_capability", capability)
    capability_of.cache_clear()
    device = torch.device("cuda", 0)
    assert [capability_of(device) for _ in range(3)] == [89] * 3
    assert asked == [device]
    capability_of.cache_clear()


def test_the_interpreter_takes_hoppers_launches() -> None:
    assert capability_of(torch.device("cpu")) == HOPPER


def test_every_capability_has_a_tile_for_every_head() -> None:
    for table in (DECODE, EXTEND, LATENTS):
        assert list(table) == list(LIMITS)
        assert len({tuple(tiles) for tiles in table.values()}) == 1


def test_a_split_has_whole_tiles() -> None:
    assert not any(SPLIT_TOKENS % tile.key_tile for tiles in DECODE.values() for tile in tiles.values())
    assert not any(SPLIT_TOKENS % tile.key_tile for tiles in LATENTS.values() for tile in tiles.values())


def test_launches_follow_the_capability() -> None:
    shapes = [AttentionShape(8, 4, 256, 0, 2, capability=capability) for capability in (HOPPER, 89)]
    assert [extend_launch(shape).constexprs["QUERY_TILE"] for shape in shapes] == [128, 64]
    assert [decode_launch(shape, 1).constexprs["KEY_TILE"] for shape in shapes] == [32, 16]


@pytest.mark.parametrize("capability", LIMITS)
def test_rows_of_an_experts_tile_are_the_same_on_every_gpu(capability: int) -> None:
    """Assignments are sorted into tiles of that size before a product's tile is looked up."""
    kinds = {"plain": ["plain"], "grouped": ["grouped"], "rounded": ["e4m3", "i8"]}
    for (format, rows), tile in EXPERTS.items():
        assert {tile_on(capability, kind, tile).row_tile for kind in kinds[format]} == {rows}


def test_products_follow_the_capability() -> None:
    assert tile_on(HOPPER, "grouped", GROUPED_MANY) == GROUPED_MANY
    assert tile_on(120, "grouped", GROUPED_MANY).output_tile < GROUPED_MANY.output_tile
    assert tile_on(120, "grouped", GROUPED_FEW).max_registers == 255
    assert [tile_on(100, kind, ROUNDED_MANY[False]) for kind in ("e4m3", "i8")] == [
        ROUNDED_MANY[False],
        ROUNDED_MANY[True],
    ]
