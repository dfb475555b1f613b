"""Tokens a second with drafts off, always on, and as the controller decides: `python -m benchmarks.speculation`.

The same requests, in one engine, in turns that rotate; a ratio is the median of those within a round. "at T = 0" or 1
is the requests' temperature. Four parts:

- chat      SmolLM2 with its small model, prompts that the small one was not trained on (c = 1: at least 1.1 of off)
- copy      SmolLM2 with look-up, answers that copy
- pair      half a billion parameters at true cost, a draft model of acceptance 0.7 (c = 1: at least 1.5 of off); at any
            concurrency, the controller at least 0.97 of the better of the other two, and the plot
- ring      half a billion parameters made to copy, with look-up (c = 1: at least 1.8 of off)

Without `--full` there are fewer concurrencies and rounds: under eight minutes in all. `--concurrency 16` measures the
pair at that alone, in less than three, and leaves the plot as it is.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.speculation.copying import copying_prompts
from benchmarks.speculation.modes import MODEL, Bench, Comparison, Job, Mode
from benchmarks.speculation.pair import FREQUENT, agreeing_pair, copying_model, ring_prompt
from benchmarks.speculation.plot import draw
from benchmarks.traffic import make_jobs
from engine import Engine, SamplingParams
from engine.catalog.catalog import fetch
from engine.distillation.prompts import read_prompts
from gateway.config.settings import Settings

ROOT = Path(__file__).parents[2]
PLOT = ROOT / "benchmarks" / "plots" / "speculation.png"
ACCEPTANCE = 0.7
COPY_PROBABILITY = 0.9
QUICK_LEVELS, FULL_LEVELS = (1, 4, 16), (1, 2, 4, 8, 16, 32)
GREEDY_TOKENS = 64
PAIR_TOKENS = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="every concurrency, more rounds and longer answers")
    parser.add_argument("--part", choices=PARTS, nargs="+", help="all, or the pair where concurrencies are given")
    parser.add_argument("--concurrency", type=int, nargs="+", help="these instead of those of the part")
    parser.add_argument("--plot", type=Path, default=PLOT)
    options = parser.parse_args()
    print(
        "output tok/s                    off     on  controller   on/off  controller/off  /better  (of rounds)"
        "  accepted   same"
    )
    for part in options.part or (["pair"] if options.concurrency else PARTS):
        PARTS[part](options)


def chat(options: argparse.Namespace) -> None:
    models = Settings().models_dir
    with Bench(fetch("smollm2", models), fetch("smollm2-small", models)) as bench:
        jobs = _answers_to(bench.engine, _held_out_prompts(), GREEDY_TOKENS * (1 + options.full))
        _measure(bench, "SmolLM2, small model, T = 0", _slices(jobs, 6), options, (1,), FULL_LEVELS)


def copy(options: argparse.Namespace) -> None:
    with Bench(fetch("smollm2", Settings().models_dir), None) as bench:
        jobs = _answers_to(bench.engine, copying_prompts(), GREEDY_TOKENS * (1 + options.full))
        _measure(bench, "SmolLM2, look-up, T = 0", _slices(jobs, 4), options, (1,), FULL_LEVELS)


def pair(options: argparse.Namespace) -> None:
    tokens = PAIR_TOKENS * (1 + options.full)
    with tempfile.TemporaryDirectory() as root:
        target, draft, reached = agreeing_pair(Path(root), ACCEPTANCE)
        print(f"0.5 B, draft of its first layers; one draft comes true in {reached:.2f} of all places")
        bench = Bench(target, draft)
    with bench:

        def jobs_of(number: int, count: int) -> list[Job]:
            prompts = make_jobs(count, FREQUENT, seed=number, scale=0.5)
            return [Job(job.prompt, _sampled(index, tokens)) for index, job in enumerate(prompts)]

        title = f"0.5 B, draft of acceptance {reached:.2f}, T = 1"
        curve = _measure(bench, title, jobs_of, options, QUICK_LEVELS, FULL_LEVELS)
    if not options.concurrency:
        draw(curve, options.plot, title)


def ring(options: argparse.Namespace) -> None:
    tokens = PAIR_TOKENS * 2 * (1 + options.full)
    with tempfile.TemporaryDirectory() as root:
        bench = Bench(copying_model(Path(root), COPY_PROBABILITY), None)
    with bench:

        def jobs_of(number: int, count: int) -> list[Job]:
            starts = range(31 * number, 31 * number + 17 * count, 17)
            return [Job(ring_prompt(start), _sampled(start, tokens)) for start in starts]

        title = f"0.5 B that copies with {COPY_PROBABILITY}, look-up, T = 1"
        _measure(bench, title, jobs_of, options, (1,), FULL_LEVELS)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {"chat": chat, "copy": copy, "pair": pair, "ring": ring}


def _measure(
    bench: Bench,
    title: str,
    jobs_of: Callable[[int, int], Sequence[Job]],
    options: argparse.Namespace,
    quick: Sequence[int],
    full: Sequence[int],
) -> dict[int, Comparison]:
    """One line for each concurrency. `jobs_of` gives a round's jobs: its number, and how many at least."""
    print(title)
    curve = {}
    for concurrency in options.concurrency or (full if options.full else quick):
        rounds = 6 if options.full else 3
        count = max(concurrency, 4) if options.full else concurrency

        def jobs(number: int, count: int = count) -> Sequence[Job]:
            return jobs_of(number, count)

        each = curve[concurrency] = bench.compare(jobs, concurrency, rounds)
        off, on, controller = (each.median(mode) for mode in (Mode.OFF, Mode.ON, Mode.CONTROLLER))
        beside = each.ratios(Mode.CONTROLLER, Mode.OFF, Mode.ON)
        print(
            f"  c={concurrency:<3} {off:28.1f} {on:6.1f} {controller:11.1f} {each.ratio(Mode.ON, Mode.OFF):8.2f}"
            f" {each.ratio(Mode.CONTROLLER, Mode.OFF):15.2f} {each.ratio(Mode.CONTROLLER, Mode.OFF, Mode.ON):8.2f}"
            f"  {min(beside):4.2f}-{max(beside):4.2f} {each.acceptance:10.2f} {each.same:6.0%}",
            flush=True,
        )
    return curve


def _slices(jobs: Sequence[Job], least: int) -> Callable[[int, int], list[Job]]:
    """Rounds go through the jobs, at least `least` at a time, from the first again after the last."""

    def jobs_of(number: int, count: int) -> list[Job]:
        count = max(count, least)
        return [jobs[(number * count + index) % len(jobs)] for index in range(count)]

    return jobs_of


def _sampled(seed: int, tokens: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=tokens, ignore_eos=True)


def _answers_to(engine: Engine, prompts: Sequence[str], tokens: int) -> list[Job]:
    text = engine.models[MODEL].text
    params = SamplingParams(temperature=0, max_tokens=tokens)
    return [Job(text.encode_chat([{"role": "user", "content": prompt}]), params) for prompt in prompts]


def _held_out_prompts() -> list[str]:
    """Of the prompts that the small model was distilled with, those that are kept for judging it; single turns."""
    with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as file:
        subprocess.run([sys.executable, ROOT / "models" / "prompts.py"], stdout=file, check=True)
        prompts = read_prompts(Path(file.name))
    single = [each for each in prompts if each.held_out and len(each.messages) == 1]
    return [str(each.messages[0]["content"]) for each in single]


if __name__ == "__main__":
    main()
