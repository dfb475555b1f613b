"""transformers at the same work: `generate` over a static batch, and its continuous batching, where it runs.

Output tokens a second of requests of 1,000 prompt and 1,000 output tokens, from what is timed of them: the time until
all have their first token, and that of a decode step. Steps are timed right behind the prompts, where contexts are
shortest, which flatters transformers: batch x output / (prefill + (output - 1) x step). All requests are equally long,
so that the static batch wastes nothing on padding.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.names import PEER_ALONE, PEER_CONTINUOUS, PEER_STATIC
from benchmarks.gpu.stage import Stage


def run(stage: Stage, model_name: str) -> None:
    model = stage.attempt("load", lambda: load_peer(SHAPES[model_name], stage))
    if model is None:
        return
    _where_it_runs(stage, PEER_ALONE, lambda: _static(stage, PEER_ALONE, model, 1))
    _where_it_runs(stage, PEER_STATIC, lambda: _largest_static(stage, model))
    _where_it_runs(stage, PEER_CONTINUOUS, lambda: _continuous(stage, model))


def _where_it_runs(stage: Stage, name: str, work: Callable[[], None]) -> None:
    """A failure of transformers on this machine skips the measurement and fails no check."""
    if stage.seconds_left <= 0:
        stage.skipped(name, "no time left")
        return
    try:
        work()
    except Exception as error:
        stage.skipped(name, f"did not run: {type(error).__name__}: {str(error)[:200]}")


def load_peer(shape: Mapping[str, Any], stage: Stage) -> Any:
    """Random weights, made on the device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    known = {key: value for key, value in shape.items() if key not in ("architectures", "model_type", "torch_dtype")}
    with torch.device(stage.device):
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(**known), dtype=stage.scale.dtypes[0], attn_implementation="sdpa"
        )
    return model.eval()


def output_rate(batch: int, output_tokens: int, prefill_s: float, step_s: float) -> float:
    """Output tokens a second of a batch whose requests begin and end together."""
    return batch * output_tokens / (prefill_s + (output_tokens - 1) * step_s)


def _prompts(stage: Stage, model: Any, batch: int) -> torch.Tensor:
    shape = (batch, stage.scale.prompt_tokens)
    return torch.randint(0, model.config.vocab_size, shape, generator=stage.generator, device=stage.device)


def _largest_static(stage: Stage, model: Any) -> None:
    """As many at once as Turnpike has slots, or half as many while there is no room for them."""
    batch = stage.scale.slots
    while True:
        try:
            _static(stage, PEER_STATIC, model, batch)
            return
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            print(f"no room for a static batch of {batch}", flush=True)
        torch.cuda.empty_cache()
        batch //= 2


@torch.inference_mode()
def _static(stage: Stage, name: str, model: Any, batch: int) -> None:
    new_tokens = stage.scale.peer_tokens
    ids = _prompts(stage, model, batch)
    ends = _StepTimes(stage)
    stage.synchronize()
    began = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        eos_token_id=None,
        pad_token_id=0,
        logits_processor=[ends],
    )
    steps = [after - before for before, after in zip(ends.times, ends.times[1:], strict=False)]
    prefill_s, step_s = ends.times[0] - began, statistics.median(steps)
    rate = output_rate(batch, stage.scale.output_tokens, prefill_s, step_s)
    if name == PEER_ALONE:
        stage.measured(name, 1 / step_s, "tok/s", f"{step_s * 1e3:.2f} ms a step, first call")
    else:
        stage.measured(name, rate, "tok/s", f"batch {batch}, prefill {prefill_s:.2f} s, step {step_s * 1e3:.1f} ms")


class _StepTimes:
    """Notes when each step's logits are there."""

    def __init__(self, stage: Stage) -> None:
        self.times: list[float] = []
        self._stage = stage

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._stage.synchronize()
        self.times.append(time.perf_counter())
        return scores


def _continuous(stage: Stage, model: Any) -> None:
    from transformers import GenerationConfig

    batch, new_tokens = stage.scale.slots, stage.scale.peer_tokens
    settings = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, eos_token_id=-1, pad_token_id=0)
    prompts = [list(map(int, prompt)) for prompt in _prompts(stage, model, batch).tolist()]
    outputs = model.generate_batch(
        prompts, generation_config=settings, record_timestamps=True, max_new_tokens=new_tokens
    ).values()
    if len(outputs) < batch or any(each.error or len(each.generated_tokens) < new_tokens for each in outputs):
        raise RuntimeError(f"{len(outputs)} of {batch} came back: {next((each.error for each in outputs), None)}")
    prefill_s = max(each.timestamps[0] for each in outputs) - min(each.created_time for each in outputs)
    step_s = statistics.median(_last_steps(each.timestamps) for each in outputs)
    rate = output_rate(batch, stage.scale.output_tokens, prefill_s, step_s)
    detail = f"{batch} requests, prefill {prefill_s:.2f} s, step {step_s * 1e3:.1f} ms"
    stage.measured(PEER_CONTINUOUS, rate, "tok/s", detail)


def _last_steps(timestamps: list[float]) -> float:
    """Seconds a token over the second half of an answer, when all others are decoded too."""
    half = len(timestamps) // 2
    return (timestamps[-1] - timestamps[half]) / max(1, len(timestamps) - 1 - half)
