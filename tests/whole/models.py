"""The models of a run: real schedulers and memory over simulated devices, and a tokenizer of bytes."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from engine.config import SchedulerConfig
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.memory.kv_memory import KVBudget, KVPool
from engine.memory.sequence_states import SequenceStates
from engine.memory.state_pool import StatePool
from engine.runtime.loaded_model import LoadedModel, ServedModel
from engine.scheduling.scheduler import Scheduler
from engine.text.chat_template import ChatTemplate
from engine.text.processor import TextProcessor
from engine.text.tokenizer import Tokenizer
from gateway.config.engine_classes import engine_classes_of
from gateway.config.settings import Settings
from tests.whole.adapters import BASE
from tests.whole.clock import VirtualClock
from tests.whole.executor import SimulatedDevice
from tests.whole.scenario import Config

BYTES, BOS, END = 256, 256, 257
VOCABULARY = 258
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def load(
    config: Config, settings: Settings, clock: VirtualClock, computed: dict[str, set[str]]
) -> tuple[list[LoadedModel], dict[str, SimulatedDevice]]:
    """The models of a gateway's settings, with schedulers and devices of their own."""
    loaded, devices = [], {}
    for name in settings.models:
        scheduling = SchedulerConfig(
            max_running=config.max_running,
            step_tokens=max(config.step_tokens, config.max_running),
            chunk_tokens=max(config.step_tokens, config.max_running),
            classes=engine_classes_of(settings),
        )
        num_states = config.max_running + config.states if config.states else 0
        states = SequenceStates(StatePool(num_states, config.max_running), interval_blocks=2) if num_states else None
        num_blocks = config.blocks * (1 + len(config.windows))
        cache = KVCacheManager(BlockPool(num_blocks), states=states, windows=config.windows)
        slots = config.adapter_slots if name == BASE else 0
        wait_ns = config.adapter_wait_s * 1_000_000_000
        scheduler = Scheduler(scheduling, cache, config.window, adapter_slots=slots, adapter_wait_ns=wait_ns)
        device = SimulatedDevice(
            clock,
            num_blocks,
            BYTES,
            async_depth=config.ahead,
            num_states=num_states,
            windows=config.windows,
            copy_s=config.adapter_copy_ms / 1000,
            computed=computed,
        )
        device.speed.step_ns = config.step_us * (1000 if name == "large" else 300)
        device.speed.token_ns = config.token_us * (1000 if name == "large" else 300)
        windows = {each.name: scheduler.window_tokens_of(each.name) for each in scheduling.classes}
        served = ServedModel(
            name,
            text(),
            scheduler.window_tokens,
            windows,
            VOCABULARY,
            (END,),
            1,
            f"{name}-1",
            None,
            adapter_slots=slots,
        )
        pool = KVPool(num_blocks, 1, KVBudget(num_blocks, "simulated"), groups=1 + len(config.windows))
        loaded.append(LoadedModel(served, Path(name), _NETWORK, scheduler, device, pool))
        devices[name] = device
    return loaded, devices


_NETWORK: Any = SimpleNamespace(config=None)
"""In the place of a model that computes: files of adapters are checked against its config."""


@cache
def text() -> TextProcessor:
    """Bytes as tokens, a beginning, an end, and a template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={each: index for index, each in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer = Tokenizer(backend, special_ids=[BOS, END], bos_token_id=BOS, eos_token_ids=[END], prefix_ids=[BOS])
    return TextProcessor(tokenizer, ChatTemplate(TEMPLATE, {"bos_token": "<s>", "eos_token": "</s>"}))
