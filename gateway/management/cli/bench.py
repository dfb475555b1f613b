"""turnpike bench"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import OperatorError
from gateway.extras import require

if TYPE_CHECKING:
    import random

    from gateway.tools.bench.client import Target
    from gateway.tools.bench.lengths import LogNormal
    from gateway.tools.bench.load import Load
    from gateway.tools.bench.prompts import Prompt
    from gateway.tools.bench.report import Report
    from gateway.tools.bench.run import Plan, Prompts

_LONGEST = 4
"""Times the mean: drawn lengths are cut there, as the longest would not fit into a window."""


def bench(
    context: typer.Context,
    url: Annotated[
        str, typer.Option("--url", help="Base URL of the API, as SDKs take it.")
    ] = "http://127.0.0.1:8080/v1",
    model: Annotated[str | None, typer.Option("--model", help="Name of the model. Required.")] = None,
    key_variable: Annotated[
        str,
        typer.Option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key."),
    ] = "OPENAI_API_KEY",
    rates: Annotated[
        str | None,
        typer.Option(
            "--rate", "--rates", metavar="R[,R...]", help="Requests per second; several rates run in turn. [default: 1]"
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            "--concurrency", metavar="C[,C...]", help="Closed loop with C requests in flight, in place of --rate."
        ),
    ] = None,
    duration: Annotated[float, typer.Option("--duration", min=0.1, help="Measured seconds of each load.")] = 60.0,
    warmup: Annotated[
        float, typer.Option("--warmup", min=0.0, help="Unmeasured seconds at the start of each load.")
    ] = 5.0,
    endpoint: Annotated[str, typer.Option("--endpoint", help="chat or completions.")] = "chat",
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", metavar="FILE", help='Lines of {"messages": [...]}, {"prompt": "..."} or plain text.'
        ),
    ] = None,
    prompt_tokens: Annotated[
        str,
        typer.Option(
            "--prompt-tokens", metavar="MEAN[/SIGMA]", help="Length of generated prompts in words, log-normal."
        ),
    ] = "128/0.8",
    output_tokens: Annotated[
        str, typer.Option("--output-tokens", metavar="MEAN[/SIGMA]", help="max_tokens of each answer, log-normal.")
    ] = "64/0.8",
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Answers of exactly that length, if the server supports ignore_eos.")
    ] = False,
    slo_ttft_ms: Annotated[
        float | None, typer.Option("--slo-ttft-ms", min=0.0, help="Goodput: bound on the time to the first token.")
    ] = None,
    slo_tpot_ms: Annotated[
        float | None, typer.Option("--slo-tpot-ms", min=0.0, help="Goodput: bound on the time per later token.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Timeout of an answer in seconds.")] = 300.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of prompts, lengths and arrival times.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the results to FILE.")
    ] = None,
) -> None:
    """Put load on any OpenAI-compatible server and report the latencies that its users would see.

    \b
      turnpike bench --model smollm2 --rate 4
      turnpike bench --model smollm2 --rates 1,2,4,8 --slo-ttft-ms 400 --slo-tpot-ms 50 --json before.json
      turnpike bench --url https://api.example.com/v1 --model m --api-key-env KEY --prompts questions.jsonl
      turnpike bench --model smollm2 --concurrency 1,8,32 --ignore-eos --output-tokens 64/0
      turnpike bench compare before.json after.json

    Requests are sent at random times (Poisson arrivals) of the given rate, regardless of earlier ones, and latencies
    count from the time when a request was due. Ctrl-C prints the results so far. Exits with 1 if no request was
    answered.
    """
    if context.invoked_subcommand is not None:
        return
    if model is None:
        raise typer.BadParameter("--model is required: the name of the model")
    if endpoint not in ("chat", "completions"):
        raise typer.BadParameter("--endpoint is chat or completions")
    require("bench", "turnpike bench")
    from gateway.tools.bench.client import Target
    from gateway.tools.bench.report import Objective
    from gateway.tools.bench.run import Plan
    from gateway.tools.bench.text import describe, write_json

    plan = Plan(_loads(rates, concurrency), duration, warmup, seed, Objective(slo_ttft_ms, slo_tpot_ms))
    target = Target(url, model, endpoint, os.environ.get(key_variable) or None, ignore_eos, timeout)  # type: ignore[arg-type]
    draw = _prompts(prompts, _lengths("--prompt-tokens", prompt_tokens), _lengths("--output-tokens", output_tokens))
    reports, interrupted = _run(plan, target, draw)
    for report in reports:
        typer.echo("\n".join(describe(report)))
    if json_file is not None:
        about = {"url": url, "model": model, "endpoint": endpoint, "seed": seed, "warmup_s": warmup}
        about |= {"slo_ttft_ms": slo_ttft_ms, "slo_tpot_ms": slo_tpot_ms, "interrupted": interrupted}
        about |= {"prompts": prompts and str(prompts), "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        write_json(json_file, about, reports)
    if interrupted:
        raise typer.Exit(128 + signal.SIGINT)
    if not any(report.finished for report in reports):
        raise OperatorError("no request was answered in the measured time")


def compare(
    before: Annotated[Path, typer.Argument(help="A file that --json wrote.")],
    after: Annotated[Path, typer.Argument(help="The file of another run.")],
) -> None:
    """Print two runs of the same loads side by side, with the ratio of the second to the first."""
    from gateway.tools.bench.compare import compare as compared
    from gateway.tools.bench.text import read_json

    rows = list(compared(read_json(before), read_json(after)))
    if not rows:
        raise OperatorError("the two have no load in common")
    load = ""
    for each, name, one, other in rows:
        if each != load:
            load = each
            typer.echo(f"{load:<26}{'before':>12}{'after':>12}{'ratio':>9}")
        ratio = f"{other / one:.3f}" if one else "-"
        typer.echo(f"  {name:<24}{one:>12.2f}{other:>12.2f}{ratio:>9}")


def _run(plan: "Plan", target: "Target", draw: "Prompts") -> tuple[list["Report"], bool]:
    import resource

    import uvloop

    from gateway.tools.bench.client import opened
    from gateway.tools.bench.clock import Clock
    from gateway.tools.bench.progress import bars
    from gateway.tools.bench.run import run_plan

    async def run() -> tuple[list["Report"], bool]:
        stop, clock = asyncio.Event(), Clock()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        with bars(plan.warmup_s + plan.seconds) as watch:
            async with opened(target, clock) as client:
                return await run_plan(plan, client, draw, clock, watch, stop), stop.is_set()

    # A server that cannot keep up has a connection open for each request that waits.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return uvloop.run(run())


def _loads(rates: str | None, concurrency: str | None) -> list["Load"]:
    from gateway.tools.bench.load import ClosedLoop, OpenLoop

    if rates is not None and concurrency is not None:
        raise typer.BadParameter("--rate and --concurrency exclude each other")
    if concurrency is not None:
        return [ClosedLoop(int(each)) for each in _numbers("--concurrency", concurrency) if _whole(each)]
    return [OpenLoop(each) for each in _numbers("--rate", rates or "1")]


def _numbers(option: str, text: str) -> Iterator[float]:
    for each in text.split(","):
        try:
            value = float(each)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e6:
            raise typer.BadParameter(f"{option} takes numbers above 0, with commas between them")
        yield value


def _whole(value: float) -> bool:
    if value != int(value):
        raise typer.BadParameter("--concurrency takes whole numbers")
    return True


def _lengths(option: str, text: str) -> "LogNormal":
    from gateway.tools.bench.lengths import LogNormal

    mean, slash, sigma = text.partition("/")
    try:
        stated = float(mean), float(sigma) if slash else 0.8
    except ValueError:
        stated = 0.0, 0.0
    if not (1 <= stated[0] <= 1e6 and 0 <= stated[1] <= 3):
        raise typer.BadParameter(f"{option} is a mean of 1 and more, and a sigma of 0 to 3, as in 128/0.8")
    return LogNormal(*stated, low=1, high=round(_LONGEST * stated[0]))


def _prompts(file: Path | None, words: "LogNormal", output_tokens: "LogNormal") -> "Prompts":
    from gateway.tools.bench.prompts import from_file, synthetic

    def draw(rng: "random.Random") -> "Iterator[Prompt]":
        return synthetic(words, output_tokens, rng) if file is None else from_file(file, output_tokens, rng)

    return draw
