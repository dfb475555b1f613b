"""A GGUF file: weights, hyper-parameters, tokenizer and chat template in one."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.checkpoints.gguf.config import Divisors, architecture_of, config_from_gguf
from engine.checkpoints.gguf.header import BlockType, Header, TensorInfo
from engine.checkpoints.gguf.latents import joined, taken_pairs
from engine.checkpoints.gguf.names import LONG_DIVISORS, ROPE_DIVISORS, SHORT_DIVISORS, StoredPart, layout_parts
from engine.checkpoints.gguf.parts import PlacedTensor, open_parts, tensors_of
from engine.checkpoints.gguf.quants import expand
from engine.checkpoints.json_keys import Keys
from engine.checkpoints.text import text_processor_from_gguf
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.layout import check_tensors, is_wide
from engine.models.sources import QuantizedMatrix
from engine.sampling_defaults import SamplingDefaults
from engine.text.processor import TextProcessor
from kernels.arrays import FLOAT32, Array, Bytes, Dtype
from kernels.weights import StoredWeight

_MAX_ROPE_DIVISORS = 1 << 16
_SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A weight as stored: `rows` are the bytes of [..., row bytes], in Hugging Face's row order."""

    type: BlockType
    rows: Bytes


class GGUFCheckpoint:
    """A `Checkpoint` of a validated GGUF file and the parts after it. Only headers have been read.

    Raises:
        UnsupportedCheckpoint: the message names the key or tensor that cannot be served.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = open_parts(path)
        self._metadata = self._files[0].header.metadata
        weights = tensors_of(self._files)
        plain, short, long = (
            None if (placed := weights.pop(name, None)) is None else self._numbers(placed)
            for name in (ROPE_DIVISORS, SHORT_DIVISORS, LONG_DIVISORS)
        )
        header = Header(self._metadata, {name: placed.info for name, placed in weights.items()})
        self._config = config_from_gguf(header, Divisors(plain, short or (), long or ()))
        self._architecture, _ = architecture_of(Keys(self._metadata, "metadata: "))
        self._file_of = {name: placed.part for name, placed in weights.items()}
        self._stored = self._parts_of(placed.info for placed in weights.values())
        self._pairs = taken_pairs(self._stored, self._config)
        shapes = {name: part.shape for name, part in self._stored.items()}
        check_tensors(self._config, shapes | {name: pair.shape for name, pair in self._pairs.items()})

    @property
    def path(self) -> Path:
        return self._path

    @property
    def stats(self) -> Sequence[os.stat_result]:
        """The identity, size and time of each file when it was opened."""
        return [file.stat for file in self._files]

    @property
    def quantized(self) -> Mapping[str, QuantizedMatrix]:
        """See `engine.models.sources.BlockSource`."""
        return {
            name: QuantizedMatrix(f"gguf, {part.info.type.name}", part.info.type.name.lower(), part.bytes)
            for name, part in self._stored.items()
            if part.info.type.weights > 1 and len(part.shape) == 2
        }

    def is_unchanged(self) -> bool:
        """Whether the paths still name the files that were opened, unmodified."""
        return all(file.is_unchanged() for file in self._files)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """The values of the `general.sampling` keys, which llama.cpp reads, too."""
        return SamplingDefaults.of_checkpoint(self._metadata, _SAMPLING_KEYS, self._path.name)

    @property
    def weight_bytes(self) -> int:
        return sum(part.bytes for part in self._stored.values()) + sum(pair.bytes for pair in self._pairs.values())

    def tensors(self, dtype: Dtype, without: Collection[str] = frozenset()) -> Iterator[tuple[str, Array]]:
        """Every weight in `dtype` except for `without`; memory-mapped if the file has that dtype."""
        for name, part in self._stored.items():
            if name in without:
                continue
            yield name, self._numbers_of(part, FLOAT32 if is_wide(name) else dtype)
            self._file_of[part.info.name].let_go()
        for name, pair in self._pairs.items():
            yield name, joined(self._numbers_of(pair.key, dtype), self._numbers_of(pair.value, dtype))
            self._file_of[pair.key.info.name].let_go()
            self._file_of[pair.value.info.name].let_go()

    def stored(self, names: Collection[str]) -> Iterator[tuple[str, StoredWeight]]:
        """The named matrices as blocks; memory-mapped unless their rows are reordered."""
        for name, part in self._stored.items():
            if name not in names:
                continue
            raw = self.raw_tensor(name)
            out_features, in_features = part.shape
            yield name, StoredWeight(raw.type.name.lower(), raw.rows, out_features, in_features)
            self._file_of[part.info.name].let_go()

    def raw_tensor(self, name: str) -> RawTensor:
        """The stored blocks of the weight with that Hugging Face name. A block never spans two rows."""
        return self._raw(self._stored[name])

    def _raw(self, part: StoredPart) -> RawTensor:
        rows = _rows(PlacedTensor(self._file_of[part.info.name], part.info))
        if part.expert is not None:
            rows = rows[part.expert]
        rows = _ordered(_rows_between(rows, part), part)
        return RawTensor(part.info.type, rows.reshape(*part.shape[:-1], -1))

    def _numbers_of(self, part: StoredPart, dtype: Dtype) -> Array:
        raw = self._raw(part)
        if not part.negated_exponential:
            return expand(raw.rows, raw.type, dtype)
        numbers = expand(raw.rows, raw.type, FLOAT32)
        if not (numbers < 0).all():
            raise UnsupportedCheckpoint(f"tensor {part.info.name}: a number that is not negative")
        return np.log(-numbers).astype(dtype, copy=False)

    def _parts_of(self, infos: Iterable[TensorInfo]) -> dict[str, StoredPart]:
        parts: dict[str, StoredPart] = {}
        for info in infos:
            for name, part in layout_parts(info, self._architecture, self._config):
                if name in parts:
                    other = parts[name].info.name
                    raise UnsupportedCheckpoint(f"tensor {info.name}: {name} is in tensor {other}, too")
                parts[name] = part
        return parts

    def text_processor(self) -> TextProcessor:
        return text_processor_from_gguf(self._metadata)

    def _numbers(self, placed: PlacedTensor) -> tuple[float, ...]:
        """A short float32 tensor that is part of the config."""
        info = placed.info
        if info.type.name != "F32" or len(info.shape) != 1 or info.shape[0] > _MAX_ROPE_DIVISORS:
            raise UnsupportedCheckpoint(f"tensor {info.name} is not a short list of F32")
        return tuple(_rows(placed).view(np.float32).tolist())


def _rows(placed: PlacedTensor) -> Bytes:
    info = placed.info
    stored = np.frombuffer(placed.part.data, np.uint8, info.bytes, info.offset)
    return stored.reshape(*info.shape[:-1], -1)


def _rows_between(rows: Bytes, part: StoredPart) -> Bytes:
    """Rows [first, last); of a vector, whose numbers lie together, numbers."""
    if (part.first, part.last) == (0, part.info.shape[0 if part.expert is None else 1]):
        return rows
    if rows.ndim > 1:
        return rows[part.first : part.last]
    number = _bytes_of_number(part)
    return rows[part.first * number : part.last * number]


def _ordered(rows: Bytes, part: StoredPart) -> Bytes:
    """The rows, or numbers of a vector, in the part's order."""
    if part.order is None:
        return rows
    if rows.ndim > 1:
        return rows[part.order()]
    return rows.reshape(-1, _bytes_of_number(part))[part.order()]


def _bytes_of_number(part: StoredPart) -> int:
    if part.info.type.weights > 1:
        raise UnsupportedCheckpoint(f"tensor {part.info.name}: a bias in blocks of {part.info.type.weights}")
    return part.info.type.bytes
