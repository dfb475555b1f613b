"""Models, deployments and traffic for tests of the planner."""

from typing import Any

from engine.checkpoints.huggingface.config import config_from_json
from engine.models.config import ModelConfig
from engine.planning.deployment import Deployment
from engine.planning.hardware import DEVICES
from engine.planning.model_sums import ModelSums
from engine.planning.step_features import MeasuredRange, StepFeatures
from engine.planning.step_times import LeastTimes, LinearTimes, RooflineTimes
from engine.planning.traffic import DescribedTraffic, Lengths, Stream
from engine.request import PREMIUM, STANDARD

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
SMOLLM2 = LLAMA_8B | {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def model_config(config: dict[str, Any]) -> ModelConfig:
    return config_from_json(config)


WIDE = MeasuredRange(StepFeatures(10**6, 10**12, 10**4, 10**9))


def linear_times(step_ms: float = 10.0, fitted: MeasuredRange = WIDE) -> LinearTimes:
    """Steps of `step_ms`, and more with their work: 20 us a token of prefill, 0.1 ms a row."""
    return LinearTimes(1e6 * step_ms, 20_000.0, 1.0, 100_000.0, 30.0, fitted)


def deployment(replicas: int = 1, **changes: Any) -> Deployment:
    """Small replicas with linear step times."""
    sums = ModelSums.of(model_config(SMOLLM2))
    fields: dict[str, Any] = {
        "replicas": replicas,
        "times": linear_times(),
        "least": LeastTimes(sums, DEVICES["h100"]),
        "num_blocks": 600,
        "max_running": 16,
        "step_tokens": 512,
        "chunk_tokens": 512,
        "max_model_len": 4096,
        "classes": (PREMIUM, STANDARD),
        "max_wait_ms": {},
    }
    return Deployment(**fields | changes)


def roofline(device: str = "h100") -> RooflineTimes:
    return RooflineTimes(ModelSums.of(model_config(LLAMA_8B)), DEVICES[device])


def traffic(premium: float = 1.0, standard: float = 3.0, hours: int = 1) -> DescribedTraffic:
    """Short requests of two tenants, at these rates per second."""
    streams = (
        Stream(
            tenant="a",
            service_class="premium",
            rates=(premium,) * hours,
            prompt=Lengths(60),
            answer=Lengths(12),
            prefix_tokens=96,
        ),
        Stream(
            tenant="b", service_class="standard", rates=(standard,) * hours, prompt=Lengths(150), answer=Lengths(20)
        ),
    )
    return DescribedTraffic(streams)
