"""Record llama.cpp's token ids of the corpus, the oracle of test_llamacpp_ids.py.

    python -m tests.engine.text.record_llamacpp_ids SmolLM2-135M-Instruct.Q4_1.gguf

Needs llama-cpp-python 0.3.36 and gguf 0.19.0, best in an environment of their own. Writes two fixtures:
`smollm2_llamacpp_ids.json` for the file as it is, and `pretokenizers_llamacpp_ids.json` for copies of its
vocabulary under other pre-tokenizer names and for a small SentencePiece vocabulary.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFWriter
from llama_cpp import Llama

from tests.engine.text.corpus import CORPUS
from tests.engine.text.sentencepiece_vocabulary import sentencepiece_metadata

FIXTURES = Path(__file__).parent / "fixtures"
PRE_TOKENIZERS = (
    *("default", "gpt-2", "llama-bpe", "smaug-bpe", "glm4", "qwen2", "tekken", "gpt-4o", "seed-coder", "qwen35"),
    *("ufakzeka", "minicpm5", "jais-2", "exaone-moe", "bailingmoe", "deepseek-coder", "deepseek-v3", "falcon"),
    *("bloom", "viking", "deepseek-llm"),
)


def record(model: Path) -> list[list[int]]:
    """Ids as for text of a user: nothing added, special tokens not parsed."""
    vocabulary = Llama(model_path=str(model), vocab_only=True, verbose=False)
    return [vocabulary.tokenize(text.encode(), add_bos=False, special=False) for text in CORPUS]


def write_vocabulary(path: Path, metadata: Mapping[str, Any]) -> None:
    """A GGUF file without tensors. Only the kinds of values that a vocabulary holds."""
    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main(model: Path) -> None:
    save("smollm2_llamacpp_ids.json", record(model))
    fields = GGUFReader(model).fields
    vocabulary = {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.ggml.")}
    variants: dict[str, Mapping[str, Any]] = {
        **{pre: {**vocabulary, "tokenizer.ggml.pre": pre} for pre in PRE_TOKENIZERS},
        "sentencepiece": sentencepiece_metadata(add_space_prefix=True),
        "sentencepiece without prefix": sentencepiece_metadata(add_space_prefix=False),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        recorded = {}
        for name, metadata in variants.items():
            write_vocabulary(path, metadata)
            recorded[name] = record(path)
    save("pretokenizers_llamacpp_ids.json", recorded)


def save(name: str, value: Any) -> None:
    (FIXTURES / name).write_text(json.dumps(value, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
