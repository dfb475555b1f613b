"""The engine in a process of its own, against the engine in the gateway's: `python -m benchmarks.engine_process`.

Two servers with SmolLM2 on all cores, over loopback HTTP: one with `engine_process`, one without. The same load of
streamed answers goes to each in turn, first to the one and then to the other in each round, so that other
programs slow both alike. Bound: at concurrency 32 the process loses at most 3 % of tokens a second.
"""

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import uvloop

from benchmarks.intervals import bootstrap_median
from benchmarks.sse.client import Asked, Target, ask
from engine.catalog.catalog import fetch
from gateway.config.settings import Settings
from tests.support.program import Program, running

BOUND = 0.97
TOKENS = 64
LEVELS = (1, 8, 32)
PROMPT = "The gateway counts what passes through it, and tells the owner of the road how many came this way: "


def target_of(program: Program) -> Target:
    """Streamed completions of `TOKENS` tokens."""
    fields = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "temperature": 0}
    port = urlsplit(program.url).port
    assert port is not None
    return Target(port, program.key, "/v1/completions", orjson.dumps({"model": "smollm2"} | fields))


def tokens_s(asked: Asked) -> float:
    """Tokens a second in whole answers."""
    return len(asked.whole_ms) * TOKENS / asked.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each system in a round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        model = f"smollm2={fetch('smollm2', Settings().models_dir)}"
        targets: dict[str, Target] = {}
        for kind in ("thread", "process"):
            environment = {
                "TURNPIKE_ENGINE_PROCESS": str(kind == "process").lower(),
                "TURNPIKE_KV_CACHE_BYTES": "512MiB",
                "TURNPIKE_SPECULATION": "off",
            }
            folder = Path(name) / kind
            program = stack.enter_context(running(folder, "--model", model, environment=environment))
            program.command("limit", "set", "--tenant", "acme", "--concurrent", "1000")
            targets[kind] = target_of(program)
        for target in targets.values():
            uvloop.run(ask(target, 8, 3.0))
        for level in LEVELS:
            rates: dict[str, list[float]] = {kind: [] for kind in targets}
            first_ms: dict[str, list[float]] = {kind: [] for kind in targets}
            for number in range(options.rounds):
                for kind in sorted(targets, reverse=bool(number % 2)):
                    asked = uvloop.run(ask(targets[kind], level, options.seconds))
                    rates[kind].append(tokens_s(asked))
                    first_ms[kind].append(statistics.median(asked.first_ms))
            ratios = [own / thread for own, thread in zip(rates["process"], rates["thread"], strict=True)]
            bound = f", bound {BOUND}" if level == LEVELS[-1] else ""
            print(
                f"c={level:2d}: thread {statistics.median(rates['thread']):6.1f} tok/s, process "
                f"{statistics.median(rates['process']):6.1f}; of one round's ratios the median "
                f"{bootstrap_median(ratios):.3f}{bound}; first token p50 {statistics.median(first_ms['thread']):.0f} "
                f"and {statistics.median(first_ms['process']):.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
