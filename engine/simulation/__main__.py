"""`python -m engine.simulation --seed 7` runs one seed; `--seeds 1000` runs that many from there on."""

from argparse import ArgumentParser

from engine.simulation.simulator import simulate


def main() -> None:
    parser = ArgumentParser(prog="python -m engine.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        print(simulate(seed))


if __name__ == "__main__":
    main()
