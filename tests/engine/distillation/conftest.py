from pathlib import Path

import pytest

from tests.support.tiny_models import make_checkpoint


@pytest.fixture(scope="session")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny teacher of four layers."""
    return make_checkpoint(tmp_path_factory.mktemp("teacher"), "llama", num_hidden_layers=4, tie_word_embeddings=True)
