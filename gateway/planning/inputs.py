"""From settings, files and options to the inputs of a plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engine.config import EngineConfig, SchedulerConfig, StatedSizes
from engine.planning.targets import Target
from engine.planning.traffic import Traffic
from gateway.config.engine_classes import engine_classes_of
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.generation.service_classes import TierClasses
from gateway.planning.description import Description, read_description
from gateway.planning.model_config import read_model_config
from gateway.planning.questions import Inputs
from gateway.planning.trace_file import read_trace


class TrafficFiles(NamedTuple):
    """Where traffic and targets come from. `logged`: traffic that was read from the logged usage."""

    traffic: Path | None
    targets: Path | None
    logged: Traffic | None


def inputs_of(settings: Settings, model: str, files: TrafficFiles, **options: Any) -> Inputs:
    """`options`: other fields of `Inputs`.

    Raises:
        OperatorError: a file or the model cannot be read; the message names the field.
    """
    traffic, stated = _traffic(files)
    if files.targets is not None:
        of_targets = read_description(files.targets)
        stated = stated._replace(
            targets={**stated.targets, **of_targets.targets}, prices=of_targets.prices or stated.prices
        )
    classes = engine_classes_of(settings)
    tiers = TierClasses(settings)
    return Inputs(
        config=read_model_config(model, settings),
        traffic=traffic,
        classes=classes,
        max_wait_ms={each.name: tiers.of_tier(each.name).max_wait_ms for each in classes},
        targets={**_targets_of(settings, traffic), **stated.targets},
        token_prices=stated.prices,
        **options,
    )


def _traffic(files: TrafficFiles) -> tuple[Traffic, Description]:
    nothing = Description(None, {}, None)
    if files.logged is not None:
        return files.logged, nothing
    assert files.traffic is not None, "there is no traffic"
    if files.traffic.suffix in (".csv", ".jsonl"):
        return read_trace(files.traffic), nothing
    if files.traffic.suffix != ".toml":
        raise OperatorError(f"--traffic {files.traffic}: must end in .toml, .csv or .jsonl")
    stated = read_description(files.traffic)
    if stated.traffic is None:
        raise OperatorError(f"{files.traffic}: traffic: the file has no [[traffic]]")
    return stated.traffic, stated


def _targets_of(settings: Settings, traffic: Traffic) -> Mapping[str, Target]:
    """Those of the configured classes that the traffic has: their latency targets, as p99, and 1 % of refusals."""
    classes = {
        name: settings.service_classes[name] for name in traffic.service_classes if name in settings.service_classes
    }
    return {name: Target(each.ttft_target_ms, each.itl_target_ms) for name, each in classes.items()}


def engine_config_of(settings: Settings) -> EngineConfig:
    """The config of the engine as the gateway would load it on a CPU."""
    sizes = StatedSizes(settings.max_running, settings.step_tokens, settings.chunk_tokens).on(None)
    return EngineConfig(
        scheduler=SchedulerConfig(
            max_running=sizes.max_running,
            step_tokens=sizes.step_tokens,
            chunk_tokens=sizes.chunk_tokens,
            classes=engine_classes_of(settings),
        ),
        device=settings.device,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        quantize=settings.quantize,
        kv_cache_bytes=settings.kv_cache_bytes,
        max_model_len=settings.max_model_len,
        threads=settings.threads,
        weight_cache=settings.models_dir / "expanded",
    )
