"""Output tokens a second, TTFT and TPOT by concurrency, compared with transformers: `python -m benchmarks.serving`.

Both run the same requests, one system after the other, in bf16 on all cores. Turnpike takes them in a closed loop:
`concurrency` are in flight until all are done. transformers' `generate` takes them in static batches of the same
size, each padded to its longest prompt and run to its longest answer, which is what batching without a scheduler
costs; the first tokens of a batch come together after its prefill.
"""

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoints import half_billion
from benchmarks.limits import Limits, measured_limits, print_limits
from benchmarks.traffic import Job, make_jobs, percentile
from engine import Engine, EngineConfig, SamplingParams
from engine.catalog.catalog import fetch
from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.layout import expected_tensors
from gateway.config.settings import Settings

CONCURRENCIES = (1, 4, 8, 16, 32)
JOBS = {1: 4, 4: 8, 8: 16, 16: 32, 32: 64}


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


def load_peer(path: Path) -> Any:
    """transformers' model of a folder or of a GGUF file, expanded, in bf16."""
    from transformers import AutoModelForCausalLM, GgufConfig

    if path.is_dir():
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    expanded = GgufConfig(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.bfloat16, quantization_config=expanded
    ).eval()


def measure_turnpike(path: Path, levels: list[int]) -> dict[int, Figures]:
    engine = Engine.load({"model": path}, EngineConfig(dtype="bfloat16"))
    vocab_size = engine.models["model"].vocab_size
    figures = {}
    with engine:
        for concurrency in levels:
            run_turnpike(engine, make_jobs(concurrency, vocab_size, seed=99), concurrency)
            figures[concurrency] = run_turnpike(engine, _jobs(concurrency, vocab_size), concurrency)
    return figures


def measure_transformers(path: Path, levels: list[int]) -> dict[int, Figures]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    model = load_peer(path)
    vocab_size = model.config.vocab_size
    figures = {}
    with torch.inference_mode():
        run_transformers(model, make_jobs(1, vocab_size, seed=99), 1)
        for concurrency in levels:
            figures[concurrency] = run_transformers(model, _jobs(concurrency, vocab_size), concurrency)
    return figures


SYSTEMS = {"turnpike": measure_turnpike, "transformers": measure_transformers}


def _jobs(concurrency: int, vocab_size: int) -> list[Job]:
    return make_jobs(JOBS[concurrency], vocab_size, seed=concurrency)


def _in_a_process(system: str, path: Path, levels: list[int]) -> dict[int, Figures]:
    """A process for each system: threads of one must not slow the other down."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.serving", "--system", system, "--path", str(path)]
    command += ["--concurrency", *map(str, levels)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    parsed = json.loads(done.stdout.splitlines()[-1])
    return {int(concurrency): Figures(**figures) for concurrency, figures in parsed.items()}


def weights_per_step(path: Path) -> int:
    """Weights that a decode step reads: all but the input embedding, whose rows are few, unless it is the head."""
    checkpoint = open_checkpoint(path)
    tied = checkpoint.config.tie_embeddings
    shapes = dict(expected_tensors(checkpoint.config))
    return sum(math.prod(shape) for name, shape in shapes.items() if tied or "embed_tokens" not in name)


def compare(name: str, path: Path, limits: Limits, levels: list[int]) -> None:
    gigabytes = weights_per_step(path) * 2 / 1e9
    print(f"\n{name}: a decode step reads {gigabytes:.3f} GB of bf16 weights")
    print("      Turnpike                          transformers")
    print("  c   tok/s   TTFT ms   TPOT ms     tok/s   TTFT ms   TPOT ms     ratio   share of read bandwidth")
    measured = {system: _in_a_process(system, path, levels) for system in SYSTEMS}
    for concurrency in levels:
        ours, theirs = measured["turnpike"][concurrency], measured["transformers"][concurrency]
        share = gigabytes / (percentile(ours.tpot_ms, 0.5) / 1e3) / limits.read_gb_s
        columns = [f"{concurrency:3d}"]
        for figures in (ours, theirs):
            ttft, tpot = percentile(figures.ttft_ms, 0.5), percentile(figures.tpot_ms, 0.5)
            columns.append(f"{figures.output_tokens_s:7.1f} {ttft:9.0f} {tpot:9.1f}  ")
        columns.append(f"{ours.output_tokens_s / theirs.output_tokens_s:7.2f} {share:10.2f}")
        print(" ".join(columns), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("smollm2", "500m", "both"), default="both")
    parser.add_argument("--concurrency", type=int, nargs="+", default=list(CONCURRENCIES), choices=CONCURRENCIES)
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.system:
        figures = SYSTEMS[options.system](options.path, options.concurrency)
        print(json.dumps({concurrency: asdict(each) for concurrency, each in figures.items()}))
        return
    limits = measured_limits()
    print_limits(limits)
    if options.model in ("500m", "both"):
        with tempfile.TemporaryDirectory() as root:
            compare("Llama-shaped, 0.5 B", half_billion(Path(root)), limits, options.concurrency)
    if options.model in ("smollm2", "both"):
        compare("SmolLM2-135M", fetch("smollm2", Settings().models_dir), limits, options.concurrency)


if __name__ == "__main__":
    main()
