"""Ids equal llama.cpp's, recorded by record_llamacpp_ids.py."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoints.text import text_processor_from_gguf
from engine.text.pretokenizers import RULES
from engine.text.processor import TextProcessor
from tests.engine.text.corpus import CORPUS
from tests.engine.text.sentencepiece_vocabulary import sentencepiece_metadata

FIXTURES = Path(__file__).parent / "fixtures"
RECORDED: Mapping[str, list[list[int]]] = json.loads(
    (FIXTURES / "pretokenizers_llamacpp_ids.json").read_text(encoding="utf-8")
)
SENTENCEPIECE = {"sentencepiece": True, "sentencepiece without prefix": False}


def check(processor: TextProcessor, expected: list[list[int]]) -> None:
    for text, ids in zip(CORPUS, expected, strict=True):
        assert processor.encode(text, add_special_tokens=False) == ids, ascii(text)


def test_smollm2(smollm2: TextProcessor) -> None:
    check(smollm2, json.loads((FIXTURES / "smollm2_llamacpp_ids.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("pre", sorted(RECORDED.keys() - SENTENCEPIECE.keys()))
def test_pre_tokenizer(pre: str, smollm2_metadata: Mapping[str, Any]) -> None:
    check(text_processor_from_gguf({**smollm2_metadata, "tokenizer.ggml.pre": pre}), RECORDED[pre])


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepiece(name: str) -> None:
    metadata = sentencepiece_metadata(add_space_prefix=SENTENCEPIECE[name])
    check(text_processor_from_gguf(metadata), RECORDED[name])


def test_every_rule_was_recorded() -> None:
    recorded = {RULES[name] for name in RECORDED.keys() & RULES.keys()}
    assert set(RULES.values()) - recorded == {RULES["smollm"]}


def test_round_trip(smollm2: TextProcessor, sentencepiece: TextProcessor) -> None:
    for text in CORPUS:
        assert smollm2.decode(smollm2.encode(text)) == text
        if "▁" not in text and "<tool>" not in text:  # a space comes behind a token that is found in text
            assert sentencepiece.decode(sentencepiece.encode(text)) == text
