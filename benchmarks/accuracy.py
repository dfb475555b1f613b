"""Cost of weights, or keys and values, of fewer bits: `python -m benchmarks.accuracy [--quick]`, of SmolLM2-135M.

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

import numpy as np

from engine.catalog.catalog import fetch
from engine.checkpoints.checkpoint import Checkpoint, open_checkpoint
from engine.config import Quantize
from engine.models.config import ModelConfig
from engine.models.host_model import HostModel
from engine.models.loader import host_model, load_model
from gateway.config.settings import Settings
from kernels.arrays import Array, Dtype, DtypeName, Floats, Ints, int_array
from kernels.dispatch import select_ops
from kernels.host import StepRows
from kernels.layout import BLOCK_TOKENS

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
"""Number of positions whose logits are computed at a time: a vocabulary is wide."""


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

    def tensors(self, dtype: Dtype) -> Iterator[tuple[str, Array]]:
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


def rows_of(query_lens: Sequence[int], context_lens: Sequence[int], blocks_of_row: int) -> StepRows:
    """Rows with as many blocks each, row after row."""
    tables = np.arange(len(query_lens) * blocks_of_row, dtype=np.int64).reshape(-1, blocks_of_row)
    return StepRows(tables, int_array(query_lens), int_array(context_lens))


def perplexity_of(model: HostModel, tokens: Ints) -> float:
    """Of all tokens of windows [W, 512] but the first of each."""
    surprise, count = 0.0, 0
    kv = model.allocate_kv(WINDOW_TOKENS // BLOCK_TOKENS)
    for window in tokens:
        rows = rows_of([WINDOW_TOKENS], [WINDOW_TOKENS], WINDOW_TOKENS // BLOCK_TOKENS)
        hidden = model.forward(window, rows, kv)
        for first in range(0, WINDOW_TOKENS - 1, _LOGIT_ROWS):
            last = min(first + _LOGIT_ROWS, WINDOW_TOKENS - 1)
            surprise += surprise_at(model.logits(hidden[first:last]), window[first + 1 : last + 1])
            count += last - first
    return math.exp(surprise / count)


def surprise_at(logits: Floats, tokens: Ints) -> float:
    """The sum of -log of the probabilities that logits [T, V] give to tokens [T]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(1, keepdims=True)
    return float((np.log(np.exp(wide).sum(1)) - wide[np.arange(len(tokens)), tokens]).sum())


def greedy(model: HostModel, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """64 tokens behind each prompt, all prompts at once."""
    lens = [len(prompt) for prompt in prompts]
    blocks_of_row = -(-(max(lens) + ANSWER_TOKENS) // BLOCK_TOKENS)
    kv = model.allocate_kv(blocks_of_row * len(prompts))
    answers: list[list[int]] = [[] for _ in prompts]
    token_ids = int_array([token for prompt in prompts for token in prompt])
    query_lens, context_lens = lens, lens
    for _ in range(ANSWER_TOKENS):
        hidden = model.forward(token_ids, rows_of(query_lens, context_lens, blocks_of_row), kv)
        token_ids = model.logits(hidden[np.cumsum(query_lens) - 1]).argmax(-1)
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
    tokens = int_array(text.encode(text_of(MODULES)))
    windows = tokens[: len(tokens) // WINDOW_TOKENS * WINDOW_TOKENS].reshape(-1, WINDOW_TOKENS)
    chats = [json.loads(line)["messages"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    prompts = [text.encode_chat(chat) for chat in chats[:PROMPT_COUNT]]
    if arguments.quick:
        prompts = prompts[: PROMPT_COUNT // 2]
    count = QUICK_WINDOWS if arguments.quick else WINDOWS
    windows = windows[:: len(windows) // count][:count]  # of all modules, not only of the first ones
    rows: dict[str, tuple[Quantize, DtypeName, bool]] = {
        "bf16": ("none", "bfloat16", True),
        "float32": ("none", "float32", True),
        "blocks": ("none", "bfloat16", False),
        "int8": ("int8", "bfloat16", True),
        "int4": ("int4", "bfloat16", True),
        "int8 kv": ("none", "bfloat16", True),
    }
    print(f"SmolLM2-135M: {windows.size} tokens, {len(prompts)} prompts")
    print(f"  {'weights':<8} {'perplexity':>10} {'to bf16':>8} {'agreement':>9} {'seconds':>8}")
    base: Accuracy | None = None
    for name, (quantize, dtype, expand) in rows.items():
        if arguments.only and name not in (*arguments.only, "bf16"):
            continue
        started = time.perf_counter()
        source = Expanded(checkpoint) if expand else checkpoint
        ops = select_ops(dtype, device="cpu", kv_dtype="int8" if name == "int8 kv" else "auto")
        model = host_model(load_model(source, ops, 4 * WINDOW_TOKENS, quantize=quantize))
        measured = Accuracy(perplexity_of(model, windows), greedy(model, prompts))
        base = base or measured
        print(
            f"  {name:<8} {measured.perplexity:10.3f} {measured.perplexity / base.perplexity - 1:+8.2%} "
            f"{agreement(measured.answers, base.answers):9.1%} {time.perf_counter() - started:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
