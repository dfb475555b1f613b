"""Prompts that ask for what stands between two texts."""

import pytest
from tokenizers import AddedToken

from engine.checkpoints.text import text_processor_from_gguf
from engine.text.infilling import Infilling
from engine.text.processor import TextProcessor
from engine.text.tokenizer import Tokenizer
from tests.engine.text.folders import byte_level_backend
from tests.engine.text.sentencepiece_vocabulary import sentencepiece_metadata

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>")
CODELLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")


@pytest.mark.parametrize("own", [QWEN, STARCODER])
def test_byte_level_vocabularies(own: tuple[str, ...]) -> None:
    backend = byte_level_backend()
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in own])
    tokenizer = Tokenizer(backend, special_ids=[0, 1, 2], bos_token_id=0, prefix_ids=[0])
    infilling = Infilling.of(tokenizer)
    ids = infilling.encode("def f(x):", " return x")
    prefix, suffix, middle, _ = own
    assert ids[0] == 0
    assert tokenizer.decode(ids[1:]) == f"{prefix}def f(x):{suffix} return x{middle}"
    assert infilling.encode("a", "b", add_special_tokens=False) == infilling.encode("a", "b")[1:]
    assert infilling.ends == tuple(map(tokenizer.token_of, own))


def test_a_suffix_gets_no_space_that_it_has_not() -> None:
    metadata = sentencepiece_metadata(add_space_prefix=True)
    metadata["tokenizer.ggml.tokens"] += CODELLAMA
    metadata["tokenizer.ggml.token_type"] += [3] * 4
    metadata["tokenizer.ggml.scores"] += [0.0] * 4
    text = text_processor_from_gguf(metadata)
    ids = text.infilling.encode("def", "return")
    begin, suffix, middle = (ids.index(token) for token in (1, text.infilling.suffix, text.infilling.middle))
    assert (begin, ids[1], middle) == (0, text.infilling.prefix, len(ids) - 1)
    shown = [b"".join(map(text.tokenizer.token_bytes, part)) for part in (ids[2:suffix], ids[suffix + 1 : middle])]
    assert shown == [b" def", b"return"]


def test_a_vocabulary_without_such_tokens(smollm2: TextProcessor) -> None:
    assert smollm2.infilling is None
