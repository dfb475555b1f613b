"""Command line: `python -m benchmarks.peers --prepare`, then `--part NAME`; `--report` makes a table of all runs."""

import argparse
import dataclasses
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.limits import measured_limits, print_limits
from benchmarks.peers import llama_cpp, vllm
from benchmarks.peers.environment import InstallError, Step, install, root
from benchmarks.peers.parts import ASKED, LEVELS, PARTS, QUICK_LEVELS
from benchmarks.peers.results import load_runs
from benchmarks.peers.running import Plan, run_part
from benchmarks.peers.systems import Setting
from benchmarks.peers.table import describe

_CONTEXT = 1024
"""Tokens of a sequence, prompt and answer: at most 512 + 256, and the chat's own."""


def prepare() -> bool:
    """Install the peers that are not there yet; whether all are now."""
    done = True
    peers: dict[str, tuple[Path, tuple[Step, ...]]] = {
        "llama.cpp": (llama_cpp.folder(), llama_cpp.STEPS),
        "vLLM": (vllm.folder(), vllm.STEPS),
    }
    for name, (folder, steps) in peers.items():
        try:
            install(folder, steps)
            print(f"{name} is there: {folder}", flush=True)
        except InstallError as error:
            print(f"{name} is not installed: {error}", flush=True)
            done = False
    return done


def report(results: Path) -> None:
    runs = load_runs(results)
    for name in PARTS:
        if mine := [run for run in runs if run.part == name and run.samples]:
            print("\n".join(describe(mine, ASKED.get(name, ()))))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--prepare", action="store_true", help="install the peers, or resume an interrupted install")
    parser.add_argument("--report", action="store_true", help="tables of all runs so far, and no new one")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--prefix", action="store_true", help="--part prefix")
    parser.add_argument("--levels", type=int, nargs="+", choices=LEVELS, help="requests at a time [all of the part's]")
    parser.add_argument("--only", nargs="+", metavar="SERVER", help="leave the part's other servers out")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speculation", choices=("off", "auto"), default="off", help="Turnpike's drafts")
    parser.add_argument(
        "--quick", action="store_true", help="one pass of half the requests at 1 and 4: whether all runs"
    )
    parser.add_argument("--results", type=Path, default=root() / "results", help="folder of what was measured")
    return parser.parse_args()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and so end the servers, too
    given = options()
    if given.prepare:
        raise SystemExit(0 if prepare() else 1)
    if given.report:
        report(given.results)
        return
    limits = measured_limits()
    print_limits(limits)
    for name in ["prefix"] if given.prefix else given.part:
        part = PARTS[name]()
        if given.only:
            kept = tuple(each for each in part.contestants if each.name in given.only)
            part = dataclasses.replace(part, contestants=kept)
        levels = tuple(given.levels or (QUICK_LEVELS if given.quick and not part.prefix else part.levels))
        plan = Plan(levels, 1 if given.quick else given.passes, given.seed, 0.5 if given.quick else 1.0)
        with tempfile.TemporaryDirectory(prefix="turnpike-peers-") as scratch:
            setting = Setting(given.threads, _CONTEXT, max((*levels, *part.levels)), Path(scratch), given.speculation)
            run = run_part(part, plan, setting, limits, given.results)
        print("\n".join(describe([run], ASKED.get(name, ()))))


if __name__ == "__main__":
    main()
