"""GGUF metadata: flags, special tokens, refusals that name the key."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engine.checkpoints.text import text_processor_from_gguf
from engine.models.config import UnsupportedCheckpoint
from engine.text.processor import TextProcessor
from tests.engine.text.sentencepiece_vocabulary import sentencepiece_metadata


def small(**changes: Any) -> dict[str, Any]:
    """Four letters, two merges, one control token; changes are `tokenizer.ggml.` keys, None removes one."""
    base: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["<s>", "a", "b", "ab", "abab", "<tool>"],
        "token_type": [3, 1, 1, 1, 1, 4],
        "merges": ["a b", "ab ab"],
        "eos_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in base.items() if value is not None}


def test_the_real_file(smollm2: TextProcessor) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.vocab_size == 49_152
    assert tokenizer.special_ids == set(range(17))
    assert tokenizer.bos_token_id == 1
    assert tokenizer.eos_token_ids == (2, 0)
    assert smollm2.encode("a") == smollm2.encode("a", add_special_tokens=False)


def test_merges_and_token_types() -> None:
    processor = text_processor_from_gguf(small())
    assert processor.encode("abab<tool>a") == [4, 5, 1]
    assert processor.tokenizer.special_ids == {0}
    assert processor.decode([4, 5, 0, 1]) == "abab<tool>a"


def test_numpy_arrays_are_arrays() -> None:
    processor = text_processor_from_gguf(
        small(token_type=np.array([3, 1, 1, 1, 1, 4], np.int32), eos_token_id=np.uint32(0))
    )
    assert processor.encode("ab<tool>") == [3, 5]


def test_bos_and_eos_are_added_as_the_file_says() -> None:
    assert text_processor_from_gguf(small(bos_token_id=0)).encode("a") == [1]
    assert text_processor_from_gguf(small(bos_token_id=0, add_bos_token=True)).encode("a") == [0, 1]
    assert text_processor_from_gguf(small(bos_token_id=0, pre="llama-bpe")).encode("a") == [0, 1]
    assert text_processor_from_gguf(small(bos_token_id=0, pre="llama-bpe", add_bos_token=False)).encode("a") == [1]
    assert text_processor_from_gguf(small(add_eos_token=True)).encode("a") == [1, 0]
    metadata = sentencepiece_metadata(add_space_prefix=True)
    del metadata["tokenizer.ggml.add_bos_token"]
    assert text_processor_from_gguf(metadata).encode("the")[0] == 1


def test_a_word_that_is_a_token_stays_whole_only_where_merges_are_ignored() -> None:
    without_merge = {"merges": ["a b"], "bos_token_id": 0, "add_bos_token": False}
    assert text_processor_from_gguf(small(**without_merge)).encode("abab") == [3, 3]
    assert text_processor_from_gguf(small(pre="llama-bpe", **without_merge)).encode("abab") == [4]


def test_end_tokens_are_special_whatever_their_type() -> None:
    tokens = ["<|endoftext|>", "a", "b", "ab", "abab", "<|im_end|>"]
    tokenizer = text_processor_from_gguf(small(tokens=tokens, token_type=[1, 1, 1, 1, 1, 4])).tokenizer
    assert tokenizer.eos_token_ids == (0, 5)
    assert tokenizer.special_ids == {0, 5}


def test_merges_never_spell_a_control_token(sentencepiece: TextProcessor) -> None:
    """ "s>", "</s" and the like are tokens of that vocabulary."""
    assert sentencepiece.tokenizer.special_ids == {0, 1, 2}
    ids = sentencepiece.encode("<s> </s> <unk>", add_special_tokens=False)
    assert sentencepiece.tokenizer.special_ids.isdisjoint(ids)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": None}, "ggml.model"),
        ({"model": "bert"}, "ggml.model"),
        ({"pre": "kimi-k2"}, "ggml.pre.*kimi-k2"),
        ({"pre": 7}, "ggml.pre"),
        ({"tokens": None}, "ggml.tokens"),
        ({"tokens": "abc"}, "ggml.tokens"),
        ({"tokens": ["<s>", b"a"]}, "ggml.tokens.*bytes"),
        ({"tokens": ["a", "a", "b", "ab", "abab", "c"]}, "ggml.tokens.*twice"),
        ({"tokens": ["<" * 129, "a", "b", "ab", "abab", "c"]}, "ggml.tokens.*longer"),
        ({"token_type": [1, 2]}, "ggml.token_type.*2 entries"),
        ({"token_type": ["x"] * 6}, "ggml.token_type"),
        ({"merges": None}, "ggml.merges"),
        ({"merges": ["ab"]}, "ggml.merges.*pair"),
        ({"merges": ["a c"]}, "ggml.merges"),
        ({"merges": ["b a"]}, "ggml.merges"),
        ({"merges": [["a", "b"]]}, "ggml.merges"),
        ({"eos_token_id": 6}, "ggml.eos_token_id"),
        ({"bos_token_id": -1}, "ggml.bos_token_id"),
        ({"bos_token_id": "a"}, "ggml.bos_token_id"),
        ({"unknown_token_id": True}, "ggml.unknown_token_id"),
        ({"add_bos_token": 1}, "ggml.add_bos_token"),
        ({"add_bos_token": True}, "ggml.bos_token_id"),
        ({"model": "llama", "bos_token_id": 0}, "ggml.scores"),
        ({"model": "llama", "bos_token_id": 0, "scores": [0.0]}, "ggml.scores.*1 entries"),
    ],
)
def test_refusals_name_the_key(changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=named):
        text_processor_from_gguf(small(**changes))


@pytest.mark.parametrize(("template", "reason"), [(7, "string"), ("{% for %}", "template")])
def test_a_malformed_template_is_refused(template: Any, reason: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=f"tokenizer.chat_template.*{reason}"):
        text_processor_from_gguf({**small(), "tokenizer.chat_template": template})
