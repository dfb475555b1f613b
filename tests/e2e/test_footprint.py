"""Memory of the whole program."""

from pathlib import Path

import httpx
import pytest

from kernels.cpu.native_ops import computes_natively
from kernels.gpu import has_cuda_driver
from tests.support.program import Program

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
NUMBER = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"type": "integer"}}}


@pytest.mark.skipif(not computes_natively() or has_cuda_driver(), reason="torch computes here")
def test_serving_natively_loads_no_torch(program: Program) -> None:
    chat = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 8, "logprobs": True}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat | {"response_format": NUMBER, "frequency_penalty": 0.5, "seed": 1}),
        ("/v1/embeddings", {"model": "tiny", "input": "a lighthouse"}),
    ):
        headers = {"authorization": f"Bearer {program.key}"}
        answer = httpx.post(f"{program.url}{path}", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
    mapped = Path(f"/proc/{program.process.pid}/maps").read_text(encoding="utf-8")
    assert "/kernels/cpu/native/" in mapped
    assert "torch" not in mapped
