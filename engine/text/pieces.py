"""The exact bytes of a vocabulary entry.

Two encodings are in use. Byte-level BPE (GPT-2) writes each byte as one printable character; SentencePiece writes text,
with U+2581 for a space and `<0xNN>` for a byte that is not a character of its own.
"""

import json
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

_SPACE_MARK = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizer(ValueError):
    """A tokenizer that cannot be reproduced exactly; the message names the component."""


def _byte_alphabet() -> dict[str, int]:
    """The inverse of GPT-2's `bytes_to_unicode`: printable bytes map to themselves, the rest to U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _byte_alphabet()
_TO_LATIN1 = {ord(char): byte for char, byte in BYTE_ALPHABET.items()}


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level piece. A piece with a character outside the alphabet is plain text."""
    if piece.isascii() and piece.isprintable() and " " not in piece:
        return piece.encode()
    if all(char in BYTE_ALPHABET for char in piece):
        return piece.translate(_TO_LATIN1).encode("latin-1")
    return piece.encode()


def byte_fallback_bytes(piece: str) -> bytes:
    """Bytes of a SentencePiece piece."""
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE_MARK, " ").encode()


@dataclass(frozen=True, slots=True)
class PieceAlphabet:
    """How a vocabulary encodes bytes. `strips_space`: one space at the start of a text is dropped when decoding."""

    to_bytes: Callable[[str], bytes]
    strips_space: bool


def alphabet_of(backend: Backend) -> PieceAlphabet:
    """The alphabet, from the tokenizer's decoder.

    Raises:
        UnsupportedTokenizer: there is no decoder, or one that joins pieces otherwise (WordPiece, CTC, ...).
    """
    if backend.decoder is None:
        raise UnsupportedTokenizer("decoder: there is none")
    spec: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps = spec["decoders"] if spec["type"] == "Sequence" else [spec]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceAlphabet(byte_level_bytes, strips_space=False)
    unknown = [kind for kind in kinds if kind not in {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}]
    if unknown or not kinds:
        raise UnsupportedTokenizer(f"decoder: {', '.join(unknown) or 'no steps'}")
    return PieceAlphabet(byte_fallback_bytes, strips_space=any(map(_strips, steps)))


def _strips(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return bool(step["content"] == " " and step["start"] > 0)
    return bool(step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")


class PieceTable(dict[int, bytes]):
    """Bytes by token id, computed on first use. Ids without a token, `silent` ones and those from `vocab_size` on have
    none.

    A dict, so that a hit costs no Python call: every generated token is looked up here.
    """

    def __init__(
        self, backend: Backend, vocab_size: int, added: dict[int, str], alphabet: PieceAlphabet, silent: Container[int]
    ) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self._backend = backend
        self._added = added
        self._alphabet = alphabet
        self._silent = silent

    def __missing__(self, token_id: int) -> bytes:
        piece = self._backend.id_to_token(token_id) if 0 <= token_id < self._vocab_size else None
        if piece is None:
            return b""
        if token_id in self._silent:
            value = b""
        elif token_id in self._added:
            value = self._added[token_id].encode()
        else:
            value = self._alphabet.to_bytes(piece)
        self[token_id] = value
        return value
