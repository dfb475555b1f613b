"""Runs all stages and reports: `python -m benchmarks.gpu [FOLDER]`, from the root of a checkout.

Takes one GPU and less than eight minutes. After every stage it writes gpu.json, gpu.txt and the stages' outcomes and
tracebacks to FOLDER, or to $OUT, or to the working folder: a run that is killed keeps what it had. Exits with 1 if a
check failed or a stage broke, with 2 if there is no GPU.

Each stage is a process of its own: an illegal access ends all that its process can do on the device, and a kernel that
never ends is ended with it. Correctness is checked in several processes at once, as most of their time they compile;
measurements have the device to themselves. A stage that has used up its time stops by itself, and is stopped if it does
not. Seconds that a stage leaves are added to the next ones.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.gpu import report
from benchmarks.gpu.kinds import KINDS, Kind, together
from benchmarks.gpu.scale import FULL
from benchmarks.gpu.stage import Outcome, Stage, Status, read_outcomes

WHOLE_RUN_S = 470
_GRACE_S = 15
"""Time of a stage after its end before it is stopped: one measurement, and the start of its process."""


def _run_stage(kind: Kind, seconds: float, seed: int, file: Path) -> None:
    """In the stage's own process."""
    torch.cuda.set_device(0)
    kind.work()(Stage(kind.name, torch.device("cuda", 0), FULL, seconds, seed, file))


def _start(kind: Kind, seconds: float, seed: int, file: Path) -> subprocess.Popen[bytes]:
    """Tracebacks and warnings go to a file next to the outcomes."""
    command = [sys.executable, "-u", "-m", "benchmarks.gpu", "--stage", kind.name]
    command += ["--seconds", str(seconds), "--seed", str(seed), "--file", str(file)]
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    with file.with_suffix(".err").open("wb") as errors:
        return subprocess.Popen(command, env=os.environ | quiet, stderr=errors, start_new_session=True)


def _finish(kind: Kind, process: subprocess.Popen[bytes], deadline: float, file: Path) -> list[Outcome]:
    """All that the stage wrote down, and one outcome more if it did not end as it should."""
    outcomes: list[Outcome] = []
    bad: Status = "failed" if kind.ours else "skipped"
    try:
        status = process.wait(max(1.0, deadline - time.monotonic()))
        if status:
            detail = f"ended with status {status}{_last_line(file.with_suffix('.err'))}"
            outcomes.append(Outcome(kind.name, "the stage", bad, detail=detail))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        outcomes.append(Outcome(kind.name, "the stage", bad, detail="was stopped: it had used up its time"))
    for outcome in outcomes:
        print(outcome.line(), flush=True)
    return [*read_outcomes(file), *outcomes]


def _last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    return f": {lines[-1][:300]}" if lines else ""


def _run_all(
    kinds: Sequence[Kind], seed: int, folder: Path, whole_s: float, on_outcomes: Callable[[list[Outcome]], None]
) -> list[Outcome]:
    """Run the stages. `on_outcomes` gets all outcomes so far after each of them."""
    began = time.monotonic()
    planned_s = 0.0
    outcomes: list[Outcome] = []
    for group in together(tuple(kinds)):
        planned_s += max(kind.seconds for kind in group)
        seconds = min(planned_s, whole_s - _GRACE_S) - (time.monotonic() - began)
        if seconds < 1:
            outcomes += [Outcome(kind.name, "the stage", "skipped", detail="no time left") for kind in group]
            continue
        print(f"== {', '.join(kind.name for kind in group)}: at most {seconds:.0f} s", flush=True)
        started = time.monotonic()
        files = [folder / f"{kind.name.replace(' ', '-')}.jsonl" for kind in group]
        processes = [_start(kind, seconds, seed, file) for kind, file in zip(group, files, strict=True)]
        for kind, process, file in zip(group, processes, files, strict=True):
            outcomes += _finish(kind, process, started + seconds + _GRACE_S, file)
        print(f"== took {time.monotonic() - started:.1f} s", flush=True)
        on_outcomes(outcomes)
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
    if options.stage:
        kind = next(kind for kind in KINDS if kind.name == options.stage)
        _run_stage(kind, options.seconds, options.seed, options.file)
        return 0
    facts = report.surroundings(options.seed)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    chosen = [kind for kind in KINDS if not options.only or kind.name in options.only]
    stages = options.folder / "stages"
    stages.mkdir(parents=True, exist_ok=True)
    for stale in stages.iterdir():
        stale.unlink()

    def write(outcomes: list[Outcome]) -> None:
        report.write(options.folder, facts, outcomes, list(report.rows_of(report.Figures(outcomes), FULL)))

    outcomes = _run_all(chosen, options.seed, stages, WHOLE_RUN_S, write)
    return _summary(outcomes, list(report.rows_of(report.Figures(outcomes), FULL)))


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
