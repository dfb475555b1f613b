"""More asked for than there is, through the whole program over loopback HTTP: `python -m benchmarks.overload`.

A real `turnpike serve` with SmolLM2-135M. First its capacity, in a closed loop that keeps every slot busy. Then an open
loop: requests come at times of a Poisson process (seeded), whatever has become of those before, at one, two and five
times that rate; of each, a tenth of the capacity is premium's. Times count from when a request was due, not from when
the generator got round to it, except the time to a refusal, which counts from when it was sent.

The generator has one core to itself and the server the others, as neither is to be measured by what the other takes.

1. Goodput: tokens a second, at the time when they came, of requests that finished; and of those that had their first
   token within their class's bound. Bound: at 5x at least 0.95 of the best level.
2. Refusals: how long until the 429 was there. The table also has the server's own time, from request to answer in its
   log, and the time of /healthz during the run, which needs no engine and no store. Bound: p99 at most 5 ms.
3. Retry-After. The real wait of a refused request is the time from its refusal until all that the server had let in
   ahead of it (its class and above) had their first token: what it would have waited in line. Bound: the header within
   half of it for 0.9 of those refused. And the outcome of clients that return after exactly that time.
4. A crowd: 5x for some seconds, then no new clients; all who are refused return after Retry-After until admitted.
"""

import argparse
import asyncio
import bisect
import gc
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import uvloop

from benchmarks.http_client import Client, Outcome, Question, completion
from benchmarks.intervals import proportion, quantile
from engine.catalog.catalog import fetch
from gateway.config.settings import Settings
from tests.support.program import Program, running

SLOTS = 16
MAX_WAIT_S = 10
PREMIUM_WAIT_S = 5.0
PREMIUM_SHARE = 0.1
"""Of the capacity, at every level."""
LEVELS = (1.0, 2.0, 5.0)
CLOSED_LOOP = SLOTS + SLOTS // 2
"""Under way at a time: enough to keep every slot busy, and too few to be refused."""
OBEDIENT_SHARE = 0.2
"""Of those refused at a level: more would make it a higher one."""
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")
FLOOR_EVERY_S = 0.05
CROWD_S = 15.0
MAX_ATTEMPTS = 20


@dataclass(slots=True)
class Load:
    """Results of one level, in seconds of `perf_counter` from `began_s`; the server's own times of its refusals."""

    began_s: float
    warm_s: float
    until_s: float
    outcomes: list[Outcome] = field(default_factory=list)
    floor_ms: list[float] = field(default_factory=list)
    server_ms: list[float] = field(default_factory=list)

    def steady(self, outcome: Outcome) -> bool:
        return self.began_s + self.warm_s <= outcome.due_s < self.began_s + self.until_s

    def tokens_per_s(self, counts: Callable[[Outcome], bool]) -> float:
        """Tokens that came in the measured time, of finished requests that count."""
        first_s, last_s = self.began_s + self.warm_s, self.began_s + self.until_s
        tokens = 0.0
        for outcome in self.outcomes:
            if outcome.finished and outcome.events_s and counts(outcome):
                inside = bisect.bisect(outcome.events_s, last_s) - bisect.bisect(outcome.events_s, first_s)
                tokens += outcome.tokens * inside / len(outcome.events_s)
        return tokens / (last_s - first_s)


