"""A lower bound of a text's token count without tokenising it, which takes seconds for a text far beyond the window.

Each byte of a text belongs to one token. Let the weight of a byte value be 1 / (length of the longest token that
contains it). Then the bytes of any one token weigh at most 1 in total, so a text has at least as many tokens as its
bytes weigh. (The weights are a feasible solution of the dual of the covering problem; by weak duality any feasible one
is a lower bound.)

The bound holds if the tokenizer drops no text. Tokenizer components known not to are listed here; with any other
component there is no bound.
"""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

NFC_SHRINKS_TO = 1 / 4
"""Smallest ratio of bytes after and before NFC. (The seven bytes of U+1FBE U+0308 U+0301 become two.)"""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE_MARK = "▁"
_FIRST_OF_FOUR = 0xF0
_KEEPING = {"ByteLevel", "Digits", "Punctuation", "Split"}
"""Pre-tokenizers that split a text and remove nothing unless configured to."""


class TooManyTokens(ValueError):
    """The text exceeds the caller's maximum. `at_least`: lower bound of its tokens."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"the text has at least {at_least} tokens")
        self.at_least = at_least


class LeastTokens:
    """The lower bound for one tokenizer. Special tokens are not text: see `Tokenizer.least_tokens`."""

    def __init__(self, pieces: Sequence[bytes], *, spaces_vanish: bool, marks_spaces: bool, composes: bool) -> None:
        """`pieces`: the bytes of all tokens. `spaces_vanish`: white space around some tokens is dropped.
        `marks_spaces`: U+2581 is a space. `composes`: texts are normalised to NFC."""
        self._weights, self._longest = _weights(pieces)
        self._spaces_vanish = spaces_vanish
        self._marks_spaces = marks_spaces
        self._composes = composes

    @classmethod
    def of(
        cls, backend: Backend, to_bytes: Callable[[str], bytes], added: Iterable[AddedToken], special: Iterable[str]
    ) -> Self | None:
        """The bound of a tokenizer; None if one of its components may drop text.

        `to_bytes`: bytes of a vocabulary entry. `added`: all added tokens. `special`: texts of the tokens that encoding
        text never yields.
        """
        special_texts, added = list(special), list(added)
        typed = [token.content for token in added if token.content not in special_texts]
        normalizer, pre_tokenizer = _steps(backend.normalizer), _steps(backend.pre_tokenizer)
        byte_level = any(step["type"] == "ByteLevel" for step in (*normalizer, *pre_tokenizer))
        composes = any(step["type"] == "NFC" for step in normalizer)
        if (
            not _has_a_token_for_all(backend.model, byte_level)
            or not all(map(_keeps_text, normalizer))
            or not all(map(_keeps_text, pre_tokenizer))
            or _overlap(special_texts)
            or (composes and not all(text[:1].isascii() for text in typed))
        ):
            return None
        pieces = [to_bytes(piece) for piece in backend.get_vocab(with_added_tokens=False)]
        for text in typed:
            pieces += [text.encode(), unicodedata.normalize("NFC", text).encode()]
        return cls(
            pieces,
            spaces_vanish=any(token.lstrip or token.rstrip for token in added),
            marks_spaces=not byte_level,
            composes=composes,
        )

    def __call__(self, text: str) -> int:
        """The bound for a text without special tokens."""
        if self._spaces_vanish:
            text = "".join(text.split())
        if self._marks_spaces:
            text = text.replace(_SPACE_MARK, " ")
        counts = _byte_counts(text)
        if self._composes and not text.isascii():
            if counts[_FIRST_OF_FOUR:].any():
                # What was lately assigned, the library's tables and Python's may compose differently. Older
                # characters they do not: https://unicode.org/policies/stability_policy.html#Normalization
                return math.floor(int(counts.sum()) * NFC_SHRINKS_TO / self._longest)
            counts = _byte_counts(unicodedata.normalize("NFC", text))
        # A sum of floats: short of the next whole number by what they are rounded by, at most.
        return max(0, math.ceil(float(counts @ self._weights) - 1e-6 * len(text)))


def _weights(pieces: Sequence[bytes]) -> tuple[NDArray[np.float64], int]:
    """The weight of each byte value, and the length of the longest piece. A byte without a token of its own may be
    skipped by the tokenizer, so it weighs 0."""
    lengths = np.array([len(piece) for piece in pieces])
    data = np.frombuffer(b"".join(pieces), np.uint8)
    longest = np.zeros(256, np.int64)
    np.maximum.at(longest, data, np.repeat(lengths, lengths))
    alone = np.zeros(256, bool)
    alone[[piece[0] for piece in pieces if len(piece) == 1]] = True
    return np.where(alone, 1 / np.maximum(longest, 1), 0.0), int(lengths.max(initial=1))


def _byte_counts(text: str) -> NDArray[np.int64]:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = _LONE_SURROGATE.sub("\ufffd", text).encode()
    return np.bincount(np.frombuffer(data, np.uint8), minlength=256)


def _has_a_token_for_all(model: Any, byte_level: bool) -> bool:
    """Whether no text becomes an unknown token, which may stand for any number of bytes."""
    if not isinstance(model, models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    return byte_level or (
        model.byte_fallback and all(model.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
    )


def _steps(part: Any) -> list[dict[str, Any]]:
    """The components of a normalizer or pre-tokenizer, in order."""
    if part is None:
        return []
    return _flat(json.loads(part.__getstate__()))


def _flat(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if spec["type"] != "Sequence":
        return [spec]
    inner = spec.get("normalizers") or spec.get("pretokenizers") or []
    return [step for component in inner for step in _flat(component)]


def _keeps_text(step: dict[str, Any]) -> bool:
    kind = step["type"]
    if kind == "Replace":
        return bool(step["pattern"] == {"String": " "} and step["content"] == _SPACE_MARK)
    if kind == "Metaspace":
        return bool(step["replacement"] == _SPACE_MARK)
    if kind in _KEEPING:
        return bool(step.get("behavior", "Isolated") != "Removed")
    return kind in {"NFC", "Prepend"}


def _overlap(texts: Sequence[str]) -> bool:
    """Whether a suffix of a special text is a prefix of one, or one is a single character. Then `Tokenizer` may drop
    text when it splits typed special tokens."""
    beginnings = {text[:n] for text in texts for n in range(1, len(text))}
    ends = {text[n:] for text in texts for n in range(1, len(text))}
    return any(len(text) == 1 for text in texts) or not beginnings.isdisjoint(ends)
