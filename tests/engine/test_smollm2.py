"""The real small model: its greedy text equals transformers' reading of the same file in float32."""

import warnings
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from tests.support.tiny_models import reference_text

QUESTIONS = (
    "What is the capital of France?",
    "Explain what a queue is in one sentence.",
    "Write two lines about rain, then the numbers 1 to 5.",
)
NEW_TOKENS = 32


@pytest.fixture(scope="module")
def engine(smollm2_file: Path) -> Engine:
    return Engine.load({"smollm2": smollm2_file}, EngineConfig(dtype="float32", kv_cache_bytes=64 << 20))


def test_greedy_text_equals_transformers(engine: Engine, smollm2_file: Path) -> None:
    from transformers import AutoModelForCausalLM, GgufConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = AutoModelForCausalLM.from_pretrained(
            smollm2_file.parent,
            gguf_file=smollm2_file.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            local_files_only=True,
        ).eval()
    text = engine.models["smollm2"].text
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    with engine:
        prompts = [text.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
        answers = engine.generate("smollm2", prompts, params)
    for prompt, [answer] in zip(prompts, answers, strict=True):
        assert list(answer.token_ids) == reference_text(oracle, prompt, NEW_TOKENS)
