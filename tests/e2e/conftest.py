"""One server for all end-to-end tests: the real small model and a tiny random one."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from kernels.cpu import native
from tests.support.program import Program, running
from tests.support.tiny_models import make_checkpoint

# The default classes, except that a burst of 64 requests waits instead of being shed, however slow the machine is.
_CONFIGURATION = """
[embeddings]
tiny = "last"

[service_classes.premium]
priority = 0
reserved_fraction = 0.30
ttft_target_ms = 500
itl_target_ms = 50
max_wait_ms = 60_000
context_tokens = 131_072

[service_classes.standard]
priority = 10
step_share = 0.1
itl_target_ms = 100
max_wait_ms = 60_000
context_tokens = 32_768
"""


@pytest.fixture(scope="session")
def program(smollm2_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    root = tmp_path_factory.mktemp("e2e")
    tiny = make_checkpoint(root / "tiny", "qwen3")
    data = root / "data"
    data.mkdir()
    (data / "turnpike.toml").write_text(_CONFIGURATION)
    models = ("--model", f"smollm2={smollm2_file}", "--model", f"tiny={tiny}")
    # What is compared here is texts. The native kernels compute a token alike in every batch; in bf16 on torch a
    # batch's rounding decides between equal logits, and float32 takes many times as long.
    level = native.level()
    dtype = "bfloat16" if level is not None and level >= native.Level.AVX2 else "float32"
    with running(data, *models, "--dtype", dtype, "--kv-cache-bytes", "256MiB") as program:
        yield program


@pytest.fixture(scope="module")
def client(program: Program) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, with the tenant's key."""
    with openai.OpenAI(base_url=f"{program.url}/v1", api_key=program.key, max_retries=0) as client:
        yield client
