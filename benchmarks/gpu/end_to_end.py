"""A model of a real one's shape, with random weights, stepped as the engine's thread does: without HTTP and text.

- Alone: tokens a second of one request, against the copy bandwidth over the bytes of the weights that a step reads;
  first without CUDA graphs, so that there is a figure where they cannot be captured.
- First token: from when a request comes to an idle engine until its first token is known on the host.
- Saturated: every slot always has a request of 1,000 prompt and 1,000 output tokens, a new one for each that ends.
  A run to the end would take minutes. So requests start as if some had come before: request i of n has i/n of its
  output behind its prompt already, and as much less to generate. Once all prompts are computed, contexts are spread as
  they would be, and tokens are counted for some seconds.
"""

import statistics
import time
from functools import partial

import torch

from benchmarks.gpu import names
from benchmarks.gpu.models import random_model, weights_per_step
from benchmarks.gpu.names import ALONE, EAGER, SATURATED, WEIGHTS
from benchmarks.gpu.profile import STEPS, profile_steps
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stepping import DeviceClock, Stepper, StepTimes, blocks_for
from engine.request import TokenDelta
from kernels.triton.ops import TritonOps

_WARM_UP_STEPS = 4


def run(stage: Stage, model_name: str) -> None:
    stepper = stage.attempt("load", lambda: _load(stage, model_name))
    if stepper is None:
        return
    stage.attempt(EAGER, lambda: alone(stage, stepper, EAGER))
    stage.attempt("steps recorded", lambda: _record(stage, stepper))
    stage.attempt(ALONE, lambda: alone(stage, stepper, ALONE))
    for tokens in stage.scale.ttft_tokens:
        stage.attempt(names.ttft(tokens), partial(_first_token, stage, stepper, tokens))
    stage.attempt(SATURATED, lambda: _saturated(stage, stepper))


def _load(stage: Stage, model_name: str) -> Stepper:
    """The model with its KV memory, without CUDA graphs."""
    scale = stage.scale
    longest = max(scale.prompt_tokens + scale.output_tokens, *(tokens + 64 for tokens in scale.ttft_tokens))
    started = time.perf_counter()
    model = random_model(model_name, TritonOps(stage.device, scale.dtypes[0]), longest)
    stage.synchronize()
    loaded = time.perf_counter()
    stepper = Stepper(
        model,
        slots=scale.slots,
        num_blocks=blocks_for(scale.slots, scale.prompt_tokens + scale.output_tokens) + blocks_for(1, longest),
        window=longest,
        step_tokens=scale.step_tokens,
    )
    stage.synchronize()
    read = weights_per_step(model.config) * scale.dtypes[0].itemsize
    stage.measured(WEIGHTS, read / 1e9, "GB")
    stage.measured("weights made", loaded - started, "s")
    stage.measured("KV made", time.perf_counter() - loaded, "s")
    return stepper


def _record(stage: Stage, stepper: Stepper) -> None:
    """Capture the graphs. What follows runs without them where that fails."""
    started, before = time.perf_counter(), device_bytes(stage)
    stepper.record()
    stage.synchronize()
    stage.measured("steps recorded", time.perf_counter() - started, "s")
    stage.measured("memory of graphs", (device_bytes(stage) - before) / 2**30, "GiB")


def device_bytes(stage: Stage) -> int:
    """Bytes of the device in use, by all that uses it."""
    if not stage.on_gpu:
        return 0
    free_bytes, total_bytes = torch.cuda.mem_get_info(stage.device)
    return total_bytes - free_bytes


def _prompt(stage: Stage, stepper: Stepper, tokens: int) -> list[int]:
    """Drawn on the host: to ask the device would be to wait for the steps in flight."""
    return stage.rng.choices(range(stepper.model.config.vocab_size), k=tokens)


def alone(stage: Stage, stepper: Stepper, name: str) -> None:
    """Tokens a second of one request."""
    steps = stage.scale.decode_steps
    stepper.add(_prompt(stage, stepper, min(128, stage.scale.prompt_tokens)), steps + 2 * _WARM_UP_STEPS + STEPS)
    for _ in range(_WARM_UP_STEPS):
        stepper.step()
    stepper.clock = DeviceClock() if stage.on_gpu else None
    times, seconds = _timed_steps(stepper, steps)
    tokens = sum(len(delta.token_ids) for each in times for delta in each.landed)
    stage.measured(name, tokens / seconds, "tok/s", f"{seconds / len(times) * 1e3:.2f} ms a step")
    _note_host(stage, stepper, name, times)
    profile_steps(stage, name, stepper.step)
    stepper.drain()


