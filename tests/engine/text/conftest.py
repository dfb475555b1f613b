from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from engine.checkpoints.text import text_processor_from_gguf
from engine.text.processor import TextProcessor
from tests.engine.text.sentencepiece_vocabulary import sentencepiece_metadata


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_file: Path) -> Mapping[str, Any]:
    """The real model's tokenizer keys, read with the `gguf` package; the file is fetched once a machine."""
    fields = GGUFReader(smollm2_file).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: Mapping[str, Any]) -> TextProcessor:
    return text_processor_from_gguf(smollm2_metadata)


@pytest.fixture(scope="session")
def sentencepiece() -> TextProcessor:
    """A small Llama-2-like vocabulary: bytes as `<0xNN>`, a space in front of every text."""
    return text_processor_from_gguf(sentencepiece_metadata(add_space_prefix=True))
