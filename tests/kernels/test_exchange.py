"""Arrays and tensors are the same memory, to the bit, whatever the numbers are."""

import numpy as np
import pytest
import torch

from kernels.arrays import BFLOAT16, FLOAT16, FLOAT32, Dtype, address
from kernels.exchange import array_of, numpy_dtype, tensor_of

PAIRS = {
    torch.bfloat16: BFLOAT16,
    torch.float16: FLOAT16,
    torch.float32: FLOAT32,
    torch.int64: np.dtype(np.int64),
    torch.int32: np.dtype(np.int32),
    torch.int8: np.dtype(np.int8),
    torch.uint8: np.dtype(np.uint8),
    torch.bool: np.dtype(np.bool_),
}
every_pair = pytest.mark.parametrize(("of_torch", "of_numpy"), PAIRS.items(), ids=str)


@every_pair
def test_both_ways_lead_to_the_same_memory(of_torch: torch.dtype, of_numpy: Dtype) -> None:
    tensor = torch.arange(24).reshape(4, 6).to(of_torch)
    array = array_of(tensor)
    assert (array.dtype, array.shape, address(array)) == (of_numpy, (4, 6), tensor.data_ptr())
    again = tensor_of(array)
    assert (again.dtype, again.shape, again.data_ptr()) == (of_torch, (4, 6), tensor.data_ptr())
    array[1, 2] = 0
    again[3, 4] = 0
    assert tensor[1, 2] == tensor[3, 4] == 0


@every_pair
def test_what_lies_apart_stays_where_it_is(of_torch: torch.dtype, of_numpy: Dtype) -> None:
    tensor = torch.arange(60).reshape(6, 10).to(of_torch)
    array = array_of(tensor[::2, 3:7])
    assert array.strides == (20 * tensor.element_size(), tensor.element_size())
    assert torch.equal(tensor_of(array), tensor[::2, 3:7])
    turned = tensor_of(array.T)
    assert torch.equal(turned, tensor[::2, 3:7].T)
    turned[0, 0] = 1
    assert tensor[0, 3] == 1


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), ()], ids=str)
@every_pair
def test_empty_and_zero_dimensional_shapes(of_torch: torch.dtype, of_numpy: Dtype, shape: tuple[int, ...]) -> None:
    array = array_of(torch.zeros(shape, dtype=of_torch))
    assert (array.dtype, array.shape) == (of_numpy, shape)
    assert (tensor_of(array).dtype, tensor_of(array).shape) == (of_torch, shape)


def test_every_bit_of_every_number_stays() -> None:
    """Of bfloat16 and float16 each that there is: zeros with a sign, subnormal ones, infinities, NaN of every kind."""
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        array = array_of(patterns.view(dtype))
        assert np.array_equal(array.view(np.int16), patterns.numpy())
        assert torch.equal(tensor_of(array.copy()).view(torch.int16), patterns)


def test_both_read_the_same_number_in_the_bits() -> None:
    finite = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert np.array_equal(array_of(finite).astype(np.float32), finite.float().numpy())
    assert np.array_equal(array_of(finite.float()).astype(BFLOAT16), array_of(finite))


def test_both_round_to_the_same_bfloat16() -> None:
    """Every float32 whose other half is a tie, is next to one, or is anything."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    rest = np.random.default_rng(0).integers(0, 2**16, 2**16, dtype=np.uint32)
    for lower in (0x7FFF, 0x8000, 0x8001, rest):
        wide = (upper | lower).view(np.float32)
        with np.errstate(invalid="ignore"):  # of NaN that signal
            ours, theirs = wide.astype(BFLOAT16), array_of(torch.from_numpy(wide).bfloat16())
        numbers = ~np.isnan(wide)
        assert np.array_equal(ours.view(np.int16)[numbers], theirs.view(np.int16)[numbers])
        assert np.isnan(ours[~numbers].astype(np.float32)).all()


@every_pair
def test_arrays_that_cannot_be_written_to_can_be_read(of_torch: torch.dtype, of_numpy: Dtype) -> None:
    """As those of a file are. Who holds the tensor keeps them."""
    array = np.frombuffer(bytes(range(1, 17)), np.uint8) % 2
    array = np.frombuffer(array.astype(of_numpy).tobytes(), of_numpy)
    assert not array.flags.writeable
    tensor = tensor_of(array)
    assert tensor.data_ptr() == address(array)
    del array
    assert tensor.tolist() == [1, 0] * 8


def test_who_lets_go_of_one_keeps_the_other() -> None:
    array = array_of(torch.full((1 << 16,), 3, dtype=torch.bfloat16))
    assert (array == 3).all()
    tensor = tensor_of(np.full(1 << 16, 3, BFLOAT16))
    assert (tensor == 3).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_names_of_what_models_are_computed_in(dtype: torch.dtype) -> None:
    assert numpy_dtype(dtype) == PAIRS[dtype]
