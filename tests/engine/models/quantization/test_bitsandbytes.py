"""Our reading of 4-bit weights against bitsandbytes itself: it quantises a tiny model, and dequantises it on a CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from kernels.arrays import FLOAT32, Floats
from tests.engine.models.quantization.folders import Case, Quantized, write
from tests.support.tiny_models import TinyFolder

VERSION = "0.50.2"
_INSTALL = f"the oracle is not installed: pip install --no-deps bitsandbytes=={VERSION}, 43 MB"
functional: Any = pytest.importorskip("bitsandbytes.functional", reason=_INSTALL)

SHAPE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 352, "head_dim": 32, "num_hidden_layers": 2}


def case_of(kind: str, *, nested: bool, expected: dict[bytes, Floats]) -> Case:
    """A checkpoint as bitsandbytes writes it. `expected`: filled with its own dequantisation, by the weight."""

    def quantize(weight: Floats) -> Quantized:
        codes, state = functional.quantize_4bit(
            torch.from_numpy(weight.copy()), blocksize=64, compress_statistics=nested, quant_type=kind
        )
        tensors = {f"weight.{name}": tensor.numpy() for name, tensor in state.as_dict(packed=True).items()}
        # Flat, as it was quantised: on a CPU this version reads rows of a width that 64 does not divide with scales of
        # their neighbours, 2.3 times as far from the weight.
        state.shape = torch.Size([weight.size])
        floats = functional.dequantize_4bit(codes, state).float().numpy().reshape(weight.shape)
        expected[weight.tobytes()] = floats
        return {"weight": codes.numpy(), **tensors}, floats

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    return Case(f"{kind}-{nested}", config | {"bnb_4bit_use_double_quant": nested}, quantize, None)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_weights_are_those_that_bitsandbytes_reads(
    kind: str, nested: bool, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    """To the bit with plain scales. Scales that are quantised, too, are a product and a sum, which may be rounded once
    or twice: within 3e-7 of the largest weight. A width that 64 does not divide is among them."""
    quantized: dict[bytes, Floats] = {}
    folder = tmp_path / "quantized"
    expected = write(folder, tiny_folder("llama", **SHAPE), case_of(kind, nested=nested, expected=quantized))
    weights = dict(open_checkpoint(folder).tensors(FLOAT32))
    assert weights.keys() == expected.keys()
    assert len(quantized) == 7 * SHAPE["num_hidden_layers"]
    for name, weight in weights.items():
        if nested and name.endswith("_proj.weight"):
            np.testing.assert_allclose(weight, expected[name], rtol=0, atol=3e-7 * np.abs(expected[name]).max())
        else:
            assert np.array_equal(weight, expected[name]), name
