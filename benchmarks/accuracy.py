"""What weights, or keys and values, of fewer bits cost: `python -m benchmarks.accuracy [--quick]`, of SmolLM2-135M.

Perplexity on docstrings of Python's standard library, in windows of 512 tokens; and, of 50 prompts, how much of 64
greedy tokens is what bf16 weights say, up to the first difference. The file's own blocks are compared with the numbers
they stand for, expanded to bf16 and to float32; int8 and int4 are made from the expanded numbers. Those of all matrices
but the embedding lie on a grid of 4 bits already, so that int4 costs less here than it does of weights in 16 bits.

The text is that of the Python that runs this: compare rows of one table, not tables of different machines.
"""

import argparse
import ast
import importlib.util
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.catalog import fetch
from engine.models.checkpoint import Checkpoint, open_checkpoint
from engine.models.config import ModelConfig
from engine.models.loader import load_model
from engine.models.transformer import Transformer
from gateway.settings import Settings
from kernels.dispatch import select_ops
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata

MODULES = (
    *("argparse", "asyncio.base_events", "collections", "configparser", "fractions", "functools", "heapq"),
    *("http.client", "json", "pathlib", "pickle", "random", "re", "shutil", "smtplib", "socket", "subprocess"),
    *("tempfile", "textwrap", "threading", "urllib.request"),
)
LEAST_CHARS = 200
"""Of a docstring: one-liners are hardly text."""
WINDOW_TOKENS = 512
WINDOWS, QUICK_WINDOWS = 40, 12
PROMPTS = Path(__file__).parent.parent / "models" / "held_out.jsonl"
PROMPT_COUNT = 50
ANSWER_TOKENS = 64
_LOGIT_ROWS = 128
"""Logits of so many positions at a time: a vocabulary is wide."""


class Expanded:
    """A checkpoint's weights as plain numbers, whatever blocks it keeps them in."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def config(self) -> ModelConfig:
        return self._checkpoint.config

    @property
    def weight_bytes(self) -> int:
        return self._checkpoint.weight_bytes

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        return self._checkpoint.tensors(dtype)


@dataclass(frozen=True, slots=True)
class Accuracy:
    perplexity: float
    answers: list[list[int]]


def text_of(modules: Sequence[str]) -> str:
    """The longer docstrings of modules, in the order of their source."""
    found: list[str] = []
    for module in modules:
        spec = importlib.util.find_spec(module)
        assert spec is not None, module
        assert spec.origin is not None, module
        for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None and len(text) >= LEAST_CHARS:
                    found.append(text)
    return "\n\n".join(found)


def metadata_of(query_lens: Sequence[int], context_lens: Sequence[int], blocks_of_row: int) -> AttentionMetadata:
    """Rows with as many blocks each, row after row."""
    tables = torch.arange(len(query_lens) * blocks_of_row, dtype=torch.int64).view(-1, blocks_of_row)
    return AttentionMetadata(tables, query_lens, context_lens)


@torch.inference_mode()
def perplexity_of(model: Transformer, tokens: Tensor) -> float:
    """Of all tokens of windows [W, 512] but the first of each."""
    surprise, count = 0.0, 0
    kv = model.allocate_kv(WINDOW_TOKENS // BLOCK_TOKENS)
    for window in tokens:
        metadata = metadata_of([WINDOW_TOKENS], [WINDOW_TOKENS], WINDOW_TOKENS // BLOCK_TOKENS)
        hidden = model.forward(window, model.ops.plan_attention(metadata), kv)
        for first in range(0, WINDOW_TOKENS - 1, _LOGIT_ROWS):
            last = min(first + _LOGIT_ROWS, WINDOW_TOKENS - 1)
            logits = model.logits(hidden[first:last])
            surprise += torch.nn.functional.cross_entropy(logits, window[first + 1 : last + 1], reduction="sum").item()
            count += last - first
    return math.exp(surprise / count)


@torch.inference_mode()
def greedy(model: Transformer, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """64 tokens behind each prompt, all prompts at once."""
    lens = [len(prompt) for prompt in prompts]
    blocks_of_row = -(-(max(lens) + ANSWER_TOKENS) // BLOCK_TOKENS)
    kv = model.allocate_kv(blocks_of_row * len(prompts))
    answers: list[list[int]] = [[] for _ in prompts]
    token_ids = torch.tensor([token for prompt in prompts for token in prompt])
    query_lens, context_lens = lens, lens
    for _ in range(ANSWER_TOKENS):
        plan = model.ops.plan_attention(metadata_of(query_lens, context_lens, blocks_of_row))
        hidden = model.forward(token_ids, plan, kv)
        token_ids = model.logits(hidden[torch.tensor(query_lens).cumsum(0) - 1]).argmax(-1)
        for answer, token in zip(answers, token_ids.tolist(), strict=True):
            answer.append(token)
        query_lens, context_lens = [1] * len(prompts), [each + 1 for each in context_lens]
    return answers


def agreement(answers: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> float:
    """The share of tokens before the first difference of each answer."""
    same = 0
    for answer, other in zip(answers, expected, strict=True):
        same += next((at for at, pair in enumerate(zip(answer, other, strict=True)) if pair[0] != pair[1]), len(other))
    return same / sum(len(other) for other in expected)


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexity and greedy agreement of weights of fewer bits.")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_WINDOWS} windows of {WINDOWS}, and half of the prompts"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="rows of the table; bf16 is always there")
    arguments = parser.parse_args()
    path = fetch("smollm2", Settings().models_dir)
    checkpoint = open_checkpoint(path)
    text = checkpoint.text_processor()
    tokens = torch.tensor(text.encode(text_of(MODULES)), dtype=torch.int64)
    windows = tokens[: len(tokens) // WINDOW_TOKENS * WINDOW_TOKENS].view(-1, WINDOW_TOKENS)
    chats = [json.loads(line)["messages"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    prompts = [text.encode_chat(chat) for chat in chats[:PROMPT_COUNT]]
    if arguments.quick:
        prompts = prompts[: PROMPT_COUNT // 2]
    count = QUICK_WINDOWS if arguments.quick else WINDOWS
    windows = windows[:: len(windows) // count][:count]  # of all modules, not only of the first ones
    rows = {
        "bf16": ("none", torch.bfloat16, True),
        "float32": ("none", torch.float32, True),
        "blocks": ("none", torch.bfloat16, False),
        "int8": ("int8", torch.bfloat16, True),
        "int4": ("int4", torch.bfloat16, True),
        "int8 kv": ("none", torch.bfloat16, True),
    }
    print(f"SmolLM2-135M: {windows.numel()} tokens, {len(prompts)} prompts")
    print(f"  {'weights':<8} {'perplexity':>10} {'to bf16':>8} {'agreement':>9} {'seconds':>8}")
    base: Accuracy | None = None
    for name, (quantize, dtype, expand) in rows.items():
        if arguments.only and name not in (*arguments.only, "bf16"):
            continue
        started = time.perf_counter()
        source = Expanded(checkpoint) if expand else checkpoint
        ops = select_ops(dtype, device="cpu", kv_dtype="int8" if name == "int8 kv" else "auto")
        model = load_model(source, ops, 4 * WINDOW_TOKENS, quantize=quantize)
        measured = Accuracy(perplexity_of(model, windows), greedy(model, prompts))
        base = base or measured
        print(
            f"  {name:<8} {measured.perplexity:10.3f} {measured.perplexity / base.perplexity - 1:+8.2%} "
            f"{agreement(measured.answers, base.answers):9.1%} {time.perf_counter() - started:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
