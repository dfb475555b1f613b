"""Products of heads in one native call are those of each head alone, to the bit, at every level of the processor."""

import numpy as np
import pytest

from kernels.arrays import BFLOAT16, FLOAT32, Array
from kernels.cpu.memory import WeightMemory
from kernels.cpu.native import Level, NativeLinear
from kernels.cpu.native.heads import HeadProducts
from kernels.cpu.native.library import load
from kernels.weights import StoredWeight
from tests.kernels.cpu.paged import levels, using

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)


def random(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, FLOAT32).astype(BFLOAT16)


def heads_of(count: int, outputs: int, inputs: int) -> list[NativeLinear]:
    return [
        NativeLinear([StoredWeight.dense(random(outputs, inputs, seed=head))], None, WeightMemory())
        for head in range(count)
    ]


@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
@pytest.mark.parametrize(("count", "outputs", "inputs"), [(1, 5, 2), (4, 24, 16), (4, 12, 24), (20, 512, 192)])
@pytest.mark.parametrize("rows", [0, 1, 3, 70])
def test_each_is_the_product_of_its_head(level: Level, count: int, outputs: int, inputs: int, rows: int) -> None:
    """Between other numbers, which stay as they are."""
    heads = heads_of(count, outputs, inputs)
    x = random(rows, count, inputs + 8, seed=99)[:, :, 8:]
    around = np.full((rows, count + 1, outputs + 6), 7, BFLOAT16)
    with using(level, 2):
        HeadProducts(heads).into(x, around[:, :-1, 6:])
        for number, head in enumerate(heads):
            expected = head(np.ascontiguousarray(x[:, number]))
            assert np.array_equal(around[:, number, 6:].view(np.uint16), expected.view(np.uint16))
    assert (around[:, -1] == 7).all()
    assert (around[:, :, :6] == 7).all()


@pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)
def test_a_row_is_the_same_among_others_and_for_any_threads(level: Level) -> None:
    products, x = HeadProducts(heads_of(20, 512, 192)), random(100, 20, 192, seed=1)
    together, alone = (np.empty((count, 20, 512), BFLOAT16) for count in (100, 1))
    with using(level, 3) as library:
        products.into(x, together)
        library.tp_use_threads(1)
        for row in (0, 50, 99):
            products.into(x[row : row + 1], alone)
            assert np.array_equal(alone[0].view(np.uint16), together[row].view(np.uint16))


def test_shapes_that_do_not_fit_are_refused() -> None:
    products, y = HeadProducts(heads_of(2, 4, 6)), np.empty((3, 2, 4), BFLOAT16)
    with pytest.raises(AssertionError, match="2 heads take 6"):
        products.into(random(3, 2, 8, seed=0), y)
    with pytest.raises(AssertionError, match="y is"):
        products.into(random(2, 2, 6, seed=0), y)
    with pytest.raises(AssertionError, match="3 inputs"):
        HeadProducts(heads_of(2, 4, 3))
