"""A tiny model's tokenizer, and a compiler of grammars over its vocabulary."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoints.text import text_processor_from_folder
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.vocabulary import LibraryVocabulary
from engine.text.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE


@pytest.fixture(scope="module")
def tokenizer(tiny_folders: dict[str, Path]) -> Tokenizer:
    return text_processor_from_folder(tiny_folders["llama"]).tokenizer


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(lambda: LibraryVocabulary.of(tokenizer, VOCAB_SIZE, (IM_END,)))
    yield compiler
    compiler.close()
