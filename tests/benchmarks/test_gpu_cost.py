"""The model of a decode step's cost: launches are counted, and times follow from them."""

from collections import Counter
from dataclasses import replace

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
    assert sum(launches.layer.get(name, 0) for name in cost.ATTENTION) == 1
    assert min(launches.layer.values()) > 0


def test_a_draft_takes_no_more_launches_than_a_step(launches: cost.Launches) -> None:
    """The layers' are those of a step. Outside, rows are copied from where the plan's were uploaded."""
    draft = cost.draft_launches()
    assert draft.layer == launches.layer
    assert launches.outside == {**draft.outside, "scatter_runs_kernel": 1}


def test_two_launches_draw_and_store_tokens(launches: cost.Launches) -> None:
    assert [name for name in launches.outside if "draw" in name] == ["draw_tiles_kernel", "draw_rows_kernel"]
    assert sum(launches.outside.values()) == 9


def test_logits_are_written_once_and_read_once(launches: cost.Launches) -> None:
    """In 16 bits, as the product rounds them to these: by the product, which leaves them where all graphs do, and by
    the first kernel that draws. Nothing copies them."""
    assert launches.logit_bytes == 2 + 2
    without = replace(launches, logit_bytes=0.0)
    one, other = (cost.step(CONFIG, cost.DEVICES[0], each, 256, 1000, cost.Assumed()) for each in (launches, without))
    assert one.small_ms - other.small_ms == pytest.approx(256 * 128_256 * 4 / (4.8e12 * 0.76) * 1e3)


def test_latent_attention_takes_three_products_more() -> None:
    """The queries' absorption and the heads' values are a launch each for all heads; of queries and keys one rotates
    and stores. A latent of queries would add a product and a norm."""
    layer = cost.decode_launches("tiny-latents").layer
    products = {name: layer[name] for name in cost.PRODUCTS if name in layer}
    assert products == {"linear": 5, "by_head_kernel": 2}
    attention = ("rotate_and_store_latents_kernel", "latent_decode", "merge_latents")
    assert {name: layer[name] for name in attention} == dict.fromkeys(attention, 1)
    assert {name: count for name, count in layer.items() if name not in {*products, *attention}} == {
        "add_rms_norm_kernel": 2,
        "silu_mul_kernel": 1,
    }


def test_norms_and_scalars_of_gemma4_take_no_launches_of_their_own(launches: cost.Launches) -> None:
    """Its layers have norms of heads, values and branches, a scalar, and a scale of scores; they take Llama's launches
    but for the activation."""
    layer = Counter(cost.decode_launches("tiny-gemma4").layer)
    assert layer.pop("gelu_mul_kernel") == 1
    assert layer == {name: count for name, count in launches.layer.items() if name != "silu_mul_kernel"}


def test_adapters_take_two_launches_a_product_and_three_a_step(launches: cost.Launches) -> None:
    """Bytes are those of their numbers."""
    adapted = cost.decode_launches(adapted=True)
    assert Counter(adapted.layer) - Counter(launches.layer) == {"shrink_kernel": 4, "expand_kernel": 4}
    outside = {"token_adapters_kernel": 1, "count_kernel": 1, "align_kernel": 1}
    assert Counter(adapted.outside) - Counter(launches.outside) == outside
    one, twenty = (
        cost.adapted_step(CONFIG, cost.DEVICES[0], launches, adapted, adapters, 16, cost.Assumed())
        for adapters in (1, 20)
    )
    assert one.launches == twenty.launches == 8 * CONFIG.num_layers + 3
    assert 20 * one.megabytes == twenty.megabytes
    assert one.megabytes == pytest.approx(84, abs=4), "42 million numbers"
    assert one.added_ms < twenty.added_ms


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
    fused = replace(launches, layer={**launches.layer, name: launches.layer[name] - 1})
    assumed, device = cost.Assumed(), cost.DEVICES[0]
    before, after = (cost.step(CONFIG, device, each, 1, 1000, assumed) for each in (launches, fused))
    saved_us = CONFIG.num_layers * (assumed.small_us + assumed.gap_us)
    assert before.total_ms - after.total_ms == pytest.approx(saved_us / 1e3)
    assert before.least_ms == after.least_ms
