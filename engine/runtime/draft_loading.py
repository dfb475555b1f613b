"""Prepares the draft model of a model: whether it fits, its head, its drafter."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.errors import OutOfDeviceMemory
from engine.memory.kv_memory import InsufficientMemory
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.host_model import HostModel
from engine.runtime.loaded_model import LoadedModel
from engine.speculation.draft_head import make_head
from engine.speculation.draft_model import Drafter, DraftModel
from engine.speculation.host_drafter import HostDrafter
from engine.speculation.shared_table import share_table
from engine.speculation.vocabulary import Vocabulary, VocabularyMismatch, check_same_vocabulary
from engine.text.processor import TextProcessor
from kernels.dispatch import select_step_ops

if TYPE_CHECKING:
    from engine.execution.device.placement import DraftSteps
    from engine.models.transformer import Transformer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedDraft:
    """A draft model with its head, without KV memory for its target's blocks.

    place: makes its drafter, for numbers of blocks and of slots. device_steps: of one on a GPU.
    """

    max_positions: int
    place: Callable[[int, int], Drafter]
    device_steps: "DraftSteps | None" = None

    def proposer(self, num_blocks: int, num_slots: int) -> DraftModel:
        """Raises:
        InsufficientMemory: the GPU has no room for it."""
        try:
            drafter = self.place(num_blocks, num_slots)
        except OutOfDeviceMemory as error:
            raise InsufficientMemory(f"the GPU has no room for the draft model's KV memory: {error}") from error
        return DraftModel(drafter, num_blocks=num_blocks, num_slots=num_slots, max_positions=self.max_positions)


def fitting_draft(
    draft: LoadedModel, name: str, model_config: ModelConfig, text: TextProcessor, config: EngineConfig
) -> LoadedModel | None:
    """The draft model if it can draft for this model; None if it cannot and is not required."""
    served = draft.served
    if draft.config.linear is not None:
        raise UnsupportedCheckpoint(f"{served.name} cannot draft: linear attention is not supported in a draft model")
    try:
        check_same_vocabulary(
            Vocabulary(name, model_config.vocab_size, text.tokenizer),
            Vocabulary(served.name, served.vocab_size, served.text.tokenizer),
        )
    except VocabularyMismatch as error:
        if config.require_drafts:
            raise
        logger.warning("%s", error)
        return None
    return draft


def prepare_draft(
    draft: LoadedModel,
    name: str,
    target: HostModel | None,
    config: EngineConfig,
    max_positions: int,
    *,
    shares_table: bool = True,
) -> PreparedDraft:
    """Prepare `draft` for the model `name`. `target`: None if a GPU computes it. `max_positions`: the draft model's
    maximum context.

    On a CPU it shares the target's embedding table, if it has the same, unless `shares_table` is false. On a GPU its
    CUDA graphs read its own.
    """
    checkpoint = open_checkpoint(draft.path, config.weight_cache)
    if target is None or draft.model is None:
        return _prepare_on_gpu(draft, draft.on_gpu, max_positions, config)
    if shares_table and share_table(target, draft.model, checkpoint):
        logger.info("%s shares the embedding table of %s", draft.served.name, name)
    head = make_head(draft.model, checkpoint, draft.path)
    new_drafter = partial(HostDrafter, draft.model, head, max_positions=max_positions)
    return PreparedDraft(max_positions, lambda blocks, slots: new_drafter(num_blocks=blocks, num_slots=slots))


def _prepare_on_gpu(
    draft: LoadedModel, model: "Transformer | None", max_positions: int, config: EngineConfig
) -> PreparedDraft:
    from engine.speculation.device.draft_placement import largest_drafting, place_drafter  # imports torch
    from engine.speculation.device.drafter import DeviceDrafter
    from engine.speculation.device.frequent_head import make_device_head

    assert model is not None, f"{draft.served.name} is not on the GPU of its target"
    head = make_device_head(model, open_checkpoint(draft.path, config.weight_cache), draft.path)
    new_drafter = partial(DeviceDrafter, model, select_step_ops(model.ops), head, max_positions=max_positions)
    slots = config.scheduler.max_running
    most_rows = max(1, min(slots, config.speculate_below - 1))
    return PreparedDraft(
        max_positions,
        lambda blocks, slots: place_drafter(new_drafter, num_blocks=blocks, num_slots=slots),
        largest_drafting(new_drafter, num_slots=slots, most_rows=most_rows, max_positions=max_positions),
    )
