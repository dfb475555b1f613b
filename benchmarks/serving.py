"""Output tokens a second, TTFT and TPOT by concurrency, beside transformers: `python -m benchmarks.serving`.

Both run the same requests in the same process at the same dtype and threads. Turnpike takes them in a closed loop:
`concurrency` are in flight until all are done. transformers' `generate` takes them in static batches of the same
size, each padded to its longest prompt and run to its longest answer, which is what batching without a scheduler
costs; the first tokens of a batch come together after its prefill.
"""

import argparse
import asyncio
import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoints import half_billion
from benchmarks.limits import Limits, measure_limits, print_limits
from benchmarks.traffic import Job, make_jobs, percentile
from engine import Engine, EngineConfig, SamplingParams
from engine.models.catalog import fetch
from gateway.settings import Settings

CONCURRENCIES = (1, 4, 8, 16, 32)
JOBS = {1: 6, 4: 12, 8: 24, 16: 48, 32: 64}


@dataclass(frozen=True, slots=True)
class Figures:
    """One system at one concurrency."""

    output_tokens_s: float
    ttft_ms: list[float]
    tpot_ms: list[float]


def run_turnpike(engine: Engine, jobs: list[Job], concurrency: int) -> Figures:
    ttft_ms: list[float] = []
    tpot_ms: list[float] = []

    async def one(job: Job, gate: asyncio.Semaphore) -> None:
        async with gate:
            params = SamplingParams(temperature=0, max_tokens=job.output_tokens, ignore_eos=True)
            started = time.perf_counter()
            first = last = 0.0
            async for delta in engine.stream("model", job.prompt, params):
                if delta.token_ids:
                    last = time.perf_counter()
                    first = first or last
            ttft_ms.append((first - started) * 1e3)
            if job.output_tokens > 1:
                tpot_ms.append((last - first) / (job.output_tokens - 1) * 1e3)

    async def all_jobs() -> None:
        gate = asyncio.Semaphore(concurrency)
        await asyncio.gather(*(one(job, gate) for job in jobs))

    started = time.perf_counter()
    asyncio.run(all_jobs())
    seconds = time.perf_counter() - started
    return Figures(sum(job.output_tokens for job in jobs) / seconds, ttft_ms, tpot_ms)


def run_transformers(model: Any, jobs: list[Job], batch_size: int) -> Figures:
    started = time.perf_counter()
    ttft_ms: list[float] = []
    tpot_ms: list[float] = []
    for first in range(0, len(jobs), batch_size):
        batch = jobs[first : first + batch_size]
        longest = max(len(job.prompt) for job in batch)
        ids = torch.zeros((len(batch), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, job in enumerate(batch):
            ids[row, longest - len(job.prompt) :] = torch.tensor(job.prompt)
            mask[row, longest - len(job.prompt) :] = 1
        ends = _StepTimes()
        began = time.perf_counter()
        new_tokens = max(job.output_tokens for job in batch)
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            pad_token_id=0,
            logits_processor=[ends],
        )
        finished = time.perf_counter()
        ttft_ms += [(ends.times[0] - began) * 1e3] * len(batch)
        tpot_ms += [(finished - ends.times[0]) / max(new_tokens - 1, 1) * 1e3] * len(batch)
    return Figures(sum(job.output_tokens for job in jobs) / (time.perf_counter() - started), ttft_ms, tpot_ms)


class _StepTimes:
    """Notes when each step's logits are there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return scores


def load_half_billion(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def load_gguf(file: Path) -> Any:
    from transformers import AutoModelForCausalLM, GgufConfig

    return AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    ).eval()


def compare(name: str, path: Path, load_peer: Callable[[Path], Any], limits: Limits, levels: list[int]) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    peer = load_peer(path)
    weights = sum(p.numel() for key, p in peer.named_parameters() if "embed_tokens" not in key)
    if peer.config.tie_word_embeddings:
        weights += peer.get_input_embeddings().weight.numel()
    engine = Engine.load({"model": path}, EngineConfig(dtype="bfloat16", threads=limits.threads))
    vocab_size = engine.models["model"].vocab_size
    print(f"\n{name}: {weights / 1e6:.0f} M weights read a step, bf16, {limits.threads} threads")
    print(
        "  c | Turnpike tok/s  TTFT p50  TPOT p50 | transformers tok/s  TTFT p50  TPOT p50 | ratio | share of read bw"
    )
    with engine, torch.inference_mode():
        for concurrency in levels:
            jobs = make_jobs(JOBS[concurrency], vocab_size, seed=concurrency)
            run_turnpike(engine, make_jobs(concurrency, vocab_size, seed=99), concurrency)
            ours = run_turnpike(engine, jobs, concurrency)
            theirs = run_transformers(peer, jobs, concurrency)
            decode_gb_s = weights * 2 / percentile(ours.tpot_ms, 0.5) / 1e6
            print(
                f"{concurrency:3d} | {ours.output_tokens_s:14.1f} {percentile(ours.ttft_ms, 0.5):8.0f}ms "
                f"{percentile(ours.tpot_ms, 0.5):7.1f}ms | {theirs.output_tokens_s:18.1f} "
                f"{percentile(theirs.ttft_ms, 0.5):8.0f}ms {percentile(theirs.tpot_ms, 0.5):7.1f}ms | "
                f"{ours.output_tokens_s / theirs.output_tokens_s:5.2f} | {decode_gb_s / limits.read_gb_s:.2f}",
                flush=True,
            )
    del peer, engine
    gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("smollm2", "500m", "both"), default="both")
    parser.add_argument("--concurrency", type=int, nargs="+", default=list(CONCURRENCIES), choices=CONCURRENCIES)
    options = parser.parse_args()
    limits = measure_limits()
    print_limits(limits)
    if options.model in ("smollm2", "both"):
        file = fetch("smollm2", Settings().models_dir)
        compare("SmolLM2-135M-Instruct", file, load_gguf, limits, options.concurrency)
    if options.model in ("500m", "both"):
        with tempfile.TemporaryDirectory() as root:
            folder = half_billion(Path(root))
            compare("Llama-shaped 0.5 B", folder, load_half_billion, limits, options.concurrency)


if __name__ == "__main__":
    main()
