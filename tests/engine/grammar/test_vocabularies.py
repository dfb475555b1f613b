"""Every kind of tokenizer: to the grammar library a token stands for the bytes that it stands for here."""

from pathlib import Path

import numpy as np
import pytest

from engine.checkpoints.text import text_processor_from_folder, text_processor_from_gguf
from engine.grammar import GrammarSpec, sandbox_program
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.vocabulary import LibraryVocabulary
from engine.text.tokenizer import Tokenizer
from tests.engine.text.folders import byte_level_folder, llama2_folder
from tests.engine.text.sentencepiece_vocabulary import sentencepiece_metadata

KINDS = ["byte-level folder", "Llama 2 folder", "SentencePiece GGUF", "SentencePiece GGUF without prefix"]


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    match request.param:
        case "byte-level folder":
            byte_level_folder(tmp_path)
            return text_processor_from_folder(tmp_path).tokenizer
        case "Llama 2 folder":
            llama2_folder(tmp_path)
            return text_processor_from_folder(tmp_path).tokenizer
    prefix = request.param == "SentencePiece GGUF"
    return text_processor_from_gguf(sentencepiece_metadata(add_space_prefix=prefix)).tokenizer


def test_tokens_stand_for_the_same_bytes(tokenizer: Tokenizer) -> None:
    vocabulary = LibraryVocabulary.of(tokenizer, tokenizer.vocab_size + 3, tokenizer.eos_token_ids)
    library = sandbox_program.open_tokenizer(
        vocabulary.tokenizer_json, vocabulary.vocab_size, list(vocabulary.eos_token_ids)
    )
    assert library.vocab_size == tokenizer.vocab_size + 3
    for token in range(library.vocab_size):
        assert library.is_special_token(token) >= (token in tokenizer.special_ids), token
        if not library.is_special_token(token):
            assert library.decode_bytes([token]) == tokenizer.token_bytes(token), token


def test_json_can_be_written(tokenizer: Tokenizer) -> None:
    vocab_size, ends = tokenizer.vocab_size + 3, tokenizer.eos_token_ids
    compiler = GrammarCompiler(lambda: LibraryVocabulary.of(tokenizer, vocab_size, ends))
    matcher = compiler.compile(GrammarSpec.json_schema({"const": {"a": "ü 🙂"}})).result().matcher()
    words, text = np.zeros((vocab_size + 31) // 32, dtype=np.int32), b""
    while True:
        matcher.fill_bitmask(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
        assert allowed
        if allowed[0] in ends:
            break
        assert matcher.accept(allowed[:1]) == 1
        text += tokenizer.token_bytes(allowed[0])
    compiler.close()
    assert text.decode() == '{"a":"ü 🙂"}'
