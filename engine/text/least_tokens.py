"""How many tokens a text has at least, without tokenising it: that costs seconds for a text that fits no window.

Every byte of a text that is tokenised belongs to one token. Give each byte value the weight 1 / (the length of the
longest token that has this byte): then the bytes of no token weigh more than 1 together, so a text has at least as many
tokens as its bytes weigh. (This is a feasible dual of the covering problem, and any such weights are a lower bound.)

It holds where the tokenizer loses no text on the way. Of its parts, those that are known not to are listed here; where
there is another one, nothing is said of any text.
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
"""What NFC leaves of a text's bytes at least. (Of the seven of U+1FBE U+0308 U+0301 it leaves two.)"""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE_MARK = "▁"
_FIRST_OF_FOUR = 0xF0
_KEEPING = {"ByteLevel", "Digits", "Punctuation", "Split"}
"""Pre-tokenizers that cut a text, and remove nothing unless they say so."""


class TooManyTokens(ValueError):
    """The text has more tokens than the caller takes. `at_least`: so many, maybe more."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"the text has at least {at_least} tokens")
        self.at_least = at_least


class LeastTokens:
    """The lower bound of one tokenizer. Special tokens are not text: see `Tokenizer.least_tokens`."""

    def __init__(self, pieces: Sequence[bytes], *, spaces_vanish: bool, marks_spaces: bool, composes: bool) -> None:
        """`pieces` are the bytes of all tokens. `spaces_vanish`: white space around some tokens is lost.
        `marks_spaces`: U+2581 is a space. `composes`: texts are brought to NFC."""
        self._weights, self._longest = _weights(pieces)
        self._spaces_vanish = spaces_vanish
        self._marks_spaces = marks_spaces
        self._composes = composes

    @classmethod
    def of(
        cls, backend: Backend, to_bytes: Callable[[str], bytes], added: Iterable[AddedToken], special: Iterable[str]
    ) -> Self | None:
        """`to_bytes`: what a vocabulary entry stands for. `added` are all added tokens, and `special` the texts of
        those that no text becomes.

        None: it may lose text in a way that is not known here.
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
        """Of a text without special tokens."""
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
    """The weight of each byte value, and the length of the longest piece. A byte that has no token of its own may be
    skipped, and weighs nothing."""
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
    """Whether nothing becomes an unknown token, many of which may be one."""
    if not isinstance(model, models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    return byte_level or (
        model.byte_fallback and all(model.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
    )


def _steps(part: Any) -> list[dict[str, Any]]:
    """The parts of a normalizer or pre-tokenizer, in order."""
    if part is None:
        return []
    return _flat(json.loads(part.__getstate__()))


def _flat(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if spec["type"] != "Sequence":
        return [spec]
    inner = spec.get("normalizers") or spec.get("pretokenizers") or []
    return [step for each in inner for step in _flat(each)]


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
    """Whether the end of one is the beginning of one, or one is a single character: then what is cut to keep a typed
    special token from becoming one may be lost (`Tokenizer`)."""
    beginnings = {text[:n] for text in texts for n in range(1, len(text))}
    ends = {text[n:] for text in texts for n in range(1, len(text))}
    return any(len(text) == 1 for text in texts) or not beginnings.isdisjoint(ends)
