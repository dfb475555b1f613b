"""The model of a decode step's cost: launches are counted, and times follow from them."""

import pytest

from benchmarks.gpu import cost, models
from engine.checkpoints.huggingface.config import config_from_json

CONFIG = config_from_json(models.SHAPES["llama-3.1-8b"])


@pytest.fixture(scope="module")
def launches() -> cost.Launches:
    return cost.decode_launches()


def test_launches_of_a_layer_are_those_of_every_further_layer(launches: cost.Launches) -> None:
    assert launches.total(3) == cost.launches_of(3).total()
    assert sum(launches.layer[name] for name in cost.PRODUCTS if name in launches.layer) == 4
    assert all(launches.layer[name] == 1 for name in cost.ATTENTION)
    assert min(launches.layer.values()) > 0


def test_a_step_takes_longer_than_its_bytes_and_its_parts_add_up(launches: cost.Launches) -> None:
    steps = [
        cost.step(CONFIG, device, launches, rows, 1000, cost.Assumed()) for device in cost.DEVICES for rows in cost.ROWS
    ]
    for step in steps:
        parts = step.products_ms + step.attention_ms + step.small_ms + step.gaps_ms
        assert step.least_ms < step.total_ms == pytest.approx(parts)
    of_one_device = steps[: len(cost.ROWS)]
    assert of_one_device == sorted(of_one_device, key=lambda step: step.total_ms)


def test_a_launch_less_in_each_layer_is_a_gap_and_a_kernel_less(launches: cost.Launches) -> None:
    """A fusion takes one launch from each layer."""
    name = next(name for name in launches.layer if name not in cost.PRODUCTS | cost.ATTENTION)
    fused = cost.Launches({**launches.layer, name: launches.layer[name] - 1}, launches.outside)
    assumed, device = cost.Assumed(), cost.DEVICES[0]
    before, after = (cost.step(CONFIG, device, each, 1, 1000, assumed) for each in (launches, fused))
    saved_us = CONFIG.num_layers * (assumed.small_us + assumed.gap_us)
    assert before.total_ms - after.total_ms == pytest.approx(saved_us / 1e3)
    assert before.least_ms == after.least_ms
