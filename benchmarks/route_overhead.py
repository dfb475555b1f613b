"""Cost of routing to a request: `python -m benchmarks.route_overhead`.

From the parsed request to its route, with the weights that ship, for two models with 64 requests in their queues,
whose waits are predicted as for every request. A named model; `auto` with a short question, with a text as long as the
score reads, and with a long conversation; and a named model that a tenant lets give way. Budget: 0.2 ms in the median.
"""

import statistics
import time
from collections.abc import Callable, Mapping

from engine.config import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import STANDARD, SamplingParams, ServiceClass
from engine.runtime.expected_queue import PredictedWait
from engine.runtime.wait_prediction import WaitPredictor
from engine.scheduling import Scheduler
from engine.scheduling.step_slowdown import StepSlowdown
from engine.simulation import make_request
from gateway.generation.request import Conversation, GenerationRequest
from gateway.generation.route_stage import question_of, token_param
from gateway.routing.names import ModelNames
from gateway.routing.replicas import Replicas
from gateway.routing.router import Router, RoutingInput
from gateway.routing.score import ComplexityScore
from gateway.tenancy.policies import RoutingPolicy, TenantPolicies
from gateway.tenancy.records import Principal

WAITING = 64
ROUNDS = 5_000
BUDGET_MS = 0.2
WORDS = "Explain how the steam engine changed the towns of the north, and what their people thought of it. "


class Queues:
    """Models with as many requests waiting as `WAITING`."""

    def __init__(self, models: tuple[str, ...]) -> None:
        self._predictors = {model: _predictor() for model in models}

    def queue_depth(self, model: str) -> int:
        return self._predictors[model].queue_depth

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> PredictedWait:
        return self._predictors[model].predicted_wait(service_class.name, prompt_tokens)


def _predictor() -> WaitPredictor:
    scheduler = Scheduler(SchedulerConfig(), KVCacheManager(BlockPool(1024)), 4096)
    for number in range(WAITING):
        scheduler.add(make_request(str(number), [1] * 200, arrival=number, params=SamplingParams(max_tokens=64)))
    return WaitPredictor(scheduler, StepSlowdown())


def chat(model: str, *texts: str) -> GenerationRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(texts)]
    return GenerationRequest(
        model=model,
        prompts=(Conversation(messages=({"role": "system", "content": "Be brief."}, *messages)),),
        prompt_param="messages",
        params=SamplingParams(max_tokens=128),
        limit_param="max_tokens",
        default_max_tokens=None,
        stream=False,
        include_usage=False,
    )


def routing(router: Router, request: GenerationRequest, policy: RoutingPolicy) -> Callable[[], object]:
    caller = Principal("tenant", "acme", "standard", "key", policies=TenantPolicies(policy))
    return lambda: router.route(
        RoutingInput(
            request.model,
            lambda: question_of(request),
            caller,
            STANDARD,
            may_degrade=True,
            token_param=token_param(request),
            sticky_id=caller.tenant_id,
        )
    )


def measure(action: Callable[[], object]) -> list[float]:
    """Milliseconds of each call."""
    times_ms = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        action()
        times_ms.append((time.perf_counter() - started) * 1e3)
    return times_ms


def main() -> None:
    names = ModelNames(("large", "small"), {"large": "small"}, {})
    router = Router(names, ComplexityScore.load(), Replicas(Queues(names.served)), saturated_queue=10)
    actions: Mapping[str, Callable[[], object]] = {
        "a named model": routing(router, chat("large", WORDS), RoutingPolicy()),
        "a named model that may give way": routing(router, chat("large", WORDS), RoutingPolicy(degrade=True)),
        "auto, 100 characters": routing(router, chat("auto", WORDS), RoutingPolicy()),
        "auto, 2,000 characters": routing(router, chat("auto", WORDS * 20), RoutingPolicy()),
        "auto, 21 turns of 500 characters": routing(router, chat("auto", *[WORDS * 5] * 21), RoutingPolicy()),
    }
    for name, action in actions.items():
        times_ms = measure(action)
        p50, p99 = statistics.median(times_ms), statistics.quantiles(times_ms, n=100)[98]
        print(f"{name:<34} p50 {p50:.4f} ms   p99 {p99:.4f} ms   {'' if p50 <= BUDGET_MS else 'OVER BUDGET'}".rstrip())


if __name__ == "__main__":
    main()
