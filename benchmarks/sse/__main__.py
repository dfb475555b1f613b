"""Cost of the gateway itself: `python -m benchmarks.sse`.

The whole program over loopback, one process, with keys, limits and the journal on. The servers share all cores but one;
this program, and the upstream that answers LiteLLM, have that one.

1. Tokens a second through the process, `STREAMS` long streams: of an engine that answers at once
   (`benchmarks.at_once`), and of the engine itself with a model that weighs nothing (`benchmarks.weightless`), in steps
   that offer more and more of them. Bound, for the first: 20,000 a second.
2. LiteLLM's proxy for comparison, one worker each: the same chat requests, answers of 20 tokens, whole and streamed; in
   rounds of all systems in turn. LiteLLM and `gateway` stand before an upstream and an engine that answer at once; what
   the upstream takes when asked directly is subtracted from LiteLLM's latency. `turnpike` has the engine inside, twenty
   steps of no time, of which nothing is subtracted. Our last byte waits until the request's usage is on the disk;
   LiteLLM keeps none here. Bounds, for `gateway`: requests a second 20 times LiteLLM's, added latency (p50, one request
   at a time) a tenth of it.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import orjson
import uvloop

from benchmarks import weightless
from benchmarks.cores import Cores
from benchmarks.sse import litellm
from benchmarks.sse.client import Asked, Target, ask
from benchmarks.sse.upstream import EVENTS
from tests.support.program import Program, running
from tests.support.servers import free_port

STREAMS = 128
STREAM_TOKENS = 1_000
OFFERED_STEPS_MS = (4.0, 2.0, 0.5)
THROUGHPUT_S = 10.0
CONCURRENCY = 32
ROUNDS = 3
ROUND_S = 2.0
ASKED_TOKENS_S = 20_000
ASKED_OWN_PROCESS_S = 60_000
ASKED_RATIO = 20.0
ASKED_LATENCY = 0.1
UNLIMITED = 1_000_000_000


@contextmanager
def ours(folder: Path, step_ms: float | None, cores: Cores, *, own_process: bool = False) -> Iterator[Program]:
    """The program with limits that count and refuse no request. Steps of None: its engine answers at once. With the
    engine in a process of its own they may use all cores."""
    module = "benchmarks.at_once" if step_ms is None else "benchmarks.weightless"
    serve, environment = weightless.command(step_ms or 0.0, module, own_process=own_process)
    model = f"{weightless.MODEL}={folder}"
    with ExitStack() as stack:
        with nullcontext() if own_process else cores.of_servers():
            program = stack.enter_context(running(folder, "--model", model, program=serve, environment=environment))
        most = str(UNLIMITED)
        limits = ("--requests-per-minute", most, "--tokens-per-minute", most, "--concurrent", "10000")
        program.command("limit", "set", "--tenant", "acme", *limits)
        time.sleep(6.0)  # until the server knows, and what a start leaves to do is done
        yield program


def port_of(program: Program) -> int:
    port = urlsplit(program.url).port
    assert port is not None
    return port


def throughput(
    folder: Path, step_ms: float | None, seconds: float, cores: Cores, *, own_process: bool = False
) -> float:
    """Tokens a second that reached clients, of those whose answers are whole."""
    fields = {"prompt": "Once", "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True}
    body = orjson.dumps({"model": weightless.MODEL} | fields)
    with ours(folder, step_ms, cores, own_process=own_process) as program:
        target = Target(port_of(program), program.key, "/v1/completions", body)
        asked = uvloop.run(ask(target, STREAMS, seconds))
    tokens_s = len(asked.whole_ms) * STREAM_TOKENS / asked.seconds
    offered = "all at once" if step_ms is None else f"{STREAMS / step_ms * 1e3:.0f} tok/s"
    each = len(asked.whole_ms) * STREAM_TOKENS / asked.counted
    print(f"  {offered} offered: {tokens_s:.0f} came, {each:.1f} an event", flush=True)
    return tokens_s


def chat(*, stream: bool) -> bytes:
    messages = [{"role": "user", "content": "What time is it?"}]
    return orjson.dumps({"model": weightless.MODEL, "messages": messages, "max_tokens": EVENTS, "stream": stream})


def rounds(targets: Mapping[str, Target], concurrency: int, count: int, seconds: float) -> dict[str, list[Asked]]:
    """Each system in turn, so that other processes slow all of them alike."""
    asked: dict[str, list[Asked]] = {name: [] for name in targets}
    for _ in range(count):
        for name, target in targets.items():
            asked[name].append(uvloop.run(ask(target, concurrency, seconds)))
    return asked


def p50_ms(asked: list[Asked], *, first: bool) -> float:
    return statistics.median(ms for each in asked for ms in (each.first_ms if first else each.whole_ms))


def compare(systems: Mapping[str, tuple[int, str]], count: int, seconds: float) -> None:
    for stream in (False, True):
        body = chat(stream=stream)
        targets = {name: Target(port, key, "/v1/chat/completions", body) for name, (port, key) in systems.items()}
        for target in targets.values():
            uvloop.run(ask(target, 4, 1.0))
        alone, together = rounds(targets, 1, count, seconds), rounds(targets, CONCURRENCY, count, seconds)
        print(f"  {'streamed' if stream else 'whole'}:")
        for name in systems:
            rate = statistics.median(each.per_second for each in together[name])
            first_ms, whole_ms = (p50_ms(alone[name], first=first) for first in (True, False))
            print(
                f"    {name:>10}: {rate:7.0f} requests/s; one at a time p50 {first_ms:.2f} ms to the first byte, "
                f"{whole_ms:.2f} ms to the last"
            )
        rates = {name: statistics.median(each.per_second for each in together[name]) for name in systems}
        for name in ("gateway", "turnpike"):
            asked = f" ({ASKED_RATIO:.0f} and {ASKED_LATENCY} asked)" if name == "gateway" else ""
            added = []
            for first in (True, False):
                theirs = p50_ms(alone["litellm"], first=first) - p50_ms(alone["direct"], first=first)
                added.append(f"{p50_ms(alone[name], first=first) / theirs:.3f}")
            print(
                f"    {name} over LiteLLM: requests/s {rates[name] / rates['litellm']:.1f}, added p50 to the first "
                f"byte {added[0]}, to the last {added[1]}{asked}",
                flush=True,
            )


@contextmanager
def upstream() -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.sse.upstream", str(port)])
    try:
        while True:
            try:
                httpx.post(f"http://127.0.0.1:{port}/", json={})
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=ROUND_S, help="of each round of the comparison with LiteLLM")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-litellm", action="store_true", help="tokens a second alone")
    options = parser.parse_args()
    if not options.no_litellm:
        litellm.environment()
    cores = Cores()
    with tempfile.TemporaryDirectory() as name:
        print(f"tokens a second through one process, {STREAMS} streams")
        alone = throughput(Path(name) / "at_once", None, THROUGHPUT_S, cores)
        print(f"  of the gateway alone {ASKED_TOKENS_S} are asked: {alone / ASKED_TOKENS_S:.2f} of that", flush=True)
        for step_ms in OFFERED_STEPS_MS:
            throughput(Path(name) / f"{step_ms}", step_ms, THROUGHPUT_S, cores)
        print(f"with the engine in a process of its own, on all cores ({ASKED_OWN_PROCESS_S} asked)")
        for step_ms in OFFERED_STEPS_MS:
            throughput(Path(name) / f"own-{step_ms}", step_ms, THROUGHPUT_S, cores, own_process=True)
        if options.no_litellm:
            return
        print(f"beside LiteLLM {litellm.VERSION}, answers of {EVENTS} tokens, {CONCURRENCY} at a time")
        with ExitStack() as stack:
            alone_in = stack.enter_context(ours(Path(name) / "gateway", None, cores))
            program = stack.enter_context(ours(Path(name) / "beside", 0.0, cores))
            port = stack.enter_context(upstream())
            with cores.of_servers():
                rival = stack.enter_context(litellm.proxy(Path(name), weightless.MODEL, port))
            systems = {
                "direct": (port, ""),
                "litellm": (rival, litellm.MASTER_KEY),
                "gateway": (port_of(alone_in), alone_in.key),
                "turnpike": (port_of(program), program.key),
            }
            compare(systems, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
