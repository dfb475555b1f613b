"""turnpike plan"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import OperatorError
from gateway.management.cli.options import AsJson, DataDir, Since, Until, settings_from
from gateway.management.cli.output import print_json
from gateway.management.cli.parsing import optional_time

if TYPE_CHECKING:
    from engine.planning.fit_file import StoredFit
    from engine.planning.trace import TraceTraffic
    from gateway.config.settings import Settings
    from gateway.planning.questions import Inputs

_FROM_NUMBERS = "Without --device all of --memory-gb, --bandwidth-tb-s and --tflops are needed."


def plan(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME|PATH", help="Config of the model: a config.json, folder, file or name."),
    ] = None,
    traffic: Annotated[
        Path | None, typer.Option("--traffic", metavar="FILE", help="A .toml description, or a .csv or .jsonl trace.")
    ] = None,
    from_clickhouse: Annotated[
        bool, typer.Option("--from-clickhouse", help="Take the traffic from the logged usage: see --since.")
    ] = False,
    targets: Annotated[
        Path | None,
        typer.Option("--targets", metavar="FILE", help="A .toml with targets and prices, if --traffic has none."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help=f"H100, H200, A100 or L40S. {_FROM_NUMBERS}")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option("--fit", metavar="FILE", help="Step times of this machine, from turnpike plan measure."),
    ] = None,
    memory_gb: Annotated[float | None, typer.Option("--memory-gb", help="Memory of a device, in 10^9 bytes.")] = None,
    bandwidth_tb_s: Annotated[
        float | None, typer.Option("--bandwidth-tb-s", help="Bandwidth of its memory, in 10^12 bytes per second.")
    ] = None,
    tflops: Annotated[float | None, typer.Option("--tflops", help="Dense TFLOP/s in 16 bits.")] = None,
    device_price: Annotated[
        float | None, typer.Option("--device-price", min=0.0, help="Dollars per hour of a device.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, max=1024, help="Replicas. [default: the fewest for the targets]")
    ] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option("--tensor-parallel", min=1, max=64, help="Devices of a replica. [default: the fewest]")
    ] = None,
    quantize: Annotated[str, typer.Option("--quantize", help="none, int8, int4 or fp8.")] = "none",
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="auto, int8 or fp8.")] = "auto",
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", min=16, help="Tokens of prompt and answer. [default: the model's]")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="NAME=VALUE[,...]", help="A change to compare with. Repeatable."),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", min=50, max=100_000, help="Requests that are measured in each played window.")
    ] = 600,
    sums: Annotated[bool, typer.Option("--sums", help="Print the arithmetic step by step.")] = False,
    since: Since = None,
    until: Until = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of arrivals and lengths.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, max=256, help="Processes. [default: the cores]")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Work out capacity before it is bought: replicas, waits by class, KV memory, cost, and what breaks first.

    \b
      turnpike plan --model ./llama --device H100 --traffic day.toml --device-price 2.50
      turnpike plan --model ./llama --device H100 --traffic day.toml --what-if premium=2x --what-if quantize=fp8
      turnpike plan --model smollm2 --fit steps.json --traffic trace.csv --sums
      turnpike plan --model ./llama --device H200 --from-clickhouse --since 2026-11-01

    The real scheduler, cache, admission and choice of replica serve the traffic in virtual time. Service classes, and
    targets that no file states, are those of the settings.
    """
    if context.invoked_subcommand is not None:
        return
    settings = settings_from(data_dir=data_dir)
    from gateway.planning.questions import KV_DTYPES, QUANTIZE

    for option, value, choices in (("--quantize", quantize, QUANTIZE), ("--kv-dtype", kv_dtype, KV_DTYPES)):
        if value not in choices:
            raise typer.BadParameter(f"{option} must be one of {', '.join(choices)}, got {value!r}")
    if model is None:
        raise typer.BadParameter("--model is required: a folder with a config.json, or a name")
    if (traffic is None) == (not from_clickhouse):
        raise typer.BadParameter("state one of --traffic FILE and --from-clickhouse")
    stored = None if fit is None else _fit(fit)
    if stored is not None and (device, memory_gb, bandwidth_tb_s, tflops) != (None,) * 4:
        raise typer.BadParameter("--fit is of this machine; --device and its numbers are of another")
    from gateway.planning.devices import stated_device
    from gateway.planning.inputs import TrafficFiles, inputs_of

    logged = _logged(settings, since, until) if from_clickhouse else None
    hardware = (
        stored.machine.hardware if stored is not None else stated_device(device, memory_gb, bandwidth_tb_s, tflops)
    )
    inputs = inputs_of(
        settings,
        model,
        TrafficFiles(traffic, targets, logged),
        fit=stored,
        hardware=hardware,
        quantize=quantize,
        kv_dtype=kv_dtype,
        tensor_parallel=tensor_parallel,
        replicas=replicas,
        max_model_len=max_model_len,
        device_price=device_price,
        window_requests=requests,
        seed=seed,
    )
    _answer(inputs, what_if or [], jobs, as_json=as_json, sums=sums)


