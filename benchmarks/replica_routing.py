"""Which replica gets a request: five policies on five kinds of traffic: `python -m benchmarks.replica_routing`.

Simulated: the real scheduler, KV cache, wait prediction and choice, in virtual time (`engine/simulation/fleet.py`); no
model runs. A replica's steps take what the cost model of Llama 3.1 8B says of a device with a quarter of an H200's
rates, with noise. `--replicas`, `--gateways`, `--report-ms` and `--traffic` select runs; equal seeds give equal tables.

- round_robin, least_connections: as in other proxies. least_connections counts its own requests as of now, and those of
  other gateways as of the last report.
- power_of_two: the one with fewer requests of two drawn at random.
- cache_threshold: SGLang's cache-aware form. Where the numbers of requests differ by more than 64 and by more than a
  factor of 1.5, the fewest; else the longest cached prefix, if it is more than 0.3 of the prompt; else the fewest.
- predicted: the product's default. Seconds of predicted wait, less seconds that the cached prefix saves.
"""

import argparse
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from engine.simulation.fleet import Fleet, FleetShape
from engine.simulation.fleet_traffic import TrafficShape
from engine.workers.replica_choice import LeastConnections, Predicted, ReplicaView, RoundRobin, RoutingPolicy

CACHE_THRESHOLD, BALANCE_ABS, BALANCE_REL = 0.3, 64, 1.5


class PowerOfTwo:
    """The fewer requests of two that are drawn at random."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, views: Sequence[ReplicaView], prompt_tokens: int) -> int:
        drawn = self._random.sample(range(len(views)), min(2, len(views)))
        return min(drawn, key=lambda index: views[index].requests)


class CacheThreshold:
    """SGLang's cache-aware policy, with its defaults."""

    def __init__(self, random: Random) -> None:
        self._fewest = LeastConnections(random)

    def choose(self, views: Sequence[ReplicaView], prompt_tokens: int) -> int:
        most, fewest = max(view.requests for view in views), min(view.requests for view in views)
        if not (most - fewest > BALANCE_ABS and most > BALANCE_REL * fewest):
            longest = max(range(len(views)), key=lambda index: views[index].cached_tokens)
            if views[longest].cached_tokens > CACHE_THRESHOLD * prompt_tokens:
                return longest
        return self._fewest.choose(views, prompt_tokens)


POLICIES: dict[str, Callable[[Random], RoutingPolicy]] = {
    "round_robin": RoundRobin,
    "least_connections": LeastConnections,
    "power_of_two": PowerOfTwo,
    "cache_threshold": CacheThreshold,
    "predicted": Predicted,
}
TRAFFIC: dict[str, TrafficShape] = {
    "sessions": TrafficShape(sessions_per_s=0.7),
    "unique": TrafficShape(prompts_per_s=4.0),
    "mixed": TrafficShape(sessions_per_s=0.4, prompts_per_s=1.5),
    "burst": TrafficShape(sessions_per_s=0.3, prompts_per_s=1.0, burst=5.0),
}
"""Rates are of one replica. The answers of `sessions` take about two thirds of the steps' time where all prompts hit."""


class Row(NamedTuple):
    """What one run has shown. Times in milliseconds, by class name."""

    requests: int
    p50_ms: dict[str, float]
    p99_ms: dict[str, float]
    hit_share: float
    spread: float


def play(
    traffic: TrafficShape, shape: FleetShape, seed: int, seconds: float, policy: Callable[[Random], RoutingPolicy]
) -> Row:
    """One run of one policy. `traffic` is of one replica."""
    replicas = len(shape.speeds)
    served = Fleet(shape, policy, seed).play(traffic.scaled(replicas).draw(seed, seconds))
    classes = sorted({each.service_class for each in served})
    by_class = {name: sorted(each.ttft_ns / 1e6 for each in served if each.service_class == name) for name in classes}
    counts = [sum(each.replica == number for each in served) for number in range(replicas)]
    return Row(
        len(served),
        {name: times[len(times) // 2] for name, times in by_class.items()},
        {name: times[int(0.99 * len(times))] for name, times in by_class.items()},
        sum(each.cached_tokens for each in served) / sum(each.prompt_tokens for each in served),
        max(counts) * replicas / len(served),
    )


def show(title: str, rows: dict[str, Row]) -> None:
    """One table: a row for each policy."""
    print(f"\n{title}: {next(iter(rows.values())).requests} requests")
    print(
        f"  {'':18} {'premium TTFT p50 / p99':>24} {'standard p50 / p99':>20} {'hit share':>10} {'busiest / mean':>15}"
    )
    for name, row in rows.items():
        times = [f"{row.p50_ms[each]:.0f} / {row.p99_ms[each]:.0f} ms" for each in ("premium", "standard")]
        print(f"  {name:18} {times[0]:>24} {times[1]:>20} {row.hit_share:>10.3f} {row.spread:>15.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replica_routing", description=__doc__)
    parser.add_argument("--traffic", choices=TRAFFIC)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--report-ms", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="virtual time in which sessions begin")
    parser.add_argument("--load", type=float, default=1.0, help="factor on the rates of arrivals")
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for name in [arguments.traffic] if arguments.traffic else TRAFFIC:
        shape = FleetShape(
            speeds=(1.0,) * arguments.replicas,
            gateways=arguments.gateways,
            report_ns=round(arguments.report_ms * 1e6),
            num_blocks=arguments.blocks,
        )
        traffic = TRAFFIC[name].scaled(arguments.load)
        rows = {
            policy: play(traffic, shape, arguments.seed, arguments.seconds, POLICIES[policy]) for policy in POLICIES
        }
        show(
            f"{name}, {arguments.replicas} replicas, {arguments.gateways} gateways, reports {arguments.report_ms:g} ms old",
            rows,
        )


if __name__ == "__main__":
    main()
