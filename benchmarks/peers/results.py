"""Results of runs, a file each, so that parts that ran at different times come into one table."""

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.limits import Limits
from benchmarks.peers.load import Figures

FORMAT = 2
OWN, SHARED = "own prefixes", "one prefix"
"""Kinds of load of the part about prefixes."""
CHATS = "chats"
ADAPTED = "adapters"
"""The same load as `CHATS`, each request for the next of several adapters."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One load on one server. Samples of one pass and level were taken one after another."""

    contestant: str
    level: int
    run_pass: int
    kind: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Memory:
    """`start_s`: from start to first token. Resident memory after the start, and the most after a load so far; `kv_mib`
    is of that what holds keys and values, None where the server does not say."""

    contestant: str
    start_s: float
    idle_mib: float
    loaded_mib: float
    kv_mib: float | None = None


@dataclass(slots=True)
class Run:
    """One call of the command for one part. Written down whenever there is more of it. `weight_bytes` and `kept_bytes`
    are the part's."""

    part: str
    title: str
    when: str
    processor: str
    limits: Limits
    weights: int
    weight_bytes: dict[str, int]
    kept_bytes: dict[str, int]
    samples: list[Sample] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.part}-{self.when.replace(':', '').replace(' ', '-')}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")
        partial.rename(path)

    def of(self, contestant: str, level: int, kind: str = CHATS) -> dict[int, Figures]:
        """By pass."""
        return {
            each.run_pass: each.figures
            for each in self.samples
            if (each.contestant, each.level, each.kind) == (contestant, level, kind)
        }


def load_runs(folder: Path) -> list[Run]:
    """
    Raises:
        ValueError: a file is of another format.
    """
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def _read(path: Path) -> Run:
    stated = json.loads(path.read_text(encoding="utf-8"))
    if stated.pop("format", None) != FORMAT:
        raise ValueError(f"{path} was written by another version of this benchmark")
    limits = stated.pop("limits")
    limits["matmul_gflop_s"] = {int(rows): rate for rows, rate in limits["matmul_gflop_s"].items()}
    samples = [Sample(**each | {"figures": Figures(**each["figures"])}) for each in stated.pop("samples")]
    memory = [Memory(**each) for each in stated.pop("memory")]
    return Run(limits=Limits(**limits), samples=samples, memory=memory, **stated)


def median(runs: Iterable[Run], contestant: str, level: int, kind: str = CHATS) -> Figures | None:
    """Of every figure by itself, over all passes; of requests, failures and missing tokens the sum. None: no pass."""
    found = [figures for run in runs for figures in run.of(contestant, level, kind).values()]
    if not found:
        return None
    summed = {"requests", "failed", "short_tokens"}
    columns = {name: [asdict(each)[name] for each in found] for name in asdict(found[0])}
    return Figures(**{n: sum(v) if n in summed else statistics.median(v) for n, v in columns.items()})


def ratio(runs: Iterable[Run], name: str, ours: str, theirs: str, level: int, kind: str = CHATS) -> float | None:
    """Median over passes of ours over theirs, each pair taken in one pass of one run. None: there is no pair."""
    pairs = []
    for run in runs:
        mine, other = run.of(ours, level, kind), run.of(theirs, level, kind)
        pairs += [getattr(mine[each], name) / getattr(other[each], name) for each in mine.keys() & other.keys()]
    return statistics.median(pairs) if pairs and all(map(math.isfinite, pairs)) else None


def gain(runs: Iterable[Run], name: str, contestant: str, level: int, kinds: tuple[str, str]) -> float | None:
    """Median over passes of a figure with the second kind of load over that with the first."""
    pairs = []
    for run in runs:
        before, after = (run.of(contestant, level, kind) for kind in kinds)
        pairs += [getattr(after[each], name) / getattr(before[each], name) for each in before.keys() & after.keys()]
    return statistics.median(pairs) if pairs else None