def _answer(inputs: "Inputs", what_ifs: list[str], jobs: int | None, *, as_json: bool, sums: bool) -> None:
    from engine.planning.plan import OutsideFit, make_plan
    from engine.planning.runs import Runs
    from engine.planning.search import NoFleet
    from gateway.planning.questions import question_of
    from gateway.planning.report import compare, describe
    from gateway.planning.report_json import plan_json
    from gateway.planning.what_if import changed

    variants = [("plan", inputs), *((stated, changed(inputs, stated)) for stated in what_ifs)]
    asked = [(name, one, question_of(one)) for name, one in variants]
    plans = []
    with Runs(jobs) as runs:
        for name, one, question in asked:
            try:
                plans.append((name, one, make_plan(question.question, runs)))
            except (NoFleet, OutsideFit, ValueError) as error:
                raise OperatorError(str(error) if name == "plan" else f"--what-if {name}: {error}") from None
    if as_json:
        found: list[dict[str, Any]] = [
            {"what_if": None if name == "plan" else name, **plan_json(one, question, plan)}
            for (name, one, plan), (_, _, question) in zip(plans, asked, strict=True)
        ]
        print_json(found[0] | {"what_ifs": found[1:]})
        return
    typer.echo("\n".join(describe(inputs, asked[0][2], plans[0][2], sums=sums)))
    if what_ifs:
        typer.echo("\n".join(("", "Compared:", *compare(plans))))


def measure(
    model: Annotated[str, typer.Option("--model", metavar="NAME|PATH", help="The model to load.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file, for --fit.", dir_okay=False)],
    seconds: Annotated[float, typer.Option("--seconds", min=5.0, max=3600.0, help="Duration of the load.")] = 60.0,
    rate: Annotated[float, typer.Option("--rate", min=0.01, help="Requests per second, doubled halfway.")] = 2.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the load.")] = 0,
    data_dir: DataDir = None,
) -> None:
    """Record steps of a real run on this machine, and fit their times for `turnpike plan --fit`.

    Loads the model in this process and puts a load of mixed lengths on it. The fit is valid for steps of the sizes that
    occurred: a rate that keeps the machine busy covers more.
    """
    settings = settings_from(data_dir=data_dir)
    from gateway.process.catalog import find_model
    from gateway.process.progress import progress

    with progress() as report:
        path = find_model(model, settings.models, settings.models_dir, report)
    from engine.memory.kv_memory import InsufficientMemory
    from engine.models.config import UnsupportedCheckpoint
    from engine.planning.fitting import TooFewSteps
    from gateway.planning.inputs import engine_config_of
    from gateway.planning.measuring import measure as run
    from kernels.dispatch import DeviceUnavailable

    say: Callable[[str], None] = lambda text: typer.echo(text, err=True)  # noqa: E731
    try:
        stored = run(path, engine_config_of(settings), seconds=seconds, rate=rate, seed=seed, say=say)
    except (TooFewSteps, UnsupportedCheckpoint, InsufficientMemory, DeviceUnavailable) as error:
        raise OperatorError(str(error)) from error
    try:
        stored.save(out)
    except OSError as error:
        raise OperatorError(f"--out {out}: {error.strerror}") from None
    fit, most = stored.fit, stored.fit.times.range.most
    typer.echo(
        f"{out}: {fit.steps:,} steps, median error {fit.median_error:.1%}, p90 {fit.p90_error:.1%}; up to "
        f"{most.decode_rows} decode rows, {most.prefill_tokens:,} prefill tokens and {most.decode_context:,} tokens of "
        "context in a step"
    )


def _fit(path: Path) -> "StoredFit":
    from engine.planning.fit_file import InvalidFit, StoredFit

    try:
        return StoredFit.load(path)
    except InvalidFit as error:
        raise OperatorError(str(error)) from None


def _logged(settings: "Settings", since: str | None, until: str | None) -> "TraceTraffic":
    from datetime import UTC, datetime, timedelta

    from gateway.analytics.errors import AnalyticsError
    from gateway.analytics.opening import open_analytics
    from gateway.analytics.prepared import PreparedAnalytics
    from gateway.analytics.sums import TimeRange
    from gateway.common.timestamps import unix_ms
    from gateway.planning.logged_usage import logged_traffic

    start, end = optional_time("--since", since), optional_time("--until", until)
    last = datetime.now(UTC) if end is None else datetime.fromisoformat(end)
    first = last - timedelta(days=1) if start is None else datetime.fromisoformat(start)
    if first >= last:
        raise typer.BadParameter("--since must be before --until")

    async def read() -> "TraceTraffic":
        analytics = PreparedAnalytics(open_analytics(settings.analytics_url.get_secret_value()))
        try:
            return await logged_traffic(analytics, TimeRange(unix_ms(first), unix_ms(last)))
        finally:
            await analytics.aclose()

    try:
        return asyncio.run(read())
    except AnalyticsError as error:
        raise OperatorError(f"the logged usage cannot be read: {error}") from None
