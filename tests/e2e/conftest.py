"""One server for all end-to-end tests: the real small model and a tiny random one, in float32."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.program import Program, running
from tests.engine.models.tiny import make_checkpoint


@pytest.fixture(scope="session")
def program(smollm2_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    root = tmp_path_factory.mktemp("e2e")
    tiny = make_checkpoint(root / "tiny", "qwen3")
    data = root / "data"
    data.mkdir()
    (data / "turnpike.toml").write_text('[embeddings]\ntiny = "last"\n')
    models = ("--model", f"smollm2={smollm2_file}", "--model", f"tiny={tiny}")
    # float32: what is compared here is texts, and in bf16 a batch's rounding decides between equal logits.
    with running(data, *models, "--dtype", "float32", "--kv-cache-bytes", "256MiB") as program:
        yield program
