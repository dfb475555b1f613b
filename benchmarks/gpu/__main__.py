"""Runs all stages and reports: `python -m benchmarks.gpu [FOLDER]`, from the root of a checkout.

Takes one GPU and less than eight minutes. Writes gpu.json and gpu.txt to FOLDER, or to $OUT, or to the working folder.
Exits with 1 where a check failed or a stage broke, with 2 where there is no GPU.

Each stage is a process of its own: an illegal access ends all that its process can do on the device, and a kernel that
never ends is ended with it. What is correct is asked for in several processes at once, as most of their time they
compile; what is measured has the device to itself. A stage that has used up its time stops by itself, and is stopped if
it does not.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu import report
from benchmarks.gpu.scale import FULL
from benchmarks.gpu.stage import Outcome, Stage, Status, read_outcomes

_WHOLE_RUN_S = 470
_GRACE_S = 15
"""How long a stage may go on after its time before it is stopped: one measurement, and the start of its process."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A stage and the seconds it may take. `checks` may share the device; `ours` says whether it failing is a fault."""

    name: str
    seconds: float
    run: Callable[[Stage], None]
    checks: bool = False
    ours: bool = True


def _stages() -> Mapping[str, _Kind]:
    """Imported here, since kernels need Triton and a GPU."""
    from benchmarks.gpu import attention, end_to_end, golden, limits, peers, sweep
    from benchmarks.gpu.checks import attention as attention_checks
    from benchmarks.gpu.checks import elementwise, graphs, sampling, step

    kinds = [
        _Kind(report.LIMITS, 20, limits.run),
        _Kind("check attention", 80, attention_checks.run, checks=True),
        _Kind("check head dimensions", 80, attention_checks.run_dimensions, checks=True),
        _Kind("check elementwise", 80, elementwise.run, checks=True),
        _Kind("check sampling", 80, sampling.run, checks=True),
        _Kind("check steps", 80, step.run, checks=True),
        _Kind("check graphs", 80, graphs.run, checks=True),
        _Kind("check candidates", 80, sweep.check, checks=True),
        _Kind("golden", 80, golden.run, checks=True),
        _Kind(report.ATTENTION, 50, attention.run),
        _Kind(report.served("llama-3.2-1b"), 50, partial(end_to_end.run, model_name="llama-3.2-1b")),
        _Kind(report.served("llama-3.1-8b"), 90, partial(end_to_end.run, model_name="llama-3.1-8b")),
        _Kind(report.peer("llama-3.1-8b"), 70, partial(peers.run, model_name="llama-3.1-8b"), ours=False),
        _Kind(report.peer("llama-3.2-1b"), 40, partial(peers.run, model_name="llama-3.2-1b"), ours=False),
        _Kind("sweep", 45, sweep.run),
    ]
    return {kind.name: kind for kind in kinds}


def _run_stage(kind: _Kind, seconds: float, seed: int, file: Path) -> None:
    """In the stage's own process."""
    torch.cuda.set_device(0)
    stage = Stage(kind.name, torch.device("cuda", 0), FULL, seconds, seed, file)
    kind.run(stage)


def _start(kind: _Kind, seconds: float, seed: int, file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-u", "-m", "benchmarks.gpu", "--stage", kind.name]
    command += ["--seconds", str(seconds), "--seed", str(seed), "--file", str(file)]
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(command, env=os.environ | quiet, start_new_session=True)


def _finish(kind: _Kind, process: subprocess.Popen[bytes], deadline: float, file: Path) -> list[Outcome]:
    """All that the stage wrote down, and one outcome more if it did not end as it should."""
    outcomes: list[Outcome] = []
    bad: Status = "failed" if kind.ours else "skipped"
    try:
        status = process.wait(max(1.0, deadline - time.monotonic()))
        if status:
            outcomes.append(Outcome(kind.name, "the stage", bad, detail=f"ended with status {status}"))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        outcomes.append(Outcome(kind.name, "the stage", bad, detail="was stopped: it had used up its time"))
    for outcome in outcomes:
        print(outcome.line(), flush=True)
    return [*read_outcomes(file), *outcomes]


def _run_all(kinds: Sequence[_Kind], seed: int, scratch: Path) -> list[Outcome]:
    """Checks together where they follow one another, all else one by one."""
    end = time.monotonic() + _WHOLE_RUN_S
    outcomes: list[Outcome] = []
    rest = list(kinds)
    while rest:
        together = [rest.pop(0)]
        while rest and rest[0].checks and together[0].checks:
            together.append(rest.pop(0))
        seconds = min(max(kind.seconds for kind in together), end - time.monotonic() - _GRACE_S)
        if seconds < 1:
            outcomes += [Outcome(kind.name, "the stage", "skipped", detail="no time left") for kind in together]
            continue
        print(f"== {', '.join(kind.name for kind in together)}: at most {seconds:.0f} s", flush=True)
        started = time.monotonic()
        files = [scratch / f"{kind.name.replace(' ', '-')}.jsonl" for kind in together]
        processes = [_start(kind, seconds, seed, file) for kind, file in zip(together, files, strict=True)]
        for kind, process, file in zip(together, processes, files, strict=True):
            outcomes += _finish(kind, process, started + seconds + _GRACE_S, file)
        print(f"== took {time.monotonic() - started:.1f} s", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="run these stages alone")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.gpu needs a GPU, its driver and a torch that is built for CUDA: torch finds none here")
        return 2
    kinds = _stages()
    if options.stage:
        _run_stage(kinds[options.stage], options.seconds, options.seed, options.file)
        return 0
    facts = report.surroundings(options.seed)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    chosen = [kind for kind in kinds.values() if not options.only or kind.name in options.only]
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = _run_all(chosen, options.seed, Path(scratch))
    rows = list(report.rows_of(report.Figures(outcomes), FULL))
    report.write(options.folder, facts, outcomes, rows)
    return _summary(outcomes, rows)


def _summary(outcomes: Sequence[Outcome], rows: Sequence[report.Row]) -> int:
    print(report.table(rows))
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    skipped = [outcome for outcome in outcomes if outcome.status == "skipped"]
    for outcome in (*skipped, *failed):
        print(outcome.line())
    counts = {status: sum(each.status == status for each in outcomes) for status in ("passed", "measured")}
    print(f"{counts['passed']} passed, {counts['measured']} measured, {len(skipped)} skipped, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
