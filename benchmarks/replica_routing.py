"""Which replica gets a request: five policies on five kinds of traffic: `python -m benchmarks.replica_routing`.

Simulated: the real scheduler, KV cache, wait prediction and choice, in virtual time (`engine/simulation/fleet.py`); no
model runs. A replica's steps take what the cost model of Llama 3.1 8B says of a device with a quarter of an H200's
rates, with noise. `--replicas`, `--gateways`, `--report-ms` and `--traffic` select runs; equal seeds give equal tables.

`--real` plays a small trace of sessions with SmolLM2 on two `turnpike worker` processes behind one gateway instead,
with each way that `replica_routing` has.

- round_robin, least_connections: as in other proxies. least_connections counts its own requests as of now, and those of
  other gateways as of the last report.
- power_of_two: the one with fewer requests of two drawn at random.
- cache_threshold: SGLang's cache-aware form. Where the numbers of requests differ by more than 64 and by more than a
  factor of 1.5, the fewest; else the longest cached prefix, if it is more than 0.3 of the prompt; else the fewest.
- predicted: the product's default. Seconds of predicted wait, less seconds that the cached prefix saves.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from benchmarks.replica_processes import play_real
from engine.simulation.fleet import Fleet
from engine.simulation.fleet_shape import FleetShape
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
"""Rates are of one replica."""


class Row(NamedTuple):
    """The result of one run. Times in milliseconds, by class name."""

    requests: int
    p50_ms: dict[str, float]
    p99_ms: dict[str, float]
    hit_share: float
    spread: float
    token_ms: float


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
        sum(each.token_ns for each in served) / len(served) / 1e6,
    )


class Case(NamedTuple):
    """A table: its traffic, and the fleet that serves it. Blocks are those of one replica."""

    traffic: str
    replicas: int = 4
    gateways: int = 1
    report_ms: float = 2.0
    load: float = 1.0
    blocks: int = 4096
    slow: bool = False
    """Whether the first replica takes twice the time for a step."""

    @property
    def shape(self) -> FleetShape:
        """Of its fleet."""
        return FleetShape(
            speeds=(2.0 if self.slow else 1.0, *(1.0,) * (self.replicas - 1)),
            gateways=self.gateways,
            report_ns=round(self.report_ms * 1e6),
            num_blocks=self.blocks,
        )

    def __str__(self) -> str:
        speed = ", one of half the speed" if self.slow else ""
        reports = f"reports {self.report_ms:g} ms old"
        fleet = f"{self.replicas} replicas{speed}, gateways: {self.gateways}"
        return f"{self.traffic}, {fleet}, {reports}, {self.blocks} blocks"


CASES = (
    Case("sessions", load=1.5),
    Case("unique"),
    Case("mixed"),
    Case("burst"),
    Case("unique", slow=True, load=0.8),
    Case("unique", gateways=4, report_ms=100),
    Case("sessions", gateways=2, report_ms=50, load=1.5),
    Case("sessions", gateways=4, report_ms=100, load=1.5, blocks=2048),
    Case("sessions", replicas=16, load=1.5),
)
SECONDS, WIDE_SECONDS = 12.0, 4.0
"""Virtual time in which sessions begin; the latter with 16 replicas, which get more of them."""


def play_all(case: Case, seed: int, seconds: float) -> dict[str, Row]:
    """All policies on one case; the last without prefix events, by what each gateway has sent."""
    traffic = TRAFFIC[case.traffic].scaled(case.load)
    rows = {name: play(traffic, case.shape, seed, seconds, policy) for name, policy in POLICIES.items()}
    if traffic.sessions_per_s:
        shape = replace(case.shape, events=False)
        rows["predicted, as sent"] = play(traffic, shape, seed, seconds, Predicted)
    return rows


def show(case: Case, rows: dict[str, Row]) -> None:
    """One table: a row for each policy."""
    print(f"\n{case}: {next(iter(rows.values())).requests} requests")
    titles = "premium p50 / p99", "standard p50 / p99", "hit share", "busiest / mean", "mean ITL"
    print(f"  {'TTFT':18} {titles[0]:>19} {titles[1]:>20} {titles[2]:>10} {titles[3]:>15} {titles[4]:>9}")
    for name, row in rows.items():
        premium, standard = (f"{row.p50_ms[each]:.0f} / {row.p99_ms[each]:.0f} ms" for each in ("premium", "standard"))
        shares = f"{row.hit_share:>10.3f} {row.spread:>15.2f} {row.token_ms:>6.1f} ms"
        print(f"  {name:18} {premium:>19} {standard:>20} {shares}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replica_routing", description=__doc__)
    parser.add_argument("--traffic", choices=TRAFFIC, help="one table of this traffic, with the options below")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--report-ms", type=float, default=2.0, help="age of reports when they arrive, 0 to 100")
    parser.add_argument("--load", type=float, default=1.0, help="factor on the rates of arrivals")
    parser.add_argument("--blocks", type=int, default=4096, help="KV blocks of a replica")
    parser.add_argument("--slow", action="store_true", help="the first replica has half the speed")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual time in which sessions begin")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true", help="two workers and a gateway as processes of this machine")
    options = parser.parse_args()
    if options.real:
        play_real()
        return
    cases: Sequence[Case] = CASES
    if options.traffic:
        sizes = options.replicas, options.gateways, options.report_ms, options.load, options.blocks, options.slow
        cases = (Case(options.traffic, *sizes),)
    for case in cases:
        wide = case.replicas == 16 and not options.traffic
        show(case, play_all(case, options.seed, WIDE_SECONDS if wide else options.seconds))


if __name__ == "__main__":
    main()
