"""Models that another process computes, as their clients see them."""

from collections.abc import Mapping
from pathlib import Path

from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.runtime.loaded_model import ServedModel
from engine.text.processor import TextProcessor
from engine.workers.messages import ModelFacts


def text_processors(paths: Mapping[str, Path], config: EngineConfig) -> dict[str, TextProcessor]:
    """The text processor of each model. A model and its draft model share the memory of equal tokenizers.

    Raises:
        UnsupportedCheckpoint: the files at a path are no checkpoint.
    """
    texts: dict[str, TextProcessor] = {}
    for name in sorted(paths, key=lambda name: name in config.drafts):
        text = open_checkpoint(paths[name], config.weight_cache).text_processor()
        draft = config.drafts.get(name)
        texts[name] = text if draft is None else text.sharing(texts[draft])
    return texts


def served_model(facts: ModelFacts, text: TextProcessor) -> ServedModel:
    """The model whose text is processed here."""
    return ServedModel(
        name=facts.name,
        text=text,
        max_model_len=facts.max_model_len,
        windows=facts.windows,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        created=facts.created,
        version=facts.version,
        prefix_cache=facts.prefix_cache,
        sampling_defaults=facts.sampling_defaults,
        details=facts.details,
        adapter_slots=facts.adapter_slots,
        is_remote=facts.takes_grammars,
    )
