"""From all inputs of a plan to its question."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import get_args

from engine.config import KVDtype, Quantize
from engine.memory.kv_memory import InsufficientMemory
from engine.models.config import ModelConfig
from engine.planning.deployment import Deployment
from engine.planning.fit_file import StoredFit
from engine.planning.hand_sums import concurrency_sums, memory_sums
from engine.planning.hardware import Hardware
from engine.planning.model_sums import ModelSums, UnplannableModel, place_model, smallest_tensor_parallel
from engine.planning.origin import Figure, Origin
from engine.planning.plan import Question, TokenPrices
from engine.planning.step_times import LeastTimes, RooflineTimes
from engine.planning.targets import Target
from engine.planning.traffic import Traffic
from engine.request import ServiceClass
from gateway.errors import OperatorError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that a user states. `fit`: step times that were recorded on this machine, in place of a device; its file has
    the sizes of the deployment. `tensor_parallel`: None for the fewest devices that hold the model.
    """

    config: ModelConfig
    hardware: Hardware
    traffic: Traffic
    classes: tuple[ServiceClass, ...]
    max_wait_ms: Mapping[str, int]
    targets: Mapping[str, Target]
    fit: StoredFit | None = None
    quantize: Quantize = "none"
    kv_dtype: KVDtype = "auto"
    tensor_parallel: int | None = None
    replicas: int | None = None
    max_model_len: int | None = None
    max_running: int | None = None
    device_price: float | None = None
    token_prices: TokenPrices | None = None
    window_requests: int = 600
    seed: int = 0
    factors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the sums of its deployment, and remarks on what this version cannot serve."""

    question: Question
    sums: tuple[Figure, ...]
    remarks: tuple[str, ...] = ()


def question_of(inputs: Inputs) -> Asked:
    """
    Raises:
        OperatorError: the traffic has a class that is not configured, or the model does not fit on the device.
    """
    names = {each.name for each in inputs.classes}
    for named, what in ((inputs.traffic.service_classes, "the traffic"), (inputs.targets, "targets")):
        if unknown := sorted(set(named) - names):
            raise OperatorError(f"{what}: {unknown[0]!r} is not one of the service classes {', '.join(sorted(names))}")
    _check_factors(inputs, names)
    traffic = inputs.traffic.scaled(inputs.factors) if inputs.factors else inputs.traffic
    try:
        deployment, sums, devices = _measured(inputs) if inputs.fit else _computed(inputs)
    except (InsufficientMemory, UnplannableModel) as error:
        raise OperatorError(str(error)) from None
    busiest = max(range(len(traffic.loads)), key=traffic.loads.__getitem__)
    origin = Origin.MEASURED if inputs.fit else Origin.ASSUMED
    sums += concurrency_sums(deployment, traffic.mean_lengths(busiest), origin)
    question = Question(
        deployment=deployment,
        traffic=traffic,
        targets=inputs.targets,
        replicas=inputs.replicas,
        device_price=inputs.device_price,
        devices=devices,
        token_prices=inputs.token_prices,
        window_requests=inputs.window_requests,
        seed=inputs.seed,
    )
    remarks = []
    if devices > 1 and inputs.hardware.on_gpu:
        remarks.append(
            f"tensor_parallel {devices}: this version does not compute a model on several GPUs yet; the plan is "
            "arithmetic"
        )
    if any(config_window is not None for config_window in inputs.config.windows) and not inputs.fit:
        remarks.append("layers with windows are timed as if they read the whole context: step times are upper bounds")
    return Asked(question, tuple(sums), tuple(remarks))


def _check_factors(inputs: Inputs, classes: set[str]) -> None:
    known = classes | {"all"} | _tenants(inputs.traffic)
    if unknown := sorted(set(inputs.factors) - known):
        raise OperatorError(f"--what-if {unknown[0]}: no class, tenant or option has this name")


def _tenants(traffic: Traffic) -> set[str]:
    parts = getattr(traffic, "streams", ()) or getattr(traffic, "rows", ())
    return {each.tenant for each in parts}


def _computed(inputs: Inputs) -> tuple[Deployment, list[Figure], int]:
    """A deployment by arithmetic, with the engine's own sizes for the device."""
    config, hardware = inputs.config, inputs.hardware
    if (inputs.quantize == "fp8" or inputs.kv_dtype == "fp8") and hardware.on_gpu and hardware.fp8_flop_s is None:
        raise OperatorError(f"fp8 is not computed by {hardware.name}; int8 and int4 are")
    sums = ModelSums.of(config, inputs.quantize, inputs.kv_dtype)
    ranks = inputs.tensor_parallel or smallest_tensor_parallel(config, sums, hardware)
    placement = place_model(
        config,
        sums,
        hardware,
        tensor_parallel=ranks,
        max_model_len=inputs.max_model_len,
        max_running=inputs.max_running,
    )
    fp8 = inputs.quantize == "fp8"
    deployment = Deployment(
        replicas=inputs.replicas or 1,
        times=RooflineTimes(sums, hardware, fp8, ranks),
        least=LeastTimes(sums, hardware, fp8, ranks),
        num_blocks=placement.num_blocks,
        max_running=placement.max_running,
        step_tokens=placement.step_tokens,
        chunk_tokens=placement.chunk_tokens,
        max_model_len=placement.window,
        classes=inputs.classes,
        max_wait_ms=inputs.max_wait_ms,
        windows=placement.groups.windows[1:],
    )
    return deployment, memory_sums(config, sums, placement, Origin.ASSUMED), ranks


def _measured(inputs: Inputs) -> tuple[Deployment, list[Figure], int]:
    """The deployment that was measured, with its own sizes."""
    stored = inputs.fit
    assert stored is not None, "there is no fit"
    if inputs.quantize != "none" or inputs.kv_dtype != "auto" or (inputs.tensor_parallel or 1) != 1:
        raise OperatorError("a fit is of one model in one format: quantize, kv_dtype and tensor_parallel need --device")
    machine = stored.machine
    sums = ModelSums.of(inputs.config)
    packed = machine.weight_bytes / sums.weight_bytes
    sums = replace(sums, weight_bytes=machine.weight_bytes, dense_bytes=packed * sums.dense_bytes)
    deployment = Deployment(
        replicas=inputs.replicas or 1,
        times=stored.fit.times,
        least=LeastTimes(sums, machine.hardware),
        num_blocks=machine.num_blocks,
        max_running=inputs.max_running or machine.max_running,
        step_tokens=machine.step_tokens,
        chunk_tokens=machine.chunk_tokens,
        max_model_len=min(inputs.max_model_len or machine.max_model_len, machine.max_model_len),
        classes=inputs.classes,
        max_wait_ms=inputs.max_wait_ms,
        noise=stored.fit.noise,
        request_ns=machine.request_ns,
    )
    blocks = Figure("blocks", machine.num_blocks, "a replica", Origin.MEASURED, f"of {machine.model} on {machine.name}")
    kv = Figure("KV of a token", sums.kv_token_bytes, "bytes", Origin.COMPUTED, "keys and values of all layers")
    return deployment, [kv, blocks], 1


QUANTIZE: tuple[str, ...] = get_args(Quantize)
KV_DTYPES: tuple[str, ...] = get_args(KVDtype)
