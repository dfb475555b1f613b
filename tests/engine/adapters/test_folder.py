"""Folders of adapters come from strangers: each is read whole, or refused by a message that names the key or tensor."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from engine.adapters.errors import UnsupportedAdapter
from engine.adapters.folder import read_adapter
from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.config import ModelConfig
from kernels.adapters import AdapterWeights
from tests.support.adapter_files import (
    ATTENTION,
    CONFIG,
    DOWN,
    FFN,
    HIDDEN,
    KV_OUTPUTS,
    RANK,
    UP,
    Tensors,
    as_bfloat16,
    pair,
    query,
    write_adapter,
)

MAX_RANK, MAX_BYTES = 64, 1 << 20
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def llama(tiny_folders: dict[str, Path]) -> ModelConfig:
    return open_checkpoint(tiny_folders["llama"]).config


def read(folder: Path, config: ModelConfig) -> AdapterWeights:
    return read_adapter(folder, config, max_rank=MAX_RANK, max_bytes=MAX_BYTES)[0]


def refusal(folder: Path, config: ModelConfig) -> str:
    """The message, which is one printable line of bounded length without a path of this machine."""
    with pytest.raises(UnsupportedAdapter) as caught:
        read(folder, config)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000
    assert str(folder) not in message
    return message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("modules_to_save", ["lm_head"]),
        ("bias", "all"),
        ("bias", "lora_only"),
        ("bias", 1),
        ("lora_bias", True),
        ("layer_replication", [[0, 2], [1, 2]]),
        ("alora_invocation_tokens", [1, 2]),
        ("trainable_token_indices", [3]),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("use_qalora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("arrow_config", {"top_k": 1}),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "PiSSA_niter_16"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "corda"),
        ("peft_type", "IA3"),
        ("peft_type", None),
        ("peft_type", ["LORA"]),
        ("fan_in_fan_out", True),
        ("from_the_future", 1),
        ("from the\nfuture", [[]]),
        ("x" * 5000, 1),
        ("r", MAX_RANK + 1),
        ("r", 10**9),
        ("r", 0),
        ("r", -1),
        ("r", 1.5),
        ("r", 1e300),
        ("r", True),
        ("lora_alpha", 0),
        ("lora_alpha", -8),
        ("lora_alpha", float("nan")),
        ("lora_alpha", float("inf")),
        ("lora_alpha", 1e30),
        ("lora_alpha", 10**400),
        ("lora_alpha", "8"),
        ("use_rslora", "yes"),
        ("rank_pattern", {"(a+)+$": 2}),
        ("rank_pattern", {"q_proj|k_proj": 2}),
        ("rank_pattern", {"": 2}),
        ("rank_pattern", {"q_proj": 10**9}),
        ("rank_pattern", {"q_proj": None}),
        ("rank_pattern", {f"m{index}": 2 for index in range(5000)}),
        ("rank_pattern", [2]),
        ("alpha_pattern", {".*": 2}),
        ("alpha_pattern", {"q_proj": 0}),
        ("alpha_pattern", {"q_proj": float("inf")}),
        ("base_model_name_or_path", 5),
    ],
    ids=lambda value: f"{value!r:.24}",
)
def test_refused_key(key: str, value: Any, llama: ModelConfig, tmp_path: Path) -> None:
    message = refusal(write_adapter(tmp_path, **{key: value}), llama)
    assert message.startswith(f"{CONFIG_FILE}: ")
    assert (key if key.isprintable() and len(key) <= 200 else ascii(key)[:200]) in message


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[1]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b'{"r": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b" " * (1 << 20) + b"{}", "bytes, more than"),
    ],
    ids=["list", "null", "empty", "binary", "digits", "nested", "large"],
)
def test_config_that_is_no_object(content: bytes, why: str, llama: ModelConfig, tmp_path: Path) -> None:
    (write_adapter(tmp_path) / CONFIG_FILE).write_bytes(content)
    message = refusal(tmp_path, llama)
    assert message.startswith(f"{CONFIG_FILE}: ")
    assert why in message


def test_missing_files(llama: ModelConfig, tmp_path: Path) -> None:
    assert f"{CONFIG_FILE}: cannot be read" in refusal(tmp_path, llama)
    (write_adapter(tmp_path) / WEIGHTS_FILE).unlink()
    assert refusal(tmp_path, llama) == f"{WEIGHTS_FILE}: is missing"
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04.")
    assert "pickled weights are never opened" in refusal(tmp_path, llama)


def changed(name: str, numbers: Any) -> Tensors:
    """The tensors of `query` with one other, or without it."""
    tensors = {**query(), name: numbers}
    return {key: each for key, each in tensors.items() if each is not None}


def with_number(name: str, number: float) -> Tensors:
    tensors = query()
    tensors[name][1, 1] = number
    return tensors


BAD_TENSORS: dict[str, tuple[Tensors, str, str]] = {
    "inputs": (changed(DOWN, np.ones((RANK, HIDDEN + 1), np.float32)), DOWN, "65 inputs; the base model has 64"),
    "outputs": (changed(UP, np.ones((HIDDEN - 1, RANK), np.float32)), UP, "63 outputs; the base model has 64"),
    "only A": (changed(UP, None), UP, "is missing"),
    "only B": (changed(DOWN, None), UP, "its lora_A is missing"),
    "rank": (query(RANK + 1), DOWN, "has rank 5; adapter_config.json says 4"),
    "rank of B": (changed(UP, np.ones((HIDDEN, 2), np.float32)), UP, "has rank 2; adapter_config.json says 4"),
    "NaN": (with_number(DOWN, np.nan), DOWN, "not finite"),
    "infinite": (with_number(UP, -np.inf), UP, "not finite"),
    "overflow": (with_number(UP, 3e38), UP, "not finite"),
    "signaling NaN": (
        changed(DOWN, np.full((RANK, HIDDEN), 0x7FA00000, np.uint32).view(np.float32)),
        DOWN,
        "not finite",
    ),
    "integers": (changed(DOWN, np.ones((RANK, HIDDEN), np.int32)), DOWN, "has type I32"),
    "float64": (changed(UP, np.ones((HIDDEN, RANK))), UP, "has type F64"),
    "vector": (changed(DOWN, np.ones(HIDDEN, np.float32)), DOWN, "not a matrix"),
    "three axes": (changed(UP, np.ones((HIDDEN, RANK, 1), np.float32)), UP, "not a matrix"),
    "no numbers": (changed(DOWN, np.ones((0, HIDDEN), np.float32)), DOWN, "not a matrix"),
    "no tensors": ({}, WEIGHTS_FILE, "has no tensors"),
    **{
        module: (pair(module, HIDDEN, HIDDEN), f"base_model.model.{module}.lora_A.weight", "not supported")
        for module in (
            "model.layers.2.self_attn.q_proj",
            "model.layers.99999.self_attn.q_proj",
            "model.layers.-1.self_attn.q_proj",
            "model.layers.0.self_attn",
            "model.layers.0.input_layernorm",
            "model.embed_tokens",
            "lm_head",
            "../../etc/passwd",
            "",
        )
    },
    "other names": (changed("/etc/passwd", np.ones((2, 2), np.float32)), "/etc/passwd", "not the lora_A or lora_B"),
    "embedding": (
        changed("base_model.model.lm_head.lora_embedding_A", np.ones((2, 2), np.float32)),
        "lm_head.lora_embedding_A",
        "not the lora_A or lora_B",
    ),
    "bias": (changed(f"{ATTENTION}.q_proj.lora_B.bias", np.ones(4, np.float32)), "lora_B.bias", "not the lora_A or"),
    "both endings": (
        changed(UP.replace("lora_B", "lora_A.weight.lora_B"), np.ones((HIDDEN, RANK), np.float32)),
        "lora_A.weight.lora_B.weight",
        "its lora_A is missing",
    ),
    "unprintable": (changed("a\nb\x1b[31m", np.ones((2, 2), np.float32)), r"a\nb\x1b[31m", "not printable"),
    "long name": (changed(f"{ATTENTION}.{'x' * 5000}.lora_A.weight", np.ones(2, np.int32)), ATTENTION, ""),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_refused_tensor(case: str, llama: ModelConfig, tmp_path: Path) -> None:
    tensors, name, why = BAD_TENSORS[case]
    message = refusal(write_adapter(tmp_path, tensors, lora_alpha=8), llama)
    assert name in message
    assert why in message


def test_refused_file(llama: ModelConfig, tmp_path: Path) -> None:
    path = write_adapter(tmp_path) / WEIGHTS_FILE
    good = path.read_bytes()
    unknown = good.replace(b'"dtype":"F32"', b'"dtype":"\\n32"')
    lengths = [struct.pack("<Q", length) + good[8:] for length in (0, 1 << 60, (1 << 64) - 1, len(good))]
    for content in (good[:-1], good + b"\0", good[:100], good[:8], b"\0" * 7, b"", unknown, *lengths):
        path.write_bytes(content)
        assert refusal(tmp_path, llama).startswith(f"{WEIGHTS_FILE}: ")
    path.write_bytes(good)
    with pytest.raises(UnsupportedAdapter, match=f"{WEIGHTS_FILE}: {len(good)} bytes, more than {len(good) - 1}"):
        read_adapter(tmp_path, llama, max_rank=MAX_RANK, max_bytes=len(good) - 1)
    read_adapter(tmp_path, llama, max_rank=RANK, max_bytes=len(good))


def test_two_names_of_a_module(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    phi3 = open_checkpoint(tiny_folders["phi3"]).config
    fused = pair("model.layers.0.self_attn.qkv_proj", HIDDEN, HIDDEN + 2 * KV_OUTPUTS)
    read(write_adapter(tmp_path, fused), phi3)
    message = refusal(write_adapter(tmp_path, fused | query()), phi3)
    assert message.startswith(f"tensor {ATTENTION}.q")


@pytest.mark.parametrize(
    ("family", "module", "outputs"),
    [
        ("phi3", "self_attn.qkv_proj", HIDDEN + 2 * KV_OUTPUTS),
        ("phi3", "mlp.gate_up_proj", 2 * FFN),
        ("glm4", "self_attn.q_proj", HIDDEN),
        ("glm4", "self_attn.k_proj", KV_OUTPUTS),
    ],
)
def test_outputs_of_modules_that_are_rearranged(
    family: str, module: str, outputs: int, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    config = open_checkpoint(tiny_folders[family]).config
    name = f"model.layers.1.{module}"
    read(write_adapter(tmp_path, pair(name, HIDDEN, outputs)), config)
    for wrong in (1, outputs // 2, outputs - 1, outputs + 1, 2 * outputs):
        assert name in refusal(write_adapter(tmp_path, pair(name, HIDDEN, wrong)), config)


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        ({}, 8 / 4),
        ({"lora_alpha": 1}, 1 / 4),
        ({"use_rslora": True}, 8 / 2),
        ({"alpha_pattern": {"q_proj": 32}}, 32 / 4),
        ({"alpha_pattern": {"k_proj": 32, "layers.0.self_attn.q_proj": 2}}, 2 / 4),
        ({"alpha_pattern": {"^q_proj": 32}}, 8 / 4),
        ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj$": 32}}, 32 / 4),
        ({"alpha_pattern": {r"self_attn\.q_proj": 32}, "use_rslora": True}, 32 / 2),
        ({"alpha_pattern": {"proj": 32}}, 8 / 4),
        ({"r": 9, "rank_pattern": {"q_proj": 4}}, 8 / 4),
        ({"r": 9, "rank_pattern": {"q_proj": 4}, "use_rslora": True}, 8 / 2),
        ({"init_lora_weights": "gaussian", "lora_dropout": 0.5, "unknown": None}, 8 / 4),
    ],
    ids=str,
)
def test_scaling(settings: dict[str, Any], scaling: float, llama: ModelConfig, tmp_path: Path) -> None:
    weights = read(write_adapter(tmp_path, **settings), llama)
    (part,) = weights.layers[0].qkv
    np.testing.assert_array_equal(part.down, query()[DOWN])
    np.testing.assert_array_equal(part.up, query()[UP] * np.float32(scaling))
    assert weights.rank == RANK
    assert weights.parameters == 2 * RANK * HIDDEN


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_types(dtype: str, llama: ModelConfig, tmp_path: Path) -> None:
    halves = {name: numbers.astype(np.float16) for name, numbers in query().items()}
    tensors = {"F32": query(), "F16": halves, "BF16": as_bfloat16(query())}[dtype]
    (part,) = read(write_adapter(tmp_path, tensors, lora_alpha=RANK), llama).layers[0].qkv
    assert part.down.dtype == part.up.dtype == np.float32
    np.testing.assert_array_equal(part.down, tensors[DOWN].astype(np.float32))
    np.testing.assert_array_equal(part.up, tensors[UP].astype(np.float32))


def test_places_of_parts(llama: ModelConfig, tmp_path: Path) -> None:
    shapes = {
        "self_attn.v_proj": (HIDDEN, KV_OUTPUTS),
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (HIDDEN, KV_OUTPUTS),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.up_proj": (HIDDEN, FFN),
        "mlp.gate_proj": (HIDDEN, FFN),
        "mlp.down_proj": (FFN, HIDDEN),
    }
    tensors: Tensors = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        tensors |= pair(f"model.layers.1.{name}", *shape, seed=seed)
    folder = write_adapter(tmp_path, tensors, lora_alpha=RANK)
    weights, _, targets = read_adapter(folder, llama, max_rank=MAX_RANK, max_bytes=MAX_BYTES)
    assert targets == ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert not any(weights.layers[0].parts(name) for name in ("qkv", "output", "gate_up", "down"))
    layer = weights.layers[1]
    assert [part.first for part in layer.qkv] == [0, HIDDEN, HIDDEN + KV_OUTPUTS]
    assert [part.first for part in layer.gate_up] == [0, FFN]
    assert [part.first for part in (*layer.output, *layer.down)] == [0, 0]
    in_order = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
    for name, part in zip(in_order, (*layer.qkv, *layer.gate_up), strict=True):
        np.testing.assert_array_equal(part.up, tensors[f"base_model.model.model.layers.1.{name}.lora_B.weight"])


SMALL = save(query(), {"format": "pt"})
HEADER_BYTES = 8 + int.from_bytes(SMALL[:8], "little")
SETTINGS = json.dumps(
    {**CONFIG, "rank_pattern": {"q_proj": RANK}, "alpha_pattern": {"q": 3.5}, "bias": "none"}
).encode()
EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.one_of(st.none(), st.binary(max_size=3))), max_size=4)


def edited(content: bytes, edits: list[tuple[int, bytes | None]], within: int) -> bytes:
    """Bytes removed (None) or overwritten at places below `within`."""
    for place, new in edits:
        at = place % within
        content = content[:at] + (content[at + 1 :] if new is None else new + content[at + len(new) :])
    return content


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=EDITS, config=EDITS)
def test_any_bytes_are_read_or_refused(
    header: list[tuple[int, bytes | None]],
    config: list[tuple[int, bytes | None]],
    llama: ModelConfig,
    tmp_path: Path,
) -> None:
    (tmp_path / WEIGHTS_FILE).write_bytes(edited(SMALL, header, HEADER_BYTES + 64))
    (tmp_path / CONFIG_FILE).write_bytes(edited(SETTINGS, config, len(SETTINGS)))
    weights, message = None, ""
    try:
        weights = read(tmp_path, llama)
    except UnsupportedAdapter as error:
        message = str(error)
    assert message.isprintable()
    assert str(tmp_path) not in message
    for part in () if weights is None else weights.all_parts():
        assert np.isfinite(part.down).all()
        assert np.isfinite(part.up).all()


def test_a_file_of_other_order_is_the_same_adapter(llama: ModelConfig, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path)
    save_file(dict(reversed(query().items())), folder / WEIGHTS_FILE, {"format": "pt"})
    (part,) = read(folder, llama).layers[0].qkv
    np.testing.assert_array_equal(part.down, query()[DOWN])
