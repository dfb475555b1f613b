"""Checks the served models, their memory, and the service classes."""

from collections.abc import Iterator
from pathlib import Path

from engine.catalog.catalog import available
from engine.models.config import UnsupportedCheckpoint
from gateway.config.engine_classes import engine_classes_of
from gateway.config.settings import Settings
from gateway.doctor.finding import Finding, failure, ok, warning
from gateway.process.catalog import DEFAULT_MODEL, DEFAULT_SMALL_MODEL
from gateway.process.host_memory import host_need
from gateway.process.model_memory import size_of
from kernels.dispatch import takes_gpu


def service_classes(settings: Settings) -> Iterator[Finding]:
    classes = [
        f"{each.name} (priority {each.priority}, {each.reserved_fraction:.0%} reserved)"
        for each in engine_classes_of(settings)
    ]
    yield ok("service classes", f"from the highest: {', '.join(classes)}")


def models(settings: Settings) -> Iterator[Finding]:
    """Whether the models exist, are supported and fit in memory."""
    found = _found(settings)
    if not found and settings.upstreams:
        yield ok("models", "none in this process: all are upstreams")
        return
    if not found:
        remedy = f"turnpike models fetch {DEFAULT_MODEL}; serve does it too"
        yield warning("models", f"{DEFAULT_MODEL} is not fetched yet", remedy)
        return
    parameters, weights, notices, unusable = 0, 0, [], []
    for name, path in found.items():
        if not path.exists():
            unusable.append(f"there is no {name} ({path})")
            continue
        try:
            size = size_of(settings, path)
            parameters += size.parameters
            weights += size.weights_bytes
            if size.notice is not None:
                notices.append(f"{name}: {size.notice}")
        except (UnsupportedCheckpoint, OSError) as error:
            unusable.append(f"{name}: {path}: {error}")
    if unusable:
        yield failure("models", "; ".join(unusable), "correct [models] in turnpike.toml")
        return
    yield ok("models", ", ".join(found))
    if notices:
        remedy = "serve a checkpoint whose format has a kernel: docs/operations.md, Quantised checkpoints"
        yield warning("quantized weights", "; ".join(notices), remedy)
    yield _memory(settings, parameters, weights, len(found))


def served(settings: Settings) -> tuple[str, ...]:
    """The model names that `turnpike serve` would serve."""
    return (*_found(settings), *settings.upstreams) or (DEFAULT_MODEL,)


def _found(settings: Settings) -> dict[str, Path]:
    """Name -> path of the settings' models, or of the default models that are downloaded."""
    if settings.served_names:
        return dict(settings.models)
    fetched = {entry.name: entry.path for entry in available(settings.models_dir) if entry.fetched}
    return {name: fetched[name] for name in (DEFAULT_MODEL, DEFAULT_SMALL_MODEL) if name in fetched}


def _memory(settings: Settings, parameters: int, weights: int, count: int) -> Finding:
    """Whether host memory suffices. Only the engine knows a GPU's memory, after loading the models."""
    if takes_gpu(settings.device):
        return ok("memory", f"{parameters / 1e9:.2f} billion parameters on the GPU; KV takes what they leave")
    need = host_need(settings, weights, count)
    if not need.fits:
        return failure("memory", f"{need}: it cannot hold", "set kv_cache_bytes lower, or serve smaller models")
    return ok("memory", str(need))
