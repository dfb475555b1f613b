"""One part, from starting its servers to the last pass."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.limits import Limits
from benchmarks.peers.load import MODEL, PREFIX_CHATS, REQUESTS, chats, measure, prefixed_chats, waking
from benchmarks.peers.parts import Part
from benchmarks.peers.results import ADAPTED, CHATS, OWN, SHARED, Memory, Run, Sample
from benchmarks.peers.server import Server, ServerFailed, running
from benchmarks.peers.systems import Setting
from gateway.tools.bench.prompts import Prompt

_WARM_LEVEL = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """`share` of the requests that a pass has at each level."""

    levels: tuple[int, ...]
    passes: int
    seed: int = 0
    share: float = 1.0

    def count(self, level: int) -> int:
        return max(level, round(REQUESTS.get(level, level + 4) * self.share))


def run_part(part: Part, plan: Plan, setting: Setting, limits: Limits, results: Path) -> Run:
    """Every pass at every level on every server, the first of them another one each time."""
    about = (part.name, part.title, time.strftime("%Y-%m-%d %H:%M:%S"), _processor(), limits)
    run = Run(*about, part.weights, dict(part.weight_bytes), dict(part.kept_bytes))
    with ExitStack() as stack:
        servers = _started(part, setting, run, stack)
        for run_pass in range(plan.passes):
            for place, level in enumerate(plan.levels):
                turn = (run_pass + place) % max(len(servers), 1)
                for name in [*servers][turn:] + [*servers][:turn]:
                    _measure(part, plan, run, name, servers[name], level, run_pass)
                    run.save(results)
    return run


def _started(part: Part, setting: Setting, run: Run, stack: ExitStack) -> dict[str, Server]:
    """Those that are there, one after another, each warmed up and stopped before the next begins."""
    servers = {}
    for contestant in part.contestants:
        if (reason := contestant.missing()) is not None:
            run.left_out[contestant.name] = reason
            print(f"{contestant.name} is left out: {reason}", flush=True)
            continue
        print(f"starting {contestant.name}", flush=True)
        try:
            log = setting.scratch / f"{contestant.name}.log"
            server = stack.enter_context(running(contestant.launch(setting), log))
        except ServerFailed as error:
            run.left_out[contestant.name] = str(error).splitlines()[-1]
            print(f"{contestant.name} is left out: {error}", flush=True)
            continue
        idle_mib = server.resident_mib()
        warming = chats(_WARM_LEVEL, part.text, "warm")
        measure(server.launch.url, server.launch.key, warming, _WARM_LEVEL)
        if part.adapters:
            loading = chats(2 * len(part.adapters), part.text, "adapters")
            measure(server.launch.url, server.launch.key, loading, _WARM_LEVEL, part.adapters)
        server.stop()
        servers[contestant.name] = server
        run.memory.append(Memory(contestant.name, server.start_s, idle_mib, idle_mib))
        print(f"  first token after {server.start_s:.1f} s, {idle_mib:.0f} MiB resident", flush=True)
    return servers


def _measure(part: Part, plan: Plan, run: Run, name: str, server: Server, level: int, run_pass: int) -> None:
    """One load, or the part's several; a short request that is not counted goes before."""
    server.go_on()
    measure(server.launch.url, server.launch.key, waking(part.text, f"{plan.seed}/{run_pass}/{level}/waking"), 1)
    for kind, prompts in _loads(part, plan, level, run_pass).items():
        models = part.adapters if kind == ADAPTED else (MODEL,)
        figures = measure(server.launch.url, server.launch.key, prompts, level, models)
        run.samples.append(Sample(name, level, run_pass, kind, figures))
        doubts = f", {figures.failed} FAILED" if figures.failed else ""
        doubts += f", {figures.short_tokens} tokens too few" if figures.short_tokens else ""
        print(
            f"pass {run_pass + 1}, {level} at a time, {name}, {kind}: {figures.output_tokens_s:.1f} output tok/s, "
            f"first token {figures.ttft_p50_ms:.0f} ms, per later token {figures.tpot_p50_ms:.1f} ms{doubts}",
            flush=True,
        )
    contestant = next(each for each in part.contestants if each.name == name)
    _note_memory(run, name, server.resident_mib(), contestant.kv_mib(server))
    server.stop()


def _loads(part: Part, plan: Plan, level: int, run_pass: int) -> dict[str, list[Prompt]]:
    """New prompts in every pass, or prefix caches would answer; the same for every server."""
    seed = f"{plan.seed}/{run_pass}/{level}"
    if part.adapters:
        count = plan.count(level)
        return {CHATS: chats(count, part.text, seed), ADAPTED: chats(count, part.text, seed)}
    if not part.prefix:
        return {CHATS: chats(plan.count(level), part.text, seed)}
    count = max(level, round(PREFIX_CHATS * plan.share))
    return {
        OWN: prefixed_chats(count, part.text, f"{seed}/own", shared=False),
        SHARED: prefixed_chats(count, part.text, f"{seed}/shared", shared=True),
    }


def _note_memory(run: Run, name: str, loaded_mib: float, kv_mib: float | None) -> None:
    for index, each in enumerate(run.memory):
        if each.contestant == name and loaded_mib > each.loaded_mib:
            run.memory[index] = Memory(name, each.start_s, each.idle_mib, loaded_mib, kv_mib)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