class Generator:
    """Asks the server, one level after another."""

    def __init__(self, program: Program, standard_key: str, client: Client) -> None:
        self._program = program
        self._keys = {"standard": standard_key, "premium": program.key}
        self._client = client
        self._log_at = 0

    def question(self, rng: random.Random, tier: str) -> Question:
        """40 to 80 words, no two prompts alike, and an answer of 8 to 24 tokens."""
        words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(40, 80)))
        return Question(tier, self._keys[tier], completion(words, rng.randint(8, 24)))

    async def closed_loop(self, seconds: float, warm_s: float) -> Load:
        """As many under way as keep all slots busy, always."""
        load = Load(time.perf_counter(), warm_s, seconds)
        end_s = load.began_s + seconds

        async def one(place: int) -> None:
            rng = random.Random(place)
            while (now_s := time.perf_counter()) < end_s:
                tier = "premium" if rng.random() < PREMIUM_SHARE else "standard"
                load.outcomes.append(await self._client.ask(self.question(rng, tier), now_s))

        await asyncio.gather(*(one(place) for place in range(CLOSED_LOOP)))
        return load

    async def open_loop(
        self, rate_per_s: float, premium_per_s: float, seconds: float, warm_s: float, *, seed: int, obedient: float
    ) -> Load:
        """Arrivals of a Poisson process; `obedient` of those refused come back as told, the rest never."""
        rng = random.Random(seed)
        asked: list[tuple[float, Question]] = []
        now_s = rng.expovariate(rate_per_s)
        while now_s < seconds:
            tier = "premium" if rng.random() < premium_per_s / rate_per_s else "standard"
            asked.append((now_s, self.question(rng, tier)))
            now_s += rng.expovariate(rate_per_s)
        patience = MAX_ATTEMPTS if obedient == 1.0 else 2
        willing = [rng.random() < obedient for _ in asked]
        self._read_log()
        load = Load(time.perf_counter() + 0.5, warm_s, seconds)

        async def one(at_s: float, question: Question, attempts: int) -> None:
            for attempt in range(1, attempts + 1):
                await _until(at_s)
                outcome = await self._client.ask(question, at_s, attempt)
                load.outcomes.append(outcome)
                if outcome.retry_after_ms is None:
                    return
                at_s = outcome.answered_s + outcome.retry_after_ms / 1e3

        floor = asyncio.create_task(self._floor(load))
        async with asyncio.TaskGroup() as tasks:
            for (at_s, question), obeys in zip(asked, willing, strict=True):
                await _until(load.began_s + at_s)
                tasks.create_task(one(load.began_s + at_s, question, patience if obeys else 1))
        floor.cancel()
        with suppress(asyncio.CancelledError):
            await floor
        load.server_ms = self._read_log()
        return load

    async def _floor(self, load: Load) -> None:
        while True:
            await asyncio.sleep(FLOOR_EVERY_S)
            probe = await self._client.get("/healthz")
            load.floor_ms.append((probe.answered_s - probe.sent_s) * 1e3)

    def _read_log(self) -> list[float]:
        """The server's own time of each refusal since the last call, in ms."""
        with self._program.log.open("rb") as log:
            log.seek(self._log_at)
            lines = [line for line in log if line.endswith(b"\n")]
            self._log_at += sum(map(len, lines))
        refused = (orjson.loads(line) for line in lines if b'"status":429' in line)
        return [entry["duration_ms"] for entry in refused]


async def _until(at_s: float) -> None:
    left_s = at_s - time.perf_counter()
    if left_s > 0:
        await asyncio.sleep(left_s)


def within_bound(outcome: Outcome) -> bool:
    bound_s = PREMIUM_WAIT_S if outcome.name == "premium" else MAX_WAIT_S
    return outcome.first_token_s - outcome.due_s <= bound_s


def real_waits_s(load: Load) -> list[tuple[Outcome, float]]:
    """Each standard refusal of the steady time, and how long until all that were let in before it had begun."""
    served = sorted((each for each in load.outcomes if each.finished and each.events_s), key=lambda each: each.sent_s)
    sent, begun_by, latest = [each.sent_s for each in served], [], 0.0
    for each in served:
        latest = max(latest, each.first_token_s)
        begun_by.append(latest)
    waits = []
    for each in load.outcomes:
        if each.status == 429 and each.name == "standard" and load.steady(each):
            ahead = bisect.bisect(sent, each.sent_s)
            waits.append((each, max(begun_by[ahead - 1] - each.answered_s, 0.0) if ahead else 0.0))
    return waits


def milliseconds(values: Sequence[float]) -> str:
    shares = "  ".join(f"p{round(share * 100)} {quantile(values, share):.2f}" for share in (0.5, 0.95, 0.99))
    return f"{shares}  (n = {len(values)})"


def report_level(name: str, load: Load) -> tuple[float, float]:
    finished = load.tokens_per_s(lambda each: True)
    in_time = load.tokens_per_s(within_bound)
    steady = [each for each in load.outcomes if load.steady(each)]
    refused = [each for each in steady if each.status == 429]
    broken = [each for each in steady if each.status != 429 and not each.finished]
    print(f"{name}: {finished:.1f} tok/s finished, {in_time:.1f} within their class's bound", flush=True)
    print(f"  {len(steady)} requests, {len(refused)} refused, {len(broken)} neither")
    for tier in ("premium", "standard"):
        served = [each for each in steady if each.name == tier and each.finished]
        if served:
            ttft_ms = [(each.first_token_s - each.due_s) * 1e3 for each in served]
            print(f"  {tier}'s first token, ms: {milliseconds(ttft_ms)}")
    late_ms = [(each.sent_s - each.due_s) * 1e3 for each in steady]
    print(f"  the generator's own lag, ms: {milliseconds(late_ms)}")
    return finished, in_time


