"""A small vocabulary as SentencePiece's BPE trainer would leave it in a GGUF file: scores, bytes, no merges."""

from collections import Counter
from itertools import pairwise
from typing import Any

_TEXT = (
    "the quick brown fox jumps over the lazy dog and then the other dogs sleep in the house of the man who is "
    "there with them because they have been here before and the text of this is only for counting pairs of words "
    "hello world hello there def return left right int for in select from where name value items true null "
    "s> </s> <s <unk <|im im_ end|> |> <0x 0A> 12 34 1234 100 ▁ ▁▁ ▁▁▁▁ ааа 日本 日本語 中文 über café 😀 "
) * 3
_CONTROL = ("<unk>", "<s>", "</s>")
_USER_DEFINED = ("<tool>",)
MERGES = 350


def _words() -> list[tuple[str, ...]]:
    return [tuple("▁" + word) for word in _TEXT.split(" ")]


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    for piece in word:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return tuple(merged)


def _learned_pieces() -> list[str]:
    words = _words()
    learned: list[str] = []
    for _ in range(MERGES):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        if not pairs:
            break
        pair = max(pairs, key=lambda item: (pairs[item], item))
        words = [_merge(word, pair) for word in words]
        learned.append("".join(pair))
    return list(dict.fromkeys(learned))


def sentencepiece_metadata(*, add_space_prefix: bool) -> dict[str, Any]:
    learned = [piece for piece in _learned_pieces() if piece not in _CONTROL and piece not in _USER_DEFINED]
    alphabet = sorted({char for word in _words() for piece in word for char in piece})
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    groups = ((_CONTROL, 3), (byte_pieces, 6), (_USER_DEFINED, 4), (learned, 1), (alphabet, 1))
    tokens = [token for group, _ in groups for token in group]
    types = [kind for group, kind in groups for _ in group]
    types[0] = 2
    first = len(_CONTROL) + len(byte_pieces) + len(_USER_DEFINED)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * first + [-float(rank) for rank in range(len(tokens) - first)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }
