"""The tokenizer in a GGUF file's metadata, checked key by key.

Meanings and defaults are llama.cpp's (`llama_vocab::impl::load` in src/llama-vocab.cpp).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from engine.models.config import UnsupportedCheckpoint

_PREFIX = "tokenizer.ggml."

_END_OF_TEXT = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"),
        *("<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
        *("<turn|>", "<|tool_response>"),
    )
)
"""Tokens that always end an answer: conversions often name only one of several, or the wrong one."""


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`. User-defined tokens are matched in any text, control tokens never in user text."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """Checked metadata. `tokens` are distinct; all ids are valid."""

    kind: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    unk_id: int | None
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool

    def ids_of_types(self, *kinds: TokenType) -> list[int]:
        """Token ids of these types, ascending."""
        wanted = frozenset(kinds)
        return [index for index, kind in enumerate(self.types) if kind in wanted]

    def special_ids(self) -> list[int]:
        """Control and unknown tokens, and those that begin or end a text, whatever type the file gives them."""
        special = {*self.ids_of_types(TokenType.CONTROL, TokenType.UNKNOWN), *self.eos_ids}
        special.update(token_id for token_id in (self.bos_id, self.unk_id) if token_id is not None)
        return sorted(special)

    def named_tokens(self) -> dict[str, str]:
        """The special token variables of the chat template."""
        ids = {"bos_token": self.bos_id, "eos_token": self.eos_ids[0] if self.eos_ids else None}
        return {name: self.tokens[token_id] for name, token_id in ids.items() if token_id is not None}


def read_vocabulary(metadata: Mapping[str, Any]) -> GGUFVocabulary:
    """Check and collect the `tokenizer.ggml.*` keys. Arrays may be lists, tuples or numpy arrays.

    Raises:
        UnsupportedCheckpoint: a key is missing, of the wrong type, or inconsistent with the token list.
    """
    kind = _text(metadata, "model")
    tokens = _array(metadata, "tokens", str)
    if not tokens:
        raise UnsupportedCheckpoint(f"{_PREFIX}tokens: missing or empty")
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        raise UnsupportedCheckpoint(f"{_PREFIX}tokens: a token occurs twice")
    sentencepiece = kind == "llama"
    return GGUFVocabulary(
        kind=kind,
        pre=_text(metadata, "pre", "default"),
        tokens=tokens,
        types=_aligned(metadata, "token_type", int, len(tokens)) or [int(TokenType.NORMAL)] * len(tokens),
        scores=_aligned(metadata, "scores", float, len(tokens)),
        merges=_array(metadata, "merges", str),
        bos_id=_token_id(metadata, "bos_token_id", len(tokens), 1 if sentencepiece else None),
        eos_ids=_end_ids(metadata, tokens, 2 if sentencepiece else None),
        unk_id=_token_id(metadata, "unknown_token_id", len(tokens), 0 if sentencepiece else None),
        add_bos=_flag(metadata, "add_bos_token"),
        add_eos=_flag(metadata, "add_eos_token") or False,
        add_space_prefix=_flag(metadata, "add_space_prefix") is not False,
    )


def _end_ids(metadata: Mapping[str, Any], tokens: Sequence[str], default: int | None) -> tuple[int, ...]:
    named = (
        _token_id(metadata, "eos_token_id", len(tokens), default),
        _token_id(metadata, "eot_token_id", len(tokens), None),
        _token_id(metadata, "eom_token_id", len(tokens), None),
    )
    ids = [token_id for token_id in named if token_id is not None]
    ids.extend(index for index, token in enumerate(tokens) if token in _END_OF_TEXT)
    return tuple(dict.fromkeys(ids))


def _text(metadata: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = metadata.get(_PREFIX + name, default)
    if not isinstance(value, str):
        raise UnsupportedCheckpoint(f"{_PREFIX}{name}: expected a string, got {type(value).__name__}")
    return value


def _flag(metadata: Mapping[str, Any], name: str) -> bool | None:
    value = metadata.get(_PREFIX + name)
    if value is not None and not isinstance(value, bool):
        raise UnsupportedCheckpoint(f"{_PREFIX}{name}: expected a boolean, got {type(value).__name__}")
    return value


def _token_id(metadata: Mapping[str, Any], name: str, count: int, default: int | None) -> int | None:
    value = metadata.get(_PREFIX + name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UnsupportedCheckpoint(f"{_PREFIX}{name}: expected an integer, got {type(value).__name__}")
    if not 0 <= int(value) < count:
        raise UnsupportedCheckpoint(f"{_PREFIX}{name}: {value} is not below the number of tokens, {count}")
    return int(value)


def _array(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    value = metadata.get(_PREFIX + name, ())
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        raise UnsupportedCheckpoint(f"{_PREFIX}{name}: expected an array, got {type(value).__name__}")
    accepted = {float, int} if kind is float else {kind}
    odd = set(map(type, items)) - accepted
    if odd:
        raise UnsupportedCheckpoint(f"{_PREFIX}{name}: holds {odd.pop().__name__}, expected {kind.__name__} only")
    return list(items)


def _aligned(metadata: Mapping[str, Any], name: str, kind: type, count: int) -> list[Any]:
    """An array with one entry for each token, or an empty one."""
    items = _array(metadata, name, kind)
    if items and len(items) != count:
        raise UnsupportedCheckpoint(f"{_PREFIX}{name}: {len(items)} entries for {count} tokens")
    return items