def report_refusals(load: Load) -> None:
    refused = [each for each in load.outcomes if each.status == 429]
    if not refused:
        return
    print(f"  429, client, ms: {milliseconds([(each.answered_s - each.sent_s) * 1e3 for each in refused])}")
    print(f"  429, server, ms: {milliseconds(load.server_ms)}")
    print(f"  /healthz, client, ms: {milliseconds(load.floor_ms)}")
    waits = real_waits_s(load)
    ratios = [each.retry_after_ms / 1e3 / wait_s for each, wait_s in waits if each.retry_after_ms and wait_s > 0]
    if not ratios:
        return
    close = proportion(sum(0.5 <= ratio <= 1.5 for ratio in ratios), len(waits))
    print(
        f"  Retry-After over the real wait: p5 {quantile(ratios, 0.05).value:.2f} p50 {quantile(ratios, 0.5).value:.2f}"
        f" p95 {quantile(ratios, 0.95).value:.2f}; within half of it {close:.3f} (n = {len(waits)})"
    )
    again = [each for each in load.outcomes if each.attempt == 2]
    if again:
        let_in = proportion(sum(each.status == 200 for each in again), len(again))
        print(f"  came back after exactly Retry-After: let in {let_in:.2f} (n = {len(again)})")


def report_crowd(load: Load) -> None:
    by_attempt: dict[int, list[Outcome]] = {}
    for each in load.outcomes:
        by_attempt.setdefault(each.attempt, []).append(each)
    for attempt, outcomes in sorted(by_attempt.items()):
        let_in = sum(each.status == 200 for each in outcomes)
        print(f"  try {attempt}: {let_in} of {len(outcomes)} let in ({let_in / len(outcomes):.2f})")
    finished = [each for each in load.outcomes if each.finished]
    tokens, took_s = sum(each.tokens for each in finished), max(each.ended_s for each in finished) - load.began_s
    print(f"  all done after {took_s:.0f} s: {tokens / took_s:.1f} tok/s")


async def measure(program: Program, standard_key: str, seconds: float, warm_s: float, crowd: bool) -> None:
    parts = urlsplit(program.url)
    assert parts.hostname is not None
    assert parts.port is not None
    client = Client(parts.hostname, parts.port)
    generator = Generator(program, standard_key, client)
    await generator.closed_loop(5, 0)
    await _at_rest(program)
    gc.collect()
    gc.freeze()
    load = await generator.closed_loop(max(seconds / 2, 15), 5)
    finished, _ = report_level(f"closed loop of {CLOSED_LOOP}", load)
    done = [each for each in load.outcomes if each.finished]
    capacity_per_s = finished / (sum(each.tokens for each in done) / len(done))
    print(f"capacity {capacity_per_s:.2f} requests/s")
    goodput = {}
    for level in LEVELS:
        await _at_rest(program)
        load = await generator.open_loop(
            level * capacity_per_s,
            PREMIUM_SHARE * capacity_per_s,
            seconds,
            warm_s,
            seed=round(level),
            obedient=OBEDIENT_SHARE,
        )
        goodput[level] = report_level(f"{level:.0f}x", load)
        report_refusals(load)
    for kind, index in (("finished", 0), ("within bounds", 1)):
        best = max(each[index] for each in goodput.values())
        print(f"goodput at {LEVELS[-1]:.0f}x over the best, {kind}: {goodput[LEVELS[-1]][index] / best:.3f}")
    if crowd:
        await _at_rest(program)
        load = await generator.open_loop(
            LEVELS[-1] * capacity_per_s, PREMIUM_SHARE * capacity_per_s, CROWD_S, 0, seed=7, obedient=1.0
        )
        report_level(f"a crowd of {CROWD_S:.0f} s at {LEVELS[-1]:.0f}x", load)
        report_crowd(load)
    client.close()


@contextmanager
def _server_beside_generator(data_dir: Path, model: Path) -> Iterator[Program]:
    """The server on all cores but one, this process on that one."""
    *server_cores, own_core = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, server_cores or [own_core])  # what is started has its starter's cores
    with running(data_dir, "--model", f"smollm2={model}", "--max-running", str(SLOTS)) as program:
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), [own_core])
        yield program


async def _at_rest(program: Program) -> None:
    await asyncio.to_thread(program.wait_idle, 60.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="of each level")
    parser.add_argument("--warm-seconds", type=float, default=1.5 * MAX_WAIT_S, help="of each level, not measured")
    parser.add_argument("--no-crowd", action="store_true", help="leave the crowd out")
    options = parser.parse_args()
    model = fetch("smollm2", Settings().models_dir)
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder)
        (data_dir / "turnpike.toml").write_text(f"max_wait_s = {MAX_WAIT_S}\n", encoding="utf-8")
        with _server_beside_generator(data_dir, model) as program:
            program.command("tenant", "create", "many", "--tier", "standard")
            standard_key = program.command("key", "create", "--tenant", "many")
            print(f"SmolLM2-135M, {SLOTS} slots, standard waits for at most {MAX_WAIT_S} s")
            uvloop.run(measure(program, standard_key, options.seconds, options.warm_seconds, not options.no_crowd))


if __name__ == "__main__":
    main()
