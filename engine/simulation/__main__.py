"""Runs the scheduler's simulation.

`--seed 7` runs one seed with every check after each call; a failure is reduced and shown with the command that replays
it. `--seeds`, `--steps` and `--seconds` run a campaign from that seed on instead, until the first limit is reached;
equal seeds give equal traces, on any number of `--jobs`. `--ahead` simulates asynchronous scheduling, `--stages 2` a
pipeline of two stages, `--speculate` drafts, `--states` a model with recurrent layers, `--windows` one with layers of
limited attention, `--adapters` one with few slots for many adapters, `--yields` a lowest class that yields, `--tier` a
second pool of KV blocks, and `--blocks-a-step 2` requests that are long relative to the KV blocks that a step
allocates.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from engine.memory.step_blocks import BLOCKS_A_STEP
from engine.simulation.campaign import Limits, run_campaign
from engine.simulation.patterns import ModelOptions, traffic_from_seed
from engine.simulation.report import SimulationFailure
from engine.simulation.shrink import shrink
from engine.simulation.simulator import simulate_traffic
from engine.simulation.traffic import Traffic


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if an invariant was violated."""
    arguments = _arguments(argv)
    limits = Limits(arguments.seeds, arguments.steps, arguments.seconds)
    if limits != Limits():
        report = run_campaign(arguments.seed, limits, arguments.jobs, **_options(arguments))
        print(report)
        if report.failed_seed is None:
            return 0
        _show_reduced(_traffic(report.failed_seed, arguments))
        return 1
    traffic = _traffic(arguments.seed, arguments)
    if arguments.only is not None or arguments.faults is not None:
        return _run(_reduced(traffic, arguments))
    status = _run(traffic)
    if status:
        _show_reduced(traffic)
    return status


def _arguments(argv: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(prog="python -m engine.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the seed, or the first one")
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument("--steps", type=int, help="number of steps, rounded up to whole seeds")
    parser.add_argument("--seconds", type=float, help="wall time")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--ahead", action="store_const", const=1, default=0, help="plan a step ahead of the device")
    parser.add_argument("--stages", type=int, default=1, help="stages of a pipeline")
    parser.add_argument("--speculate", action="store_true", help="with drafts, right and wrong ones")
    parser.add_argument("--states", action="store_true", help="a model with recurrent layers")
    parser.add_argument("--windows", action="store_true", help="a model with layers of limited attention")
    parser.add_argument("--adapters", action="store_true", help="a model with few slots for many adapters")
    parser.add_argument("--yields", action="store_true", help="the lowest class yields")
    parser.add_argument("--tier", action="store_true", help="a second pool of KV blocks, whose copier fails at times")
    parser.add_argument(
        "--blocks-a-step", type=int, default=BLOCKS_A_STEP, help="maximum blocks allocated and returned per step"
    )
    parser.add_argument("--only", type=_indices, help="only these requests of the seed, by index: 3,17,41")
    parser.add_argument("--faults", type=_indices, help="only these faults of the seed, by index")
    return parser.parse_args(argv)


def _traffic(seed: int, arguments: Namespace) -> Traffic:
    return traffic_from_seed(seed, **_options(arguments))


def _options(arguments: Namespace) -> ModelOptions:
    return ModelOptions(
        ahead=arguments.ahead,
        stages=arguments.stages,
        speculate=arguments.speculate,
        blocks_a_step=arguments.blocks_a_step,
        states=arguments.states,
        windows=arguments.windows,
        adapters=arguments.adapters,
        yields=arguments.yields,
        tier=arguments.tier,
    )


def _indices(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _reduced(traffic: Traffic, arguments: Namespace) -> Traffic:
    everything: tuple[Sequence[int], Sequence[int]] = range(len(traffic.arrivals)), range(len(traffic.faults))
    arrivals, faults = (
        every if chosen is None else chosen
        for every, chosen in zip(everything, (arguments.only, arguments.faults), strict=True)
    )
    return traffic.only(arrivals, faults)


def _run(traffic: Traffic) -> int:
    try:
        print(simulate_traffic(traffic, check_every=1))
    except SimulationFailure as failure:
        print(failure)
        return 1
    return 0


def _show_reduced(traffic: Traffic) -> None:
    case = shrink(traffic)
    if case is None:
        print("it does not fail when it is run alone")
        return
    print(f"\nreduced in {case.runs} runs to {len(case.arrivals)} requests and {len(case.faults)} faults:")
    for index in case.arrivals:
        print(f"  request {index}: {traffic.arrivals[index]}")
    for index in case.faults:
        print(f"  fault {index}: {traffic.faults[index]}")
    print(case.failure)


if __name__ == "__main__":
    sys.exit(main())
