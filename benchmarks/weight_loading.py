"""The time to load a model's weights, over that to read its file's bytes: `python -m benchmarks.weight_loading [PATH]`.

Both in turns, of files in the page cache: each reads all bytes into new memory, and a load also unpacks them and packs
them for the native library. Without a folder, what `benchmarks.peers` makes of half a billion random weights.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import formats, models
from benchmarks.peers.environment import root
from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.loader import load_model
from kernels.cpu.cores import usable_cores
from kernels.cpu.native_ops import NativeOps

ROUNDS = 7
POSITIONS = 4096


def seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    made = work()
    took_s = time.perf_counter() - began_s
    del made
    return took_s


def read(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*.safetensors"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="PATH")
    folders = parser.parse_args().folders
    if not folders:
        made = models.prepare("0.5B", models.SHAPES["0.5B"], root() / f"models-{models.VERSION}").folder
        folders = [made, *(formats.prepare(made, name) for name in (formats.W4A16, formats.W8A8))]
    ops = NativeOps(usable_cores())
    for folder in folders:

        def load(folder: Path = folder) -> object:
            return load_model(open_checkpoint(folder), ops, POSITIONS)

        load()
        rounds = [(seconds(lambda folder=folder: read(folder)), seconds(load)) for _ in range(ROUNDS)]
        ratio = statistics.median(took / reading for reading, took in rounds)
        reading_s, load_s = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{folder.name:12} read {reading_s:.2f} s, load {load_s:.2f} s: {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