def _timed_steps(stepper: Stepper, count: int) -> tuple[list[StepTimes], float]:
    started = time.perf_counter()
    times = [each for each in (stepper.step() for _ in range(count)) if each is not None]
    return times, time.perf_counter() - started


def _note_host(stage: Stage, stepper: Stepper, name: str, times: list[StepTimes]) -> None:
    """Where the host's time goes, and whether the device ever waits for it."""
    for part in ("schedule", "launch", "wait", "commit", "host"):
        milliseconds = statistics.median(getattr(each, f"{part}_ns") for each in times) / 1e6
        stage.measured(f"{name}: {part}", milliseconds, "ms a step")
    if stepper.clock is not None:
        stage.measured(f"{name}: device idle", stepper.clock.idle_share(), "of the time")
        stepper.clock = None


def _first_token(stage: Stage, stepper: Stepper, tokens: int) -> None:
    """The median of some rounds, each with a prompt of its own."""
    milliseconds = []
    for _ in range(1 + stage.scale.ttft_rounds):
        prompt = _prompt(stage, stepper, tokens)
        stage.synchronize()
        started = time.perf_counter()
        stepper.add(prompt, max_tokens=4)
        while not any(delta.token_ids for delta in _landed(stepper)):
            pass
        milliseconds.append((time.perf_counter() - started) * 1e3)
        stepper.drain()
    stage.measured(names.ttft(tokens), statistics.median(milliseconds[1:]), "ms")


def _landed(stepper: Stepper) -> list[TokenDelta]:
    times = stepper.step()
    assert times is not None, "there is nothing to do, and no token has come"
    return times.landed


def _saturated(stage: Stage, stepper: Stepper) -> None:
    scale = stage.scale
    for index in range(scale.slots):
        done = scale.output_tokens * index // scale.slots
        stepper.add(_prompt(stage, stepper, scale.prompt_tokens + done), scale.output_tokens - done)
    ramp = time.perf_counter()
    ramp_tokens = 0
    while True:
        times = _step_and_refill(stage, stepper)
        ramp_tokens += times.tokens
        if times.rows == times.tokens and not any(map(len, stepper.scheduler.waiting_queues)):
            break
        if stage.seconds_left < scale.steady_seconds:
            raise TimeoutError("the prompts took all the time there was")
    ramp_s = time.perf_counter() - ramp
    stage.measured("prompts computed before", ramp_tokens / ramp_s, "tok/s", f"in {ramp_s:.1f} s")
    stepper.clock = DeviceClock() if stage.on_gpu else None
    started, all_times = time.perf_counter(), []
    while time.perf_counter() - started < min(scale.steady_seconds, max(stage.seconds_left, 1.0)):
        all_times.append(_step_and_refill(stage, stepper))
    seconds = time.perf_counter() - started
    tokens = sum(len(delta.token_ids) for each in all_times for delta in each.landed)
    rows = statistics.mean(each.rows for each in all_times)
    stage.measured(SATURATED, tokens / seconds, "tok/s", f"{rows:.0f} rows a step, {seconds:.1f} s")
    mixed = sum(each.tokens > each.rows for each in all_times) / len(all_times)
    stage.measured("saturated: steps with prompts", mixed, "of all")
    _note_host(stage, stepper, SATURATED, all_times)
    profile_steps(stage, SATURATED, lambda: _step_and_refill(stage, stepper))
    stepper.drain()


def _step_and_refill(stage: Stage, stepper: Stepper) -> StepTimes:
    """A step, and a new request for each that ended."""
    times = stepper.step()
    assert times is not None, "slots are always full"
    for delta in times.landed:
        if delta.error is not None:
            raise RuntimeError(f"request {delta.request_id}: {delta.error}")
        if delta.finish_reason is not None:
            scale = stage.scale
            stepper.add(_prompt(stage, stepper, scale.prompt_tokens), scale.output_tokens)
    return times
